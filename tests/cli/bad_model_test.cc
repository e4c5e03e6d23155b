// Models that are not what they claim: one line that names the file, tensor or field, for every
// command that opens one.
#include <cstring>
#include <filesystem>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/run_cli.h"

namespace monolayer::cli_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A copy of a reference case that a test may damage.
class Model {
 public:
  explicit Model(const std::string& name) {
    for (const auto& entry : fs::directory_iterator(oracle(name)))
      fs::copy(entry.path(), fs::path(folder_.path()) / entry.path().filename());
    fs::remove(file("expected.safetensors"));
  }
  const std::string& path() const { return folder_.path(); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  void put(const std::string& name, const std::string& text) const { folder_.put(name, text); }
  void cut(const std::string& name, std::int64_t bytes) const {
    const auto size = static_cast<std::int64_t>(fs::file_size(file(name)));
    fs::resize_file(file(name),
                    static_cast<std::uintmax_t>(std::max<std::int64_t>(0, size - bytes)));
  }
  void edit_config(const std::function<void(Json&)>& edit) const {
    Json config = Json::parse(read_file(file("config.json")));
    edit(config);
    put("config.json", config.dump());
  }
  // Rewrites the header of a safetensors file; its data stays.
  void edit_header(const std::string& name, const std::function<void(Json&)>& edit) const {
    const std::string bytes = read_file(file(name));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    Json header = Json::parse(bytes.substr(8, length));
    edit(header);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    length = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &length, 8);
    std::uint64_t old = 0;
    std::memcpy(&old, bytes.data(), 8);
    put(name, out + text + bytes.substr(8 + old));
  }
  // Overwrites one byte of a tensor.
  void set_byte(const std::string& name, const std::string& tensor, std::size_t at,
                char value) const {
    std::string bytes = read_file(file(name));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    const Json header = Json::parse(bytes.substr(8, length));
    bytes[8 + length + header[tensor]["data_offsets"][0].get<std::size_t>() + at] = value;
    put(name, bytes);
  }

 private:
  TempFolder folder_;
};

// Where in the text section of a nested config.
Json& text_of(Json& config) { return config["text_config"]; }

const char* const kModel = "model.safetensors";
const std::string kExpert = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight";
const std::string kScale = kExpert + "_scale";

struct Damage {
  const char* name;
  const char* model;
  std::function<void(const Model&)> damage;
  std::vector<std::string> parts;
};

std::vector<Damage> damages() {
  return {
      {"cut_by_one_byte", "mxfp4", [](const Model& m) { m.cut(kModel, 1); }, {kModel}},
      {"cut_by_megabytes", "mxfp4", [](const Model& m) { m.cut(kModel, 2'000'000); }, {kModel}},
      {"shard_cut",
       "m3shape",
       [](const Model& m) { m.cut("model-00002-of-00002.safetensors", 1); },
       {"model-00002-of-00002.safetensors"}},
      {"empty_file", "mxfp4", [](const Model& m) { m.put(kModel, ""); }, {kModel}},
      {"html",
       "mxfp4",
       [](const Model& m) { m.put(kModel, "<!DOCTYPE html><html>not found</html>"); },
       {kModel, "HTML"}},
      {"header_beyond_the_file",
       "mxfp4",
       [](const Model& m) {
         std::string bytes = read_file(m.file(kModel));
         bytes[7] = '\x7f';
         m.put(kModel, bytes);
       },
       {kModel}},
      {"offsets_reversed",
       "mxfp4",
       [](const Model& m) {
         m.edit_header(kModel, [](Json& h) {
           std::swap(h[kExpert]["data_offsets"][0], h[kExpert]["data_offsets"][1]);
         });
       },
       {kModel, kExpert}},
      {"offsets_overlap",
       "mxfp4",
       [](const Model& m) {
         m.edit_header(kModel,
                       [](Json& h) { h[kScale]["data_offsets"] = h[kExpert]["data_offsets"]; });
       },
       {kModel}},
      {"wrong_shape",
       "mxfp4",
       [](const Model& m) {
         m.edit_header(kModel, [](Json& h) {
           std::swap(h[kExpert]["shape"][0], h[kExpert]["shape"][1]);
           h[kExpert]["shape"] = {h[kExpert]["shape"][0].get<int>() * 2,
                                  h[kExpert]["shape"][1].get<int>() / 2};
         });
       },
       {"experts.0.w1"}},
      {"wrong_dtype",
       "mxfp4",
       [](const Model& m) { m.edit_header(kModel, [](Json& h) { h[kExpert]["dtype"] = "I8"; }); },
       {kModel}},
      {"missing_and_unexpected",
       "mxfp4",
       [](const Model& m) {
         m.edit_header(kModel, [](Json& h) {
           h["language_model.model.layers.1.self_attn.z_proj.weight"] =
               h["language_model.model.layers.1.self_attn.q_proj.weight"];
           h.erase("language_model.model.layers.1.self_attn.q_proj.weight");
         });
       },
       {"q_proj", "z_proj"}},
      {"scale_nan",
       "mxfp4",
       [](const Model& m) { m.set_byte(kModel, kScale, 3, '\xff'); },
       {kScale}},
      {"scales_missing",
       "mxfp4",
       [](const Model& m) {
         m.edit_header(kModel, [](Json& h) {
           h["unrelated.weight"] = h[kScale];
           h.erase(kScale);
         });
       },
       {"experts.0.w1"}},
      {"index_names_a_missing_shard",
       "m3shape",
       [](const Model& m) { fs::remove(m.file("model-00001-of-00002.safetensors")); },
       {"model-00001-of-00002.safetensors"}},
      {"stray_shard",
       "m3shape",
       [](const Model& m) {
         fs::copy(m.file("model-00001-of-00002.safetensors"),
                  m.file("model-00003-of-00003.safetensors"));
       },
       {"model-00003-of-00003.safetensors"}},
      {"shard_outside_the_folder",
       "m3shape",
       [](const Model& m) {
         Json index = Json::parse(read_file(m.file("model.safetensors.index.json")));
         for (auto& [name, shard] : index["weight_map"].items())
           shard = "../" + shard.get<std::string>();
         m.put("model.safetensors.index.json", index.dump());
       },
       {"model.safetensors.index.json", "../"}},
      {"index_names_a_missing_tensor",
       "m3shape",
       [](const Model& m) {
         Json index = Json::parse(read_file(m.file("model.safetensors.index.json")));
         index["weight_map"]["no.such.tensor"] = "model-00001-of-00002.safetensors";
         m.put("model.safetensors.index.json", index.dump());
       },
       {"no.such.tensor"}},
      {"no_config",
       "mxfp4",
       [](const Model& m) { fs::remove(m.file("config.json")); },
       {"config.json"}},
      {"config_not_json",
       "mxfp4",
       [](const Model& m) { m.put("config.json", "{"); },
       {"config.json"}},
      {"config_wrong_type",
       "mxfp4",
       [](const Model& m) { m.edit_config([](Json& c) { text_of(c)["hidden_size"] = "192"; }); },
       {"config.json", "hidden_size"}},
      {"config_negative",
       "mxfp4",
       [](const Model& m) { m.edit_config([](Json& c) { text_of(c)["num_hidden_layers"] = -3; }); },
       {"num_hidden_layers"}},
      {"config_huge",
       "mxfp4",
       [](const Model& m) {
         m.edit_config([](Json& c) { text_of(c)["hidden_size"] = 4611686018427387904; });
       },
       {"hidden_size"}},
      {"config_nan",
       "mxfp4",
       [](const Model& m) {
         std::string text = read_file(m.file("config.json"));
         const auto at = text.find("1.702");
         m.put("config.json", text.replace(at, 5, "NaN"));
       },
       {"config.json"}},
      {"config_unsupported",
       "mxfp4",
       [](const Model& m) {
         m.edit_config([](Json& c) { text_of(c)["attention_output_gate"] = true; });
       },
       {"attention_output_gate"}},
  };
}

TEST(BadModel, IsOneLineFromInspect) {
  for (const Damage& bad : damages()) {
    const Model model(bad.model);
    ASSERT_EQ(run_cli({"inspect", model.path()}).exit_code, 0) << bad.name;
    bad.damage(model);
    EXPECT_EQ(not_one_error(run_cli({"inspect", model.path()}), bad.parts), "") << bad.name;
  }
}

TEST(BadModel, IsOneLineFromTraceAndQuantize) {
  for (const Damage& bad : damages()) {
    const Model model(bad.model);
    bad.damage(model);
    const TempFolder out;
    const std::string tokens = out.put("tokens.json", "[1, 2, 3]");
    for (const char* path : {"native", "reference"})
      EXPECT_EQ(not_one_error(run_cli({"trace", "--model", model.path(), "--tokens", tokens,
                                       "--out", out.file("t"), "--path", path}),
                              bad.parts),
                "")
          << bad.name << " " << path;
    EXPECT_EQ(not_one_error(run_cli({"quantize", "--model", model.path(), "--out", out.file("q"),
                                     "--format", "mxfp8"}),
                            bad.parts),
              "")
        << bad.name;
    EXPECT_FALSE(fs::exists(out.file("q"))) << bad.name;
  }
}

TEST(BadModel, NoSuchFolder) {
  for (const char* command : {"inspect"})
    EXPECT_EQ(not_one_error(run_cli({command, "/no/such/model"}), {"/no/such/model"}), "");
  EXPECT_EQ(not_one_error(run_cli({"inspect", "org/no-such-model"}), {"org/no-such-model"}), "");
  EXPECT_EQ(not_one_error(run_cli({"inspect", ""}), {}), "");
}

// A cached model is found by its name, without network.
TEST(Hub, ModelsOfACacheAreFoundByName) {
  const TempFolder home;
  const std::string base = "hub/models--org--small/";
  home.put(base + "refs/main", "abc123");
  fs::create_directories(home.file(base + "snapshots"));
  fs::copy(oracle("mxfp4"), home.file(base + "snapshots/abc123"), fs::copy_options::recursive);
  fs::remove(home.file(base + "snapshots/abc123/expected.safetensors"));
  const Outcome outcome =
      run_cli({"inspect", "org/small"}, {.environment = {"HF_HOME=" + home.path()}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

}  // namespace
}  // namespace monolayer::cli_test
