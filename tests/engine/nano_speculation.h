// How both backends try speculation: the embedded model with its draft, and questions it answers.
#pragma once

#include <string>

#include "engine/speculation_bench.h"

namespace monolayer::engine {

inline const std::string kAssets = std::string(MONOLAYER_SOURCE_DIR) + "/assets/";

inline SpeculationBenchOptions nano_speculation() {
  SpeculationBenchOptions options;
  options.draft = kAssets + "nano_eagle3";
  options.guesses = {0, 1, 3, 7};
  options.repeats = 1;
  options.threads = 1;
  options.max_tokens = 96;
  options.prompts = {
      "Tom has 31 apples. Anna gives Tom 7 more apples. How many apples does Tom have?",
      "What is 27 + 58?",
      "Maria has 63 coins and gives 18 coins to Ben. How many coins does Maria have?",
      "There are 7 boxes with 9 pens each. How many pens are there?", "Hello, who are you?"};
  return options;
}

}  // namespace monolayer::engine
