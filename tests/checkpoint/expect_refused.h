// One assertion for every refusal: the code, one line, and what the line must name.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "core/status.h"

namespace monolayer {

inline void expect_refused(const Status& status, Code code,
                           std::initializer_list<std::string> named) {
  EXPECT_EQ(code_name(status.code()), code_name(code)) << status.to_string();
  const std::string text = status.to_string();
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  for (const std::string& part : named) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

}  // namespace monolayer
