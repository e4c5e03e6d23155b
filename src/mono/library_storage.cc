// The list of data pointers that must not move while a library lives.
#include "mono/library_spec.h"

namespace monolayer::mono {
namespace {

// Calls f(name, pointer) for every tensor in the fixed order; `name` is cheap to ignore.
template <typename F>
void each_matrix(const char* name, const ml_matrix& matrix, F&& f) {
  f(name, ".weight", matrix.weight.data);
  f(name, ".scale", matrix.scale.data);
}

template <typename F>
void each_pointer(const LibraryInput& input, F&& f) {
  for (std::size_t i = 0; i < input.layers.size(); ++i) {
    const ml_layer_spec& spec = input.layers[i].spec;
    const auto entry = [&](const char* name, const char* part, const void* data,
                           std::int64_t expert = -1) {
      f(spec.layer_id, name, part, expert, data);
    };
    entry("input_norm", "", spec.input_norm.data);
    entry("post_norm", "", spec.post_norm.data);
    entry("q_norm", "", spec.q_norm.data);
    entry("k_norm", "", spec.k_norm.data);
    entry("index_q_norm", "", spec.index_q_norm.data);
    entry("index_k_norm", "", spec.index_k_norm.data);
    each_matrix("q", spec.q, entry);
    each_matrix("k", spec.k, entry);
    each_matrix("v", spec.v, entry);
    each_matrix("index_q", spec.index_q, entry);
    each_matrix("index_k", spec.index_k, entry);
    each_matrix("o", spec.o, entry);
    each_matrix("router", spec.router, entry);
    entry("router_bias", "", spec.router_bias.data);
    const auto mlp = [&](const ml_mlp& m, std::int64_t expert, const char* gate, const char* up,
                         const char* down) {
      const auto part = [&](const char* name, const char* what, const void* data) {
        entry(name, what, data, expert);
      };
      each_matrix(gate, m.gate, part);
      each_matrix(up, m.up, part);
      each_matrix(down, m.down, part);
    };
    mlp(spec.shared, -1, "shared.gate", "shared.up", "shared.down");
    mlp(spec.stacked, -1, "experts.gate", "experts.up", "experts.down");
    for (std::size_t e = 0; e < input.layers[i].experts.size(); ++e) {
      mlp(input.layers[i].experts[e], static_cast<std::int64_t>(e), "gate", "up", "down");
    }
    if (i >= input.caches.size()) continue;
    entry("k cache", "", input.caches[i].k.data);
    entry("v cache", "", input.caches[i].v.data);
    entry("index cache", "", input.caches[i].index.data);
  }
}

}  // namespace

std::vector<const void*> storage_pointers(const LibraryInput& input) {
  std::vector<const void*> pointers;
  each_pointer(input, [&](std::int64_t, const char*, const char*, std::int64_t, const void* data) {
    pointers.push_back(data);
  });
  return pointers;
}

std::string storage_name(const LibraryInput& input, std::int64_t i) {
  std::string found;
  each_pointer(input, [&](std::int64_t layer, const char* name, const char* part,
                          std::int64_t expert, const void*) {
    if (i-- != 0) return;
    found = "layer " + std::to_string(layer) + ", ";
    if (expert >= 0) found += "experts[" + std::to_string(expert) + "].";
    found += std::string(name) + part;
  });
  return found;
}

}  // namespace monolayer::mono
