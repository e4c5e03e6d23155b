// Weights asked for while a worker waits for its inputs: which bytes it will read next is known
// long before their activations are.
#include <algorithm>

#include "backend/cpu/layer_stages.h"

namespace monolayer::cpu {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kLinesAtOnce = 8;  // between two looks at what is waited for
constexpr std::int64_t kAheadBytes = 192
                                     << 10;  // of one wait's stage: it must stay in the L2 cache

void add_rows(const Matrix& w, std::int64_t begin, std::int64_t end,
              std::vector<AheadPiece>& pieces) {
  if (begin >= end) return;
  const std::int64_t scales = w.format == Format::kMXFP8 || w.format == Format::kMXFP4 ? w.cols / 32
                              : w.format == Format::kE4M3 && w.scales != nullptr       ? 4
                                                                                       : 0;
  pieces.push_back({static_cast<const std::byte*>(w.data) + begin * w.row_bytes, w.row_bytes,
                    stored_row_bytes(w) - scales, end - begin});
}

}  // namespace

// The first stage at or after `index` that reads weights, -1 if which ones is not known yet.
int LayerStages::next_reader(const mono::LayerPlan& plan, int index) {
  for (int s = index; s < static_cast<int>(plan.steps.size()); ++s) {
    switch (plan.steps[static_cast<std::size_t>(s)].stage) {
      case mono::Stage::kProject:
      case mono::Stage::kOutput:
      case mono::Stage::kRouter:
        return s;
      case mono::Stage::kRoute:
      case mono::Stage::kGateUp:
        return -1;
      case mono::Stage::kDown:
        return s == index ? s : -1;
      default:
        break;
    }
  }
  return -1;
}

void LayerStages::plan_ahead(std::int64_t layer, const mono::LayerPlan& plan, int step,
                             Worker& worker) const {
  const LayerView& view = views_[static_cast<std::size_t>(layer)];
  const auto id = static_cast<int>(&worker - workers_.data());
  std::vector<AheadPiece>& pieces = worker.ahead.pieces;
  pieces.clear();
  const mono::PlanStep& reader = plan.steps[static_cast<std::size_t>(step)];
  for (const mono::Task& task : reader.tasks) {
    if (task.worker != id) continue;
    const std::int64_t begin = task.units.begin, end = task.units.end;
    switch (reader.stage) {
      case mono::Stage::kProject: {
        std::int64_t at = 0;
        for (const Matrix* w : {&view.q, &view.k, &view.v, &view.index_q, &view.index_k}) {
          if (w->rows == 0) continue;
          add_rows(*w, std::max(begin, at) - at, std::min(end, at + w->rows) - at, pieces);
          at += w->rows;
        }
        break;
      }
      case mono::Stage::kOutput:
        add_rows(view.o, begin, end, pieces);
        break;
      case mono::Stage::kRouter:
        add_rows(view.router, begin, end, pieces);
        break;
      default:
        for (const MlpGroup& group : worker.mlp.groups) {
          add_rows(group.mlp->down, begin, std::min(end, begin + 32), pieces);
        }
    }
  }
}

bool LayerStages::look_ahead(std::int64_t layer, const mono::LayerPlan& plan, int index,
                             int worker_index) {
  Worker& worker = workers_[static_cast<std::size_t>(worker_index)];
  Ahead& ahead = worker.ahead;
  const int reader = next_reader(plan, index);
  if (reader < 0) return false;
  if (ahead.prepared != step_ || ahead.layer != layer || ahead.reader != reader) {
    plan_ahead(layer, plan, reader, worker);
    ahead.prepared = step_;
    ahead.layer = layer;
    ahead.reader = reader;
    ahead.piece = 0;
    ahead.row = ahead.at = 0;
    ahead.left = kAheadBytes;
  }
  for (std::int64_t lines = 0; lines < kLinesAtOnce; ++lines) {
    if (ahead.left <= 0 || ahead.piece == ahead.pieces.size()) return false;
    const AheadPiece& piece = ahead.pieces[ahead.piece];
    __builtin_prefetch(piece.data + ahead.row * piece.row_bytes + ahead.at, 0, 2);
    ahead.at += kLine;
    ahead.left -= kLine;
    if (ahead.at < piece.stored) continue;
    ahead.at = 0;
    if (++ahead.row < piece.rows) continue;
    ahead.row = 0;
    ++ahead.piece;
  }
  return true;
}

}  // namespace monolayer::cpu
