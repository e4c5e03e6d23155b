// One answer in the making: its requests to the engine, and what of it is not out yet.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/service.h"

namespace monolayer::server {

struct Service::Job {
  std::shared_ptr<Responder> out;
  std::unique_ptr<Answer> answer;
  std::shared_ptr<const GenerationSpec> spec;
  std::vector<std::uint64_t> ids;
  std::vector<engine::RequestOutput> held;
  std::vector<bool> waiting, first;
  std::vector<std::int64_t> generated;
  std::vector<std::chrono::steady_clock::time_point> last;
  std::int64_t cached_tokens = 0;
  std::string finish;       // of each answer, in the order of their ends
  double first_token = -1;  // seconds after the request was taken
  std::chrono::steady_clock::time_point taken = std::chrono::steady_clock::now();
  std::size_t unfinished = 0;
  bool annotated = false;

  // For the access log.
  void annotate() {
    annotated = true;
    std::int64_t completion = 0;
    for (const std::int64_t n : generated) completion += n;
    std::string& note = out->note;
    if (!note.empty()) note += ',';
    note.append("\"prompt_tokens\":").append(std::to_string(spec->prompt_tokens()));
    note.append(",\"completion_tokens\":").append(std::to_string(completion));
    note.append(",\"cached_tokens\":").append(std::to_string(cached_tokens));
    note.append(spec->stream ? ",\"stream\":true" : ",\"stream\":false");
    note.append(",\"first_token_seconds\":");
    note.append(first_token < 0 ? "null" : std::to_string(first_token));
    note.append(",\"finish_reason\":\"").append(finish).append("\"");
  }
  std::chrono::steady_clock::time_point last_sent;
};

}  // namespace monolayer::server
