#!/usr/bin/env bash
# Runs clang-tidy over every source of the build given, TIDY_JOBS at a time (one per processor); any
# finding fails.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cpu}
tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
# Generated headers are not needed: the compile commands name every source.
mapfile -t files < <(git ls-files 'src/*.cc' 'tests/*.cc' 'bench/*.cc' |
  while read -r file; do grep -qF "$PWD/$file" "$build/compile_commands.json" && echo "$file"; done)
echo "tidy: ${#files[@]} files"
printf '%s\n' "${files[@]}" | xargs -P "${TIDY_JOBS:-$(nproc)}" -n 1 "$tidy" --quiet -p "$build" 2> >(grep -v 'warnings generated\|Suppressed\|Use -header-filter\|^$' >&2)
echo "tidy: ${#files[@]} files are clean"
