// What the caller hands to the library, checked: model, layers, caches and place in the group,
// and the same as the executor takes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "m3/config.h"
#include "mono/executor.h"
#include "mono/library_tensor.h"
#include "monolayer/monolayer.h"

namespace monolayer::mono {

// Caller's structs in full size, with their expert arrays; tensors inside stay borrowed.
struct LayerInput {
  ml_layer_spec spec{};
  std::vector<ml_mlp> experts;  // empty where the stacked table is used
};

struct LibraryInput {
  ml_model model{};
  std::vector<LayerInput> layers;
  std::vector<ml_cache_spec> caches;
  ml_tp_context context{};
};

// Copies the caller's structs, whose size fields may be smaller than ours (missing fields are
// zero). kInvalidArgument for null pointers, counts below 1, sizes that differ inside one array or
// exceed ours.
Result<LibraryInput> read_input(const ml_model* model, const ml_layer_spec* layers,
                                std::int64_t layer_count, const ml_cache_spec* caches,
                                std::int64_t cache_count, const ml_tp_context* context);

// The model's constants as the rest of the project keeps them. kInvalidArgument naming field, value
// and bound; kUnsupported where the value is sane and nothing here runs it.
Result<m3::ModelConfig> check_model(const ml_model& model);

// Size, rank and device. kInvalidArgument; kUnsupported naming the dimension that does not divide.
Result<m3::RankShape> check_context(const ml_tp_context& context, const m3::ModelConfig& config,
                                    const DeviceTraits& device);

// Everything of create() that one rank can see by itself. Allocates nothing but the views.
// The group of the result is null: the library fills it in.
Result<ExecutorConfig> check_input(const LibraryInput& input, const DeviceTraits& device);

// Data pointers of every weight and cache, in a fixed order (null where a tensor is absent), and
// the name of entry `i` of that list.
std::vector<const void*> storage_pointers(const LibraryInput& input);
std::string storage_name(const LibraryInput& input, std::int64_t i);

}  // namespace monolayer::mono
