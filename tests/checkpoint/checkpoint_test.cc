#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/expect_refused.h"
#include "checkpoint/temp_files.h"

namespace monolayer {
namespace {

using testing_files::safetensors;
using testing_files::TempDir;
using testing_files::write_file;

std::string oracle(const std::string& name) {
  return std::string(MONOLAYER_SOURCE_DIR) + "/tests/data/oracle/" + name;
}

// Header as a second reader sees it: the DOM, no checks.
nlohmann::json header_of(const std::string& path) {
  const std::string bytes = testing_files::read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  return nlohmann::json::parse(bytes.substr(8, length));
}

TEST(Checkpoint, OpensEveryOracleCaseAndSeesEveryTensor) {
  for (const std::string name : {"tiny", "m3shape", "onekv", "mxfp4"}) {
    Result<Checkpoint> checkpoint = Checkpoint::open(oracle(name));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    EXPECT_TRUE(checkpoint->notes().empty()) << checkpoint->notes()[0];
    std::size_t expected = 0, bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(oracle(name))) {
      const std::string file = entry.path().filename();
      if (file.rfind("model", 0) != 0 || entry.path().extension() != ".safetensors") continue;
      const std::string content = testing_files::read_file(entry.path());
      const nlohmann::json header = header_of(entry.path());
      const std::size_t data = 8 + *reinterpret_cast<const std::uint64_t*>(content.data());
      for (const auto& [tensor, info] : header.items()) {
        if (tensor == "__metadata__") continue;
        ++expected;
        const TensorView* view = checkpoint->find(tensor);
        ASSERT_NE(view, nullptr) << tensor;
        EXPECT_EQ(dtype_name(view->dtype), info["dtype"].get<std::string>());
        ASSERT_EQ(static_cast<std::size_t>(view->shape.rank()), info["shape"].size());
        const std::size_t begin = info["data_offsets"][0], end = info["data_offsets"][1];
        ASSERT_EQ(view->bytes, end - begin);
        EXPECT_EQ(std::memcmp(view->data, content.data() + data + begin, view->bytes), 0) << tensor;
        bytes += view->bytes;
      }
    }
    EXPECT_EQ(checkpoint->tensors().size(), expected);
    EXPECT_EQ(checkpoint->tensor_bytes(), bytes);
    EXPECT_TRUE(checkpoint->verify_unchanged().ok());
    EXPECT_TRUE(checkpoint->touch_all().ok());
  }
}

// Fault 14: rearranged bytes behind a plain shape are only safe when the file says so.
TEST(Faults14_LayoutTag, OtherLayoutsAreRefusedAndUntaggedMeansPlain) {
  const TempDir dir;
  write_file(dir.at("config.json"), "{}");
  const auto status = [&](const std::string& metadata) {
    write_file(
        dir.at("model.safetensors"),
        safetensors("{" + metadata + R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                    "x"));
    return Checkpoint::open(dir.path()).status();
  };
  EXPECT_TRUE(status("").ok());
  EXPECT_TRUE(status(R"("__metadata__":{"format":"pt"},)").ok());
  EXPECT_TRUE(status(R"("__metadata__":{"monolayer.layout":"plain"},)").ok());
  expect_refused(status(R"("__metadata__":{"monolayer.layout":"mx-lanes-1"},)"), Code::kUnsupported,
                 {dir.at("model.safetensors"), "monolayer.layout", "'mx-lanes-1'"});
}

}  // namespace
}  // namespace monolayer
