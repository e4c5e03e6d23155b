#!/usr/bin/env bash
# Runs every bench_* binary under BUILD; each prints bytes, GB/s and the share of the read stream.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t benches < <(find "$1" -type f -name 'bench_*' -perm -u+x | sort)
(( ${#benches[@]} > 0 )) || { echo "bench: none built in $1" >&2; exit 1; }
for bench in "${benches[@]}"; do
  echo "== $(basename "$bench")"
  "$bench"
done
