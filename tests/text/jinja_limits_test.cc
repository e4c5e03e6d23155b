// Templates that would take too long, too much memory or too deep a stack are refused, quickly and
// by name of the limit and the line.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "text/jinja_test_util.h"

namespace monolayer::jinja {
namespace {

std::string repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

void expect_refused(const std::string& source, const std::string& part,
                    const std::string& variables = "{}") {
  const auto before = std::chrono::steady_clock::now();
  const std::string result = render(source, variables);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - before;
  EXPECT_EQ(result.substr(0, 9), "error: t:") << source.substr(0, 100);
  EXPECT_NE(result.find(part), std::string::npos) << result.substr(0, 200);
  EXPECT_LT(spent.count(), 120.0) << source.substr(0, 100);  // sanitizers included
}

TEST(JinjaLimits, TemplateOfTenMegabytes) {
  expect_refused(std::string(10 << 20, 'x'), "template of 10485760 bytes: at most 1048576");
}

TEST(JinjaLimits, LoopOfABillion) {
  expect_refused("{% for i in range(1000000000) %}{% endfor %}",
                 "line 1: range of 1000000000 items: at most 100000");
  expect_refused(
      "\n{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}"
      "{% endfor %}{% endfor %}{% endfor %}",
      "line 2: needs more than 20000000 evaluation steps");
  expect_refused("{% for i in range(-9223372036854775807, 9223372036854775807) %}{% endfor %}",
                 "at most 100000");
}

TEST(JinjaLimits, Memory) {
  expect_refused("{{ 'abcdefgh' * 1000000000000 }}", "steps");
  expect_refused("{{ ('x' * 1000000) * 100000000 }}", "bytes of memory");
  expect_refused("{{ [0] * 1000000000000 }}", "memory");
  expect_refused(
      "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "memory");
  expect_refused(
      "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}"
      "{% endfor %}{{ ns.s }}",
      "steps");
  expect_refused("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
                 "longer than 67108864 bytes");
  expect_refused("{{ 'a' | replace('', 'x' * 1000000) | replace('', 'y' * 1000000) }}", "memory");
  expect_refused("{{ [[1]] | tojson(indent=100000) }}", "JSON indent");
}

// A value built in a loop may nest as deep as the loop is long.
TEST(JinjaLimits, ValueDepth) {
  expect_refused(
      "{% set ns = namespace(v=[]) %}{% for i in range(100000) %}{% set ns.v = [ns.v] %}"
      "{% endfor %}",
      "value nests deeper than 200");
  expect_refused(
      "{% set ns = namespace(v=1) %}{% for i in range(100000) %}{% set ns.v = {'a': ns.v} %}"
      "{% endfor %}",
      "value nests deeper than 200");
  EXPECT_EQ(render("{{ x }}", "{\"x\": " + repeat("[", 200) + repeat("]", 200) + "}"),
            "error: variables: nests deeper than 128 levels");
  EXPECT_EQ(render("{{ x }}", "{\"x\": " + repeat("[", 127) + repeat("]", 127) + "}"),
            repeat("[", 127) + repeat("]", 127));
}

TEST(JinjaLimits, Recursion) {
  expect_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "line 1: evaluation nests");
  expect_refused(
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}"
      "{{ a() }}",
      "evaluation nests");
  expect_refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "evaluation nests");
  expect_refused("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}", "evaluation nests");
  expect_refused(
      "{% macro m() %}{{ caller() }}{% call m() %}{% endcall %}{% endmacro %}"
      "{% call m() %}{% endcall %}",
      "evaluation nests");
}

TEST(JinjaLimits, Nesting) {
  for (const char* open : {"(", "[", "-", "not ", "{1: ", "f(", "x[", "1 if 1 else "}) {
    expect_refused("{{ " + repeat(open, 50000) + "1 }}", "nest");
  }
  expect_refused(repeat("{% if 1 %}", 1000), "nest deeper than 100");
  expect_refused(repeat("{% for x in y %}", 1000), "nest deeper than 100");
  expect_refused(repeat("{% set x %}", 1000), "nest deeper than 100");
  // Chains that the parser reads without recursion.
  expect_refused("{{ 1" + repeat(" + 1", 5000) + " }}", "nests deeper");
  expect_refused("{{ x" + repeat(".a", 5000) + " }}", "nests deeper");
  expect_refused("{{ x" + repeat("|upper", 5000) + " }}", "nests deeper");
  expect_refused("{{ x" + repeat("()", 5000) + " }}", "nests deeper");
  expect_refused("{{ 1" + repeat(" or 1", 5000) + " }}", "nests deeper");
  expect_refused("{{ [" + repeat("1,", 300000) + "] }}", "more than 200000 syntax nodes");
  EXPECT_EQ(render("{{ 1" + repeat(" + 1", 150) + " }}"), "151");
  EXPECT_EQ(render("{{ 'a'" + repeat(" ~ 'a'", 1000) + " }}"), repeat("a", 1001));
  EXPECT_EQ(render(repeat("{% if 1 %}", 90) + "x" + repeat("{% endif %}", 90)), "x");
  EXPECT_EQ(render("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% else %}x{% endif %}"), "x");
}

// Searching, cutting and comparing cost steps by the byte.
TEST(JinjaLimits, TextWork) {
  const std::string text = "{\"s\": \"" + std::string(1 << 20, 'a') + "\"}";
  expect_refused("{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}", "steps",
                 text);
  expect_refused("{% for i in range(100000) %}{{ s.find('b') }}{% endfor %}", "steps", text);
  expect_refused("{% for i in range(100000) %}{% if s[1:] == s[:-1] %}{% endif %}{% endfor %}",
                 "steps", text);
  expect_refused("{% for i in range(100000) %}{% set x = s | upper %}{% endfor %}", "steps", text);
  expect_refused(
      "{{ s.rfind('a' * 500000 ~ 'b') }}{% for i in range(100) %}"
      "{{ s.rfind('a' * 500000 ~ 'b') }}{% endfor %}",
      "steps", text);
}

// What a render no longer refers to is given back.
TEST(JinjaLimits, MemoryIsReused) {
  Limits limits;
  limits.memory_bytes = 4 << 20;
  EXPECT_EQ(
      render("{% for i in range(1000) %}{% set x = 'x' * 100000 %}{% endfor %}ok", "{}", limits),
      "ok");
  EXPECT_EQ(render("{% macro m(a) %}{{ a }}{% endmacro %}{% for i in range(20000) %}"
                   "{% set x = m('abc') %}{% for j in [1] %}{{ '' if loop.last }}{% endfor %}"
                   "{% endfor %}ok",
                   "{}", limits),
            "ok");
}

}  // namespace
}  // namespace monolayer::jinja
