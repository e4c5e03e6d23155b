#include "backend/cpu/rank_slice.h"

namespace monolayer::cpu {
namespace {

const void* advance(const void* at, std::int64_t bytes) {
  return at == nullptr ? nullptr : static_cast<const std::byte*>(at) + bytes;
}

std::int64_t column_bytes(Format format, std::int64_t columns) {
  switch (format) {
    case Format::kF32:
      return columns * 4;
    case Format::kBF16:
      return columns * 2;
    case Format::kMXFP4:
      return columns / 2;
    default:
      return columns;
  }
}

MlpView slice_mlp(const MlpView& whole, std::int64_t rank, std::int64_t width) {
  if (whole.empty()) return {};
  return {.gate = slice_rows(whole.gate, rank * width, width),
          .up = slice_rows(whole.up, rank * width, width),
          .down = slice_columns(whole.down, rank * width, width)};
}

}  // namespace

Matrix slice_rows(const Matrix& w, std::int64_t first, std::int64_t count) {
  Matrix part = w;
  part.rows = count;
  part.data = advance(w.data, first * w.row_bytes);
  part.scales = advance(w.scales, first * (w.format == Format::kE4M3 ? 4 : w.scale_row_bytes));
  return part;
}

Matrix slice_columns(const Matrix& w, std::int64_t first, std::int64_t count) {
  Matrix part = w;
  part.cols = count;
  part.data = advance(w.data, column_bytes(w.format, first));
  const bool grouped = w.format == Format::kMXFP8 || w.format == Format::kMXFP4;
  if (grouped) part.scales = advance(w.scales, first / 32);
  return part;
}

ModelView slice_model(const ModelView& whole, const m3::ModelConfig& config,
                      const m3::RankShape& shape) {
  ModelView part = whole;
  const std::int64_t head = config.head_dim, index = config.index_dim;
  part.lm_head = slice_rows(whole.lm_head, shape.rank * shape.vocab_rows, shape.vocab_rows);
  for (LayerView& layer : part.layers) {
    layer.q = slice_rows(layer.q, shape.first_head * head, shape.heads * head);
    layer.k = slice_rows(layer.k, shape.first_kv_head * head, shape.kv_heads * head);
    layer.v = slice_rows(layer.v, shape.first_kv_head * head, shape.kv_heads * head);
    layer.o = slice_columns(layer.o, shape.first_head * head, shape.heads * head);
    if (layer.sparse) {
      layer.index_q =
          slice_rows(layer.index_q, shape.first_kv_head * index, shape.kv_heads * index);
    }
    layer.dense = slice_mlp(layer.dense, shape.rank, shape.dense_width);
    layer.shared = slice_mlp(layer.shared, shape.rank, shape.shared_width);
    for (MlpView& expert : layer.experts) {
      expert = slice_mlp(expert, shape.rank, shape.expert_width);
    }
  }
  return part;
}

}  // namespace monolayer::cpu
