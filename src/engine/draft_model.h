// A draft beside its target: opened, loaded with caches of its own, ready to speculate.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/cpu/cache.h"
#include "backend/cpu/draft.h"
#include "checkpoint/checkpoint.h"
#include "core/status.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"
#include "engine/speculation.h"
#include "m3/draft.h"

namespace monolayer::engine {

// Headers and config only. Not copied or moved while anything borrows from it.
struct OpenDraft {
  std::string folder;
  Checkpoint checkpoint;
  m3::DraftConfig config;
  // Of one block: draft entries, and the state behind its last position.
  std::int64_t block_bytes(const m3::ModelConfig& target) const;
  // What of that is the host's: with "cuda" the entries lie on the device.
  std::int64_t host_block_bytes(const m3::ModelConfig& target, const std::string& backend) const;
};

// `draft`: a folder, or a name in the Hugging Face cache. Refused with both figures if it does not
// fit `target`.
Result<std::unique_ptr<OpenDraft>> open_draft(const std::string& draft,
                                              const m3::ModelConfig& target);

class DraftRun {
 public:
  // Borrows all three; makes the target keep the states the draft reads. `run` was loaded with
  // room for the draft (NativeRunOptions::draft_bytes). Errors of check_speculation(), of the
  // files, and kUnsupported for a target that keeps no states or a draft that the device's kernels
  // do not take.
  static Result<std::unique_ptr<DraftRun>> load(const OpenDraft& draft, const OpenModel& target,
                                                NativeRun& run, SpeculationOptions options);

  Speculator& speculator() { return *speculator_; }
  cpu::Draft& draft() { return *draft_; }
  cpu::CachePool& pool() { return *pool_; }

 private:
  DraftRun() = default;
  m3::DraftWeights weights_;
  std::unique_ptr<cpu::Draft> draft_;
  std::unique_ptr<cpu::CachePool> pool_;
  std::unique_ptr<Speculator> speculator_;
};

}  // namespace monolayer::engine
