// inspect, synth and quantize on small shapes, each through the program, each read back.
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantized_tensor.h"
#include "cli/run_cli.h"

namespace monolayer::cli_test {
namespace {

using Json = nlohmann::json;

Json inspect(const std::string& folder) {
  const Outcome outcome = run_cli({"inspect", folder, "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.exit_code == 0 ? Json::parse(outcome.out) : Json();
}

std::string shape_file() { return oracle("mxfp4") + "/config.json"; }

void synth(const std::string& out, const std::string& format,
           const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments{"synth", "--shape",  shape_file(), "--out",
                                     out,     "--format", format,       "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run_cli(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
}

std::vector<float> decode(const Checkpoint& checkpoint, const std::string& module) {
  const auto config = QuantizationConfig::of(checkpoint);
  const auto matrix = find_matrix(checkpoint, *config, module);
  EXPECT_TRUE(matrix.ok()) << matrix.status().to_string();
  std::vector<float> values(static_cast<std::size_t>(matrix->rows * matrix->cols));
  dequantize(*matrix, 0, matrix->rows, values.data());
  return values;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    norm += double(a[i]) * a[i];
  }
  return std::sqrt(difference / norm);
}

const char* const kFormats[] = {"bf16",     "mxfp4",          "mxfp8",
                                "ptpc_fp8", "mxfp4+ptpc_fp8", "mxfp4+mxfp8"};

TEST(Inspect, CachesByTheBackendsRules) {
  for (const auto& [backend, index] : {std::pair{"cpu", "bf16"}, {"cuda", "fp8_e4m3"}}) {
    const Outcome outcome = run_cli(
        {"inspect", oracle("mxfp4"), "--json", "--backend", backend, "--kv-cache-dtype", "fp8"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json cache = Json::parse(outcome.out)["cache"];
    EXPECT_EQ(cache["kv_cache_dtype"], "fp8_e4m3") << backend;
    EXPECT_EQ(cache["index_cache_dtype"], index) << backend;
  }
}

TEST(Inspect, CountsOfAReferenceCase) {
  const Json report = inspect(oracle("mxfp4"));
  EXPECT_EQ(report["tensors"], 198);
  EXPECT_EQ(report["config"]["hidden_size"], 192);
  EXPECT_EQ(report["formats"]["experts"]["mxfp4"]["matrices"], 72);
  EXPECT_EQ(report["formats"]["shared_expert"]["mxfp4"]["matrices"], 6);
  EXPECT_EQ(report["formats"]["attention"]["BF16"]["matrices"], 12);
  // K and V of 4 heads of 64 on 3 layers, index keys of 64 on 2, 2 bytes each.
  EXPECT_EQ(report["cache_bytes_per_token"]["bf16"], (3 * 2 * 4 * 64 + 2 * 64) * 2);
  ASSERT_EQ(report["tensor_parallel"].size(), 4U);
  EXPECT_TRUE(report["tensor_parallel"][3].contains("refused"));
  std::int64_t bytes = 0;
  for (const auto& [part, formats] : report["formats"].items())
    for (const auto& [format, entry] : formats.items()) bytes += entry["bytes"].get<std::int64_t>();
  EXPECT_LT(bytes, report["tensor_bytes"].get<std::int64_t>());
  EXPECT_GT(bytes, report["tensor_bytes"].get<std::int64_t>() * 9 / 10);
}

TEST(Bench, StepSaysWhatItsCachesHold) {
  const Outcome got = run_cli({"bench", "step", "--model", oracle("mxfp4"), "--contexts", "128",
                               "--rows", "1", "--prefill", "16", "--threads", "1", "--repeats", "1",
                               "--index-cache-dtype", "fp8", "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  const Json report = Json::parse(got.out);
  EXPECT_EQ(report["kv_cache_dtype"], "bf16");
  EXPECT_EQ(report["index_cache_dtype"], "fp8_e4m3");
}

TEST(Inspect, CachesOfTheTypesChosen) {
  const auto bytes = [](std::vector<std::string> more) {
    std::vector<std::string> arguments{"inspect", oracle("mxfp4"), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Json::parse(run_cli(arguments).out)["cache"];
  };
  const int main = 3 * 2 * 4 * 64, index = 2 * 64;
  EXPECT_EQ(bytes({}), (Json{{"kv_cache_dtype", "bf16"},
                             {"index_cache_dtype", "bf16"},
                             {"bytes_per_token", 2 * main + 2 * index}}));
  EXPECT_EQ(bytes({"--kv-cache-dtype", "fp8"}), (Json{{"kv_cache_dtype", "fp8_e4m3"},
                                                      {"index_cache_dtype", "bf16"},
                                                      {"bytes_per_token", main + 2 * index}}));
  EXPECT_EQ(bytes({"--kv-cache-dtype", "fp8", "--index-cache-dtype", "fp8"})["bytes_per_token"],
            main + index);
}

TEST(Inspect, TextNamesWhatMatters) {
  const Outcome outcome = run_cli({"inspect", oracle("m3shape")});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* part : {"2 file(s)", "block-sparse attention, moe MLP", "TP 4", "formats:"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
}

// Which conditions of the fused path a deployment meets: all at size 1; at 8 the one about the
// heads of a rank is refused, with value and bound.
TEST(Inspect, FusedPathRowsOfADeployment) {
  const Json report = inspect(oracle("m3shape"));
  const Json& fused = report["fused_path"];
  EXPECT_TRUE(fused["accepted"].get<bool>()) << fused;
  EXPECT_GE(fused["rows"].size(), 30U);
  const Outcome json =
      run_cli({"inspect", oracle("m3shape"), "--json", "--tensor-parallel-size", "8"});
  ASSERT_EQ(json.exit_code, 0);
  const Json refused = Json::parse(json.out)["fused_path"];
  EXPECT_FALSE(refused["accepted"].get<bool>());
  for (const Json& row : refused["rows"]) {
    EXPECT_EQ(row["holds"].get<bool>(), row["name"] != "rank_shape") << row;
  }
  const Outcome text = run_cli({"inspect", oracle("m3shape"), "--tensor-parallel-size", "8"});
  EXPECT_NE(text.out.find("refused by 1 of"), std::string::npos) << text.out;
}

TEST(Synth, EveryFormatIsAModel) {
  for (const char* format : kFormats) {
    const TempFolder folder;
    synth(folder.file("m"), format);
    const Json report = inspect(folder.file("m"));
    ASSERT_TRUE(report.is_object()) << format;
    const std::string name = format;
    const Json& formats = report["formats"];
    const std::string experts = name.rfind("mxfp4", 0) == 0 ? "mxfp4"
                                : name == "mxfp8"           ? "mxfp8"
                                                            : "BF16";
    const std::string attention = name.find("ptpc_fp8") != std::string::npos ? "fp8-per-channel"
                                  : name.find("mxfp8") != std::string::npos  ? "mxfp8"
                                                                             : "BF16";
    EXPECT_TRUE(formats["experts"].contains(experts)) << name << formats;
    EXPECT_TRUE(formats["attention"].contains(attention)) << name << formats;
    EXPECT_TRUE(formats["index"].contains(attention)) << name << formats;
    EXPECT_TRUE(formats["router"].contains("F32")) << name << formats;
    for (const auto& [part, entries] : formats.items()) EXPECT_EQ(entries.size(), 1U) << part;
  }
}

TEST(Synth, SameSeedSameBytesOtherSeedOtherBytes) {
  const TempFolder folder;
  synth(folder.file("a"), "mxfp4", {"--seed", "5"});
  synth(folder.file("b"), "mxfp4", {"--seed", "5"});
  synth(folder.file("c"), "mxfp4", {"--seed", "6"});
  const std::string a = read_file(folder.file("a/model.safetensors"));
  EXPECT_EQ(a, read_file(folder.file("b/model.safetensors")));
  EXPECT_NE(a, read_file(folder.file("c/model.safetensors")));
}

TEST(Synth, NeighbouringScalesDiffer) {
  const TempFolder folder;
  synth(folder.file("m"), "mxfp4+mxfp8");
  const auto checkpoint = Checkpoint::open(folder.file("m"));
  ASSERT_TRUE(checkpoint.ok());
  int scales = 0;
  for (const TensorView& tensor : checkpoint->tensors()) {
    if (tensor.name.find("_scale") == std::string_view::npos) continue;
    ++scales;
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t groups = tensor.shape[1];
    const auto* s = tensor.as<std::uint8_t>();
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::uint8_t here = s[r * groups + g];
        ASSERT_FALSE(g + 1 < groups && here == s[r * groups + g + 1]) << tensor.name;
        ASSERT_FALSE(r + 1 < rows && here == s[(r + 1) * groups + g]) << tensor.name;
      }
  }
  EXPECT_GT(scales, 80);
}

TEST(Synth, ValuesHaveTheStatedSpread) {
  for (const char* format : kFormats) {
    const TempFolder folder;
    synth(folder.file("m"), format);
    const auto checkpoint = Checkpoint::open(folder.file("m"));
    ASSERT_TRUE(checkpoint.ok());
    const std::string layer = "language_model.model.layers.1.";
    for (const char* module : {"self_attn.q_proj", "block_sparse_moe.experts.3.w1"}) {
      const auto values = decode(*checkpoint, layer + module);
      double sum = 0;
      for (const float v : values) sum += double(v) * v;
      // 1 / sqrt(192), a power of two may be rounded away by up to sqrt(2).
      const double spread = std::sqrt(sum / static_cast<double>(values.size())) * std::sqrt(192.0);
      EXPECT_GT(spread, 0.65) << format << module;
      EXPECT_LT(spread, 1.55) << format << module;
    }
  }
}

TEST(Synth, LayersKeepThePattern) {
  const TempFolder folder;
  synth(folder.file("m"), "bf16", {"--layers", "5"});
  const Json runs = inspect(folder.file("m"))["layers"];
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0]["last"], 0);
  EXPECT_EQ(runs[1]["last"], 4);
  EXPECT_EQ(runs[1]["mlp"], "moe");
}

TEST(Synth, ShardsHaveAnIndex) {
  const TempFolder folder;
  synth(folder.file("m"), "bf16", {"--shard-mb", "1"});
  EXPECT_TRUE(std::filesystem::exists(folder.file("m/model.safetensors.index.json")));
  EXPECT_GT(inspect(folder.file("m"))["files"].get<int>(), 2);
}

TEST(Synth, DoesNotOverwrite) {
  const TempFolder folder;
  synth(folder.file("m"), "bf16");
  const std::vector<std::string> again{"synth", "--shape", shape_file(), "--out", folder.file("m")};
  EXPECT_EQ(not_one_error(run_cli(again), {folder.file("m"), "not empty", "--force"}), "");
  synth(folder.file("m"), "mxfp4", {"--force"});
  EXPECT_TRUE(inspect(folder.file("m"))["formats"]["experts"].contains("mxfp4"));
}

TEST(Quantize, RoundTripsThroughEveryFormat) {
  const TempFolder folder;
  synth(folder.file("source"), "bf16");
  const auto source = Checkpoint::open(folder.file("source"));
  ASSERT_TRUE(source.ok());
  const std::string expert = "language_model.model.layers.2.block_sparse_moe.experts.7.w2";
  const std::string query = "language_model.model.layers.1.self_attn.q_proj";
  // Largest relative error of one rounding: E2M1 has 2 significant bits, E4M3 has 4.
  const std::map<std::string, std::pair<double, double>> bounds{{"mxfp4", {0.20, 0}},
                                                                {"mxfp8", {0.05, 0.05}},
                                                                {"ptpc_fp8", {0, 0.05}},
                                                                {"mxfp4+ptpc_fp8", {0.20, 0.05}},
                                                                {"mxfp4+mxfp8", {0.20, 0.05}}};
  for (const auto& [format, bound] : bounds) {
    for (const char* rule : {"ocp", "even"}) {
      const std::string out = folder.file(format + rule);
      const Outcome outcome = run_cli({"quantize", "--model", folder.file("source"), "--out", out,
                                       "--format", format, "--rule", rule, "--quiet"});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      const auto made = Checkpoint::open(out);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      const double expert_error = relative_error(decode(*source, expert), decode(*made, expert));
      const double query_error = relative_error(decode(*source, query), decode(*made, query));
      EXPECT_LE(expert_error, bound.first) << format << rule;
      EXPECT_LE(query_error, bound.second) << format << rule;
      EXPECT_TRUE(bound.first == 0 || expert_error > 1e-3) << format;
      EXPECT_TRUE(bound.second == 0 || query_error > 1e-3) << format;
      EXPECT_TRUE(inspect(out).is_object());

      // Once more to the same format: nothing is rounded twice.
      const Outcome again =
          run_cli({"quantize", "--model", out, "--out", out + "2", "--format", format, "--quiet"});
      ASSERT_EQ(again.exit_code, 0) << again.err;
      EXPECT_EQ(read_file(out + "/model.safetensors"), read_file(out + "2/model.safetensors"));
    }
  }
}

TEST(Quantize, PartsNotNamedKeepTheirFormat) {
  const TempFolder folder;
  synth(folder.file("a"), "mxfp4");
  ASSERT_EQ(run_cli({"quantize", "--model", folder.file("a"), "--out", folder.file("b"), "--format",
                     "ptpc_fp8"})
                .exit_code,
            0);
  const Json formats = inspect(folder.file("b"))["formats"];
  EXPECT_TRUE(formats["experts"].contains("mxfp4")) << formats;
  EXPECT_TRUE(formats["attention"].contains("fp8-per-channel")) << formats;
  EXPECT_TRUE(formats["dense_mlp"].contains("BF16")) << formats;
  const auto a = Checkpoint::open(folder.file("a"));
  const auto b = Checkpoint::open(folder.file("b"));
  const std::string expert = "language_model.model.layers.2.block_sparse_moe.experts.7.w2";
  EXPECT_EQ(decode(*a, expert), decode(*b, expert));
}

TEST(Quantize, Bf16DecodesMxExactly) {
  const TempFolder folder;
  synth(folder.file("a"), "mxfp4+mxfp8");
  ASSERT_EQ(run_cli({"quantize", "--model", folder.file("a"), "--out", folder.file("b"), "--format",
                     "bf16"})
                .exit_code,
            0);
  const auto a = Checkpoint::open(folder.file("a"));
  const auto b = Checkpoint::open(folder.file("b"));
  for (const char* module : {"block_sparse_moe.experts.7.w2", "self_attn.o_proj"}) {
    const std::string name = std::string("language_model.model.layers.2.") + module;
    EXPECT_EQ(decode(*a, name), decode(*b, name)) << name;
  }
  EXPECT_TRUE(inspect(folder.file("b"))["formats"]["experts"].contains("BF16"));
}

TEST(Quantize, FlatNamesStayFlat) {
  const TempFolder folder;
  ASSERT_EQ(run_cli({"quantize", "--model", oracle("tiny"), "--out", folder.file("b"), "--format",
                     "mxfp8"})
                .exit_code,
            0);
  const auto made = Checkpoint::open(folder.file("b"));
  ASSERT_TRUE(made.ok());
  EXPECT_NE(made->find("model.layers.0.self_attn.q_proj.weight"), nullptr);
  EXPECT_NE(made->find("model.layers.0.self_attn.q_proj.weight_scale_inv"), nullptr);
  EXPECT_TRUE(inspect(folder.file("b")).is_object());
}

TEST(Quantize, CopiesTokenizerAndTemplate) {
  const TempFolder folder;
  synth(folder.file("a"), "bf16");
  folder.put("a/chat_template.jinja", "{{ messages }}");
  folder.put("a/tokenizer.json", "{}");
  ASSERT_EQ(run_cli({"quantize", "--model", folder.file("a"), "--out", folder.file("b"), "--format",
                     "mxfp4"})
                .exit_code,
            0);
  EXPECT_EQ(read_file(folder.file("b/chat_template.jinja")), "{{ messages }}");
  EXPECT_EQ(read_file(folder.file("b/tokenizer.json")), "{}");
}

TEST(Quantize, Refusals) {
  const TempFolder folder;
  synth(folder.file("a"), "bf16");
  const auto quantize = [&](const std::string& out, const std::string& format) {
    return run_cli({"quantize", "--model", folder.file("a"), "--out", out, "--format", format});
  };
  EXPECT_EQ(not_one_error(quantize(folder.file("a"), "mxfp4"), {"model itself"}), "");
  EXPECT_EQ(not_one_error(quantize(folder.file("b"), "nvfp4"), {"nvfp4", "mxfp4"}), "");
  folder.put("c/something", "x");
  EXPECT_EQ(not_one_error(quantize(folder.file("c"), "mxfp4"), {"not empty"}), "");
}

// A file that may not grow stands for a full disk; the names of finished files must not appear.
TEST(FullDisk, LeavesNoModelBehind) {
  const TempFolder folder;
  const RunOptions limited{.file_size_limit = 200'000};
  const Outcome made =
      run_cli({"synth", "--shape", shape_file(), "--out", folder.file("m")}, limited);
  EXPECT_EQ(not_one_error(made, {folder.file("m")}), "");
  EXPECT_FALSE(std::filesystem::exists(folder.file("m/model.safetensors")));
  synth(folder.file("a"), "bf16");
  const Outcome quantized = run_cli(
      {"quantize", "--model", folder.file("a"), "--out", folder.file("b"), "--format", "mxfp4"},
      limited);
  EXPECT_EQ(not_one_error(quantized, {folder.file("b")}), "");
  EXPECT_FALSE(std::filesystem::exists(folder.file("b/model.safetensors")));
}

TEST(FullDisk, WholeModelIsRefusedWithBothFigures) {
  const TempFolder folder;
  const Outcome outcome =
      run_cli({"synth", "--shape", "m3", "--layers", "1024", "--out", folder.file("m")});
  EXPECT_EQ(not_one_error(outcome, {"needs", "free"}), "");
  EXPECT_FALSE(std::filesystem::exists(folder.file("m")));
}

}  // namespace
}  // namespace monolayer::cli_test
