#include "backend/cuda/m3_shape.h"

#include <initializer_list>

namespace monolayer::cuda {
namespace {

// Parts times their columns are the row, so that a part's tiles give the number of parts too.
bool is(const Matrix& m, Format format, int tiles) {
  return m.row_groups > 0 && m.format == format && m.tiles == tiles &&
         m.parts * m.part_cols == m.cols;
}

bool is_mlp(const Matrix& gate_up, const Matrix& down) {
  return is(gate_up, Format::kMXFP4, kM3GateUpTiles) && gate_up.parts == 8 &&
         is(down, Format::kMXFP4, kM3DownTiles) && down.span == 2;
}

struct Size {
  const char* name;
  std::int32_t is, wanted;
};
std::string first_refused(std::initializer_list<Size> sizes) {
  for (const Size& size : sizes) {
    if (size.is != size.wanted)
      return std::string(size.name) + ": " + std::to_string(size.is) + ", not " +
             std::to_string(size.wanted);
  }
  return {};
}
// Of every layer, then of sparse ones.
std::string refused_size(const Shape& s) {
  return first_refused({{"hidden_size", s.hidden, 6144},
                        {"head_dim", s.head_dim, 128},
                        {"rotary_dim", s.rotary, 64},
                        {"query heads to a KV head", s.group, 16}});
}
std::string refused_sparse_size(const Shape& s) {
  return first_refused({{"the index's head_dim", s.index_dim, 128},
                        {"block size", s.block_size, 128},
                        {"top blocks", s.topk, 16},
                        {"experts of a token", s.chosen, 4},
                        {"experts", s.experts, 128}});
}

// What both kinds of layers have.
std::string refused_attention(const Shape& s, const Layer& l) {
  if (s.kv_fp8 == 0) return "keys and values are cached in BF16, not E4M3";
  if (!is(l.qkv, Format::kE4M3Half, kM3ProjectionTiles) || l.qkv.parts != 8)
    return "the weights of q, k and v are not FP8 of M3's shape";
  if (!is(l.o, Format::kE4M3Half, kM3OutputTiles))
    return "the weights of o are not FP8 of M3's shape";
  return {};
}

}  // namespace

std::string m3_refusal(const Shape& s, const Layer& l) {
  if (l.sparse == 0 || l.moe == 0) return "a layer is not sparse in attention and experts";
  if (std::string size = refused_size(s); !size.empty()) return size;
  if (std::string size = refused_sparse_size(s); !size.empty()) return size;
  if (std::string why = refused_attention(s, l); !why.empty()) return why;
  if (s.index_fp8 == 0) return "index keys are cached in BF16, not E4M3";
  if (!(l.index_q_scale > 0)) return "the norm of index queries is too large for FP16";
  if (!is(l.router, Format::kBF16, kM3RouterTiles) &&
      !is(l.router, Format::kF32, 3 * kM3RouterTiles))
    return "the router's weights are not F32 or BF16 of M3's shape";
  if (!is_mlp(l.gate_up, l.down)) return "the experts' weights are not MXFP4 of M3's shape";
  if (!is_mlp(l.shared_gate_up, l.shared_down))
    return "the shared expert's weights are not MXFP4 of M3's shape";
  // A block takes the same columns of the stream in both stages that add to it (device/words.cuh).
  for (const Matrix* m : {&l.o, &l.down, &l.shared_down}) {
    if (m->row_groups * 16 != s.hidden) return "o or down does not have hidden_size rows";
  }
  return {};
}

bool m3_head(const Shape& s, const Matrix& head) {
  return s.hidden == 6144 && is(head, Format::kBF16, kM3HeadTiles) && head.parts == 8;
}

std::string m3_dense_refusal(const Shape& s, const Layer& l) {
  if (l.sparse != 0 || l.moe != 0) return "a layer is not dense in attention and MLP";
  if (std::string size = refused_size(s); !size.empty()) return size;
  if (std::string why = refused_attention(s, l); !why.empty()) return why;
  const Matrix& gate_up = l.shared_gate_up;
  const Matrix& down = l.shared_down;
  if (!is(gate_up, Format::kE4M3Half, kM3DenseGateUpTiles) || gate_up.parts != 8 ||
      !is(down, Format::kE4M3Half, kM3DenseDownTiles))
    return "the MLP's weights are not FP8 of M3's shape";
  // Sums of the first half of K wait where those of projections were.
  if (gate_up.row_groups * 16 > kProjectionParts * s.projected)
    return "the MLP is " + std::to_string(gate_up.row_groups * 16) + " rows, more than " +
           std::to_string(kProjectionParts) + " times the " + std::to_string(s.projected) +
           " of the projections";
  for (const Matrix* m : {&l.o, &down}) {
    if (m->row_groups * 16 != s.hidden) return "o or down does not have hidden_size rows";
  }
  return {};
}

}  // namespace monolayer::cuda
