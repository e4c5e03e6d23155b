#include "mono/plan_check.h"

#include <algorithm>
#include <string>

namespace monolayer::mono {
namespace {

using std::to_string;

// Who touched a range of a region last, and when: steps are counted through the whole run.
struct Touch {
  Extent units;
  int worker = 0;
  int at = 0;
  Stage stage{};
  int layer = 0;
};

bool overlap(const Extent& a, const Extent& b) { return a.begin < b.end && b.begin < a.end; }

std::string text(const Extent& e) {
  std::string out(1, '[');
  out += to_string(e.begin);
  out += ", ";
  out += to_string(e.end);
  out += ')';
  return out;
}

class Checker {
 public:
  explicit Checker(const std::vector<const LayerPlan*>& layers) : layers_(layers) {}

  Status run() {
    if (layers_.empty()) return {};
    workers_ = layers_[0]->workers;
    const auto w = static_cast<std::size_t>(workers_);
    known_.assign(w, std::vector<int>(w, -1));
    for (layer_ = 0; layer_ < static_cast<int>(layers_.size()); ++layer_) {
      const LayerPlan& plan = *layers_[static_cast<std::size_t>(layer_)];
      if (plan.workers != workers_) return breach("has " + to_string(plan.workers) + " workers");
      ML_RETURN_IF_ERROR(places(plan));
      begin_layer();
      for (std::size_t s = 0; s < plan.steps.size(); ++s) {
        ML_RETURN_IF_ERROR(step(plan, static_cast<int>(s)));
      }
      base_ += static_cast<int>(plan.steps.size());
    }
    return {};
  }

 private:
  Status breach(const std::string& message) const {
    return {Code::kInternal, "plan", "layer " + to_string(layer_) + " " + message};
  }
  Status breach(const PlanStep& step, const std::string& message) const {
    return breach(std::string(stage_name(step.stage)) + ": " + message);
  }

  // At a run's begin the caller's values are in the stream.
  void begin_layer() {
    if (layer_ > 0) return;
    const Extent all{0, layers_[0]->place(Region::kStream).units};
    for (int w = 0; w < workers_; ++w) {
      writes_[static_cast<std::size_t>(Region::kStream)].push_back({all, w, -1, Stage::kDown, -1});
    }
  }

  Status places(const LayerPlan& plan) const {
    std::vector<Extent> taken;
    for (int r = 0; r < kRegions; ++r) {
      const RegionPlace& place = plan.regions[static_cast<std::size_t>(r)];
      const std::string name(region_name(static_cast<Region>(r)));
      if (place.needed > place.bytes) {
        return breach("region " + name + " holds " + to_string(place.bytes) + " bytes, needs " +
                      to_string(place.needed));
      }
      if (place.bytes == 0) continue;
      for (int w = 0; w < (place.per_worker ? workers_ : 1); ++w) {
        const Extent bytes{place.copy(w), place.copy(w) + place.bytes};
        if (bytes.begin % kRegionAlign != 0) {
          return breach("region " + name + " begins at byte " + to_string(bytes.begin) +
                        ", not a multiple of " + to_string(kRegionAlign));
        }
        if (bytes.begin < 0 || bytes.end > plan.memory) {
          return breach("region " + name + " " + text(bytes) + " lies outside the memory of " +
                        to_string(plan.memory) + " bytes");
        }
        for (const Extent& other : taken) {
          if (overlap(other, bytes)) {
            return breach("region " + name + " " + text(bytes) + " overlaps bytes " + text(other));
          }
        }
        taken.push_back(bytes);
      }
    }
    return {};
  }

  Status step(const LayerPlan& plan, int index) {
    const PlanStep& now = plan.steps[static_cast<std::size_t>(index)];
    ML_RETURN_IF_ERROR(coverage(now));
    ML_RETURN_IF_ERROR(wait(now, index));
    if (now.reads.size() != now.tasks.size() || now.writes.size() != now.tasks.size()) {
      return breach(now, "reads and writes are not listed for every task");
    }
    for (std::size_t t = 0; t < now.tasks.size(); ++t) {
      for (const Access& access : now.reads[t]) {
        ML_RETURN_IF_ERROR(read(plan, now, now.tasks[t], access));
      }
    }
    for (std::size_t t = 0; t < now.tasks.size(); ++t) {
      for (const Access& access : now.writes[t]) {
        ML_RETURN_IF_ERROR(write(plan, now, now.tasks[t], access, index));
      }
    }
    // Reads enter after all writes of the step were checked against earlier readers.
    for (std::size_t t = 0; t < now.tasks.size(); ++t) {
      for (const Access& access : now.reads[t]) {
        record(reads_, now, now.tasks[t], access, index);
      }
      for (const Access& access : now.writes[t]) {
        replace(now, now.tasks[t], access, index);
      }
    }
    ends_.push_back(known_);
    return {};
  }

  Status coverage(const PlanStep& now) const {
    std::vector<Extent> done;
    for (const Task& task : now.tasks) {
      if (task.worker < 0 || task.worker >= workers_) {
        return breach(now, "a task is on worker " + to_string(task.worker));
      }
      done.push_back(task.units);
    }
    std::sort(done.begin(), done.end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    std::int64_t at = now.first_unit;
    for (const Extent& units : done) {
      if (units.begin > at)
        return breach(now, "units " + text({at, units.begin}) + " have no task");
      if (units.begin < at && !now.repeated) {
        return breach(now,
                      "units " + text({units.begin, std::min(at, units.end)}) + " have two tasks");
      }
      at = std::max(at, units.end);
    }
    if (at != now.first_unit + now.units) {
      return breach(now, "units " + text({at, now.first_unit + now.units}) + " have no task");
    }
    return {};
  }

  Status wait(const PlanStep& now, int index) {
    if (now.waits.size() != static_cast<std::size_t>(workers_)) {
      return breach(now, "waits are not listed for every worker");
    }
    // A worker leaves its steps in order, so it knows its own past.
    for (int w = 0; w < workers_; ++w) known(w, w) = base_ + index - 1;
    for (int w = 0; w < workers_; ++w) {
      for (const Wait& on : now.waits[static_cast<std::size_t>(w)]) {
        if (on.worker < 0 || on.worker >= workers_ || on.step < -1 || on.step >= index) {
          return breach(now, "worker " + to_string(w) + " waits for step " + to_string(on.step) +
                                 " of worker " + to_string(on.worker) + ", which is not earlier");
        }
        const int at = base_ + on.step;
        known(w, on.worker) = std::max(known(w, on.worker), at);
        if (at < 0) continue;
        // What the other knew when it left that step.
        const auto& theirs =
            ends_[static_cast<std::size_t>(at)][static_cast<std::size_t>(on.worker)];
        for (int v = 0; v < workers_; ++v) {
          known(w, v) = std::max(known(w, v), theirs[static_cast<std::size_t>(v)]);
        }
      }
    }
    return {};
  }

  bool own_copy(const LayerPlan& plan, Region region) const {
    return plan.place(region).per_worker;
  }
  std::vector<Touch>& of(std::vector<Touch> (&all)[kRegions], Region region) {
    return all[static_cast<std::size_t>(region)];
  }
  // Whether `worker` knows that `touch` is over. A worker's own past counts.
  bool after(int worker, const Touch& touch) { return known(worker, touch.worker) >= touch.at; }

  Status read(const LayerPlan& plan, const PlanStep& now, const Task& task, const Access& access) {
    const Extent inside{0, plan.place(access.region).units};
    const std::string what = "worker " + to_string(task.worker) + " reads " +
                             std::string(region_name(access.region)) + " " + text(access.units);
    if (access.units.begin < 0 || access.units.end > inside.end) {
      return breach(now, what + ", the region has " + to_string(inside.end) + " units");
    }
    std::vector<Extent> written;
    for (const Touch& touch : of(writes_, access.region)) {
      if (!overlap(touch.units, access.units)) continue;
      if (own_copy(plan, access.region) && touch.worker != task.worker) continue;
      // The stream crosses layers; everything else is written anew in each.
      if (touch.layer != layer_ && access.region != Region::kStream) continue;
      if (!after(task.worker, touch)) {
        return breach(now, what + " without waiting for worker " + to_string(touch.worker) +
                               ", which writes " + text(touch.units) + " in " +
                               std::string(stage_name(touch.stage)));
      }
      written.push_back(touch.units);
    }
    std::sort(written.begin(), written.end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    std::int64_t at = access.units.begin;
    for (const Extent& units : written) {
      if (units.begin > at) break;
      at = std::max(at, units.end);
    }
    if (at < access.units.end) {
      return breach(
          now, what + ", of which " + text({at, access.units.end}) + " was not written before");
    }
    return {};
  }

  Status write(const LayerPlan& plan, const PlanStep& now, const Task& task, const Access& access,
               int index) {
    const std::string what = "worker " + to_string(task.worker) + " writes " +
                             std::string(region_name(access.region)) + " " + text(access.units);
    if (access.units.begin < 0 || access.units.end > plan.place(access.region).units) {
      return breach(
          now, what + ", the region has " + to_string(plan.place(access.region).units) + " units");
    }
    for (const Touch& touch : of(writes_, access.region)) {
      if (!overlap(touch.units, access.units) || touch.at < 0) continue;
      if (own_copy(plan, access.region) && touch.worker != task.worker) continue;
      if (touch.layer == layer_ && touch.stage != now.stage && !rewritten(access.region)) {
        return breach(now, what + ", which " + std::string(stage_name(touch.stage)) + " writes");
      }
      if (!after(task.worker, touch)) {
        return breach(now, what + " while worker " + to_string(touch.worker) + " may write it");
      }
    }
    for (const Touch& touch : of(reads_, access.region)) {
      if (!overlap(touch.units, access.units)) continue;
      if (own_copy(plan, access.region) && touch.worker != task.worker) continue;
      if (!after(task.worker, touch)) {
        return breach(now, what + " while worker " + to_string(touch.worker) + " may read " +
                               text(touch.units) + " in " + std::string(stage_name(touch.stage)));
      }
    }
    // Tasks of the same step.
    for (std::size_t t = 0; t < now.tasks.size(); ++t) {
      if (&now.tasks[t] == &task || now.tasks[t].worker == task.worker) continue;
      for (const Access& other : now.writes[t]) {
        if (other.region == access.region && overlap(other.units, access.units) &&
            !own_copy(plan, access.region)) {
          return breach(now, what + ", and so does worker " + to_string(now.tasks[t].worker));
        }
      }
      for (const Access& other : now.reads[t]) {
        if (other.region == access.region && overlap(other.units, access.units) &&
            !own_copy(plan, access.region)) {
          return breach(now, what + " while worker " + to_string(now.tasks[t].worker) +
                                 " reads it in the same step");
        }
      }
    }
    (void)index;
    return {};
  }

  // Regions that several stages of a layer write, one after the other.
  static bool rewritten(Region region) {
    return region == Region::kStream || region == Region::kNormed;
  }

  void record(std::vector<Touch> (&all)[kRegions], const PlanStep& now, const Task& task,
              const Access& access, int index) {
    of(all, access.region).push_back({access.units, task.worker, base_ + index, now.stage, layer_});
  }

  // A write supersedes earlier touches of the same worker's units, and all it was ordered after.
  void replace(const PlanStep& now, const Task& task, const Access& access, int index) {
    const bool own = own_copy(*layers_[static_cast<std::size_t>(layer_)], access.region);
    const auto covered = [&](const Touch& touch) {
      return touch.at < base_ + index && touch.units.begin >= access.units.begin &&
             touch.units.end <= access.units.end && (!own || touch.worker == task.worker);
    };
    std::erase_if(of(writes_, access.region), covered);
    std::erase_if(of(reads_, access.region), covered);
    record(writes_, now, task, access, index);
  }

  int& known(int worker, int other) {
    return known_[static_cast<std::size_t>(worker)][static_cast<std::size_t>(other)];
  }

  const std::vector<const LayerPlan*>& layers_;
  int workers_ = 0, layer_ = 0, base_ = 0;
  // known_[w][v]: the last step that v has left, as far as w knows.
  std::vector<std::vector<int>> known_;
  std::vector<std::vector<std::vector<int>>> ends_;  // known_ after each step
  std::vector<Touch> writes_[kRegions], reads_[kRegions];
};

}  // namespace

Status check_plans(const std::vector<const LayerPlan*>& layers) { return Checker(layers).run(); }

}  // namespace monolayer::mono
