#include "server/speculative_flags.h"

#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/text_io.h"
#include "m3/draft.h"

namespace monolayer::server {
namespace {

using Json = nlohmann::json;

constexpr const char* kConfig = "--speculative-config";

// What either way of asking comes to.
struct Wish {
  std::string method, draft, sampling = "standard", tokens_name = "--num-speculative-tokens";
  std::optional<std::int64_t> tokens;
  std::optional<double> length, rate;
  std::vector<double> rates;
};

Status bad(const std::string& key, const std::string& message) {
  return {Code::kInvalidArgument, std::string(kConfig) + "." + key, message};
}

Status read_key(const std::string& key, const Json& value, Wish& wish) {
  const auto text = [&](std::string& out) {
    if (!value.is_string()) return bad(key, "must be a string");
    out = value.get<std::string>();
    return ok_status();
  };
  const auto real = [&](std::optional<double>& out) {
    if (!value.is_number()) return bad(key, "must be a number");
    out = value.get<double>();
    return ok_status();
  };
  if (key == "method") return text(wish.method);
  if (key == "model") return text(wish.draft);
  if (key == "num_speculative_tokens") {
    if (!value.is_number_integer()) return bad(key, "must be a whole number");
    wish.tokens = value.get<std::int64_t>();
    return ok_status();
  }
  if (key == "rejection_sample_method") {
    ML_RETURN_IF_ERROR(text(wish.sampling));
    // For a guess that is one token both exact methods are the same draw.
    if (wish.sampling == "strict") wish.sampling = "standard";
    if (wish.sampling != "standard" && wish.sampling != "synthetic")
      return bad(key, "is '" + wish.sampling + "', not one of standard, strict, synthetic");
    return ok_status();
  }
  if (key == "synthetic_acceptance_length") return real(wish.length);
  if (key == "synthetic_acceptance_rate") return real(wish.rate);
  if (key == "synthetic_acceptance_rates") {
    if (!value.is_array()) return bad(key, "must be a list of numbers");
    for (const Json& each : value) {
      if (!each.is_number()) return bad(key, "must be a list of numbers");
      wish.rates.push_back(each.get<double>());
    }
    return ok_status();
  }
  if (key == "draft_tensor_parallel_size") {
    if (value != Json(1)) return bad(key, "must be 1: the draft runs whole");
    return ok_status();
  }
  return bad(key,
             "is not known; known are method, model, num_speculative_tokens, "
             "rejection_sample_method, synthetic_acceptance_length, synthetic_acceptance_rate, "
             "synthetic_acceptance_rates, draft_tensor_parallel_size");
}

Result<Wish> read_config(const std::string& text) {
  Wish wish;
  wish.tokens_name = std::string(kConfig) + ".num_speculative_tokens";
  const Result<nlohmann::json> parsed = parse_json(text, kConfig);  // refuses a key given twice
  if (!parsed.ok())
    return Status(Code::kInvalidArgument, kConfig,
                  "must be a JSON object; " + parsed.status().message());
  const Json& object = *parsed;
  if (!object.is_object()) return Status(Code::kInvalidArgument, kConfig, "must be a JSON object");
  for (const auto& [key, value] : object.items()) ML_RETURN_IF_ERROR(read_key(key, value, wish));
  const bool numbers = wish.length || wish.rate || !wish.rates.empty();
  if (numbers && wish.sampling != "synthetic")
    return bad("rejection_sample_method",
               "must be synthetic where a synthetic acceptance is given");
  if (!numbers && wish.sampling == "synthetic")
    return bad("synthetic_acceptance_length", "is missing: rejection_sample_method is synthetic");
  if (!wish.tokens) return bad("num_speculative_tokens", "is required");
  if (wish.method.empty()) wish.method = "eagle3";
  return wish;
}

Status check_method(const Wish& wish, const char* name) {
  if (wish.method == "eagle3") return ok_status();
  return {Code::kUnsupported, name, "is '" + wish.method + "'; this version has eagle3"};
}

Result<std::vector<double>> rates_of(const Wish& wish, std::int64_t tokens) {
  const int given = (wish.length ? 1 : 0) + (wish.rate ? 1 : 0) + (wish.rates.empty() ? 0 : 1);
  if (given > 1)
    return Status(Code::kInvalidArgument, "synthetic acceptance",
                  "is given as length and as rate; one of them must be left out");
  if (!wish.rates.empty()) return wish.rates;
  double length = wish.length.value_or(0);
  if (wish.rate) {
    if (!(*wish.rate >= 0 && *wish.rate <= 1))
      return Status(Code::kInvalidArgument, "synthetic acceptance rate",
                    "is " + std::to_string(*wish.rate) + ", must be from 0 to 1");
    length = 1 + *wish.rate * static_cast<double>(tokens);
  }
  return engine::rates_of_length(length, tokens);
}

Result<SpeculationChoice> choose(const SpeculativeFlags& flags) {
  const bool single = !flags.method.empty() || !flags.draft_model.empty() || flags.tokens ||
                      flags.length || flags.rate;
  Wish wish;
  if (!flags.config.empty()) {
    if (single)
      return Status(Code::kInvalidArgument, kConfig,
                    "does not go with --method, --draft-model, --num-speculative-tokens or "
                    "--spec-decode-acceptance-*");
    ML_ASSIGN_OR_RETURN(wish, read_config(flags.config));
    ML_RETURN_IF_ERROR(check_method(wish, "--speculative-config.method"));
  } else {
    wish.method = flags.method;
    wish.draft = flags.draft_model;
    wish.tokens = flags.tokens;
    wish.length = flags.length;
    wish.rate = flags.rate;
    if (!wish.method.empty()) ML_RETURN_IF_ERROR(check_method(wish, "--method"));
  }
  SpeculationChoice choice;
  choice.options.tokens = wish.tokens.value_or(wish.draft.empty() ? 0 : 1);
  if (choice.options.tokens < 0 || choice.options.tokens > m3::kMostDrafts)
    return Status(Code::kInvalidArgument, wish.tokens_name,
                  "is " + std::to_string(choice.options.tokens) + ", must be from 0 to " +
                      std::to_string(m3::kMostDrafts));
  const bool synthetic = wish.length || wish.rate || !wish.rates.empty();
  if (choice.options.tokens == 0) {
    if (synthetic)
      return Status(Code::kInvalidArgument, "synthetic acceptance",
                    "needs speculative tokens; there are 0");
    if (flags.config.empty() && !wish.method.empty() && wish.draft.empty() && !wish.tokens)
      return Status(Code::kInvalidArgument, "--method", "needs --draft-model");
    return choice;
  }
  if (flags.config.empty()) {
    if (wish.draft.empty() && !wish.method.empty())
      return Status(Code::kInvalidArgument, "--method", "needs --draft-model");
    if (!wish.draft.empty() && wish.method.empty())
      return Status(Code::kInvalidArgument, "--draft-model", "needs --method eagle3");
  }
  choice.draft = wish.draft.empty() ? flags.own_draft : wish.draft;
  if (choice.draft.empty())
    return Status(Code::kInvalidArgument, wish.tokens_name,
                  "is " + std::to_string(choice.options.tokens) + " and no draft is named" +
                      (flags.config.empty() ? " (--draft-model)" : " (model)"));
  if (synthetic) {
    ML_ASSIGN_OR_RETURN(choice.options.synthetic_rates, rates_of(wish, choice.options.tokens));
    choice.acceptance = "synthetic";
    choice.mean_length = 1;
    for (const double rate : choice.options.synthetic_rates) choice.mean_length += rate;
  }
  ML_RETURN_IF_ERROR(engine::check_speculation(choice.options));
  return choice;
}

}  // namespace

Result<SpeculationChoice> choose_speculation(const SpeculativeFlags& flags) {
  try {
    return choose(flags);
  } catch (const std::exception& e) {
    return Status(Code::kInternal, kConfig, std::string("not read: ") + e.what());
  }
}

}  // namespace monolayer::server
