# Every target installs what it needs (Debian packages, PyPI peers in .venv) and says what it does.
SHELL := /bin/bash
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
export MONOLAYER_COMPILER_LAUNCHER ?= $(shell command -v ccache 2>/dev/null)
BIN := build/cpu/bin/monolayer
QUESTION ?= Tom has 12 apples. Anna gives Tom 7 more apples. How many apples does Tom have?

.PHONY: cuda cuda-part help setup build demo test test-long test-asan test-tsan test-aarch64 lint format bench bench-peers fuzz fuzz-short clean

help:
	@echo "make demo       build, then answer a question with the embedded model"
	@echo "make test       build and run every test"
	@echo "make build      build build/cpu/bin/monolayer"
	@echo "make setup      install packages for building and testing"
	@echo "make cuda       the CUDA build (the machine's nvcc 13, else one from PyPI)"
	@echo "make cuda-part  only what CUDA adds to the build, as make test compiles it"
	@echo "make lint       clang-format and clang-tidy, both must be clean"
	@echo "make bench      benchmarks with bytes, GB/s and the share of the read stream"
	@echo "make bench-peers  decode beside llama.cpp, compiled from PyPI into .venv-peers"
	@echo "make fuzz       all fuzzers, FUZZ_SECONDS (600) each"
	@echo "make test-long  sanitizers, long comparisons, NEON emulated, a minute of each fuzzer"

cuda:
	@scripts/setup.sh build test cuda
	@echo "cuda: every CUDA file and its tests in build/cuda (device tests skip themselves without a GPU)"
	@cmake --preset cuda -DBUILD_TESTING=ON >/dev/null
	@cmake --build --preset cuda -j $(JOBS)
	@ctest --test-dir build/cuda --output-on-failure -R backend_cuda

# What CUDA adds to the build, without the rest of it; its tests that need a device skip themselves.
cuda-part:
	@scripts/setup.sh build test
	@if scripts/setup.sh cuda; then \
	  echo "cuda-part: CUDA sources, their tests and benches, and the binary in build/cuda" && \
	  cmake --preset cuda -DBUILD_TESTING=ON >/dev/null && \
	  cmake --build --preset cuda -j $(JOBS) --target monolayer cuda_tests cuda_benches && \
	  ctest --test-dir build/cuda --output-on-failure -R backend_cuda; \
	else \
	  echo "cuda-part: left out, there is neither an nvcc 13 nor one from PyPI"; \
	fi

setup:
	@scripts/setup.sh build test

build:
	@scripts/setup.sh build
	@echo "build: Release in build/cpu"
	@MONOLAYER_COMPILER_LAUNCHER=$$(command -v ccache) cmake --preset cpu -DBUILD_TESTING=OFF >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log
	@cmake --build --preset cpu -j $(JOBS)

demo: build
	@echo "demo: $(BIN) generate --temperature 0 --prompt \"$(QUESTION)\""
	@$(BIN) generate --temperature 0 --prompt "$(QUESTION)"

test:
	@scripts/setup.sh build test clients lint
	@scripts/check_format.sh
	@echo "test: Release build with tests in build/cpu"
	@MONOLAYER_COMPILER_LAUNCHER=$$(command -v ccache) cmake --preset cpu -DBUILD_TESTING=ON >/dev/null
	@cmake --build --preset cpu -j $(JOBS)
	@if [[ $$(uname -m) == x86_64 ]]; then $(MAKE) --no-print-directory cuda-part; fi
	@ctest --test-dir build/cpu --output-on-failure -j $(JOBS) -LE long

test-asan test-tsan: test-%:
	@scripts/setup.sh build test
	@echo "test-$*: build/$* and every test under it"
	@cmake --preset $* -DBUILD_TESTING=ON >/dev/null
	@cmake --build --preset $* -j $(JOBS)
	@TSAN_OPTIONS=halt_on_error=1 ASAN_OPTIONS=detect_leaks=1 \
	  ctest --test-dir build/$* --output-on-failure -j $(JOBS) -LE long

test-aarch64:
	@scripts/setup.sh build cross
	@scripts/cross_tiles.sh 30

test-long: test
	@scripts/setup.sh build test clients lint fuzz cross
	@echo "test-long: long tests, NEON under an emulator, sanitizers, clang-tidy, a minute of each fuzzer"
	@ctest --test-dir build/cpu --output-on-failure -L long
	@scripts/cross_tiles.sh 30
	@$(MAKE) --no-print-directory test-asan test-tsan lint
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=60

lint:
	@scripts/setup.sh build test lint
	@scripts/check_format.sh
	@cmake --preset cpu -DBUILD_TESTING=ON >/dev/null
	@scripts/check_tidy.sh build/cpu

format:
	@scripts/setup.sh lint
	@echo "format: rewriting sources in place"
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format-14 -i

bench:
	@scripts/setup.sh build test bench
	@echo "bench: building and running bench/"
	@cmake --preset cpu -DBUILD_TESTING=ON >/dev/null
	@cmake --build --preset cpu -j $(JOBS)
	@scripts/run_benches.sh build/cpu

bench-peers: build
	@scripts/setup.sh build
	@echo "bench-peers: compiling llama-cpp-python into .venv-peers (minutes, once), then timing both"
	@test -x .venv-peers/bin/python || python3 -m venv .venv-peers
	@CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_CUDA=OFF -DGGML_BLAS=OFF -DLLAVA_BUILD=OFF" \
	  .venv-peers/bin/pip install --quiet -r bench/peers/llamacpp/requirements.txt
	@.venv-peers/bin/python bench/peers/llamacpp/run.py --monolayer $(BIN)

FUZZ_SECONDS ?= 600
fuzz:
	@scripts/setup.sh build fuzz
	@echo "fuzz: each target for $(FUZZ_SECONDS) s"
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz -j $(JOBS)
	@scripts/run_fuzzers.sh build/fuzz $(FUZZ_SECONDS)

clean:
	@echo "clean: removing build/"
	@rm -rf build
