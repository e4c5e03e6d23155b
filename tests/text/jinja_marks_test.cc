// Marks: which bytes of the output came from outside the template. «...» encloses them.
#include <gtest/gtest.h>

#include <string>

#include "text/jinja_test_util.h"

namespace monolayer::jinja {
namespace {

constexpr const char* kVariables =
    R"({"s": "Hello World", "t": " pad ", "csv": "a,b,c", "u": "日本語", "e": "",
        "d": {"k": "v\n", "n": [1, true]}, "xs": ["x", "y"], "n": 42})";

void expect(const char* source, const char* marked) {
  EXPECT_EQ(render_marked(source, kVariables), marked) << source;
}

TEST(JinjaMarks, LiteralsAreTrustedVariablesAreNot) {
  expect("a {{ s }} b", "a «Hello World» b");
  expect("{{ 'x' }}{{ n }}{{ e }}", "x42");
  expect("{{ s }}{{ t }}", "«Hello World pad »");
}

TEST(JinjaMarks, TravelThroughConcatenation) {
  expect("{{ '<' ~ s ~ '>' }}", "<«Hello World»>");
  expect("{{ '<' + s + '>' }}", "<«Hello World»>");
  expect("{{ ('<' ~ s) * 2 }}", "<«Hello World»<«Hello World»");
  expect("{% set x = '[' ~ s ~ ']' %}{{ x ~ x }}", "[«Hello World»][«Hello World»]");
  expect("{% set x %}<{{ s }}>{% endset %}{{ x }}", "<«Hello World»>");
  expect("{% macro m(a) %}({{ a }}){% endmacro %}{{ m(s) }}", "(«Hello World»)");
  expect("{{ xs | join(', ') }} {{ ', '.join(xs) }}", "«x», «y» «x», «y»");
}

TEST(JinjaMarks, TravelThroughCutting) {
  expect("{{ ('<' ~ s ~ '>')[:6] }}|{{ ('<' ~ s ~ '>')[6:] }}", "<«Hello»|« World»>");
  expect("{{ ('<' ~ u ~ '>')[::-1] }} {{ ('<' ~ u ~ '>')[1] }}", ">«語本日»< «日»");
  expect("{{ (' ' ~ t ~ '. ') | trim }}", "«pad ».");
  expect("{{ ('##' ~ csv ~ '##').strip('#') }}", "«a,b,c»");
  expect("{% for x in ('0,' ~ csv).split(',') %}[{{ x }}]{% endfor %}", "[0][«a»][«b»][«c»]");
  expect("{{ ('a,' ~ csv).rsplit(',', 1) | join('|') }}", "a,«a,b»|«c»");
  expect("{% for c in 'a' ~ e ~ 'b' ~ s[:2] %}{{ c }}.{% endfor %}", "a.b.«H».«e».");
  expect("{{ ('x' ~ csv) | first }}{{ ('x' ~ csv) | last }}", "x«c»");
}

TEST(JinjaMarks, TravelThroughReplace) {
  expect("{{ ('<' ~ csv ~ '>') | replace(',', ';') }}", "<«a»;«b»;«c»>");
  expect("{{ '{x}' | replace('x', s) }}", "{«Hello World»}");
  expect("{{ csv.replace('b', xs[0]) }}", "«a,x,c»");
}

// Brackets and quotes of what the caller sent are the caller's; of the template's own, not.
TEST(JinjaMarks, TravelThroughJson) {
  expect("{{ d | tojson }}", "«{\"k\": \"v\\n\", \"n\": [1, true]}»");
  expect("{{ {'a': s, 'b': 'lit'} | tojson }}", R"({"a": "«Hello World»", "b": "lit"})");
  expect("{{ {'a': '\n' ~ d.k} | tojson }}", R"({"a": "\n«v\n»"})");
  expect("{{ [d] | tojson }}", "[«{\"k\": \"v\\n\", \"n\": [1, true]}»]");
  expect("{{ d }}|{{ [s] }}", "«{'k': 'v\\n', 'n': [1, True]}»|[«'Hello World'»]");
  expect("{{ [n] | tojson }}", "[42]");
}

TEST(JinjaMarks, OtherFiltersMarkEverything) {
  expect("{{ ('<' ~ s ~ '>') | upper }}", "«<HELLO WORLD>»");
  expect("{{ ('<' ~ s ~ '>').lower() }}{{ 'A' | lower }}", "«<hello world>»a");
  expect("{{ ('<' ~ s) | e }}", "«&lt;Hello World»");
  expect("{{ ('<' ~ xs[0]) | title }} {{ ('<' ~ xs[0]) | capitalize }}", "«<X» «<x»");
}

TEST(JinjaMarks, SelectingKeepsTheMarksOfWhatIsSelected) {
  expect("{{ s if n > 1 else 'x' }}{{ 'x' if n > 1 else s }}", "«Hello World»x");
  expect("{{ undef | default(s) }}{{ undef | default('lit') }}", "«Hello World»lit");
  expect("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "«k»=«v\n»;«n»=«[1, True]»;");
  expect("{% set ns = namespace(a='x') %}{% set ns.a = ns.a ~ s %}{{ ns.a }}", "x«Hello World»");
  expect("{{ xs | map('upper') | join }}{{ ['a'] | map('upper') | join }}", "«XY»A");
}

}  // namespace
}  // namespace monolayer::jinja
