#include "backend/cuda/m3_shape.h"

namespace monolayer::cuda {
namespace {

// Parts times their columns are the row, so that a part's tiles give the number of parts too.
bool is(const Matrix& m, Format format, int tiles) {
  return m.row_groups > 0 && m.format == format && m.tiles == tiles &&
         m.parts * m.part_cols == m.cols;
}

bool is_mlp(const Matrix& gate_up, const Matrix& down) {
  return is(gate_up, Format::kMXFP4, kM3GateUpTiles) && gate_up.parts == 8 &&
         is(down, Format::kMXFP4, kM3DownTiles);
}

}  // namespace

bool m3_layer(const Shape& s, const Layer& l) {
  return s.hidden == 6144 && s.head_dim == 128 && s.index_dim == 128 && s.rotary == 64 &&
         s.group == 16 && s.block_size == 128 && s.topk == 16 && s.chosen == 4 &&
         s.experts == 128 && s.kv_fp8 != 0 && s.index_fp8 != 0 && l.sparse != 0 && l.moe != 0 &&
         is(l.qkv, Format::kE4M3Half, kM3ProjectionTiles) && l.qkv.parts == 8 &&
         is(l.o, Format::kE4M3Half, kM3OutputTiles) &&
         is(l.router, Format::kBF16, kM3RouterTiles) && is_mlp(l.gate_up, l.down) &&
         is_mlp(l.shared_gate_up, l.shared_down);
}

}  // namespace monolayer::cuda
