// When a report warns that decoding was slow, and which reason it gives.
#include "engine/run_report.h"

#include <string>

#include <gtest/gtest.h>

namespace monolayer::engine {
namespace {

// `share` of a stream of 10 GB/s, in ten steps of a second that read a tenth of it each.
RunReport decoded(double share) {
  RunReport report;
  report.kernel = "avx2";
  report.threads = 4;
  report.threads_note = "4 of 4 cores";
  report.stream_bytes_per_second = 10e9;
  report.generation.decode_steps = report.generation.decode_tokens = 10;
  report.generation.decode_seconds = 10;
  report.generation.decode.weights = static_cast<std::int64_t>(share * 100e9);
  report.weight_file_bytes = std::int64_t{1} << 40;
  report.last_level_cache_bytes = std::int64_t{1} << 25;
  return report;
}

std::string warning(const RunReport& report) {
  EXPECT_EQ(slow_reason(report), run_report_json(report)["warning"]);
  return slow_reason(report);
}

TEST(RunReport, FaultA7_MlxVlm1547_ASlowRunSaysWhy) {
  RunReport slow = decoded(0.25);
  EXPECT_EQ("other programs may be using the processor (4 of 4 cores)", warning(slow));
  EXPECT_NE(run_report_text(slow).find("warning: decoding stayed under 30 % of the read stream: "
                                       "other programs may be using the processor"),
            std::string::npos)
      << run_report_text(slow);
  slow.threads = 1;
  EXPECT_EQ("one thread ran", warning(slow));
  slow.last_level_cache_bytes = std::int64_t{1} << 41;
  EXPECT_NE(warning(slow).find("fits in the processor's cache"), std::string::npos);
  slow.best_kernel = false;
  EXPECT_EQ("a slower kernel variant was chosen", warning(slow));
  slow.kernel = "scalar";
  EXPECT_NE(warning(slow).find("the scalar kernels ran"), std::string::npos);
  RunReport small = decoded(0.25);
  small.stream_bytes_per_second = 1e6;
  small.generation.decode.weights = 2'500'000;
  EXPECT_NE(warning(small).find("the model is small"), std::string::npos) << warning(small);
}

TEST(RunReport, AFastRunOrNoneIsNotWarnedOf) {
  EXPECT_EQ("", warning(decoded(0.31)));
  EXPECT_EQ(run_report_text(decoded(0.31)).find("warning"), std::string::npos);
  EXPECT_NE("", warning(decoded(0.29)));
  RunReport none = decoded(0);
  none.generation.decode_steps = none.generation.decode_tokens = 0;
  none.generation.decode_seconds = 0;
  EXPECT_EQ("", warning(none));
  RunReport device = decoded(0.1);
  device.backend = "cuda";
  EXPECT_EQ("", warning(device));
}

// With a draft a step gives several tokens: rates are of tokens, not of steps.
TEST(RunReport, RatesAreOfTokensNotOfSteps) {
  RunReport report = decoded(0.5);
  const double bytes = report.bytes_per_token();
  report.generation.decode_tokens = 40;
  EXPECT_DOUBLE_EQ(report.decode_tokens_per_second(), 4);
  EXPECT_DOUBLE_EQ(report.bytes_per_token(), bytes / 4);
}

}  // namespace
}  // namespace monolayer::engine
