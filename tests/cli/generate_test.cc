// generate through the program, with the embedded model.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/run_cli.h"

namespace monolayer::cli_test {
namespace {

using Json = nlohmann::json;

const std::string kNano = std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano";

std::vector<std::string> with(std::vector<std::string> arguments,
                              const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Json generate_json(const std::vector<std::string>& more) {
  const Outcome outcome = run_cli(with({"generate", "--model", kNano, "--json"}, more));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  if (outcome.exit_code != 0) return {};
  return Json::parse(outcome.out);
}

TEST(Generate, GreedyIsTheSameWithAnyThreadsAndChunks) {
  const std::vector<std::string> base{"--prompt", "What is 3 plus 4?", "--temperature",
                                      "0",        "--max-tokens",      "24"};
  const Json first = generate_json(base);
  ASSERT_FALSE(first["token_ids"].empty());
  for (const std::vector<std::string>& more : {std::vector<std::string>{},
                                               {"--threads", "1"},
                                               {"--threads", "3"},
                                               {"--prefill-chunk", "7"},
                                               {"--seed", "99"},
                                               {"--max-model-len", "4096"}})
    EXPECT_EQ(generate_json(with(base, more))["token_ids"], first["token_ids"]);
}

TEST(Generate, ASeedDecidesTheText) {
  const auto sample = [](const char* seed) {
    return generate_json({"--raw", "--prompt", "The weather", "--temperature", "4", "--max-tokens",
                          "20", "--seed", seed})["token_ids"];
  };
  const Json first = sample("5");
  EXPECT_EQ(first, sample("5"));
  EXPECT_NE(first, sample("6"));
}

// Behind the report's rates; with a draft too it counts tokens, a stop id among them, not steps.
long decode_tokens(const Json& json) {
  const double seconds = json["decode_seconds"], rate = json["decode_tokens_per_second"];
  return std::lround(seconds * rate);
}

TEST(Generate, ADraftChangesSpeedNeverTheText) {
  const std::vector<std::vector<std::string>> runs{
      {"--prompt", "What is 3 plus 4?", "--temperature", "0"},  // ends by itself
      {"--prompt", "Count to ten.", "--temperature", "1", "--seed", "7", "--max-tokens", "30"},
      {"--raw", "--prompt", "The weather", "--temperature", "4", "--seed", "5", "--max-tokens",
       "9"},
      {"--prompt", "Hello, who are you?", "--max-tokens", "1"}};
  const std::string draft = std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano_eagle3";
  for (const auto& run : runs) {
    const Json plain = generate_json(run);
    for (const char* guesses : {"1", "3", "7"}) {
      const Json got =
          generate_json(with(run, {"--draft-model", draft, "--num-speculative-tokens", guesses}));
      EXPECT_EQ(got["token_ids"], plain["token_ids"]) << run[1] << ", " << guesses;
      EXPECT_EQ(got["content"], plain["content"]);
      EXPECT_EQ(got["finish_reason"], plain["finish_reason"]);
      EXPECT_EQ(got["generated_tokens"], plain["generated_tokens"]);
      EXPECT_EQ(decode_tokens(got), decode_tokens(plain)) << run[1] << ", " << guesses;
      EXPECT_NEAR(
          got["bytes_per_token"].get<double>() * got["decode_tokens_per_second"].get<double>(),
          got["decode_bytes_per_second"].get<double>(),
          1e-9 * got["decode_bytes_per_second"].get<double>());
      if (plain["token_ids"].size() > 4) {
        EXPECT_GE(got["speculation"]["tokens_per_step"], 1.0);
      }
    }
    EXPECT_FALSE(plain.contains("speculation"));
  }
  const Json none =
      generate_json(with(runs[0], {"--draft-model", draft, "--num-speculative-tokens", "0"}));
  EXPECT_FALSE(none.contains("speculation"));
  const Outcome refused =
      run_cli({"generate", "--model", kNano, "--prompt", "x", "--num-speculative-tokens", "3"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("needs --draft-model"), std::string::npos) << refused.err;
}

// What cannot be written is an error and no report of a run, with a draft and without. (A slow
// load may have said so before.)
TEST(Generate, AFullDiskIsAnErrorWithoutAReport) {
  for (const char* guesses : {"0", "3"}) {
    const Outcome outcome =
        run_cli({"generate", "--prompt", "Hello", "--num-speculative-tokens", guesses},
                {.stdout_path = "/dev/full"});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.err.find("monolayer: error: standard output: No space left"),
              std::string::npos)
        << outcome.err;
    EXPECT_EQ(outcome.err.find("path:"), std::string::npos) << outcome.err;
  }
}

// A shallow target gets a draft that fits it, or none where three layers are not there.
TEST(Generate, SynthMakesADraftForAFewLayers) {
  const TempFolder folder;
  for (const char* layers : {"2", "3", "6"}) {
    const std::string target = folder.file(std::string("target") + layers);
    const std::string draft = folder.file(std::string("draft") + layers);
    ASSERT_EQ(run_cli({"synth", "--shape", "nano", "--layers", layers, "--out", target, "--quiet",
                       "--tokenizer-from", kNano})
                  .exit_code,
              0);
    const Outcome made = run_cli({"synth", "--draft-for", target, "--out", draft, "--quiet"});
    if (std::string(layers) == "2") {
      EXPECT_EQ(not_one_error(made, {"num_layers", "is 2", "3 layers"}), "");
      EXPECT_FALSE(std::filesystem::exists(draft));
      continue;
    }
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const Outcome run = run_cli({"generate", "--model", target, "--draft-model", draft, "--prompt",
                                 "x", "--max-tokens", "3", "--quiet"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
}

TEST(Generate, StreamsTheTextThatJsonHolds) {
  const std::vector<std::string> base{"--prompt",   "What is 3 plus 4?", "--temperature",
                                      "0",          "--max-tokens",      "24",
                                      "--thinking", "disabled"};
  const Json json = generate_json(base);
  const Outcome text = run_cli(with({"generate", "--model", kNano}, base));
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.out, json["content"].get<std::string>() + "\n");
  EXPECT_EQ(json["reasoning"], "");
  for (const char* part :
       {"path: mono", "the rest native", "kernels", "tokens/s", "per token", "GB/s", "read stream"})
    EXPECT_NE(text.err.find(part), std::string::npos) << part << "\n" << text.err;
  EXPECT_EQ(json["path"], "mono");
  EXPECT_GT(json["mono_steps"], 5);
  EXPECT_GT(json["bytes_per_token"], 1e6);
  EXPECT_GT(json["share_of_read_stream"], 0.0);
}

// Slow, and nothing says so: below 30 % of the read stream a warning gives the reason.
TEST(Generate, FaultA7_MlxVlm1547_ASlowRunSaysWhy) {
  const Json json = generate_json({"--prompt", "hi", "--temperature", "0", "--max-tokens", "8"});
  EXPECT_GT(json["bytes_per_token"], 1e6);
  EXPECT_EQ(json["share_of_read_stream"] < 0.3, !json["warning"].get<std::string>().empty());
}

TEST(Generate, QuietPrintsTheTextAlone) {
  const Outcome outcome = run_cli({"generate", "--model", kNano, "--prompt", "hi", "--quiet",
                                   "--temperature", "0", "--max-tokens", "4"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out, "");
}

TEST(Generate, VerbosePrintsTheEffectiveConfiguration) {
  const TempFolder folder;
  const Outcome outcome =
      run_cli({"generate", "--model", kNano, "--prompt", "hi", "--verbose", "--top-k", "7",
               "--temperature", "0.5", "--max-tokens", "2", "--seed", "12", "--threads", "1"});
  EXPECT_EQ(outcome.exit_code, 0);
  // top_p is the model's own default, from its generation_config.json.
  for (const char* line : {"top_k: 7\n", "temperature: 0.5\n", "seed: 12\n", "threads: 1\n",
                           "max_tokens: 2\n", "top_p: 0.95\n"})
    EXPECT_NE(outcome.err.find(line), std::string::npos) << line << outcome.err;
}

TEST(Generate, ThinkingIsKeptApart) {
  const Json json =
      generate_json({"--prompt", "Tom has 3 apples and buys 4. How many?", "--temperature", "0",
                     "--thinking", "enabled", "--max-tokens", "200"});
  const std::string content = json["content"];
  const std::string reasoning = json["reasoning"];
  EXPECT_NE(reasoning, "");
  for (const std::string& text : {content, reasoning})
    EXPECT_EQ(text.find("mm:think"), std::string::npos) << text;
}

TEST(Generate, MessagesAndPromptFileSayTheSame) {
  const TempFolder folder;
  const std::string list = folder.put("list.json", R"([{"role": "user", "content": "hi"}])");
  const std::string object =
      folder.put("object.json", R"({"messages": [{"role": "user", "content": "hi"}]})");
  const std::string text = folder.put("prompt.txt", "hi");
  const std::vector<std::string> base{"--temperature", "0", "--max-tokens", "8"};
  const Json expected = generate_json(with(base, {"--prompt", "hi"}));
  for (const std::vector<std::string>& source : {std::vector<std::string>{"--messages", list},
                                                 {"--messages", object},
                                                 {"--prompt-file", text}}) {
    const Json got = generate_json(with(base, source));
    EXPECT_EQ(got["token_ids"], expected["token_ids"]);
    EXPECT_EQ(got["prompt_tokens"], expected["prompt_tokens"]);
  }
}

TEST(Generate, ControlTokensInAPromptStayText) {
  const auto prompt_tokens = [](const std::string& text) {
    return generate_json(
               {"--prompt", text, "--temperature", "0", "--max-tokens", "1"})["prompt_tokens"]
        .get<int>();
  };
  // As a token it would be one; as text it is several.
  EXPECT_GT(prompt_tokens("a]~b]b"), prompt_tokens("a b") + 2);
}

TEST(Generate, TheEmbeddedModelIsTheDefaultAndCanBeMoved) {
  const Outcome found = run_cli(
      {"generate", "--prompt", "hi", "--max-tokens", "1", "--quiet"},
      {.environment = {"MONOLAYER_ASSETS=" + std::string(MONOLAYER_SOURCE_DIR) + "/assets"}});
  EXPECT_EQ(found.exit_code, 0) << found.err;
  const Outcome missing =
      run_cli({"generate", "--prompt", "hi"}, {.environment = {"MONOLAYER_ASSETS=/no/such/place"}});
  EXPECT_EQ(not_one_error(missing, {"/no/such/place/nano", "--model"}), "");
}

struct BadLine {
  const char* name;
  std::vector<std::string> arguments;
  std::vector<std::string> parts;
};

const BadLine kBadLines[] = {
    {"empty_prompt", {"--prompt", ""}, {"--prompt", "empty"}},
    {"no_prompt", {}, {"--prompt"}},
    {"two_prompts", {"--prompt", "a", "--messages", "b"}, {"exactly one"}},
    {"prompt_file_missing", {"--prompt-file", "/no/such"}, {"/no/such"}},
    {"messages_missing", {"--messages", "/no/such"}, {"/no/such"}},
    {"raw_messages", {"--raw", "--messages", "/no/such"}, {"--raw"}},
    {"max_tokens_zero", {"--prompt", "a", "--max-tokens", "0"}, {"--max-tokens"}},
    {"max_tokens_text", {"--prompt", "a", "--max-tokens", "ten"}, {"--max-tokens", "ten"}},
    {"temperature_negative", {"--prompt", "a", "--temperature", "-1"}, {"--temperature"}},
    {"temperature_nan", {"--prompt", "a", "--temperature", "nan"}, {"--temperature", "nan"}},
    {"top_p_zero", {"--prompt", "a", "--top-p", "0"}, {"--top-p"}},
    {"top_p_two", {"--prompt", "a", "--top-p", "2"}, {"--top-p", "1"}},
    {"top_k_negative", {"--prompt", "a", "--top-k", "-2"}, {"--top-k"}},
    {"seed_text", {"--prompt", "a", "--seed", "x"}, {"--seed"}},
    {"path_unknown", {"--prompt", "a", "--path", "x"}, {"--path", "auto, native, mono"}},
#ifndef MONOLAYER_CUDA  // a build with that backend takes the word and asks for a device
    {"backend_cuda", {"--prompt", "a", "--backend", "cuda"}, {"--backend", "cuda"}},
#endif
    {"tp",
     {"--prompt", "a", "--tensor-parallel-size", "3"},
     {"--tensor-parallel-size", "3", "1, 2, 4, 8"}},
    {"kv_e5m2", {"--prompt", "a", "--kv-cache-dtype", "fp8_e5m2"}, {"fp8_e5m2", "auto, bf16, fp8"}},
    {"kv_int8", {"--prompt", "a", "--kv-cache-dtype", "int8"}, {"int8", "fp8_e4m3"}},
    {"kv_q8", {"--prompt", "a", "--kv-cache-dtype", "q8_0"}, {"q8_0", "fp8_e4m3"}},
    {"too_long",
     {"--prompt", "a", "--max-model-len", "5"},
     {"tokens", "limit of 5", "prompt of 4"}},
    {"len_huge", {"--prompt", "a", "--max-model-len", "1048577"}, {"--max-model-len", "1048576"}},
    {"thinking", {"--prompt", "a", "--thinking", "maybe"}, {"--thinking", "enabled"}},
    {"unknown_flag", {"--prompt", "a", "--frequency-penalty", "1"}, {"--frequency-penalty"}},
};

TEST(Generate, BadLinesAreOneLine) {
  for (const BadLine& bad : kBadLines)
    EXPECT_EQ(
        not_one_error(run_cli(with({"generate", "--model", kNano}, bad.arguments)), bad.parts), "")
        << bad.name;
}

TEST(Generate, BadMessagesAreOneLine) {
  const TempFolder folder;
  for (const char* text : {"", "[", "{}", "[]", "[1]", "[{\"content\": \"a\"}]", "\"text\"",
                           "{\"messages\": [], \"stream\": true}"}) {
    const std::string file = folder.put("messages.json", text);
    EXPECT_EQ(not_one_error(run_cli({"generate", "--model", kNano, "--messages", file}), {}), "")
        << text;
  }
}

// What is wrong with a field of the file is said with the file's name and the field's path.
TEST(Generate, BadFieldsOfMessagesNameFileAndField) {
  const TempFolder folder;
  for (const auto& [text, field] : std::vector<std::pair<std::string, std::string>>{
           {R"([{"role": "user", "content": [{"type": "image_url"}]}])",
            "messages[0].content[0].type"},
           {R"([{"role": "tool", "content": "a"}])", "messages[0].role"},
           {R"([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": 5}]}])",
            "messages[0].tool_calls[0].arguments"},
           {R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "web"}]})",
            "tools[0].type"},
           {R"({"messages": [{"role": "user", "content": "a"}], "tools": 5})", "tools"},
           {R"({"messages": [{"role": "user", "content": "a"}],
                "chat_template_kwargs": {"tools": 1}})",
            "chat_template_kwargs.tools"},
           {R"({"messages": [{"role": "user", "content": "a"}], "thinking_mode": "x"})",
            "thinking_mode"}}) {
    const std::string file = folder.put("messages.json", text);
    EXPECT_EQ(not_one_error(run_cli({"generate", "--model", kNano, "--messages", file}),
                            {"messages.json", field}),
              "")
        << text;
  }
}

// The model's template is to blame, not the prompt.
TEST(Generate, ATemplateThatWritesNothingIsNamed) {
  const TempFolder folder;
  std::filesystem::copy(kNano, folder.file("m"));
  folder.put("m/chat_template.jinja", "");
  EXPECT_EQ(not_one_error(run_cli({"generate", "--model", folder.file("m"), "--prompt", "hi"}),
                          {folder.file("m"), "chat template"}),
            "");
}

TEST(Generate, FaultA5_LlamaCpp26155_EveryCacheTypeAnswers) {
  for (const char* dtype : {"auto", "bf16", "fp8", "fp8_e4m3"})
    EXPECT_FALSE(generate_json({"--prompt", "hi", "--temperature", "0", "--max-tokens", "4",
                                "--kv-cache-dtype", dtype})["token_ids"]
                     .empty());
}

TEST(Generate, IndexKeysHaveATypeOfTheirOwn) {
  const auto ids = [](const char* kv, const char* index) {
    return generate_json({"--prompt", "What is 48 + 37?", "--temperature", "0", "--max-tokens",
                          "24", "--kv-cache-dtype", kv, "--index-cache-dtype", index})["token_ids"];
  };
  // Below top-k blocks everything is selected: the type of index keys cannot matter there.
  EXPECT_EQ(ids("fp8", "fp8"), ids("fp8", "bf16"));
  EXPECT_EQ(ids("bf16", "bf16"), ids("bf16", "fp8"));
  const Outcome told = run_cli({"generate", "--prompt", "hi", "--max-tokens", "2", "--verbose",
                                "--kv-cache-dtype", "auto", "--index-cache-dtype", "fp8"});
  ASSERT_EQ(told.exit_code, 0) << told.err;
  EXPECT_NE(told.err.find("index_cache_dtype: fp8_e4m3\n"), std::string::npos) << told.err;
}

// A sanitizer's own memory is part of what a process is seen to have.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnMemoryOnly = false;
#else
constexpr bool kOwnMemoryOnly = true;
#endif

std::int64_t mem_total() {
  std::ifstream in("/proc/meminfo");
  std::string name;
  std::int64_t kib = 0;
  in >> name >> kib;
  return kib * 1024;
}

TEST(Memory, FaultA10_InferenceX_MoreThanThereIsIsRefusedWithTheLongestContextThatFits) {
  const TempFolder folder;
  ASSERT_EQ(run_cli({"synth", "--shape", kNano + "/config.json", "--layers", "48", "--format",
                     "mxfp4", "--out", folder.file("m"), "--tokenizer-from", kNano, "--quiet"})
                .exit_code,
            0);
  const Json report = Json::parse(run_cli({"inspect", folder.file("m"), "--json"}).out);
  const auto per_token = report["cache_bytes_per_token"]["bf16"].get<std::int64_t>();
  if (per_token * 1048576 < mem_total()) GTEST_SKIP() << "this machine holds the whole context";
  const Outcome outcome = run_cli(
      {"generate", "--model", folder.file("m"), "--prompt", "hi", "--max-model-len", "1048576"});
  EXPECT_EQ(not_one_error(outcome, {"--max-model-len", "longest context that fits is"}), "");
  if (kOwnMemoryOnly) {
    EXPECT_LT(outcome.peak_rss_bytes, std::int64_t{64} << 20);  // before the weights were touched
  }
  // The stated length is accepted, a page more is not (unless memory changed in between).
  const auto at = outcome.err.find("fits is ") + 8;
  const std::int64_t fits = std::stoll(outcome.err.substr(at));
  EXPECT_EQ(fits % 128, 0);
  const Outcome half =
      run_cli({"generate", "--model", folder.file("m"), "--prompt", "hi", "--raw", "--max-tokens",
               "1", "--quiet", "--max-model-len", std::to_string(fits / 2)});
  EXPECT_EQ(half.exit_code, 0) << half.err;
}

// docs/commands.md states the constant.
TEST(Memory, ResidentSetIsFileAndCachesAndAConstant) {
  if (!kOwnMemoryOnly) GTEST_SKIP() << "a sanitizer's memory would be counted";
  const Json report = Json::parse(run_cli({"inspect", kNano, "--json"}).out);
  const double file = report["file_bytes"];
  const double cache = 4096 * report["cache_bytes_per_token"]["bf16"].get<double>();
  constexpr double kConstant = 48 << 20;
  const Outcome outcome =
      run_cli({"generate", "--model", kNano, "--prompt", "hi", "--temperature", "0", "--max-tokens",
               "16", "--quiet", "--max-model-len", "4096"});
  ASSERT_EQ(outcome.exit_code, 0);
  EXPECT_LT(static_cast<double>(outcome.peak_rss_bytes), 1.1 * (file + cache) + kConstant);
  // The closing report adds its buffer of at most 64 MiB, and not on top of model and caches.
  const Outcome reported = run_cli({"generate", "--model", kNano, "--prompt", "hi", "--temperature",
                                    "0", "--max-tokens", "16", "--max-model-len", "4096"});
  ASSERT_EQ(reported.exit_code, 0);
  EXPECT_NE(reported.err.find("read stream"), std::string::npos);
  EXPECT_LT(static_cast<double>(reported.peak_rss_bytes),
            std::max(1.1 * (file + cache), double{64 << 20}) + kConstant);
}

}  // namespace
}  // namespace monolayer::cli_test
