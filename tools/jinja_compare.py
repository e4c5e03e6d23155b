#!/usr/bin/env python3
"""Compares the chat template interpreter with jinja2, set up as transformers sets it up.

  jinja_compare.py [--runner build/cpu/tests/text/jinja_compare_runner] [--templates N]
                   [--conversations N] [--seed S] [--verbose]
  jinja_compare.py --golden tests/data/chat/golden.jsonl

Renders generated conversations through the templates of tests/data/chat and assets/nano, and
randomly generated templates (tools/jinja_compare_grammar.py). Both sides must give the same text,
or both must refuse. Exit code 0: no difference; 1: differences, printed; 77: jinja2 is missing.
"""
import argparse
import datetime
import functools
import json
import pathlib
import random
import subprocess
import sys

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    from jinja2 import nodes
except ImportError:
    print("jinja_compare: jinja2 is not installed", file=sys.stderr)
    sys.exit(77)

import jinja_compare_chats
import jinja_compare_grammar

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLOCK = datetime.datetime(2026, 7, 4, 5, 6, 7)

# What the interpreter refuses although jinja2 computes it: each is documented in its README.
REFUSED = (
    "integers beyond 64 bits",
    "a float beyond 64 bits",
    "complex numbers",
    "printing a ",
    "string formatting with %",
    "'sameas' of",
    "rounding to",
    "namespace attributes that are not strings",
)


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: CLOCK.strftime(format)
    return env


class Runner:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, variables, chat=False):
        job = {"template": template, "variables": json.dumps(variables), "chat": chat}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the runner died on {json.dumps(job)}")
        return json.loads(line)


@functools.lru_cache(maxsize=64)
def compiled(env, template):
    return env.from_string(template)


def peer(env, template, variables):
    try:
        parsed = compiled(env, template)
    except TypeError as problem:
        # Folding a constant dict with an unhashable key escapes jinja2's own handling, whether or
        # not the expression is ever reached.
        return {"quirk": str(problem)}
    except (jinja2.exceptions.TemplateError, SyntaxError, AssertionError, RecursionError) as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}
    try:
        return {"text": parsed.render(**variables)}
    except NameError as problem:
        # A constant folded to nan or inf is written into the compiled template as a bare name.
        return {"quirk": str(problem)}
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, ArithmeticError, LookupError,
            AttributeError, SyntaxError, AssertionError, RecursionError) as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}


def check_marks(ours):
    """Marks are ascending, disjoint and inside the text."""
    at = 0
    size = len(ours["text"].encode())
    for begin, end in ours["untrusted"]:
        if not (at <= begin < end <= size):
            return False
        at = end + 1
    return True


def compare(runner, env, template, variables, chat=False, peer_variables=None):
    """None if both agree, "refused", or a description of the difference."""
    ours = runner.render(template, variables, chat)
    theirs = peer(env, template, variables if peer_variables is None else peer_variables)
    if "text" in ours and "untrusted" in ours and not check_marks(ours):
        return f"malformed marks: {ours}"
    if "quirk" in theirs:
        return None
    if "text" in theirs and " object at 0x" in theirs["text"]:
        return "refused" if "error" in ours else f"printed an address: {ours}"
    if "text" in ours and "text" in theirs:
        if ours["text"] == theirs["text"]:
            return None
    elif "error" in ours and "error" in theirs:
        return None
    elif "error" in ours and any(part in ours["error"] for part in REFUSED):
        return "refused"
    return (f"--- template\n{template}\n--- variables\n{json.dumps(variables, ensure_ascii=False)}\n"
            f"--- jinja2\n{theirs}\n--- ours\n{ours}\n")


def normalized(messages):
    """What ChatTemplate does before templating, in Python."""
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for call in message.get("tool_calls") or []:
            holder = call.get("function", call)
            if "arguments" in holder and not isinstance(holder["arguments"], dict):
                holder["arguments"] = json.loads(holder["arguments"] or "{}")
        if isinstance(message.get("reasoning"), str) and message.get("reasoning_content") is None:
            message["reasoning_content"] = message["reasoning"]
    return messages


def chat_templates():
    paths = sorted((ROOT / "tests/data/chat").glob("*.jinja"))
    nano = ROOT / "assets/nano/chat_template.jinja"
    return paths + ([nano] if nano.exists() else [])


def write_golden(path, env):
    """What jinja2 renders, for tests that run without it: JSON lines of template (a path), the
    variables, and the text or null where it refuses."""
    with open(path, "w", encoding="utf-8") as out:
        for template in chat_templates():
            source = template.read_text(encoding="utf-8")
            rng = random.Random(template.name)
            for _ in range(12):
                variables = jinja_compare_chats.conversation(rng)
                plain = dict(variables, messages=normalized(variables["messages"]), documents=None)
                plain.setdefault("tools", None)
                line = {"template": str(template.relative_to(ROOT)),
                        "variables": json.dumps(variables, ensure_ascii=False),
                        "text": peer(env, source, plain).get("text")}
                out.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runner", default="build/cpu/tests/text/jinja_compare_runner")
    parser.add_argument("--golden", help="write this file from jinja2 alone, and stop")
    parser.add_argument("--templates", type=int, default=3000)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    env = environment()
    if args.golden:
        write_golden(args.golden, env)
        return 0
    runner = Runner(args.runner)
    failures = []
    counts = {"same": 0, "refused": 0, "different": 0}

    def note(result):
        kind = "same" if result is None else "refused" if result == "refused" else "different"
        counts[kind] += 1
        if kind == "different":
            failures.append(result)

    for path in chat_templates():
        source = path.read_text(encoding="utf-8")
        rendered = 0
        rng = random.Random(args.seed)
        for _ in range(args.conversations):
            variables = jinja_compare_chats.conversation(rng)
            plain = dict(variables, messages=normalized(variables["messages"]))
            plain.setdefault("tools", None)
            plain["documents"] = None
            before = len(failures)
            note(compare(runner, env, source, variables, True, plain))
            if len(failures) == before:
                rendered += "text" in peer(env, source, plain)
        print(f"{path.name}: {rendered} of {args.conversations} conversations rendered, the others "
              "refused")
        if rendered * 4 < args.conversations:
            failures.append(f"{path.name} renders too few conversations to test anything")
    print(f"conversations: {counts}")

    chat_counts = dict(counts)
    accepted = 0
    for index in range(args.templates):
        rng = random.Random(args.seed * 1_000_003 + index)
        template, variables = jinja_compare_grammar.generate(rng)
        note(compare(runner, env, template, variables))
        accepted += "text" in peer(env, template, variables)
    print("random templates: "
          f"{args.templates}, {accepted} rendered by jinja2; "
          f"{ {key: counts[key] - chat_counts[key] for key in counts} }")
    failures.sort(key=len)
    for failure in failures[: None if args.verbose else 5]:
        print(failure)
    # A generator whose templates mostly fail, or which the interpreter mostly refuses, tests
    # nothing.
    if args.templates and (accepted * 4 < args.templates
                           or counts["refused"] * 50 > args.templates):
        print("jinja_compare: too few templates were compared")
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
