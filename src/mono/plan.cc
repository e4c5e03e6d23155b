#include "mono/plan.h"

#include <algorithm>
#include <utility>

#include "mono/plan_work.h"

namespace monolayer::mono {
namespace {

constexpr std::int64_t kOutputAlign = 8;  // output rows of a projection
constexpr std::int64_t kRouterAlign = 4;  // experts

class Builder {
 public:
  explicit Builder(const PlanInput& input) : in_(input) {
    plan_.sparse = in_.sparse;
    plan_.moe = in_.moe;
    plan_.rows = in_.rows;
    plan_.workers = in_.workers;
  }

  LayerPlan build() {
    norm(Stage::kInputNorm);
    project();
    heads();
    if (in_.sparse) score();
    attention();
    output(Stage::kOutput, in_.output, {Region::kAttended, all_pairs()});
    norm(Stage::kPostNorm);
    if (in_.moe) route();
    gate_up();
    output(Stage::kDown, in_.down, {Region::kActivations, {0, in_.workers}});
    derive_waits();
    place_regions();
    return std::move(plan_);
  }

 private:
  bool repeats_norm() const { return in_.rows < repeated_norm_rows(in_.workers); }
  std::int64_t all_heads() const {
    return in_.heads + 2 * in_.kv_heads + (in_.sparse ? in_.index_heads + 1 : 0);
  }
  std::int64_t parts() const { return static_cast<std::int64_t>(in_.attention.size()); }
  Extent all_pairs() const { return {0, parts() * in_.pairs_per_part}; }

  PlanStep& begin(Stage stage, std::int64_t units) {
    PlanStep& step = plan_.steps.emplace_back();
    step.stage = stage;
    step.units = units;
    return step;
  }
  static void add(PlanStep& step, int worker, Extent units, std::int64_t bytes,
                  std::vector<Access> reads, std::vector<Access> writes) {
    if (units.empty()) return;
    step.tasks.push_back({static_cast<std::int16_t>(worker), units, bytes});
    step.reads.push_back(std::move(reads));
    step.writes.push_back(std::move(writes));
  }

  void norm(Stage stage) {
    PlanStep& step = begin(stage, in_.rows);
    step.repeated = repeats_norm();
    for (int w = 0; w < in_.workers; ++w) {
      const Extent rows =
          step.repeated ? Extent{0, in_.rows} : equal_share(in_.rows, w, in_.workers);
      add(step, w, rows, 0, {{Region::kStream, {0, in_.hidden}}}, {{Region::kNormed, rows}});
    }
  }

  void project() {
    std::int64_t units = 0;
    for (const WorkItem& item : in_.projections) units += item.units;
    PlanStep& step = begin(Stage::kProject, units);
    for (int w = 0; w < in_.workers; ++w) {
      const Extent mine = work_share(in_.projections, w, in_.workers, kOutputAlign);
      std::int64_t bytes = 0, at = 0;
      for (const WorkItem& item : in_.projections) {
        const Extent part{std::max(mine.begin, at), std::min(mine.end, at + item.units)};
        if (!part.empty()) bytes += part.size() * item.bytes;
        at += item.units;
      }
      add(step, w, mine, bytes, {{Region::kNormed, {0, in_.rows}}}, {{Region::kProjected, mine}});
    }
  }

  // Columns of head `h` in the order q, k, v, index q, index k.
  Extent head_columns(std::int64_t h) const {
    const std::int64_t main = in_.heads + 2 * in_.kv_heads;
    if (h < main) return {h * in_.head_dim, (h + 1) * in_.head_dim};
    const std::int64_t begin = main * in_.head_dim + (h - main) * in_.index_dim;
    return {begin, begin + in_.index_dim};
  }

  // A head goes to the worker that projects its last column: most heads need no hand-off.
  void heads() {
    const PlanStep project = plan_.steps.back();
    PlanStep& step = begin(Stage::kHeads, all_heads());
    std::int64_t h = 0;
    for (const Task& task : project.tasks) {
      const std::int64_t first = h;
      while (h < all_heads() && head_columns(h).end <= task.units.end) ++h;
      if (h == first) continue;
      add(step, task.worker, {first, h}, 0,
          {{Region::kProjected, {head_columns(first).begin, head_columns(h - 1).end}}},
          {{Region::kHeads, {first, h}}});
    }
  }

  void score() {
    std::vector<WorkItem> items;
    std::int64_t units = 0;
    for (const ScorePart& part : in_.scores) {
      items.push_back({part.pages, part.rows, in_.score_bytes});
      units += part.pages;
    }
    score_units_ = units;
    if (units == 0) return;
    const std::int64_t first = in_.heads + 2 * in_.kv_heads;
    PlanStep& step = begin(Stage::kScore, units);
    for (int w = 0; w < in_.workers; ++w) {
      const Extent mine = work_share(items, w, in_.workers, 1);
      add(step, w, mine, mine.size() * in_.score_bytes, {{Region::kHeads, {first, all_heads()}}},
          {{Region::kScores, mine}});
    }
  }

  // Scoring units that hold scores of rows [begin, end).
  Extent scores_of(Extent rows) const {
    Extent out{score_units_, 0};
    std::int64_t at = 0;
    for (const ScorePart& part : in_.scores) {
      if (part.first_row < rows.end && part.first_row + part.rows > rows.begin) {
        out = {std::min(out.begin, at), std::max(out.end, at + part.pages)};
      }
      at += part.pages;
    }
    return out;
  }

  // Attention parts that own units [begin, end).
  Extent parts_of(Extent units) const {
    Extent out{parts(), 0};
    std::int64_t at = 0;
    for (std::int64_t p = 0; p < parts(); ++p) {
      const std::int64_t end = at + in_.attention[static_cast<std::size_t>(p)].chunks;
      if (at < units.end && end > units.begin) out = {std::min(out.begin, p), p + 1};
      at = end;
    }
    return out;
  }
  std::int64_t first_unit_of(std::int64_t part) const {
    std::int64_t at = 0;
    for (std::int64_t p = 0; p < part; ++p) at += in_.attention[static_cast<std::size_t>(p)].chunks;
    return at;
  }

  struct Wave {
    Extent units, pairs;
  };

  std::vector<Wave> waves() const {
    std::int64_t total = 0;
    for (const AttentionPart& part : in_.attention) total += part.chunks;
    std::vector<Wave> out;
    for (std::int64_t at = 0; at < total; at += in_.wave_units) {
      const Extent units{at, std::min(total, at + in_.wave_units)};
      const Extent touched = parts_of(units);
      out.push_back(
          {units, {touched.begin * in_.pairs_per_part, touched.end * in_.pairs_per_part}});
    }
    return out;
  }
  static Extent shifted(Extent extent, std::int64_t by) {
    return {extent.begin + by, extent.end + by};
  }
  Extent units_of(const Wave& wave, int worker) const {
    return shifted(equal_share(wave.units.size(), worker, in_.workers), wave.units.begin);
  }
  Extent pairs_of(const Wave& wave, int worker) const {
    return shifted(equal_share(wave.pairs.size(), worker, in_.workers), wave.pairs.begin);
  }
  Extent parts_of_pairs(Extent pairs) const {
    if (pairs.empty()) return {parts(), 0};
    return {pairs.begin / in_.pairs_per_part, (pairs.end - 1) / in_.pairs_per_part + 1};
  }

  void attention() {
    const std::vector<Wave> all = waves();
    if (in_.sparse) select(all);
    for (const Wave& wave : all) {
      attend(wave);
      merge(wave);
    }
  }

  // Whoever attends to a part's blocks, or merges its chunks, chooses the blocks for itself: a
  // choice costs less than waiting for somebody else's.
  void select(const std::vector<Wave>& all) {
    PlanStep& step = begin(Stage::kSelect, parts());
    step.repeated = true;
    for (int w = 0; w < in_.workers; ++w) {
      Extent mine{parts(), 0};
      for (const Wave& wave : all) {
        for (const Extent part : {parts_of(units_of(wave, w)), parts_of_pairs(pairs_of(wave, w))}) {
          if (part.empty()) continue;
          mine = {std::min(mine.begin, part.begin), std::max(mine.end, part.end)};
        }
      }
      if (mine.empty()) continue;
      std::vector<Access> reads;
      const Extent scores = scores_of(rows_of(mine));
      if (!scores.empty()) reads.push_back({Region::kScores, scores});
      add(step, w, mine, 0, std::move(reads), {{Region::kSelections, mine}});
    }
  }

  Extent rows_of(Extent part_range) const {
    const AttentionPart& first = in_.attention[static_cast<std::size_t>(part_range.begin)];
    const AttentionPart& last = in_.attention[static_cast<std::size_t>(part_range.end - 1)];
    return {first.first_row, last.first_row + last.rows};
  }

  void attend(const Wave& wave) {
    PlanStep& step = begin(Stage::kAttend, wave.units.size());
    step.first_unit = wave.units.begin;
    const std::int64_t group = in_.heads / in_.kv_heads;
    for (int w = 0; w < in_.workers; ++w) {
      const Extent mine = units_of(wave, w);
      if (mine.empty()) continue;
      std::vector<Access> reads;
      const Extent touched = parts_of(mine);
      std::vector<bool> seen(static_cast<std::size_t>(in_.kv_heads));
      for (std::int64_t p = touched.begin; p < touched.end; ++p) {
        const std::int64_t g = in_.attention[static_cast<std::size_t>(p)].kv_head;
        if (seen[static_cast<std::size_t>(g)]) continue;
        seen[static_cast<std::size_t>(g)] = true;
        reads.push_back({Region::kHeads, {g * group, (g + 1) * group}});
        reads.push_back({Region::kHeads, {in_.heads + g, in_.heads + g + 1}});
        const std::int64_t value = in_.heads + in_.kv_heads + g;
        reads.push_back({Region::kHeads, {value, value + 1}});
      }
      if (in_.sparse) reads.push_back({Region::kSelections, touched});
      add(step, w, mine, mine.size() * in_.attend_bytes, std::move(reads),
          {{Region::kPartials, shifted(mine, -wave.units.begin)}});
    }
  }

  // Pairs of the part that an earlier wave left unfinished; only the first part can be.
  Extent begun_before(const Wave& wave) const {
    const std::int64_t part = wave.pairs.begin / in_.pairs_per_part;
    if (first_unit_of(part) >= wave.units.begin) return {};
    return {wave.pairs.begin, wave.pairs.begin + in_.pairs_per_part};
  }

  void merge(const Wave& wave) {
    PlanStep& step = begin(Stage::kMerge, wave.pairs.size());
    step.first_unit = wave.pairs.begin;
    for (int w = 0; w < in_.workers; ++w) {
      const Extent mine = pairs_of(wave, w);
      if (mine.empty()) continue;
      const Extent touched = parts_of_pairs(mine);
      const Extent units{std::max(wave.units.begin, first_unit_of(touched.begin)),
                         std::min(wave.units.end, first_unit_of(touched.end))};
      std::vector<Access> reads{{Region::kPartials, shifted(units, -wave.units.begin)}};
      if (in_.sparse) reads.push_back({Region::kSelections, touched});
      const Extent continued = begun_before(wave);
      const Extent state{std::max(mine.begin, continued.begin), std::min(mine.end, continued.end)};
      if (!state.empty()) reads.push_back({Region::kMergeState, state});
      add(step, w, mine, 0, std::move(reads),
          {{Region::kMergeState, mine}, {Region::kAttended, mine}});
    }
  }

  void output(Stage stage, const WorkItem& item, const Access& input) {
    PlanStep& step = begin(stage, in_.hidden);
    for (int w = 0; w < in_.workers; ++w) {
      const Extent mine = equal_share(in_.hidden, w, in_.workers, kOutputAlign);
      std::vector<Access> reads{input, {Region::kStream, mine}};
      if (stage == Stage::kDown && in_.moe) reads.push_back({Region::kRoutes, {0, 1}});
      add(step, w, mine, mine.size() * item.bytes, std::move(reads), {{Region::kStream, mine}});
    }
  }

  void route() {
    PlanStep& step = begin(Stage::kRouter, in_.router.units);
    for (int w = 0; w < in_.workers; ++w) {
      const Extent mine = work_share({&in_.router, 1}, w, in_.workers, kRouterAlign);
      add(step, w, mine, mine.size() * in_.router.bytes, {{Region::kNormed, {0, in_.rows}}},
          {{Region::kLogits, mine}});
    }
    PlanStep& choose = begin(Stage::kRoute, 1);
    choose.repeated = true;
    for (int w = 0; w < in_.workers; ++w) {
      add(choose, w, {0, 1}, 0, {{Region::kLogits, {0, in_.router.units}}},
          {{Region::kRoutes, {0, 1}}});
    }
  }

  void gate_up() {
    std::int64_t total = 0;
    for (const WorkItem& item : in_.gate_up) total += item.units * item.bytes;
    PlanStep& step = begin(Stage::kGateUp, in_.workers);
    for (int w = 0; w < in_.workers; ++w) {
      std::vector<Access> reads{{Region::kNormed, {0, in_.rows}}};
      if (in_.moe) reads.push_back({Region::kRoutes, {0, 1}});
      const Extent bytes = equal_share(total, w, in_.workers);
      add(step, w, {w, w + 1}, bytes.size(), std::move(reads),
          {{Region::kActivations, {w, w + 1}}});
    }
  }

  static bool overlap(const Extent& a, const Extent& b) {
    return a.begin < b.end && b.begin < a.end;
  }
  bool own_copies(Region region) const {
    return region == Region::kSelections || region == Region::kRoutes ||
           (region == Region::kNormed && repeats_norm());
  }

  // A task waits for the tasks of other workers that wrote what it reads, and for those that read
  // or wrote what it overwrites.
  void derive_waits() {
    const auto workers = static_cast<std::size_t>(in_.workers);
    for (std::size_t s = 0; s < plan_.steps.size(); ++s) {
      PlanStep& step = plan_.steps[s];
      step.waits.assign(workers, {});
      // Most pairs of steps share no region.
      const auto [reads, writes] = touched(step);
      std::vector<bool> related;
      for (std::size_t before = 0; before < s; ++before) {
        const auto [other_reads, other_writes] = touched(plan_.steps[before]);
        related.push_back(((reads | writes) & other_writes) != 0 || (writes & other_reads) != 0);
      }
      // The last step of each other worker that each worker must see; -2: none.
      std::vector<std::vector<int>> last(workers, std::vector<int>(workers, -2));
      for (std::size_t t = 0; t < step.tasks.size(); ++t) {
        auto& mine = last[static_cast<std::size_t>(step.tasks[t].worker)];
        if (s == 0) std::fill(mine.begin(), mine.end(), -1);  // the stream of the layer before
        for (std::size_t before = 0; before < s; ++before) {
          const PlanStep& other = plan_.steps[before];
          if (!related[before]) continue;
          for (std::size_t u = 0; u < other.tasks.size(); ++u) {
            if (conflict(step.reads[t], other.writes[u]) ||
                conflict(step.writes[t], other.writes[u]) ||
                conflict(step.writes[t], other.reads[u])) {
              int& at = mine[static_cast<std::size_t>(other.tasks[u].worker)];
              at = std::max(at, static_cast<int>(before));
            }
          }
        }
      }
      for (std::size_t w = 0; w < workers; ++w) {
        for (std::size_t v = 0; v < workers; ++v) {
          if (v == w || last[w][v] < -1) continue;
          step.waits[w].push_back(
              {static_cast<std::int16_t>(v), static_cast<std::int16_t>(last[w][v])});
        }
      }
    }
  }
  // Regions that any task of the step reads and writes, a bit each.
  static std::pair<unsigned, unsigned> touched(const PlanStep& step) {
    const auto all = [](const std::vector<std::vector<Access>>& lists) {
      unsigned bits = 0;
      for (const auto& list : lists) {
        for (const Access& access : list) bits |= 1U << static_cast<unsigned>(access.region);
      }
      return bits;
    };
    return {all(step.reads), all(step.writes)};
  }
  bool conflict(const std::vector<Access>& a, const std::vector<Access>& b) const {
    for (const Access& x : a) {
      if (own_copies(x.region)) continue;
      for (const Access& y : b) {
        if (x.region == y.region && overlap(x.units, y.units)) return true;
      }
    }
    return false;
  }

  std::int64_t region_units(Region region) const {
    switch (region) {
      case Region::kStream:
        return in_.hidden;
      case Region::kNormed:
        return in_.rows;
      case Region::kProjected:
        return head_columns(all_heads() - 1).end;
      case Region::kHeads:
        return all_heads();
      case Region::kScores:
        return score_units_;
      case Region::kSelections:
        return in_.sparse ? parts() : 0;
      case Region::kPartials:
        return in_.wave_units;
      case Region::kMergeState:
      case Region::kAttended:
        return all_pairs().end;
      case Region::kLogits:
        return in_.moe ? in_.router.units : 0;
      case Region::kRoutes:
        return in_.moe ? 1 : 0;
      case Region::kActivations:
        return in_.workers;
    }
    return 0;
  }

  // Places depend on the largest step alone, so that they are the same in every plan of a layer.
  void place_regions() {
    std::int64_t at = 0;
    for (int r = 0; r < kRegions; ++r) {
      const auto region = static_cast<Region>(r);
      RegionPlace& place = plan_.regions[static_cast<std::size_t>(r)];
      place.units = region_units(region);
      place.needed = in_.needed[static_cast<std::size_t>(r)];
      place.bytes = (in_.largest[static_cast<std::size_t>(r)] + kRegionAlign - 1) / kRegionAlign *
                    kRegionAlign;
      // A region that is ever each worker's own is so in every plan; shared use takes copy 0.
      const bool ever = region == Region::kNormed || own_copies(region);
      place.per_worker = own_copies(region);
      place.offset = at;
      at += place.bytes * (ever ? in_.workers : 1);
    }
    plan_.memory = at;
  }

  const PlanInput& in_;
  LayerPlan plan_;
  std::int64_t score_units_ = 0;
};

}  // namespace

std::string_view stage_name(Stage stage) {
  constexpr std::string_view kNames[kStages] = {
      "input norm", "project",   "heads",  "score", "select",  "attend", "merge",
      "output",     "post norm", "router", "route", "gate up", "down"};
  return kNames[static_cast<std::size_t>(stage)];
}

std::string_view region_name(Region region) {
  constexpr std::string_view kNames[kRegions] = {
      "stream",   "normed",      "projected", "heads",  "scores", "selections",
      "partials", "merge state", "attended",  "logits", "routes", "activations"};
  return kNames[static_cast<std::size_t>(region)];
}

std::int64_t repeated_norm_rows(int workers) { return std::max(2, workers); }

std::int64_t LayerPlan::bytes() const {
  std::int64_t sum = 0;
  for (const PlanStep& step : steps) {
    for (const Task& task : step.tasks) sum += task.bytes;
  }
  return sum;
}

LayerPlan make_plan(const PlanInput& input) { return Builder(input).build(); }

}  // namespace monolayer::mono
