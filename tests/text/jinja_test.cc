// What templates mean, one line each: a table of sources and the text Jinja gives for them.
#include "text/jinja/template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "text/jinja_test_util.h"

namespace monolayer::jinja {
namespace {

struct Case {
  const char* source;
  const char* text;
};

constexpr const char* kVariables = R"({
  "s": "Hello World", "u": "日本語é", "n": 7, "f": 2.5, "z": null, "b": true,
  "xs": [3, 1, 2], "d": {"b": 1, "a": {"x": [1, 2]}, "items": "shadowed"},
  "ms": [{"role": "user", "content": "hi"}, {"role": "tool"}, {"role": "user", "content": "yo"}],
  "big": 12345678901234567890123, "big64": 18446744073709551615})";

void check(std::initializer_list<Case> cases) {
  for (const Case& c : cases) EXPECT_EQ(render(c.source, kVariables), c.text) << c.source;
}

TEST(Jinja, WhiteSpaceControl) {
  check({
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"a\n\n", "a\n"},
      {"a {%- if true -%}\n  b\n{%- endif %} c", "ab c"},
      {"  {%+ if true %}b{% endif %}", "  b"},
      {"{% if true +%}\nb{% endif %}", "\nb"},
      {"a\n  {# note #}\nb", "a\nb"},
      {"a {#- note -#} b", "ab"},
      {"  {{ n }}  \n", "  7  "},
      {"a {{- n -}} b", "a7b"},
      {"x\n   {% raw %}{{ n }}{% endraw %}\ny", "x\n{{ n }}y"},
      {"{% raw -%}  {% if %}  {%- endraw %}.", "{% if %}."},
      {"a\r\nb\rc", "a\nb\nc"},
      {"{{ '{%' }}{{ \"}}\" }}", "{%}}"},
      {"{{ {'a': {'b': 1}} }}", "{'a': {'b': 1}}"},
  });
}

TEST(Jinja, Literals) {
  check({
      {"{{ [1, 'a', none, True, 1.0, (1,), ()] }}", "[1, 'a', None, True, 1.0, (1,), ()]"},
      {"{{ {'k': 1, 2: 'x', 'k': 3} }}", "{'k': 3, 2: 'x'}"},
      {"{{ 0x1F + 0b11 + 0o17 + 1_000 }}", "1049"},
      {"{{ 1e3 }} {{ 1.5e-7 }} {{ 1e16 }} {{ 123456789012345.6 }}",
       "1000.0 1.5e-07 1e+16 123456789012345.6"},
      {"{{ 'a' 'b' }}{{ '\\x41\\u00e9\\n\\q' }}", "abAé\n\\q"},
      {"{{ \"it's\" }} {{ [\"it's\", 'q\"'] }}", "it's [\"it's\", 'q\"']"},
      {"{{ ['\\x00\\u200b\\u00e9'] }}", "['\\x00\\u200bé']"},
      {"{{ z }} {{ undef }}|{{ [undef] }}", "None |[Undefined]"},
      {"{{ 1, 2 }}", "(1, 2)"},
      {"{{ big }} {{ [big] | tojson }} {{ big is integer }} {{ big64 }}",
       "12345678901234567890123 [12345678901234567890123] True 18446744073709551615"},
  });
}

TEST(Jinja, Operators) {
  check({
      {"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
       "3 -4 2 3.5 1024 0.5"},
      {"{{ 2.5 // 1 }} {{ -2.5 % 2 }} {{ true + 1 }} {{ -true }}", "2.0 1.5 2 -1"},
      {"{{ 'a' + 'b' ~ 1 ~ none }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ [0] * 3 }}",
       "ab1None abab [1, 2] [0, 0, 0]"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' }}",
       "True False True True"},
      {"{{ 9007199254740993 == 9007199254740992.0 }}", "False"},
      {"{{ 'ell' in s }} {{ 3 not in xs }} {{ 'b' in d }} {{ 1 in (1, 2) }}",
       "True False True True"},
      {"{{ 0 or 'x' }} {{ 1 and '' }}| {{ not 0 }} {{ undef or 3 }}", "x | True 3"},
      {"{{ 'y' if n > 5 else 'z' }} {{ 'y' if n > 9 }}|", "y |"},
      {"{{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -1 | abs }} {{ (1 + 2) | string }}", "4 64 1 3"},
      {"{{ undef == none }} {{ undef == undef2 }} {{ [1, [2]] == [1, [2.0]] }}", "False True True"},
      {"{{ (1, 2) == [1, 2] }} {{ [1, 2] < [1, 3] }} {{ {'a': 1} == {'a': 1.0} }}",
       "False True True"},
  });
}

TEST(Jinja, SubscriptsAndSlices) {
  check({
      {"{{ xs[0] }} {{ xs[-1] }} {{ xs[9] }}| {{ xs.0 }} {{ s[1] }} {{ u[-1] }}", "3 2 | 3 e é"},
      {"{{ s[1:4] }} {{ s[::-1] }} {{ s[-5:] }} {{ u[1:3] }} {{ u[::2] }} {{ u[5:] }}|",
       "ell dlroW olleH World 本語 日語 |"},
      {"{{ xs[1:] }} {{ xs[::-1] }} {{ xs[:-1] }} {{ xs[5:1:-2] }} {{ (1,2,3)[::2] }}",
       "[1, 2] [2, 1, 3] [3, 1] [2] (1, 3)"},
      {"{{ d.b }} {{ d['a'].x[1] }} {{ d['items'] }} {{ d.nope }}| {{ d.items() | list | length }}",
       "1 2 shadowed | 3"},
      {"{{ ms[0]['content'] }} {{ ms[1].content is defined }} {{ z.foo }}| {{ n.foo }}|",
       "hi False | |"},
      {"{{ d._private }}|{{ s.__class__ }}|{{ xs.append }}|", "|||"},
  });
}

TEST(Jinja, FiltersAndMethods) {
  check({
      {"{{ d | tojson }}", R"({"b": 1, "a": {"x": [1, 2]}, "items": "shadowed"})"},
      {"{{ {'é': '\\n\"'} | tojson }} {{ {'é': 1} | tojson(ensure_ascii=true) }}",
       "{\"é\": \"\\n\\\"\"} {\"\\u00e9\": 1}"},
      {"{{ [1, {'b': [], 'a': {}}] | tojson(indent=2, sort_keys=true) }}",
       "[\n  1,\n  {\n    \"a\": {},\n    \"b\": []\n  }\n]"},
      {"{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}", R"([1,{"a":2}])"},
      {"{{ ' x ' | trim }}|{{ 'xxaxx'.strip('x') }}|{{ '  a b '.split() }}|{{ 'a,b,'.split(',') }}",
       "x|a|['a', 'b']|['a', 'b', '']"},
      {"{{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(none, 1) }} {{ 'a\nb'.splitlines() }}",
       "['a', 'b c'] ['a b', 'c'] ['a', 'b']"},
      {"{{ s | upper }} {{ s.lower() }} {{ 'ab cd' | title }} {{ 'straße'.upper() }}",
       "HELLO WORLD hello world Ab Cd STRASSE"},
      {"{{ s | replace('o', '0') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab' | replace('', '-') }}",
       "Hell0 W0rld bba -a-b-"},
      {"{{ s.startswith('He') }} {{ s.endswith(('x', 'ld')) }} {{ s.find('o') }} {{ u.find('é') }}",
       "True True 4 3"},
      {"{{ xs | join('-') }} {{ xs | sort }} {{ xs | sort(reverse=true) | first }} {{ xs | last }}",
       "3-1-2 [1, 2, 3] 3 2"},
      {"{{ ms | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
       "['hi', 'yo']"},
      {"{{ ms | rejectattr('content') | list | length }} {{ xs | select('odd') | list }}",
       "1 [3, 1]"},
      {"{{ undef | default('x') }} {{ '' | d('y', true) }} {{ z | default('q') }}", "x y None"},
      {"{{ d | dictsort | map('first') | list }} {{ d.get('nope', 5) }} {{ d.keys() }}",
       "['a', 'b', 'items'] 5 dict_keys(['b', 'a', 'items'])"},
      {"{{ '42' | int + 1 }} {{ 'x' | int(3) }} {{ '1.5' | float }} {{ 2.675 | round(2) }}",
       "43 3 1.5 2.67"},
      {"{{ 'a\nb\n\nc' | indent(2) }}", "a\n  b\n\n  c"},
      {"{{ '<a>' | e }} {{ ('<' | safe) + '<' }} {{ ('<' | e) | e }}", "&lt;a&gt; <&lt; &lt;"},
      {"{{ [1, 2, 1] | unique | list }} {{ 'abc' | reverse }} {{ [1, 2] | sum }} {{ xs | max }}",
       "[1, 2] cba 3 3"},
      {"{{ u | length }} {{ d | length }} {{ 'x'.join(['a', 'b']) }} {{ 'aXbX'.count('X') }}",
       "4 3 axb 2"},
  });
}

TEST(Jinja, Tests) {
  check({
      {"{{ s is string }} {{ d is mapping }} {{ s is iterable }} {{ d is sequence }}",
       "True True True True"},
      {"{{ undef is defined }} {{ z is none }} {{ b is boolean }} {{ n is number }}",
       "False True True True"},
      {"{{ n is not odd }} {{ n is divisibleby 7 }} {{ n is in [7] }} {{ n is eq(7) }}",
       "False True True True"},
      {"{{ b is true }} {{ 1 is true }} {{ 1.0 is float }} {{ true is integer }}",
       "True False True False"},
  });
}

TEST(Jinja, Statements) {
  check({
      {"{% for x in xs %}{{ loop.index }}{{ x }}{{ ',' if not loop.last }}{% endfor %}",
       "13,21,32"},
      {"{% for x in xs if x > 1 %}{{ x }}/{{ loop.length }} {% else %}none{% endfor %}",
       "3/2 2/2 "},
      {"{% for x in [] %}{% else %}none{% endfor %}", "none"},
      {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "a1b2"},
      {"{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "32"},
      {"{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "3"},
      {"{% for x in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if x is sequence %}"
       "({{ loop(x) }}){% endif %}{% endfor %}",
       "1(22(3))1(2)"},
      {"{% for x in 'ab' %}{{ loop.cycle('odd', 'even') }}{{ loop.previtem }}{% endfor %}",
       "oddevena"},
      {"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
      {"{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor %}{{ ns.x }}",
       "2"},
      {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}<{{ a }}>{% endset %}{{ c }}", "12<1>"},
      {"{% set c | upper %}ab{% endset %}{{ c }}{% filter upper %}x{% endfilter %}", "ABX"},
      {"{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}",
       "[1d][12]"},
      {"{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
       "3210"},
      {"{% macro m() %}<{{ caller('x') }}>{% endmacro %}{% call(v) m() %}{{ v }}!{% endcall %}",
       "<x!>"},
      {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, k=2) }}", "(1,){'k': 2}"},
      {"{% macro m() %}{{ late }}{% endmacro %}{% set late = 5 %}{{ m() }}", "5"},
      {"{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "17"},
      {"{% generation %}{% set q = 1 %}g{% endgeneration %}{{ q }}", "g"},
      {"{% if n is string %}a{% elif n > 5 %}b{% else %}c{% endif %}", "b"},
      {"{% if true %}{% set v = 1 %}{% endif %}{{ v }}{% if false %}{% set n = 1 %}{% endif %}{{ n "
       "}}",
       "17"},
      {"{% for i in range(3) %}{{ i }}{% endfor %}{{ range(1, 9, 3) | list }}", "012[1, 4, 7]"},
      {"{% set j = joiner('|') %}{% for i in 'ab' %}{{ j() }}{{ i }}{% endfor %}", "a|b"},
  });
}

// A set later in the frame makes a name the frame's own, so that a loop or macro before it does
// not see the caller's variable: Jinja decides scopes before anything runs.
TEST(Jinja, ScopesAreDecidedBeforeRunning) {
  check({
      {"{% for i in [1] %}[{{ n }}]{% endfor %}{% set n = 2 %}{{ n }}", "[]2"},
      {"{{ n }}{% for i in [1] %}[{{ n }}]{% endfor %}{% set n = 2 %}{{ n }}", "7[7]2"},
      {"{% for i in [1, 2] %}{{ y }}{% set y = i %}{% endfor %}", ""},
      {"{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "2"},
  });
}

TEST(Jinja, ErrorsNameLineAndCause) {
  const auto message = [](const char* source) { return render(source, kVariables); };
  EXPECT_EQ(message("a\n{{ undef.x }}"), "error: t: line 2: 'undef' is undefined");
  EXPECT_EQ(message("{{ d.nope.x }}"), "error: t: line 1: 'dict object' has no attribute 'nope'");
  EXPECT_EQ(message("\n\n{{ raise_exception('no such role') }}"), "error: t: line 3: no such role");
  EXPECT_EQ(message("{{ 1 + 'a' }}"),
            "error: t: line 1: unsupported operand types for +: 'int' and 'str'");
  EXPECT_EQ(message("{% for x in none %}{% endfor %}"),
            "error: t: line 1: 'NoneType' object is not iterable");
  EXPECT_EQ(message("a\n{% include 'x' %}"), "error: t: line 2: tag 'include' is not supported");
  EXPECT_EQ(
      message("a\n{% if n %}"),
      "error: t: line 2: unexpected 'end of template', looking for 'elif' or 'else' or 'endif'");
  EXPECT_EQ(message("{{ n | nope }}"), "error: t: line 1: no filter named 'nope' is supported");
  EXPECT_EQ(message("{% if false %}{{ n | nope }}{% endif %}ok"), "ok");
  EXPECT_EQ(message("{{ '%s' % n }}"), "error: t: line 1: string formatting with %");
  EXPECT_EQ(message("{{ s.format(1) }}"), "error: t: line 1: method 'format' of str");
  EXPECT_EQ(message("{{ xs.append(1) }}"),
            "error: t: line 1: access to attribute 'append' of 'list' object is unsafe");
  EXPECT_EQ(message("{{ n"), "error: t: line 1: expected '}}', got 'end of template'");
  EXPECT_EQ(message("{{ 9223372036854775807 + 1 }}"),
            "error: t: line 1: integers beyond 64 bits in arithmetic");
  EXPECT_EQ(message("{% break %}"), "error: t: line 1: 'break' outside of a loop");
  EXPECT_EQ(message("\xff"), "error: t: line 1: the template is not UTF-8");
}

TEST(Jinja, NulDoesNotEndJson) {
  const auto values = parse_json(std::string_view("{}\0{", 4), "v");
  ASSERT_FALSE(values.ok());
  EXPECT_EQ(values.status().to_string(), "v: is not JSON: NUL at byte 2");
}

TEST(Jinja, ClockIsTheCallers) {
  const auto parsed = Template::parse("{{ strftime_now('%Y-%m-%d %H') }}", "t");
  ASSERT_TRUE(parsed.ok());
  std::tm now{};
  now.tm_year = 99;
  now.tm_mday = 31;
  now.tm_mon = 11;
  now.tm_hour = 23;
  const auto variables = parse_json("{}", "v");
  const auto rendered = parsed->render(*variables, {now});
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(rendered->text, "1999-12-31 23");
}

}  // namespace
}  // namespace monolayer::jinja
