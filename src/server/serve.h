// The whole server: a model, an engine and HTTP, from options to the end of the process's work.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "core/status.h"
#include "engine/native_run.h"
#include "server/fields.h"
#include "server/speculative_flags.h"

namespace monolayer::server {

struct ServeOptions {
  std::string model_folder, model_flag;  // what is loaded, and how the user called it
  std::vector<std::string> served_names;
  std::string host = "0.0.0.0";
  std::int64_t port = 8000;
  std::string api_key;
  std::int64_t threads = 0;
  std::string path = "auto", backend = "cpu";
  std::int64_t ranks = 1;       // tensor-parallel
  bool rank_processes = false;  // each a process; otherwise threads of this one
  engine::CacheTypes cache_types;
  std::int64_t max_model_len = 0;   // 0: what the model and the caches take
  std::int64_t kv_cache_bytes = 0;  // 0: 1 GiB, or what max_model_len needs
  std::int64_t num_blocks = 0;      // instead of kv_cache_bytes
  std::int64_t max_num_seqs = 64, max_num_batched_tokens = 2048;
  std::int64_t long_prefill_token_threshold = 0;
  bool prefix_caching = true, chunked_prefill = true;
  SpeculationChoice speculation;
  std::string request_log;  // file, or "-" for standard error; empty: none
  std::int64_t stream_interval = 1, max_waiting = 4096;
  std::int64_t grace_seconds = 30;
  std::string chat_template_kwargs;  // JSON object
  std::string version;
  Json flags = Json::object();  // every flag's effective value, for /server_info
  ReadProgressCallback progress;
  // Called once the port is open, and once requests are taken.
  std::function<void(std::uint16_t port)> on_listening;
  std::function<void(const Json& info)> on_ready;
};

// Returns after SIGTERM or SIGINT, when everything is answered or aborted; or with the reason why
// there was nothing to serve.
Status serve(const ServeOptions& options);

}  // namespace monolayer::server
