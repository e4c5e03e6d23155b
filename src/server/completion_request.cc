// Bodies of /v1/completions.
#include "server/generation_spec.h"

namespace monolayer::server {
namespace {

std::string element(const std::string& list, std::size_t i) {
  return list + "[" + std::to_string(i) + "]";
}

// Control tokens written in a raw prompt are tokens: the caller has rendered its own template.
std::optional<ApiError> add_text(const std::string& text, const std::string& path,
                                 const ServedModel& model, GenerationSpec& spec) {
  EncodeOptions options;
  options.allow_special = true;
  auto ids = model.tokenizer.encode(text, options);
  if (!ids.ok()) return bad_field(path, ids.status().to_string());
  if (ids->empty()) return bad_field(path, "is empty: it holds no token");
  spec.prompts.push_back(*std::move(ids));
  return std::nullopt;
}

std::optional<ApiError> add_ids(const Json& list, const std::string& path, const ServedModel& model,
                                GenerationSpec& spec) {
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    const bool fits = id.is_number_integer() && id.get<double>() >= 0 &&
                      id.get<double>() < static_cast<double>(model.vocab_size);
    if (!fits)
      return bad_field(element(path, i), "is " + (id.is_number() ? id.dump() : kind_of(id)) +
                                             ", must be a token from 0 to " +
                                             std::to_string(model.vocab_size - 1));
    ids.push_back(id.get<std::int32_t>());
  }
  if (ids.empty()) return bad_field(path, "is empty: it holds no token");
  spec.prompts.push_back(std::move(ids));
  return std::nullopt;
}

// A string, a list of strings, a list of ids, or a list of lists of ids.
std::optional<ApiError> read_prompt(const Json& prompt, const ServedModel& model,
                                    const Limits& limits, GenerationSpec& spec) {
  if (prompt.is_string()) return add_text(prompt.get<std::string>(), "prompt", model, spec);
  if (!prompt.is_array())
    return bad_field("prompt",
                     "must be a string, a list of strings, of tokens or of token lists, "
                     "is " +
                         kind_of(prompt));
  if (prompt.empty()) return bad_field("prompt", "is empty: it holds no token");
  if (prompt.front().is_number()) return add_ids(prompt, "prompt", model, spec);
  if (static_cast<std::int64_t>(prompt.size()) > limits.prompts)
    return bad_field("prompt", "has " + std::to_string(prompt.size()) + " prompts, at most " +
                                   std::to_string(limits.prompts));
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const std::string path = element("prompt", i);
    std::optional<ApiError> error;
    if (prompt[i].is_string()) {
      error = add_text(prompt[i].get<std::string>(), path, model, spec);
    } else if (prompt[i].is_array()) {
      error = add_ids(prompt[i], path, model, spec);
    } else {
      error = bad_field(path, "must be a string or a list of tokens, is " + kind_of(prompt[i]));
    }
    if (error) return error;
  }
  return std::nullopt;
}

}  // namespace

ApiResult<GenerationSpec> parse_completion_request(const Json& body, const ServedModel& model,
                                                   const Limits& limits) {
  GenerationSpec spec;
  spec.dialect = Dialect::kCompletion;
  Fields fields(body);
  if (auto error = check_model(fields, model)) return *error;
  parse_sampling(fields, spec, model, limits, "max_tokens", 16);
  if (fields.has("suffix")) fields.fail("suffix", "is not supported");
  spec.echo = fields.boolean("echo", false);
  if (fields.has("logprobs")) {
    spec.logprobs = true;
    spec.base.logprobs = fields.integer("logprobs", 0, 0, limits.top_logprobs);
    if (spec.echo) spec.base.prompt_logprobs = spec.base.logprobs;
  }
  if (spec.base.max_tokens < 1 && !(spec.echo && spec.logprobs))
    fields.fail("max_tokens", "is " + std::to_string(spec.base.max_tokens) +
                                  ", must be at least 1 (0 only with echo and logprobs)");
  // Checked, without effect: tokenizers of this model put nothing around a text.
  fields.boolean("add_special_tokens", true);
  if (!fields.ok()) return *fields.error();
  if (!fields.has("prompt")) return bad_field("prompt", "is missing");
  if (auto error = read_prompt(fields.at("prompt"), model, limits, spec)) return *error;
  const auto answers = static_cast<std::int64_t>(spec.prompts.size()) * spec.n;
  if (answers > limits.prompts)
    return bad_field("n", "times the prompts is " + std::to_string(answers) + ", at most " +
                              std::to_string(limits.prompts));
  if (auto error = check_lengths(spec, model, true)) return *error;
  return spec;
}

}  // namespace monolayer::server
