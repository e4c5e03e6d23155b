// What chat and completion requests have in common.
#include "server/generation_spec.h"

#include <algorithm>
#include <random>

namespace monolayer::server {

bool ServedModel::knows(const std::string& name) const {
  std::string plain = name;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  return std::find(names.begin(), names.end(), plain) != names.end();
}

std::int64_t GenerationSpec::prompt_tokens() const {
  std::int64_t sum = 0;
  for (const auto& prompt : prompts) sum += static_cast<std::int64_t>(prompt.size());
  return sum;
}

std::optional<ApiError> check_model(Fields& fields, const ServedModel& model) {
  if (!fields.has("model")) return bad_field("model", "is missing");
  const std::string name = fields.text("model");
  if (!fields.ok()) return fields.error();
  if (model.knows(name)) return std::nullopt;
  ApiError error;
  error.status = 404;
  error.message = "model: '" + name + "' does not exist; served is '" + model.names.front() + "'";
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

namespace {

void parse_stops(Fields& fields, GenerationSpec& spec, const ServedModel& model,
                 const Limits& limits) {
  if (!fields.has("stop")) return;
  const Json& stop = fields.at("stop");
  std::vector<std::pair<std::string, std::string>> found;  // path, text
  if (stop.is_string()) {
    found.emplace_back(fields.path("stop"), stop.get<std::string>());
  } else if (const Json* list = fields.list("stop", limits.stops)) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string path = fields.path("stop") + "[" + std::to_string(i) + "]";
      if (!(*list)[i].is_string())
        return fields.fail(path, "must be a string, is " + kind_of((*list)[i]));
      found.emplace_back(path, (*list)[i].get<std::string>());
    }
  }
  for (auto& [path, text] : found) {
    if (text.empty()) return fields.fail(path, "is empty; a stop string has at least 1 byte");
    if (text.size() > limits.stop_bytes)
      return fields.fail(path, "has " + std::to_string(text.size()) + " bytes, at most " +
                                   std::to_string(limits.stop_bytes));
    // A special token has no text to be found in: it stops by its id.
    const auto id = model.tokenizer.id_of(text);
    if (id && model.tokenizer.is_special(*id)) {
      spec.base.stop_ids.push_back(*id);
    } else {
      spec.base.text.stops.push_back(std::move(text));
    }
  }
}

void parse_stop_ids(Fields& fields, GenerationSpec& spec, const ServedModel& model,
                    const Limits& limits) {
  const Json* list = fields.list("stop_token_ids", limits.stop_ids);
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const Json& id = (*list)[i];
    if (!id.is_number_integer() || id.get<double>() < 0 ||
        id.get<double>() >= static_cast<double>(model.vocab_size))
      return fields.fail(fields.path("stop_token_ids") + "[" + std::to_string(i) + "]",
                         "must be a token from 0 to " + std::to_string(model.vocab_size - 1));
    spec.base.stop_ids.push_back(id.get<std::int32_t>());
  }
}

void parse_bias(Fields& fields, GenerationSpec& spec, const ServedModel& model,
                const Limits& limits) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > limits.bias_entries)
    return fields.fail(fields.path("logit_bias"), "has " + std::to_string(bias->size()) +
                                                      " entries, at most " +
                                                      std::to_string(limits.bias_entries));
  for (const auto& [key, value] : bias->items()) {
    const std::string path = fields.path("logit_bias") + "." + key;
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoll(key) >= model.vocab_size)
      return fields.fail(path,
                         "must name a token from 0 to " + std::to_string(model.vocab_size - 1));
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
      return fields.fail(path, "must be a number in [-100, 100]");
    spec.base.rules.bias.emplace_back(std::stoi(key), value.get<float>());
  }
}

// Parameters that would change the answer and are not there: never ignored in silence.
void refuse_unsupported(Fields& fields) {
  for (const char* name :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
        "bad_words", "best_of", "use_beam_search", "n_discard", "kv_transfer_params",
        "context_management", "allowed_token_ids", "truncate_prompt_tokens"})
    if (fields.has(name)) fields.fail(fields.path(name), "is not supported");
}

}  // namespace

void parse_sampling(Fields& fields, GenerationSpec& spec, const ServedModel& model,
                    const Limits& limits, const char* max_name, std::int64_t default_max) {
  engine::Request& r = spec.base;
  spec.stream = fields.boolean("stream", false);
  if (const Json* options = fields.object("stream_options")) {
    Fields inner(*options, fields.path("stream_options"));
    spec.include_usage = inner.boolean("include_usage", false);
    spec.continuous_usage = inner.boolean("continuous_usage_stats", false);
    if (!inner.ok()) fields.fail(inner.error()->param, "must be true or false");
  }
  spec.n = fields.integer("n", 1, 1, limits.choices);
  r.sampling.temperature = fields.real("temperature", model.defaults.temperature, 0, 100);
  r.sampling.top_p = fields.real("top_p", model.defaults.top_p, 0, 1, true);
  r.sampling.top_k = std::max<std::int64_t>(
      0, fields.integer("top_k", model.defaults.top_k, -1, std::int64_t{1} << 30));
  r.sampling.min_p = fields.real("min_p", 0, 0, 1);
  r.rules.presence_penalty = fields.real("presence_penalty", 0, -2, 2);
  r.rules.frequency_penalty = fields.real("frequency_penalty", 0, -2, 2);
  r.rules.repetition_penalty = fields.real("repetition_penalty", 1, 0, 2, true);
  parse_bias(fields, spec, model, limits);
  r.sampling.seed =
      fields.has("seed")
          ? static_cast<std::uint64_t>(fields.integer("seed", 0, INT64_MIN, INT64_MAX))
          : (static_cast<std::uint64_t>(std::random_device{}()) << 32) | std::random_device{}();
  r.max_tokens = fields.integer(max_name, default_max, 0, std::int64_t{1} << 40);
  r.min_tokens = fields.integer("min_tokens", 0, 0, std::int64_t{1} << 40);
  r.ignore_eos = fields.boolean("ignore_eos", false);
  r.text.include_stop = fields.boolean("include_stop_str_in_output", false);
  r.text.skip_special = fields.boolean("skip_special_tokens", true);
  r.cache_salt = fields.text("cache_salt");
  r.eos_ids = model.defaults.eos_token_ids;
  parse_stops(fields, spec, model, limits);
  parse_stop_ids(fields, spec, model, limits);
  refuse_unsupported(fields);
}

std::optional<ApiError> check_lengths(GenerationSpec& spec, const ServedModel& model,
                                      bool max_given) {
  for (const auto& prompt : spec.prompts) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t room = model.max_model_len - length;
    const std::int64_t wanted = max_given ? spec.base.max_tokens : std::min<std::int64_t>(1, room);
    if (length == 0) return bad_field("prompt", "is empty: it holds no token");
    if (wanted > room || room < 1) {
      ApiError error = bad_field(spec.dialect == Dialect::kCompletion ? "prompt" : "messages",
                                 "has " + std::to_string(length) + " tokens and " +
                                     std::to_string(std::max<std::int64_t>(wanted, 1)) +
                                     " are to be generated; the model's context is " +
                                     std::to_string(model.max_model_len) + " tokens");
      error.code = "context_length_exceeded";
      return error;
    }
    if (!max_given) spec.base.max_tokens = std::min(spec.base.max_tokens, room);
  }
  if (spec.base.min_tokens > spec.base.max_tokens)
    return bad_field("min_tokens", "is " + std::to_string(spec.base.min_tokens) +
                                       ", must be at most max_tokens (" +
                                       std::to_string(spec.base.max_tokens) + ")");
  return std::nullopt;
}

}  // namespace monolayer::server
