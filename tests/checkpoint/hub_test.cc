#include "checkpoint/hub.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expect_refused.h"
#include "checkpoint/temp_files.h"

namespace monolayer {
namespace {

using testing_files::TempDir;
using testing_files::write_file;
namespace fs = std::filesystem;

const std::string kCommit = "b83d14e3d64bf373a207f3c2a7e9f0b0f1e7fc3a";

// A cache as the hub's client lays it out: blobs by hash, snapshots of relative links.
struct Cache {
  Cache() {
    fs::create_directories(base + "/blobs");
    fs::create_directories(base + "/refs/refs/pr");
    fs::create_directories(base + "/snapshots/" + kCommit);
    write_file(base + "/refs/main", kCommit);
    write_file(base + "/refs/v1", kCommit + "\n");
    write_file(base + "/refs/refs/pr/3", kCommit);
    link("config.json", "{}");
    link("model.safetensors", testing_files::safetensors({{"a", "U8", "[1]", "a"}}));
  }
  void link(const std::string& name, const std::string& content) {
    write_file(base + "/blobs/" + name + "-hash", content);
    fs::create_symlink("../../blobs/" + name + "-hash",
                       base + "/snapshots/" + kCommit + "/" + name);
  }
  TempDir dir;
  std::string base = dir.at("models--org--some.model-1");
};

TEST(Hub, FolderIsItself) {
  const TempDir dir;
  EXPECT_EQ(*resolve_model(dir.path(), "/nowhere"), dir.path());
}

TEST(Hub, ResolvesBranchesTagsAndCommits) {
  const Cache cache;
  const std::string snapshot = cache.base + "/snapshots/" + kCommit;
  for (const std::string revision :
       {"", "@main", "@v1", "@refs/pr/3", "@b83d14e3d64bf373a207f3c2a7e9f0b0f1e7fc3a"}) {
    Result<std::string> folder = resolve_model("org/some.model-1" + revision, cache.dir.path());
    ASSERT_TRUE(folder.ok()) << folder.status().to_string();
    EXPECT_EQ(*folder, snapshot);
  }
  Result<Checkpoint> checkpoint = Checkpoint::open(snapshot);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_NE(checkpoint->find("a"), nullptr);
}

TEST(Hub, NotFoundListsThePlaces) {
  const Cache cache;
  expect_refused(resolve_model("org/other", cache.dir.path()).status(), Code::kNotFound,
                 {"org/other", cache.dir.path() + "/models--org--other"});
  expect_refused(resolve_model("org/some.model-1@v2", cache.dir.path()).status(), Code::kNotFound,
                 {cache.base + "/refs/v2", cache.base + "/snapshots/v2"});
  expect_refused(resolve_model("/no/such/folder", cache.dir.path()).status(), Code::kNotFound,
                 {"/no/such/folder", "no such folder"});
  write_file(cache.base + "/refs/main", "0123456789012345678901234567890123456789");
  expect_refused(resolve_model("org/some.model-1", cache.dir.path()).status(), Code::kNotFound,
                 {cache.base + "/refs/main", "snapshots/0123"});
}

TEST(Faults_Hub, NamesCannotLeaveTheCache) {
  const Cache cache;
  fs::create_directories(cache.dir.at("models--a--b"));
  for (const std::string name : {"../x", "org/..", "org/some.model-1@..", "org/some.model-1@../x",
                                 "org/some.model-1@", "org/a/b", "@", "org/", "/"}) {
    const Result<std::string> result = resolve_model(name, cache.dir.path());
    if (name == "/") continue;  // a folder
    EXPECT_FALSE(result.ok()) << name;
  }
  expect_refused(resolve_model("", cache.dir.path()).status(), Code::kInvalidArgument, {});
  expect_refused(resolve_model(std::string("a\0b", 3), cache.dir.path()).status(),
                 Code::kInvalidArgument, {});
  write_file(cache.base + "/refs/main", "../../../etc");
  expect_refused(resolve_model("org/some.model-1", cache.dir.path()).status(), Code::kInvalidFile,
                 {cache.base + "/refs/main"});
  write_file(cache.base + "/refs/main", "");
  expect_refused(resolve_model("org/some.model-1", cache.dir.path()).status(), Code::kInvalidFile,
                 {cache.base + "/refs/main"});
  expect_refused(resolve_model(cache.base + "/refs/main", cache.dir.path()).status(),
                 Code::kInvalidFile, {"is a file"});
}

TEST(Hub, EnvironmentChoosesTheCache) {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"})
    ::unsetenv(name);
  ::setenv("HOME", "/home/u", 1);
  EXPECT_EQ(hub_cache_folder(), "/home/u/.cache/huggingface/hub");
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(hub_cache_folder(), "/xdg/huggingface/hub");
  ::setenv("HF_HOME", "~/hf", 1);
  EXPECT_EQ(hub_cache_folder(), "/home/u/hf/hub");
  ::setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
  EXPECT_EQ(hub_cache_folder(), "/old");
  ::setenv("HF_HUB_CACHE", "/new", 1);
  EXPECT_EQ(hub_cache_folder(), "/new");
}

}  // namespace
}  // namespace monolayer
