#!/usr/bin/env bash
# Installs what Monolayer needs on Debian 12, as root or through sudo, and nothing it already has.
#   scripts/setup.sh build         compiler, CMake and the libraries the engine links
#   scripts/setup.sh test          GoogleTest, the model checker spin, and a virtual environment with peers to compare with
#   scripts/setup.sh clients       a virtual environment with the evaluation and load clients of the server
#   scripts/setup.sh cuda          a virtual environment with nvcc 13, where the machine has no nvcc 13 (x86-64)
#   scripts/setup.sh lint          clang-format and clang-tidy
#   scripts/setup.sh fuzz          clang with libFuzzer and the sanitizers' runtimes
#   scripts/setup.sh cross         compiler and emulator for aarch64
# Several groups may be named at once. MONOLAYER_SKIP_SETUP=1 turns it off (packages come otherwise).
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ "${MONOLAYER_SKIP_SETUP:-0}" == 1 ]]; then
  echo "setup: skipped (MONOLAYER_SKIP_SETUP=1)"
  exit 0
fi

own_nvcc_is_13() { [[ "$(/usr/local/cuda/bin/nvcc --version 2>/dev/null)" == *"release 13."* ]]; }

packages=()
want_python=0
want_clients=0
want_cuda=0
for group in "$@"; do
  case "$group" in
    build) packages+=(g++ cmake ninja-build make git ccache pkg-config libhwy-dev nlohmann-json3-dev
                      libpcre2-dev libutf8proc-dev libcli11-dev libxxhash-dev libhwloc-dev
                      libboost1.81-dev) ;;
    test) packages+=(libgtest-dev python3 python3-venv spin); want_python=1 ;;
    clients) packages+=(python3 python3-venv); want_clients=1 ;;
    cuda) packages+=(g++ cmake ninja-build python3 python3-venv)
          [[ -n "${CUDACXX:-}" ]] || own_nvcc_is_13 || want_cuda=1 ;;
    bench) packages+=(libbenchmark-dev) ;;
    lint) packages+=(clang-format-14 clang-tidy-14 clang-14) ;;
    fuzz) packages+=(clang-14 libclang-rt-14-dev llvm-14) ;;
    cross) packages+=(g++-aarch64-linux-gnu qemu-user) ;;
    *) echo "setup: unknown group '$group' (build, test, clients, cuda, bench, lint, fuzz, cross)" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [[ "$status" == "install ok installed" ]] || missing+=("$package")
done

if (( ${#missing[@]} > 0 )); then
  if ! command -v apt-get >/dev/null; then
    echo "setup: this machine has no apt-get; install by hand: ${missing[*]}" >&2
    exit 1
  fi
  as_root=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || { echo "setup: neither root nor sudo; missing: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
else
  echo "setup: packages for '$*' are there"
fi

# environment FOLDER PINS: a virtual environment; its stamp holds the pins it was made from.
environment() {
  cmp -s "$2" "$1/requirements.stamp" && return
  echo "setup: creating $1 with the $(grep -vc '^#' "$2") packages of $2 from PyPI"
  rm -rf "$1"
  local python=/usr/bin/python3
  [[ -x $python ]] || python=python3
  "$python" -m venv "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2"
  cp "$2" "$1/requirements.stamp"
}
if (( want_python )); then environment .venv tests/requirements.txt; fi
if (( want_clients )); then environment .venv-clients tests/requirements-clients.txt; fi
if (( want_cuda )); then
  environment .venv-cuda scripts/requirements-cuda.txt
  # Names that the packages lack: nvcc looks for libraries in lib64, CMake for a libcudart.so.
  for toolkit in .venv-cuda/lib/python3*/site-packages/nvidia/cu13; do
    ln -sfn lib "$toolkit/lib64"
    ln -sf libcudart.so.13 "$toolkit/lib/libcudart.so"
  done
fi
