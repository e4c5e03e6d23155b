#include "checkpoint/shard_index.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expect_refused.h"
#include "checkpoint/temp_files.h"
#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

using testing_files::safetensors;
using testing_files::TempDir;
using testing_files::write_file;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Two shards, a and b in the first, c in the second.
struct Model {
  Model() {
    write_file(dir.at("config.json"), "{}");
    write_file(dir.at(kFirst), safetensors({{"a", "U8", "[2]", "aa"}, {"b", "U8", "[1]", "b"}}));
    write_file(dir.at(kSecond), safetensors({{"c", "U8", "[3]", "ccc"}}));
    index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}});
  }
  void index(const std::map<std::string, std::string>& map) {
    write_file(dir.at(kIndex), nlohmann::json{{"weight_map", map}}.dump());
  }
  void raw_index(const std::string& text) { write_file(dir.at(kIndex), text); }
  Status status() const { return Checkpoint::open(dir.path()).status(); }
  TempDir dir;
};

TEST(ShardIndex, OpensAllShards) {
  const Model model;
  Result<Checkpoint> checkpoint = Checkpoint::open(model.dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ(checkpoint->files().size(), 2U);
  ASSERT_EQ(checkpoint->tensors().size(), 3U);
  EXPECT_EQ(checkpoint->tensors()[2].name, "c");
  EXPECT_EQ(checkpoint->tensor_bytes(), 6U);
  EXPECT_EQ(checkpoint->find("c")->file, model.dir.at(kSecond));
  expect_refused(checkpoint->require("d").status(), Code::kNotFound, {model.dir.path(), "'d'"});
}

TEST(ShardIndex, TotalSizeThatDisagreesIsNotedNotRefused) {
  Model model;
  model.raw_index(std::string(R"({"metadata":{"total_size":7},"weight_map":{"a":")") + kFirst +
                  R"(","b":")" + kFirst + R"(","c":")" + kSecond + "\"}}");
  Result<Checkpoint> checkpoint = Checkpoint::open(model.dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  ASSERT_EQ(checkpoint->notes().size(), 1U);
  EXPECT_NE(checkpoint->notes()[0].find("total_size is 7"), std::string::npos);
}

TEST(ShardIndex, OtherSafetensorsFilesAreNotPartOfTheModel) {
  const Model model;
  write_file(model.dir.at("expected.safetensors"), "not even safetensors");
  EXPECT_TRUE(model.status().ok());
}

TEST(Faults_Index, MissingShard) {
  const Model model;
  std::filesystem::remove(model.dir.at(kSecond));
  expect_refused(model.status(), Code::kInvalidFile, {kIndex, "1 of 2 shards", kSecond});
}

TEST(Faults_Index, DanglingLinkIsNamed) {
  const Model model;
  std::filesystem::remove(model.dir.at(kSecond));
  std::filesystem::create_symlink("../../blobs/0123", model.dir.at(kSecond));
  expect_refused(model.status(), Code::kNotFound, {model.dir.at(kSecond)});
}

TEST(Faults_Index, MissingTensor) {
  Model model;
  model.index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}, {"d", kSecond}});
  expect_refused(model.status(), Code::kInvalidFile, {kIndex, "1 tensor", "'d'"});
}

TEST(Faults_Index, TensorsBeyondTheIndexListsFiveAndTheRest) {
  Model model;
  std::vector<testing_files::Piece> pieces;
  for (char c = 'c'; c < 'k'; ++c) pieces.push_back({std::string(1, c), "U8", "[1]", "x"});
  write_file(model.dir.at(kSecond), safetensors(pieces));
  expect_refused(model.status(), Code::kInvalidFile,
                 {kIndex, "7 tensors", "'d', 'e', 'f', 'g', 'h' and 2 more"});
}

TEST(Faults_Index, TensorInAnotherShard) {
  Model model;
  model.index({{"a", kFirst}, {"b", kSecond}, {"c", kSecond}});
  expect_refused(model.status(), Code::kInvalidFile, {kFirst, "'b'", kSecond});
}

TEST(Faults_Index, TensorInTwoShards) {
  Model model;
  write_file(model.dir.at(kSecond),
             safetensors({{"a", "U8", "[2]", "xx"}, {"c", "U8", "[3]", "ccc"}}));
  expect_refused(model.status(), Code::kInvalidFile, {kSecond, "'a'", kFirst});
}

TEST(Faults_Index, DuplicateNames) {
  Model model;
  model.raw_index(std::string(R"({"weight_map":{"a":")") + kFirst + R"(","a":")" + kSecond +
                  "\"}}");
  expect_refused(model.status(), Code::kInvalidFile, {kIndex, "'a'", "twice"});
}

TEST(Faults_Index, StrayShards) {
  const Model model;
  write_file(model.dir.at("model-00003-of-00003.safetensors"), "x");
  expect_refused(model.status(), Code::kInvalidFile, {kIndex, "model-00003-of-00003.safetensors"});
  std::filesystem::remove(model.dir.at("model-00003-of-00003.safetensors"));
  EXPECT_TRUE(model.status().ok());
  write_file(model.dir.at("model.safetensors"), "x");
  expect_refused(model.status(), Code::kInvalidFile, {kIndex, "'model.safetensors'"});
}

TEST(Faults_Index, StrayShardBesideASingleFile) {
  const TempDir dir;
  write_file(dir.at("config.json"), "{}");
  write_file(dir.at("model.safetensors"), safetensors({{"a", "U8", "[1]", "a"}}));
  EXPECT_TRUE(Checkpoint::open(dir.path()).ok());
  write_file(dir.at(kFirst), "x");
  expect_refused(Checkpoint::open(dir.path()).status(), Code::kInvalidFile,
                 {"model.safetensors", kFirst});
}

TEST(Faults_Index, ShardNamesThatLeaveTheFolder) {
  for (const std::string name :
       {"../model-00002-of-00002.safetensors", "/etc/passwd.safetensors", "a/b.safetensors",
        "..\\b.safetensors", "..", "", ".safetensors", "model.bin"}) {
    Model model;
    model.index({{"a", kFirst}, {"b", kFirst}, {"c", name}});
    expect_refused(model.status(), Code::kInvalidFile, {kIndex, "'" + name + "'", "'c'"});
  }
  Model model;
  model.raw_index(R"({"weight_map":{"a":"m\u0000.safetensors"}})");
  expect_refused(model.status(), Code::kInvalidFile, {kIndex, "NUL"});
}

TEST(Faults_Index, WrongTypes) {
  for (const auto& [text, named] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "object"},
           {"{}", "'weight_map' is missing"},
           {R"({"weight_map":[]})", "'weight_map'"},
           {R"({"weight_map":{}})", "no tensor"},
           {R"({"weight_map":{"a":1}})", "'a'"},
           {R"({"weight_map":{"a":"m.safetensors"},"metadata":[]})", "'metadata'"},
           {R"({"weight_map":{"a":"m.safetensors"},"metadata":{"total_size":"7"}})", "total_size"},
           {"<html>", "HTML"},
           {"", "empty"},
           {"{\"weight_map\":", "JSON"},
           {std::string("{}\0{", 4), "NUL"},
           {std::string(100'000, '['), "64 levels"},
           {R"({"weight_map":{"a":1e999}})", "JSON"}}) {
    const Status status = parse_shard_index(text, "index").status();
    expect_refused(status, Code::kInvalidFile, {"index", named == "JSON" ? "" : named});
  }
}

TEST(Faults_Index, ShardsWithoutIndexAndEmptyFolder) {
  const Model model;
  std::filesystem::remove(model.dir.at(kIndex));
  expect_refused(model.status(), Code::kNotFound, {model.dir.path(), kIndex});
  const TempDir empty;
  expect_refused(Checkpoint::open(empty.path()).status(), Code::kNotFound, {"config.json"});
  write_file(empty.at("config.json"), "{}");
  expect_refused(Checkpoint::open(empty.path()).status(), Code::kNotFound, {"model.safetensors"});
  expect_refused(Checkpoint::open(empty.at("absent")).status(), Code::kNotFound, {"absent"});
  expect_refused(Checkpoint::open(empty.at("config.json")).status(), Code::kInvalidFile,
                 {"folder"});
}

TEST(Faults_Config, NotJson) {
  const Model model;
  for (const auto& [text, named] : std::vector<std::pair<std::string, std::string>>{
           {"", "empty"},
           {"  \n", "empty"},
           {"<!doctype html><html></html>", "HTML"},
           {"{\"a\":1,}", "byte 8"},
           {"[1]", "object"},
           {"{\"a\":NaN}", "JSON"},
           {"{\"a\":1e999}", "double"},
           {"{\"a\":1,\"a\":2}", "'a'"},
           {"{\"a\":{\"b\":[{\"c\":1,\"c\":2}]}}", "'c'"}}) {
    write_file(model.dir.at("config.json"), text);
    expect_refused(model.status(), Code::kInvalidFile, {model.dir.at("config.json"), named});
  }
}

TEST(Faults_Config, TooLarge) {
  const TempDir dir;
  write_file(dir.at("c"), std::string(1001, ' '));
  expect_refused(read_text_file(dir.at("c"), 1000).status(), Code::kInvalidFile,
                 {dir.at("c"), "1001", "1000"});
  EXPECT_EQ(read_text_file(dir.at("c"), 1001)->size(), 1001U);
}

TEST(Faults_TruncatedAfterMapping, CheckpointNamesTheShard) {
  const Model model;
  Result<Checkpoint> checkpoint = Checkpoint::open(model.dir.path());
  ASSERT_TRUE(checkpoint.ok());
  std::filesystem::resize_file(model.dir.at(kSecond),
                               std::filesystem::file_size(model.dir.at(kSecond)) - 1);
  expect_refused(checkpoint->verify_unchanged(), Code::kIoError, {model.dir.at(kSecond)});
  expect_refused(checkpoint->touch_all(), Code::kIoError, {model.dir.at(kSecond)});
}

TEST(Checkpoint, FromMemoryEqualsTheFolder) {
  const Model model;
  std::vector<std::string> contents;
  std::vector<MemoryFile> files;
  for (const char* name : {"config.json", kFirst, kSecond, kIndex})
    contents.push_back(testing_files::read_file(model.dir.at(name)));
  for (std::size_t i = 0; i < contents.size(); ++i) {
    constexpr const char* kNames[] = {"config.json", kFirst, kSecond, kIndex};
    files.push_back({kNames[i], std::as_bytes(std::span(contents[i]))});
  }
  Result<Checkpoint> checkpoint = Checkpoint::from_memory("embedded", files);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ(checkpoint->tensors().size(), 3U);
  EXPECT_EQ(std::memcmp(checkpoint->find("c")->data, "ccc", 3), 0);
  EXPECT_EQ(checkpoint->config_name(), "embedded/config.json");
  EXPECT_TRUE(checkpoint->verify_unchanged().ok());
  files.pop_back();
  expect_refused(Checkpoint::from_memory("embedded", files).status(), Code::kNotFound, {kIndex});
}

TEST(ShardIndex, ShardLikeNames) {
  EXPECT_TRUE(looks_like_shard("model-00001-of-00002.safetensors"));
  EXPECT_TRUE(looks_like_shard("pytorch-1-of-2.safetensors"));
  for (const char* name : {"model.safetensors", "model-00001.safetensors", "-of-.safetensors",
                           "model-1-of-2.bin", "expected.safetensors", "a1-of-2.safetensors"})
    EXPECT_FALSE(looks_like_shard(name)) << name;
}

}  // namespace
}  // namespace monolayer
