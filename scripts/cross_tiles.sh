#!/usr/bin/env bash
# cross_tiles.sh SECONDS: builds the tile functions for aarch64 and compares the NEON variant with
# the scalar one, bit for bit, under an emulator. Needs the group `cross` of scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
build=build/aarch64
mkdir -p "$build/include"
# Only Highway's headers: the rest of /usr/include belongs to another architecture.
ln -sfn /usr/include/hwy "$build/include/hwy"
sources=(src/backend/cpu/tiles.cc src/backend/cpu/tiles_scalar.cc src/backend/cpu/tiles_simd.cc
         src/core/dtype.cc src/core/status.cc
         tests/backend_cpu/tiles_differential.cc tests/backend_cpu/tiles_differential_main.cc)
echo "cross: compiling the tiles for aarch64"
aarch64-linux-gnu-g++ -std=c++20 -O2 -ffp-contract=off -Wall -Wextra -Wshadow -Werror -static \
  -Isrc -Itests -Itests/backend_cpu -isystem "$build/include" "${sources[@]}" \
  -o "$build/tiles_differential"
echo "cross: differential test under qemu-aarch64, $seconds s a variant"
qemu-aarch64 "$build/tiles_differential" "$seconds"
