// Tokenizer throughput: encode and decode of a text file, on one core.
//   tokenizer_bench TOKENIZER TEXT [SECONDS]
// The text can be made by tools/tokenizer_texts.py. Prints MB/s (10^6 bytes of text) of the first
// pass, with a cold cache, and of the best pass.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "text/tokenizer.h"

namespace {

// Processor time of this thread: other work on the machine doesn't count.
double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Rate {
  double first = 0;
  double best = 0;
  void add(double rate) {
    if (first == 0) first = rate;
    if (rate > best) best = rate;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER TEXT [SECONDS]\n");
    return 2;
  }
  const auto load_start = now();
  const auto tokenizer = monolayer::Tokenizer::load(argv[1]);
  const double load = (now() - load_start);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().to_string().c_str());
    return 2;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  const double budget = argc > 3 ? std::atof(argv[3]) : 2.0;

  Rate encode;
  Rate decode;
  std::size_t tokens = 0;
  for (const auto start = now(); encode.first == 0 || (now() - start) < budget;) {
    const auto encode_start = now();
    const auto ids = tokenizer->encode(text, {true, {}});
    if (!ids.ok()) {
      std::fprintf(stderr, "%s\n", ids.status().to_string().c_str());
      return 2;
    }
    encode.add(megabytes / (now() - encode_start));
    const auto decode_start = now();
    const std::string back = tokenizer->decode(*ids);
    decode.add(megabytes / (now() - decode_start));
    tokens = ids->size();
    if (back != text) std::fprintf(stderr, "the text does not come back\n");
  }
  std::printf("load %.1f ms, text %.1f MB, %zu tokens (%.2f bytes each)\n", load * 1e3, megabytes,
              tokens, static_cast<double>(text.size()) / static_cast<double>(tokens));
  std::printf("encode %.1f MB/s (first pass %.1f), decode %.1f MB/s (first pass %.1f)\n",
              encode.best, encode.first, decode.best, decode.first);
  return 0;
}
