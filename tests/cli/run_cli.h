// Runs the program as a person or another tool would, and keeps what it wrote.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace monolayer::cli_test {

struct Outcome {
  int exit_code = -1;  // 128 + signal when killed
  std::string out, err;
  std::int64_t peak_rss_bytes = 0;
};

struct RunOptions {
  std::vector<std::string> environment{};  // "NAME=value", added to the test's own
  std::string stdout_path{};               // written there instead of captured
  std::uint64_t file_size_limit = 0;       // RLIMIT_FSIZE with SIGXFSZ ignored; 0: none
};

Outcome run_cli(const std::vector<std::string>& arguments, const RunOptions& options = {});

// Exit code 2, nothing on stdout, and exactly one line on stderr that starts with
// "monolayer: error: " and holds every one of `parts`. Returns what is wrong, or "".
std::string not_one_error(const Outcome& outcome, const std::vector<std::string>& parts);

// A folder of its own, removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and returns its path.
  std::string put(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

std::string read_file(const std::string& path);

// A folder of reference data in the repository.
std::string oracle(const std::string& name);

}  // namespace monolayer::cli_test
