#!/usr/bin/env python3
"""Fails if a room includes one it may not see, or a file or folder breaks the house rules."""
import pathlib
import re
import sys

# A room may include itself and the rooms listed here.
ALLOWED = {
    "core": set(),
    "checkpoint": {"core"},
    "text": {"core"},
    "m3": {"core", "checkpoint"},
    "tp": {"core"},
    "mono": {"core", "checkpoint", "text", "tp", "m3"},
    "backend/cpu": {"core", "checkpoint", "tp", "m3", "mono"},
    "backend/cuda": {"core", "checkpoint", "tp", "m3", "backend/cpu"},
    "dispatch": {"core", "checkpoint", "tp", "m3", "mono", "backend/cpu"},
    "api": {"core", "tp", "m3", "mono", "backend/cpu"},
    "engine": {"core", "checkpoint", "text", "tp", "m3", "mono", "backend/cpu", "backend/cuda",
               "dispatch"},
    "server": {"core", "checkpoint", "text", "tp", "m3", "mono", "backend/cpu", "dispatch", "engine"},
    "cli": {"core", "checkpoint", "text", "tp", "m3", "mono", "backend/cpu", "dispatch", "engine",
            "server"},
}
MAX_LINES = 600
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def room_of(path):
    """The room a path relative to src/ belongs to; rooms may be two folders deep."""
    return max((room for room in ALLOWED if path.startswith(room + "/")), key=len, default=None)


def check(src):
    problems = []
    for folder in ALLOWED:
        if (src / folder).is_dir() and not (src / folder / "README.md").is_file():
            problems.append(f"src/{folder}: no README.md")
    for file in sorted([*src.rglob("*.h"), *src.rglob("*.cc"), *src.rglob("*.cu"), *src.rglob("*.cuh")]):
        relative = file.relative_to(src).as_posix()
        room = room_of(relative)
        if room is None:
            problems.append(f"src/{relative}: not in a known room")
            continue
        lines = file.read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_LINES:
            problems.append(f"src/{relative}: {len(lines)} lines, at most {MAX_LINES}")
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            target = room_of(match.group(1)) if match else None
            if target and target != room and target not in ALLOWED[room]:
                problems.append(f"src/{relative}:{number}: {room} may not include {target}")
    return problems


def self_test(tmp):
    """The check must be able to fail."""
    (tmp / "core").mkdir(parents=True)
    (tmp / "core" / "bad.h").write_text('#include "m3/config.h"\n')
    return len(check(tmp)) == 2  # the include, and the missing README


def main():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        if not self_test(pathlib.Path(folder)):
            print("check_includes: the check itself is broken")
            return 1
    problems = check(pathlib.Path(sys.argv[1]) / "src")
    print("\n".join(problems) or "includes point the right way")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
