// Flags of two dialects to one choice; what contradicts itself or cannot be is refused by name.
#include "server/speculative_flags.h"

#include <gtest/gtest.h>

namespace monolayer::server {
namespace {

SpeculativeFlags config(const std::string& json) {
  SpeculativeFlags flags;
  flags.config = json;
  return flags;
}

SpeculativeFlags atom(const std::string& draft, std::optional<std::int64_t> tokens,
                      std::optional<double> length = {}, std::optional<double> rate = {}) {
  SpeculativeFlags flags;
  flags.method = draft.empty() ? "" : "eagle3";
  flags.draft_model = draft;
  flags.tokens = tokens;
  flags.length = length;
  flags.rate = rate;
  return flags;
}

std::string refusal(const SpeculativeFlags& flags) {
  const auto choice = choose_speculation(flags);
  return choice.ok() ? "accepted" : choice.status().to_string();
}

#define EXPECT_REFUSED(flags, words) \
  EXPECT_NE(refusal(flags).find(words), std::string::npos) << refusal(flags)

TEST(SpeculativeFlags, BothDialectsMeanTheSame) {
  for (const SpeculativeFlags& flags :
       {config(R"({"method": "eagle3", "model": "/d", "num_speculative_tokens": 3})"),
        config(R"({"model": "/d", "num_speculative_tokens": 3,
                   "rejection_sample_method": "strict", "draft_tensor_parallel_size": 1})"),
        atom("/d", 3)}) {
    const auto choice = choose_speculation(flags);
    ASSERT_TRUE(choice.ok()) << choice.status().to_string();
    EXPECT_EQ(choice->draft, "/d");
    EXPECT_EQ(choice->options.tokens, 3);
    EXPECT_EQ(choice->acceptance, "standard");
    EXPECT_TRUE(choice->options.synthetic_rates.empty());
  }
  EXPECT_EQ(choose_speculation(atom("/d", std::nullopt))->options.tokens, 1);
}

// InferenceX #2816: a flag that is computed and then ignored.
TEST(SpeculativeFlags, FaultC22_InferenceX2816_ZeroTokensMeanNoDraftWhateverIsNamed) {
  for (const SpeculativeFlags& flags :
       {config(R"({"method": "eagle3", "model": "/d", "num_speculative_tokens": 0})"),
        atom("/d", 0), SpeculativeFlags{}}) {
    const auto choice = choose_speculation(flags);
    ASSERT_TRUE(choice.ok()) << choice.status().to_string();
    EXPECT_EQ(choice->draft, "");
  }
  SpeculativeFlags own;
  own.own_draft = "/own";
  EXPECT_EQ(choose_speculation(own)->draft, "");
  own.tokens = 2;
  EXPECT_EQ(choose_speculation(own)->draft, "/own");
}

TEST(SpeculativeFlags, Conformance16_SyntheticAcceptanceAsLengthRateAndRates) {
  const auto length = choose_speculation(atom("/d", 3, 2.78));
  ASSERT_TRUE(length.ok());
  EXPECT_EQ(length->acceptance, "synthetic");
  EXPECT_DOUBLE_EQ(length->mean_length, 2.78);
  const auto rate = choose_speculation(atom("/d", 3, {}, 1.78 / 3));
  ASSERT_TRUE(rate.ok());
  EXPECT_NEAR(rate->mean_length, 2.78, 1e-9);
  EXPECT_EQ(rate->options.synthetic_rates[0], 1);
  const auto list = choose_speculation(config(
      R"({"model": "/d", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic",
          "synthetic_acceptance_rates": [0.5, 0.25]})"));
  ASSERT_TRUE(list.ok());
  EXPECT_DOUBLE_EQ(list->mean_length, 1.75);
}

TEST(SpeculativeFlags, WhatCannotBeIsRefusedByName) {
  EXPECT_REFUSED(atom("/d", 8), "--num-speculative-tokens: is 8, must be from 0 to 7");
  EXPECT_REFUSED(atom("", 3), "--num-speculative-tokens: is 3 and no draft is named");
  EXPECT_REFUSED(atom("/d", 3, 4.5), "must be from 1 to 4");
  EXPECT_REFUSED(atom("/d", 3, 0.5), "must be from 1 to 4");
  EXPECT_REFUSED(atom("/d", 3, 2.0, 0.5), "one of them must be left out");
  EXPECT_REFUSED(atom("/d", 0, 2.0), "needs speculative tokens");
  EXPECT_REFUSED(atom("", std::nullopt, 2.0), "needs speculative tokens");
  EXPECT_REFUSED(
      config(R"({"num_speculative_tokens": 2, "num_speculative_tokens": 3})"),
      "--speculative-config: must be a JSON object; key 'num_speculative_tokens' appears twice");
  SpeculativeFlags method;
  method.method = "eagle3";
  EXPECT_REFUSED(method, "--method: needs --draft-model");
  SpeculativeFlags draft;
  draft.draft_model = "/d";
  EXPECT_REFUSED(draft, "--draft-model: needs --method");
  SpeculativeFlags other = atom("/d", 3);
  other.method = "mtp";
  EXPECT_REFUSED(other, "'mtp'; this version has eagle3");
  SpeculativeFlags both = config(R"({"model": "/d", "num_speculative_tokens": 3})");
  both.tokens = 3;
  EXPECT_REFUSED(both, "--speculative-config: does not go with");
  EXPECT_REFUSED(config("[]"), "must be a JSON object");
  EXPECT_REFUSED(config("{"), "must be a JSON object");
  EXPECT_REFUSED(config(R"({"model": "/d"})"), "num_speculative_tokens: is required");
  EXPECT_REFUSED(config(R"({"modle": "/d"})"), "--speculative-config.modle: is not known");
  EXPECT_REFUSED(config(R"({"model": 5})"), "model: must be a string");
  EXPECT_REFUSED(config(R"({"model": "/d", "num_speculative_tokens": 2.5})"), "whole number");
  EXPECT_REFUSED(config(R"({"model": "/d", "num_speculative_tokens": 9})"), "from 0 to 7");
  EXPECT_REFUSED(config(R"({"model": "/d", "num_speculative_tokens": 2,
                            "rejection_sample_method": "synthetic"})"),
                 "synthetic_acceptance_length: is missing");
  EXPECT_REFUSED(config(R"({"model": "/d", "num_speculative_tokens": 2,
                            "synthetic_acceptance_length": 2})"),
                 "rejection_sample_method: must be synthetic");
  EXPECT_REFUSED(config(R"({"model": "/d", "num_speculative_tokens": 2,
                            "rejection_sample_method": "synthetic",
                            "synthetic_acceptance_rates": [0.5, 0.6]})"),
                 "not increase");
}

}  // namespace
}  // namespace monolayer::server
