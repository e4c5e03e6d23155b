#include "cli/run_cli.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace monolayer::cli_test {
namespace {

void read_both(int out_fd, int err_fd, Outcome& outcome) {
  struct pollfd fds[2] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}};
  std::string* targets[2] = {&outcome.out, &outcome.err};
  int open = 2;
  while (open > 0) {
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        targets[i]->append(buffer, static_cast<std::size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        fds[i].fd = -1;
        --open;
      }
    }
  }
}

}  // namespace

Outcome run_cli(const std::vector<std::string>& arguments, const RunOptions& options) {
  std::vector<std::string> storage{MONOLAYER_BINARY};
  storage.insert(storage.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(storage.size() + 1);
  for (std::string& text : storage) argv.push_back(text.data());
  argv.push_back(nullptr);

  Outcome outcome;
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return outcome;
  const pid_t child = fork();
  if (child == 0) {
    const int sink = options.stdout_path.empty()
                         ? out[1]
                         : open(options.stdout_path.c_str(), O_WRONLY | O_CREAT, 0644);
    dup2(sink, STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const std::string& entry : options.environment) {
      const auto equals = entry.find('=');
      setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
    if (options.file_size_limit > 0) {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{options.file_size_limit, options.file_size_limit};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    execv(MONOLAYER_BINARY, argv.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  read_both(out[0], err[0], outcome);
  close(out[0]);
  close(err[0]);
  int status = 0;
  struct rusage usage {};
  while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  outcome.peak_rss_bytes = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

std::string not_one_error(const Outcome& outcome, const std::vector<std::string>& parts) {
  const std::string shown = "\n  exit " + std::to_string(outcome.exit_code) +
                            "\n  stdout: " + outcome.out.substr(0, 300) +
                            "\n  stderr: " + outcome.err;
  if (outcome.exit_code != 2) return "exit code is not 2" + shown;
  if (!outcome.out.empty()) return "something on stdout" + shown;
  if (outcome.err.rfind("monolayer: error: ", 0) != 0) return "stderr starts otherwise" + shown;
  if (outcome.err.find('\n') != outcome.err.size() - 1) return "stderr is not one line" + shown;
  for (const std::string& part : parts)
    if (outcome.err.find(part) == std::string::npos)
      return std::string("'").append(part).append("' is missing").append(shown);
  return "";
}

TempFolder::TempFolder() {
  char name[] = "/tmp/monolayer-cli-XXXXXX";
  if (mkdtemp(name) != nullptr) path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string TempFolder::put(const std::string& name, const std::string& text) const {
  std::filesystem::create_directories(std::filesystem::path(file(name)).parent_path());
  std::ofstream(file(name), std::ios::binary) << text;
  return file(name);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string oracle(const std::string& name) {
  return std::string(MONOLAYER_SOURCE_DIR) + "/tests/data/oracle/" + name;
}

}  // namespace monolayer::cli_test
