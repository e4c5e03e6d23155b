// Wall-clock time from starting the program to its end: one token of a small model, process start,
// loading and answer included. Run from the repository's root after a build.
//   bench_start [--program build/cpu/bin/monolayer] [--model assets/nano] [--repeats N] [--json]
#include <spawn.h>
#include <sys/wait.h>

#include "cpu_bench.h"

extern char** environ;

int main(int argc, char** argv) {
  using namespace monolayer::bench;
  std::string program = option(argc, argv, "--program", "build/cpu/bin/monolayer");
  std::string model = option(argc, argv, "--model", "assets/nano");
  const int repeats = std::atoi(option(argc, argv, "--repeats", "11").c_str());
  std::vector<std::string> words = {program,    "generate",     "--model", model,
                                    "--prompt", "hi",           "--quiet", "--temperature",
                                    "0",        "--max-tokens", "1"};
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1 /* O_WRONLY */, 0);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    int status = -1;
    seconds.push_back(seconds_of([&] {
      pid_t child = 0;
      if (posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ) == 0) {
        waitpid(child, &status, 0);
      }
    }));
    if (status != 0) {
      std::fprintf(stderr, "%s generate failed\n", program.c_str());
      return 2;
    }
  }
  posix_spawn_file_actions_destroy(&actions);
  const auto [low, high] = std::minmax_element(seconds.begin(), seconds.end());
  std::printf(flag(argc, argv, "--json")
                  ? "{\"bench\":\"start\",\"seconds\":%.4f,\"min\":%.4f,\"max\":%.4f}\n"
                  : "start to one token: %.3f s (%.3f to %.3f)\n",
              median(seconds), *low, *high);
  return 0;
}
