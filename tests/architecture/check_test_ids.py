#!/usr/bin/env python3
"""Fails if a table of docs/testing.md (test ids, faults, conformance) names a test that does not exist,
or lacks a fault or an item; tells of tests that are named after an id and stand in no row."""
import fnmatch
import pathlib
import re
import sys

TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.M)
# TL13Name, T_L13_Name and T_K1_T_K2_Name carry ids.
ID = re.compile(r"(?:^|_)T_?([BKPCLE])(\d+)(?=_|[A-Z]|$)")
ROW = re.compile(r"^\| T-([BKPCLE]\d+) \|[^|]*\|(.*)\|$", re.M)
FAULT = re.compile(r"^\| ([A-F]\d+) \|([^|]*\|[^|]*\|.*)\|$", re.M)
ITEM = re.compile(r"^\| (\d+) [^|]*\|(.*)\|[^|]*\|$", re.M)
METHOD = re.compile(r"^    def (test_\w+)\(", re.M)
FAULTS = [f"A{i}" for i in range(1, 11)] + [f"C{i}" for i in range(17, 23)] + \
    [f"E{i}" for i in range(30, 36)] + [f"F{i}" for i in range(36, 42)]
METHODS = re.compile(r"`(\w+\.py::test_\w+\*?)`")
NAME = re.compile(r"`(\w+\.[\w*{},]+)`")


def expand(pattern):
    """a{b,c}d -> abd, acd."""
    braces = re.search(r"\{([^}]*)\}", pattern)
    if braces is None:
        return [pattern]
    return [pattern[: braces.start()] + part + pattern[braces.end():]
            for part in braces.group(1).split(",")]


def check(table, sources):
    tests = {f"{suite}.{name}" for text in sources for suite, name in TEST.findall(text)}
    rows = {}
    problems = []
    unlisted = []
    for row_id, cell in ROW.findall(table):
        rows[row_id] = [p for name in NAME.findall(cell) for p in expand(name)]
        for pattern in rows[row_id]:
            if not fnmatch.filter(tests, pattern):
                problems.append(f"T-{row_id}: no test is named {pattern}")
    for test in sorted(tests):
        for letter, number in ID.findall(test.split(".")[1]):
            if not any(fnmatch.fnmatch(test, p) for p in rows.get(letter + number, [])):
                unlisted.append(f"{test}: not in the row of T-{letter}{number}")
    return problems, unlisted


def check_named(table, sources, scripts):
    """Rows of faults and of the conformance list: all there, and their tests too."""
    tests = {f"{suite}.{name}" for text in sources for suite, name in TEST.findall(text)}
    tests |= {f"{file}::{name}" for file, text in scripts.items() for name in METHOD.findall(text)}
    problems = []
    for kind, pattern, wanted in (("fault", FAULT, FAULTS),
                                  ("item", ITEM, [str(i) for i in range(1, 21)])):
        rows = dict(pattern.findall(table))
        problems += [f"{kind} {row}: no row" for row in wanted if row not in rows]
        for row, cell in rows.items():
            names = [p for n in NAME.findall(cell) for p in expand(n)] + METHODS.findall(cell)
            problems += [f"{kind} {row}: no test is named {n}" for n in names
                         if not fnmatch.filter(tests, n)]
            if not names and "does not apply" not in cell and row != "17":
                problems.append(f"{kind} {row}: no test")
    return problems


def self_test():
    table = "| T-P1 | x | `A.T_P1*`, `B.T_P{2,3}x` |\n"
    source = "TEST(A, T_P1_One) {\nTEST_F(C, TL3Two) {\n"
    problems, unlisted = check(table, [source])
    named = check_named("| A1 | v 1 | x | `A.T_P1*`, `a.py::test_01_*` |\n", [source],
                        {"a.py": "    def test_02_b(self):\n"})
    return (len(problems) == 2 and len(unlisted) == 1  # B.T_P2x, B.T_P3x; C.TL3Two
            and "fault A1: no test is named a.py::test_01_*" in named
            and "fault A2: no row" in named and "item 20: no row" in named)


def main():
    root = pathlib.Path(sys.argv[1])
    if not self_test():
        print("check_test_ids: the check itself is broken")
        return 1
    table = (root / "docs/testing.md").read_text(encoding="utf-8")
    sources = [f.read_text(encoding="utf-8") for f in sorted((root / "tests").rglob("*.cc"))]
    problems, unlisted = check(table, sources)
    scripts = {f.name: f.read_text(encoding="utf-8") for f in sorted((root / "tests").rglob("*.py"))}
    problems += check_named(table, sources, scripts)
    print("\n".join(problems + unlisted) or "the table of test ids is right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
