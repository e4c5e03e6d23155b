// Every wrong command line is one line that names the flag and the bound.
#include <cstdlib>

#include <gtest/gtest.h>

#include "cli/run_cli.h"

namespace monolayer::cli_test {
namespace {

struct BadLine {
  const char* name;
  std::vector<std::string> arguments;
  std::vector<std::string> parts;  // of the error line
};

class BadArguments : public ::testing::TestWithParam<BadLine> {};

TEST_P(BadArguments, IsOneLine) {
  EXPECT_EQ(not_one_error(run_cli(GetParam().arguments), GetParam().parts), "");
}

const BadLine kBadLines[] = {
    {"nothing", {}, {"a command is required"}},
    {"unknown_command", {"frobnicate"}, {"frobnicate"}},
    {"unknown_flag", {"--frobnicate"}, {"--frobnicate"}},
    {"unknown_flag_of_command", {"synth", "--frobnicate", "1"}, {"--frobnicate"}},
    {"extra_argument", {"synth", "--shape", "m3", "--out", "/x", "more"}, {"more"}},
    {"flag_without_value", {"synth", "--shape"}, {"--shape"}},
    {"missing_required", {"synth", "--shape", "m3"}, {"--out"}},
    {"bad_format",
     {"synth", "--shape", "m3", "--out", "/x", "--format", "int4"},
     {"int4", "mxfp4"}},
    {"layers_zero",
     {"synth", "--shape", "m3", "--out", "/x", "--layers", "0"},
     {"--layers", "'0'"}},
    {"layers_text",
     {"synth", "--shape", "m3", "--out", "/x", "--layers", "3x"},
     {"--layers", "3x"}},
    {"layers_huge",
     {"synth", "--shape", "m3", "--out", "/x", "--layers", "99999999999999999999"},
     {"--layers"}},
    {"seed_negative", {"synth", "--shape", "m3", "--out", "/x", "--seed", "-1"}, {"--seed"}},
    {"shape_missing", {"synth", "--shape", "/no/such.json", "--out", "/x"}, {"/no/such.json"}},
    {"serve_empty_key", {"serve", "--port", "0", "--api-key", ""}, {"--api-key", "is empty"}},
    // A shell variable that is not set must not mean the embedded model.
    {"generate_empty_model", {"generate", "--prompt", "x", "--model", ""}, {"--model", "is empty"}},
    {"generate_empty_draft",
     {"generate", "--prompt", "x", "--draft-model", ""},
     {"--draft-model", "is empty"}},
    {"trace_empty_tokens", {"trace", "--tokens", "", "--out", "/x"}, {"--tokens", "is empty"}},
    {"eval_guesses_without_draft",
     {"eval", "--model", std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano", "--data",
      std::string(MONOLAYER_SOURCE_DIR) + "/tests/data/eval/nano_small.jsonl",
      "--num-speculative-tokens", "2"},
     {"--num-speculative-tokens", "needs --draft-model"}},
    {"synth_draft_layers",
     {"synth", "--draft-for", "nano", "--out", "/x", "--layers", "3"},
     {"--layers", "--shape"}},
    {"generate_not_utf8", {"generate", "--prompt", "\xff"}, {"--prompt", "UTF-8"}},
    {"synth_no_tokenizer",
     {"synth", "--shape", "nano", "--out", "/x", "--tokenizer-from", "/nope"},
     {"/nope", "tokenizer.json"}},
    {"serve_unknown", {"serve", "--no-such-flag"}, {"--no-such-flag"}},
    {"serve_model", {"serve", "--port", "0", "--model", "/no/such"}, {"/no/such"}},
    {"serve_block_size", {"serve", "--block-size", "64"}, {"--block-size", "128"}},
    {"serve_path", {"serve", "--path", "reference"}, {"--path", "reference", "native"}},
    // llama.cpp #26155: one clear refusal at the start, naming what is allowed.
    {"serve_cache_e5m2",
     {"serve", "--kv-cache-dtype", "fp8_e5m2"},
     {"--kv-cache-dtype", "fp8_e5m2", "fp8_e4m3"}},
    {"serve_cache_int8", {"serve", "--kv-cache-dtype", "int8"}, {"int8", "bf16"}},
    {"serve_index_cache_int8",
     {"serve", "--index-cache-dtype", "int8"},
     {"--index-cache-dtype", "int8", "fp8_e4m3"}},
    {"inspect_index_cache",
     {"inspect", "/no/such", "--index-cache-dtype", "fp4"},
     {"--index-cache-dtype", "fp4", "bf16"}},
    // InferenceX: longer than the caches hold is refused before anything is loaded.
    {"serve_length",
     {"serve", "--port", "0", "--num-gpu-blocks-override", "4", "--max-model-len", "1000"},
     {"--max-model-len", "1000", "512"}},
    {"serve_budget",
     {"serve", "--port", "0", "--max-num-seqs", "100", "--max-num-batched-tokens", "128"},
     {"max_num_batched_tokens", "128", "228"}},
    {"serve_ranks_zero",
     {"serve", "--tensor-parallel-size", "0"},
     {"--tensor-parallel-size", "'0'", "1, 2, 4, 8"}},
    {"serve_kwargs_mode",
     {"serve", "--port", "0", "--default-chat-template-kwargs", R"({"thinking_mode":"maybe"})"},
     {"--default-chat-template-kwargs", "thinking_mode", "enabled, disabled or adaptive"}},
    {"serve_kwargs_reserved",
     {"serve", "--port", "0", "--default-chat-template-kwargs", R"({"messages":[]})"},
     {"--default-chat-template-kwargs", "messages"}},
    {"serve_kwargs_list",
     {"serve", "--port", "0", "--default-chat-template-kwargs", "[]"},
     {"--default-chat-template-kwargs", "JSON object"}},
    {"inspect_ranks",
     {"inspect", "/no/such", "--tensor-parallel-size", "3"},
     {"--tensor-parallel-size", "'3'", "1, 2, 4, 8"}},
    {"bench_rows_zero", {"bench", "layer", "--rows", "0"}, {"--rows", "from 1 to 16"}},
    {"bench_rows_many", {"bench", "layer", "--rows", "1,17"}, {"--rows", "from 1 to 16"}},
    {"bench_step_rows", {"bench", "step", "--rows", "0"}, {"--rows", "from 1 to 4096"}},
    {"bench_ranks", {"bench", "step", "--tensor-parallel-size", "0"}, {"1, 2, 4, 8"}},
    {"bench_step_port",
     {"bench", "step", "--port", "80"},
     {"--port", "bench serve", "not of bench step"}},
    {"bench_layer_path", {"bench", "layer", "--path", "mono"}, {"--path", "not of bench layer"}},
    {"bench_serve_rows", {"bench", "serve", "--rows", "1"}, {"--rows", "not of bench serve"}},
    {"bench_speculation_svg", {"bench", "speculation", "--svg", "x"}, {"--svg", "bench serve"}},
    {"bench_speculation_threads", {"bench", "speculation", "--threads", "1,2"}, {"--threads"}},
    {"bench_step_memory",
     {"bench", "step", "--contexts", "1000000000", "--rows", "4096"},
     {"contexts times rows"}},
    {"eval_without_data", {"eval"}, {"--data"}},
    {"eval_missing_data", {"eval", "--data", "/no/such.jsonl"}, {"/no/such.jsonl"}},
    {"eval_rows", {"eval", "--data", "/no/such.jsonl", "--rows", "0"}, {"--rows", "'0'"}},
    {"shell", {"completion", "tcsh"}, {"tcsh", "bash, zsh, fish"}},
};

INSTANTIATE_TEST_SUITE_P(Lines, BadArguments, ::testing::ValuesIn(kBadLines),
                         [](const auto& line) { return std::string(line.param.name); });

TEST(Help, IsOnStdoutWithExitCodeZero) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"synth", "--help"}, {"serve", "--help"}}) {
    const Outcome outcome = run_cli(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_NE(outcome.out.find("Usage"), std::string::npos);
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_EQ(run_cli({"--version"}).out.rfind("monolayer ", 0), 0U);
}

TEST(Help, OfBenchTellsWhatEachFlagIsFor) {
  const std::string help = run_cli({"bench", "--help"}).out;
  const auto group_of = [&](const std::string& flag) {
    const std::size_t at = help.find("  " + flag + " ");
    const std::size_t group = help.rfind("Options", at);
    return at == std::string::npos ? "no such flag"
                                   : help.substr(group, help.find(':', group) - group);
  };
  EXPECT_EQ(group_of("--json"), "Options");
  EXPECT_EQ(group_of("--port"), "Options of bench serve");
  EXPECT_EQ(group_of("--guesses"), "Options of bench speculation");
  EXPECT_EQ(group_of("--timeline"), "Options of bench layer");
  EXPECT_EQ(group_of("--dense-layers"), "Options of bench step on cuda");
}

TEST(Output, AFullDiskBehindStdoutIsAnError) {
  const Outcome outcome = run_cli({"completion", "bash"}, {.stdout_path = "/dev/full"});
  EXPECT_EQ(not_one_error(outcome, {"standard output"}), "");
}

int shell(const std::string& command) { return std::system(command.c_str()); }

TEST(Completion, ScriptsParse) {
  const TempFolder folder;
  for (const char* name : {"bash", "zsh", "fish"}) {
    const Outcome outcome = run_cli({"completion", name});
    ASSERT_EQ(outcome.exit_code, 0);
    for (const char* word : {"synth", "completion", "shard-mb", "mxfp4"})
      EXPECT_NE(outcome.out.find(word), std::string::npos) << name << " " << word;
    const std::string script = folder.put(std::string(name) + ".script", outcome.out);
    if (shell(std::string("command -v ") + name + " >/dev/null") != 0) continue;
    EXPECT_EQ(shell(std::string(name) + " -n " + script), 0) << name;
  }
}

// Completes a line in a real shell.
std::string complete_in_bash(const std::string& script, const std::string& words) {
  const TempFolder folder;
  const std::string out = folder.file("out");
  const std::string code = "source " + script + "; COMP_WORDS=(" + words +
                           "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _monolayer; " +
                           "printf '%s ' \"${COMPREPLY[@]}\" > " + out;
  if (shell("bash " + folder.put("line.sh", code)) != 0) return "failed";
  return read_file(out);
}

TEST(Completion, BashOffersCommandsFlagsAndValues) {
  const TempFolder folder;
  const std::string script = folder.put("c.sh", run_cli({"completion", "bash"}).out);
  EXPECT_EQ(complete_in_bash(script, "monolayer syn"), "synth ");
  EXPECT_EQ(complete_in_bash(script, "monolayer synth --form"), "--format ");
  EXPECT_EQ(complete_in_bash(script, "monolayer synth --format mxfp8"), "mxfp8 ");
  EXPECT_EQ(complete_in_bash(script, "monolayer completion fi"), "fish ");
}

}  // namespace
}  // namespace monolayer::cli_test
