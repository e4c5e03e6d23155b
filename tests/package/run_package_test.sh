#!/usr/bin/env bash
# Installs the library to a folder outside the tree and builds clients there, as strangers would: C++
# through find_package (shared and static), C with another compiler through pkg-config, Python through
# ctypes. All must print the same checksum. Of a library with sanitizers (named as -fsanitize takes
# them) the clients are built with them too, by the one compiler whose runtime the library needs.
#   run_package_test.sh SOURCE_DIR BUILD_DIR [SANITIZERS]
set -euo pipefail
source_dir=$1 build_dir=$2 sanitizers=${3:-}
flags=()
[[ -n $sanitizers ]] && flags=("-fsanitize=$sanitizers" -g)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build_dir" --prefix "$prefix" --component library >"$work/install.log"
libdir=$(dirname "$(find "$prefix" -name libmonolayer.so | head -1)")

# The library alone: nothing of the engine, the server, the command line or the text room is in it, and
# the shared one shows the C interface only.
if nm -C "$libdir/libmonolayer.a" 2>/dev/null | grep -E 'monolayer::(engine|server|cli|text)::'; then
  echo "package: the static library holds symbols of the engine" >&2
  exit 1
fi
strangers=$(nm -D --defined-only "$libdir/libmonolayer.so" | awk '{print $3}' | grep -v '^ml_' || true)
if [[ -n $strangers ]]; then
  echo "package: the shared library exports more than its interface: $strangers" >&2
  exit 1
fi

cp "$source_dir"/tests/package/{consumer.c,consumer.cc,tiny_model.h} "$work"
cat >"$work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(stranger CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(monolayer 0.1 REQUIRED)
find_package(Threads REQUIRED)
foreach(kind monolayer static)
  add_executable(with_${kind} consumer.cc)
  target_link_libraries(with_${kind} PRIVATE monolayer::${kind} Threads::Threads)
endforeach()
CMAKE
cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_FLAGS="${flags[*]}" >"$work/configure.log"
cmake --build "$work/build" >"$work/build.log"

export PKG_CONFIG_PATH=$libdir/pkgconfig
compiler=$(command -v clang || command -v clang-14 || command -v cc)
[[ -n $sanitizers ]] && compiler=$(command -v cc)
# shellcheck disable=SC2046
"$compiler" -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror "${flags[@]}" "$work/consumer.c" \
  $(pkg-config --cflags --libs monolayer) -Wl,-rpath,"$libdir" -o "$work/with_c"
# shellcheck disable=SC2046
"$compiler" -std=c99 -D_POSIX_C_SOURCE=200809L "${flags[@]}" "$work/consumer.c" \
  $(pkg-config --cflags monolayer) \
  -L"$libdir" -Wl,-Bstatic -lmonolayer -Wl,-Bdynamic \
  $(pkg-config --static --libs monolayer | sed 's/-lmonolayer//') -o "$work/with_static_c"

declare -A said
for client in build/with_monolayer build/with_static with_c with_static_c; do
  said[$client]=$("$work/$client")
done
python=
for candidate in "$source_dir/.venv/bin/python" python3; do
  if "$candidate" -c 'import numpy' 2>/dev/null; then
    python=$candidate
    break
  fi
done
preload=
case $sanitizers in
  *thread*) python= ;;  # its runtime does not take a program that was not built with it
  *address*) preload=$(cc -print-file-name=libasan.so) ;;
esac
if [[ -n $python ]]; then
  said[python]=$(LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 MONOLAYER_LIBRARY=$libdir/libmonolayer.so "$python" \
    "$source_dir/examples/python/tiny_decode.py" --numpy 2>/dev/null)
else
  echo "package: no Python with NumPy for this library, that client was not tried"
fi

for client in "${!said[@]}"; do
  echo "$client: ${said[$client]} ($compiler)"
  if [[ ${said[$client]} != checksum\ * || ${said[$client]} != "${said[with_c]}" ]]; then
    echo "package: the clients disagree" >&2
    exit 1
  fi
done
