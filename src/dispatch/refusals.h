// Why a deployment or a step does not take the fused path: tables of named conditions over
// replicated facts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "dispatch/replicated.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::dispatch {

using Count = Replicated<std::int64_t>;
using Flag = Replicated<bool>;
using Text = Replicated<std::string>;
using Type = Replicated<DType>;

inline Count configured(std::int64_t value) { return Count::from_configuration(value); }
inline Flag configured(bool value) { return Flag::from_configuration(value); }
inline Text configured(std::string value) { return Text::from_configuration(std::move(value)); }
inline Type configured(DType value) { return Type::from_configuration(value); }
inline Count scheduled(std::int64_t value) { return Count::from_scheduler(value); }
inline Flag scheduled(bool value) { return Flag::from_scheduler(value); }

// What is known once per process. Texts named *_offender hold the first tensor or layer that breaks
// the rule and how, and are empty where none does.
struct DeploymentFacts {
  Text backend = configured(std::string("cpu"));
  Count tensor_parallel = configured(std::int64_t{1});
  Count pipeline_parallel = configured(std::int64_t{1});
  Count data_parallel = configured(std::int64_t{1});
  Flag expert_parallel = configured(false);
  Count decode_context_parallel = configured(std::int64_t{1});
  Count prefill_context_parallel = configured(std::int64_t{1});
  Flag microbatching = configured(false);
  Flag piecewise_graphs = configured(false);
  Flag weight_transfer = configured(false);
  Flag lora = configured(false);
  Flag kv_transfer = configured(false);
  Flag sleep_mode = configured(false);
  Flag replicated_output_projection = configured(false);
  Type kv_cache = configured(DType::kBF16);
  Type index_cache = configured(DType::kBF16);
  Count cache_block_tokens = configured(std::int64_t{128});
  Count max_model_length = configured(std::int64_t{1});
  Count draft_tokens = configured(std::int64_t{0});

  Count sparse_moe_layers = configured(std::int64_t{0});
  Text layer_offender = configured(std::string());
  Text shape_offender = configured(std::string());  // of the rank's share
  Count selection_block = configured(std::int64_t{128});
  Count selection_topk = configured(std::int64_t{1});
  Count index_heads = configured(std::int64_t{1});
  Count kv_heads = configured(std::int64_t{1});
  Count rotary_dim = configured(std::int64_t{2});
  Count head_dim = configured(std::int64_t{2});
  Count index_dim = configured(std::int64_t{2});

  Text attention_offender = configured(std::string());  // q, k, v, o, index projections
  Text norm_offender = configured(std::string());
  Text router_offender = configured(std::string());
  Text bias_offender = configured(std::string());
  Text expert_offender = configured(std::string());
  Text shared_offender = configured(std::string());
};

struct DeploymentRow {
  std::string_view name;
  std::string_view bound;  // what is needed, for people
  bool (*holds)(const DeploymentFacts&);
  std::string (*value)(const DeploymentFacts&);  // what there is
};
std::span<const DeploymentRow> deployment_rows();

// Where the library stands; agreed on by the ranks at every change.
enum class RunnerState : std::uint8_t {
  kReady,     // built and current, or can be built now
  kUnbound,   // some cache is not bound yet
  kDisabled,  // unsupported for the life of the process
  kNotBuilt,  // would have to be built while a graph is captured
  kStale,     // caches were bound again and the stream is capturing
};
std::string_view runner_state_name(RunnerState state);
using Runner = Replicated<RunnerState>;

inline constexpr std::int64_t kUnmeasured = std::int64_t{1} << 62;

// What is known of one step.
struct StepFacts {
  Flag has_metadata = scheduled(true);
  Flag input_embeddings = scheduled(false);
  Flag pipeline_intermediates = scheduled(false);
  Flag microbatched = scheduled(false);
  Count rows = scheduled(std::int64_t{1});  // graph padding counted
  Count prefill_rows = scheduled(std::int64_t{0});
  Count requests = scheduled(std::int64_t{1});
  Count index_requests = scheduled(std::int64_t{1});
  Count shortest_query = scheduled(std::int64_t{1});
  Count longest_query = scheduled(std::int64_t{1});
  Count query_rows = scheduled(std::int64_t{1});  // of all requests, without padding
  Count longest_context = scheduled(std::int64_t{1});
  Count max_context = scheduled(std::int64_t{1});  // of the bound caches
  Count table_width = scheduled(std::int64_t{1});
  Count highest_slot = scheduled(std::int64_t{0});
  Count key_groups = scheduled(std::int64_t{0});   // of 16 tokens, over all rows
  Count fastest_groups = configured(kUnmeasured);  // up to which fused is faster at these rows
  Runner runner = Runner::from_scheduler(RunnerState::kReady);
};

struct StepRowRule {
  std::string_view name;
  std::string_view bound;
  bool (*holds)(const StepFacts&);
  std::string (*value)(const StepFacts&);
};
std::span<const StepRowRule> step_rows();
// The first row that does not hold, an index into step_rows(); -1 for none.
int first_refusal(const StepFacts& facts);

// "name: is VALUE, needs BOUND".
template <typename Row, typename Facts>
std::string refusal_text(const Row& row, const Facts& facts) {
  return std::string(row.name) + ": is " + row.value(facts) + ", needs " + std::string(row.bound);
}

// Facts of a checkpoint: what its config and stored formats say. Options are those of serving it.
struct DeploymentOptions {
  std::string backend = "cpu";
  std::int64_t tensor_parallel = 1;
  std::int64_t max_model_length = 0;  // 0: the model's
  DType kv_cache = DType::kBF16, index_cache = DType::kBF16;
};
DeploymentFacts deployment_facts(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                                 const DeploymentOptions& options);

// Every row with its outcome, in the table's order.
struct RowOutcome {
  std::string_view name, bound;
  std::string value;
  bool holds = true;
};
std::vector<RowOutcome> check_deployment(const DeploymentFacts& facts);
// ok, or kUnsupported with every row that fails: what Lifecycle::Options::deployment wants.
Status deployment_status(const DeploymentFacts& facts);

}  // namespace monolayer::dispatch
