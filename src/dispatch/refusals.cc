#include "dispatch/refusals.h"

#include <iterator>
#include <utility>

#include "core/prefetch.h"
#include "mono/executor.h"

namespace monolayer::dispatch {
namespace {

using D = DeploymentFacts;
using S = StepFacts;
using std::to_string;

std::string yes_no(bool value) { return value ? "on" : "off"; }
std::string dtype_text(DType dtype) { return std::string(dtype_name(dtype)); }
bool is_cache_type(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kE4M3; }
std::string offender(const Text& text) { return text.get().empty() ? "as needed" : text.get(); }
bool power_of_two_to_8(std::int64_t n) { return n == 1 || n == 2 || n == 4 || n == 8; }

constexpr std::int64_t kSlots = std::int64_t{1} << 31;

// Names are stable: metrics and tests use them.
const DeploymentRow kDeployment[] = {
    {"backend", "cpu or cuda",
     [](const D& d) { return d.backend.get() == "cpu" || d.backend.get() == "cuda"; },
     [](const D& d) { return d.backend.get(); }},
    {"tensor_parallel", "1, 2, 4 or 8",
     [](const D& d) { return power_of_two_to_8(d.tensor_parallel.get()); },
     [](const D& d) { return to_string(d.tensor_parallel.get()); }},
    {"pipeline_parallel", "1", [](const D& d) { return d.pipeline_parallel.get() == 1; },
     [](const D& d) { return to_string(d.pipeline_parallel.get()); }},
    {"data_parallel", "1", [](const D& d) { return d.data_parallel.get() == 1; },
     [](const D& d) { return to_string(d.data_parallel.get()); }},
    {"expert_parallel", "off", [](const D& d) { return !d.expert_parallel.get(); },
     [](const D& d) { return yes_no(d.expert_parallel.get()); }},
    {"decode_context_parallel", "1",
     [](const D& d) { return d.decode_context_parallel.get() == 1; },
     [](const D& d) { return to_string(d.decode_context_parallel.get()); }},
    {"prefill_context_parallel", "1",
     [](const D& d) { return d.prefill_context_parallel.get() == 1; },
     [](const D& d) { return to_string(d.prefill_context_parallel.get()); }},
    {"microbatching", "off: two steps in flight would share one mailbox",
     [](const D& d) { return !d.microbatching.get(); },
     [](const D& d) { return yes_no(d.microbatching.get()); }},
    {"piecewise_graphs", "off: a fused run of layers cannot be split",
     [](const D& d) { return !d.piecewise_graphs.get(); },
     [](const D& d) { return yes_no(d.piecewise_graphs.get()); }},
    {"weight_transfer", "off: borrowed weights may not move",
     [](const D& d) { return !d.weight_transfer.get(); },
     [](const D& d) { return yes_no(d.weight_transfer.get()); }},
    {"lora", "off", [](const D& d) { return !d.lora.get(); },
     [](const D& d) { return yes_no(d.lora.get()); }},
    {"kv_transfer", "off: borrowed caches may not move",
     [](const D& d) { return !d.kv_transfer.get(); },
     [](const D& d) { return yes_no(d.kv_transfer.get()); }},
    {"sleep_mode", "off: borrowed weights may not be released",
     [](const D& d) { return !d.sleep_mode.get(); },
     [](const D& d) { return yes_no(d.sleep_mode.get()); }},
    {"replicated_output_projection", "off",
     [](const D& d) { return !d.replicated_output_projection.get(); },
     [](const D& d) { return yes_no(d.replicated_output_projection.get()); }},
    {"kv_cache_dtype", "BF16 or E4M3", [](const D& d) { return is_cache_type(d.kv_cache.get()); },
     [](const D& d) { return dtype_text(d.kv_cache.get()); }},
    {"index_cache_dtype", "BF16 or E4M3",
     [](const D& d) { return is_cache_type(d.index_cache.get()); },
     [](const D& d) { return dtype_text(d.index_cache.get()); }},
    {"cache_block_tokens", "128", [](const D& d) { return d.cache_block_tokens.get() == 128; },
     [](const D& d) { return to_string(d.cache_block_tokens.get()); }},
    {"max_model_length", "1 to 1048576",
     [](const D& d) {
       return d.max_model_length.get() >= 1 && d.max_model_length.get() <= mono::kMaxContext;
     },
     [](const D& d) { return to_string(d.max_model_length.get()); }},
    {"draft_tokens", "0 to 7: a request has at most 8 rows",
     [](const D& d) {
       return d.draft_tokens.get() >= 0 && d.draft_tokens.get() < mono::kMaxQueryLength;
     },
     [](const D& d) { return to_string(d.draft_tokens.get()); }},
    {"sparse_moe_layers", "at least 1", [](const D& d) { return d.sparse_moe_layers.get() >= 1; },
     [](const D& d) { return to_string(d.sparse_moe_layers.get()); }},
    {"layer_mix", "sparse attention only with experts, all after the last dense layer",
     [](const D& d) { return d.layer_offender.get().empty(); },
     [](const D& d) { return offender(d.layer_offender); }},
    {"rank_shape", "heads and widths that the ranks divide",
     [](const D& d) { return d.shape_offender.get().empty(); },
     [](const D& d) { return offender(d.shape_offender); }},
    {"selection_block", "a divisor of 128",
     [](const D& d) { return d.selection_block.get() >= 1 && 128 % d.selection_block.get() == 0; },
     [](const D& d) { return to_string(d.selection_block.get()); }},
    {"selection_topk", "at least 1", [](const D& d) { return d.selection_topk.get() >= 1; },
     [](const D& d) { return to_string(d.selection_topk.get()); }},
    {"index_heads", "one for each KV head",
     [](const D& d) { return d.index_heads.get() == d.kv_heads.get(); },
     [](const D& d) {
       return to_string(d.index_heads.get()) + " for " + to_string(d.kv_heads.get());
     }},
    {"rotary_dim", "even, at most head_dim and index_dim",
     [](const D& d) {
       return d.rotary_dim.get() % 2 == 0 && d.rotary_dim.get() <= d.head_dim.get() &&
              d.rotary_dim.get() <= d.index_dim.get();
     },
     [](const D& d) { return to_string(d.rotary_dim.get()); }},
    {"attention_formats", "BF16, FP8 per channel, MXFP8 or MXFP4",
     [](const D& d) { return d.attention_offender.get().empty(); },
     [](const D& d) { return offender(d.attention_offender); }},
    {"norms", "BF16", [](const D& d) { return d.norm_offender.get().empty(); },
     [](const D& d) { return offender(d.norm_offender); }},
    {"router", "BF16 or F32 weights", [](const D& d) { return d.router_offender.get().empty(); },
     [](const D& d) { return offender(d.router_offender); }},
    {"router_bias", "F32, or none", [](const D& d) { return d.bias_offender.get().empty(); },
     [](const D& d) { return offender(d.bias_offender); }},
    {"expert_formats", "BF16, FP8 per channel, MXFP8 or MXFP4",
     [](const D& d) { return d.expert_offender.get().empty(); },
     [](const D& d) { return offender(d.expert_offender); }},
    {"shared_expert", "in the expert table, or separate in one of the same formats",
     [](const D& d) { return d.shared_offender.get().empty(); },
     [](const D& d) { return offender(d.shared_offender); }},
};

constexpr StepRowRule kStep[] = {
    {"no_metadata", "request metadata", [](const S& s) { return s.has_metadata.get(); },
     [](const S&) { return std::string("a forward without requests"); }},
    {"input_embeddings", "token ids", [](const S& s) { return !s.input_embeddings.get(); },
     [](const S&) { return std::string("given as embeddings"); }},
    {"pipeline_intermediates", "none", [](const S& s) { return !s.pipeline_intermediates.get(); },
     [](const S&) { return std::string("present"); }},
    {"microbatched", "one step in flight", [](const S& s) { return !s.microbatched.get(); },
     [](const S&) { return std::string("split in microbatches"); }},
    {"prefill", "no prefill rows", [](const S& s) { return s.prefill_rows.get() == 0; },
     [](const S& s) { return to_string(s.prefill_rows.get()) + " prefill rows"; }},
    {"rows", "1 to 16",
     [](const S& s) { return s.rows.get() >= 1 && s.rows.get() <= mono::kMaxRows; },
     [](const S& s) { return to_string(s.rows.get()); }},
    {"query_length", "1 to 8",
     [](const S& s) {
       return s.shortest_query.get() >= 1 && s.longest_query.get() <= mono::kMaxQueryLength;
     },
     [](const S& s) {
       return to_string(s.shortest_query.get()) + " to " + to_string(s.longest_query.get());
     }},
    {"requests", "at least 1, and no more rows than the step has",
     [](const S& s) {
       return s.requests.get() >= 1 && s.query_rows.get() >= s.requests.get() &&
              s.query_rows.get() <= s.rows.get();
     },
     [](const S& s) {
       return to_string(s.requests.get()) + " of " + to_string(s.query_rows.get()) +
              " rows in a step of " + to_string(s.rows.get());
     }},
    {"index_requests", "as many as in the main metadata",
     [](const S& s) { return s.index_requests.get() == s.requests.get(); },
     [](const S& s) {
       return to_string(s.index_requests.get()) + " for " + to_string(s.requests.get());
     }},
    {"context", "at most the caches' max_context",
     [](const S& s) { return s.longest_context.get() <= s.max_context.get(); },
     [](const S& s) {
       return to_string(s.longest_context.get()) + " of " + to_string(s.max_context.get());
     }},
    {"table_width", "1 to 8192 blocks",
     [](const S& s) { return s.table_width.get() >= 1 && s.table_width.get() <= 8192; },
     [](const S& s) { return to_string(s.table_width.get()); }},
    {"slots", "below 2^31", [](const S& s) { return s.highest_slot.get() < kSlots; },
     [](const S& s) { return to_string(s.highest_slot.get()); }},
    {"measured", "a step that was measured to be faster fused",
     [](const S& s) { return s.key_groups.get() <= s.fastest_groups.get(); },
     [](const S& s) {
       return to_string(s.key_groups.get()) + " groups of 16 tokens over " +
              to_string(s.rows.get()) + " rows, fused is faster up to " +
              to_string(s.fastest_groups.get());
     }},
    {"runner", "ready", [](const S& s) { return s.runner.get() == RunnerState::kReady; },
     [](const S& s) { return std::string(runner_state_name(s.runner.get())); }},
};

// The table's conditions one after the other without the table: the compiler knows each of them, so
// a decision reads the facts and nothing else.
constexpr auto kStepRows = std::make_index_sequence<std::size(kStep)>();

template <std::size_t... kRow>
int first_of(const StepFacts& facts, std::index_sequence<kRow...> /*rows*/) {
  int refused = -1;
  static_cast<void>(
      ((kStep[kRow].holds(facts) ? false : (refused = static_cast<int>(kRow), true)) || ...));
  return refused;
}

}  // namespace

std::span<const DeploymentRow> deployment_rows() { return kDeployment; }
std::span<const StepRowRule> step_rows() { return kStep; }

// Flattened, so that no condition is a function somewhere else.
ML_STEP_CODE __attribute__((flatten)) int first_refusal(const StepFacts& facts) {
  return first_of(facts, kStepRows);
}

std::string_view runner_state_name(RunnerState state) {
  switch (state) {
    case RunnerState::kReady:
      return "ready";
    case RunnerState::kUnbound:
      return "waiting for caches";
    case RunnerState::kDisabled:
      return "disabled";
    case RunnerState::kNotBuilt:
      return "not built while capturing";
    case RunnerState::kStale:
      return "stale while capturing";
  }
  return "unknown";
}

std::vector<RowOutcome> check_deployment(const DeploymentFacts& facts) {
  std::vector<RowOutcome> outcomes;
  for (const DeploymentRow& row : kDeployment) {
    outcomes.push_back({row.name, row.bound, row.value(facts), row.holds(facts)});
  }
  return outcomes;
}

Status deployment_status(const DeploymentFacts& facts) {
  std::string reasons;
  for (const DeploymentRow& row : kDeployment) {
    if (row.holds(facts)) continue;
    reasons += (reasons.empty() ? "" : "; ") + refusal_text(row, facts);
  }
  if (reasons.empty()) return {};
  return {Code::kUnsupported, "fused path", reasons};
}

}  // namespace monolayer::dispatch
