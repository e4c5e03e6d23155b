// Check mode for a whole library: a backend whose executors compare every layer with the native
// one.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "dispatch/check.h"
#include "mono/library.h"

namespace monolayer::dispatch {

// Wraps a backend of the CPU: same traits, same refusals, so that check mode takes the same steps.
// A difference is the failing forward's error and ends the library. Not shared between ranks.
class CheckedBackend : public mono::LibraryBackend {
 public:
  // `layer_ids`: of the specs, for messages; empty: the executor's indices are named.
  explicit CheckedBackend(mono::LibraryBackend& fused, std::vector<std::int64_t> layer_ids = {})
      : fused_(fused), layer_ids_(std::move(layer_ids)) {}

  const mono::DeviceTraits& traits() const override { return fused_.traits(); }
  Status supports(const mono::ExecutorConfig& config) const override {
    return fused_.supports(config);
  }
  std::unique_ptr<mono::Construction> construct(mono::ExecutorConfig config,
                                                const mono::BuildOptions& options) override;

 private:
  mono::LibraryBackend& fused_;
  const std::vector<std::int64_t> layer_ids_;
};

}  // namespace monolayer::dispatch
