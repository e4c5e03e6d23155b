#!/usr/bin/env bash
# Fails if clang-format would change any tracked C++ source.
set -euo pipefail
cd "$(dirname "$0")/.."
formatter=$(command -v clang-format-14 || command -v clang-format)
if git rev-parse --git-dir >/dev/null 2>&1; then
  mapfile -t files < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
else
  mapfile -t files < <(find src include tests bench -name '*.h' -o -name '*.cc' 2>/dev/null)
fi
(( ${#files[@]} == 0 )) && exit 0
"$formatter" --dry-run --Werror "${files[@]}"
echo "format: ${#files[@]} files are clean"
