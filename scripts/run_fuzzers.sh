#!/usr/bin/env bash
# run_fuzzers.sh BUILD SECONDS [NAME...]: every fuzz_* binary under BUILD (or those named) from its
# seed corpus; a crash fails. FUZZ_JOBS of them run at a time (one per processor).
# What is found meanwhile stays in BUILD/corpus-<name>; crashing inputs in BUILD/crashes.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
seconds=$2
shift 2
mkdir -p "$build/crashes"
mapfile -t targets < <(find "$build" -type f -name 'fuzz_*' -perm -u+x | sort)
if (( $# > 0 )); then
  chosen=()
  for target in "${targets[@]}"; do
    for name in "$@"; do [[ $(basename "$target") == "fuzz_$name" ]] && chosen+=("$target"); done
  done
  targets=("${chosen[@]}")
fi
(( ${#targets[@]} > 0 )) || { echo "fuzz: no targets in $build" >&2; exit 1; }
run_one() {
  local target=$1 build=$2 seconds=$3
  local name; name=$(basename "$target"); name=${name#fuzz_}
  local grown="$build/corpus-$name" seeds="tests/fuzz/corpus/$name"
  mkdir -p "$grown"
  [[ -d $seeds ]] || { echo "fuzz: $name has no seed corpus at $seeds" >&2; return 1; }
  if "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
      -artifact_prefix="$build/crashes/$name-" "$grown" "$seeds" >"$build/fuzz-$name.log" 2>&1; then
    echo "fuzz: $name: $(grep -o 'stat::number_of_executed_units: *[0-9]*' "$build/fuzz-$name.log" | grep -o '[0-9]*$') runs, no crash"
  else
    echo "fuzz: $name FAILED, see $build/fuzz-$name.log" >&2
    tail -n 40 "$build/fuzz-$name.log" >&2
    return 1
  fi
}
export -f run_one
printf '%s\n' "${targets[@]}" | xargs -P "${FUZZ_JOBS:-$(nproc)}" -I{} bash -c 'run_one "$@"' _ {} "$build" "$seconds"
echo "fuzz: ${#targets[@]} targets, $seconds s each, no crash"
