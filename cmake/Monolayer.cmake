# One place for flags, and the three kinds of target every folder uses.
option(MONOLAYER_ASAN "Address and undefined-behaviour sanitizers" OFF)
option(MONOLAYER_TSAN "Thread sanitizer" OFF)
option(MONOLAYER_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(MONOLAYER_CUDA "The CUDA backend for sm_90a (needs nvcc 13)" OFF)

add_library(monolayer_flags INTERFACE)
target_include_directories(monolayer_flags INTERFACE ${CMAKE_SOURCE_DIR}/src
                                                     ${CMAKE_SOURCE_DIR}/include)
# -ffp-contract=off: a fused multiply-add happens where the source says fma and nowhere else, so
# that every compiler and instruction set computes the same bits.
# Device sources have their own flags (src/backend/cuda).
target_compile_options(monolayer_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Werror -ffp-contract=off>)
if(MONOLAYER_ASAN)
  target_compile_options(monolayer_flags INTERFACE -fsanitize=address,undefined
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(monolayer_flags INTERFACE -fsanitize=address,undefined)
elseif(MONOLAYER_TSAN)
  target_compile_options(monolayer_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  # The sanitizer does not understand fences and the compiler refuses them; asio's order what its
  # mutexes already do.
  target_compile_definitions(monolayer_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  target_link_options(monolayer_flags INTERFACE -fsanitize=thread)
endif()
if(MONOLAYER_FUZZ)
  target_compile_options(monolayer_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# monolayer_room(core SOURCES a.cc b.cc DEPS monolayer_x ...): static library monolayer_core.
# DEPS are the rooms and libraries this room may include: the direction of dependencies is here.
function(monolayer_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(monolayer_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(monolayer_${name} PUBLIC monolayer_flags ${ARG_DEPS})
endfunction()

# monolayer_step_code(a.cc b.cc): sources of functions marked ML_STEP_CODE (core/prefetch.h). They run
# once a step and are read from memory for it: short code beats unrolled code, and a constant in an
# instruction beats one in a page of its own.
function(monolayer_step_code)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS
    "$<$<CONFIG:Release>:-O2;-fno-tree-slp-vectorize>")
endfunction()

# monolayer_test(core_status SOURCES status_test.cc DEPS monolayer_core): a GoogleTest binary, one
# ctest entry. Tests find repository files through MONOLAYER_SOURCE_DIR.
function(monolayer_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPS} monolayer_flags GTest::gtest GTest::gtest_main)
  target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name}_test PRIVATE MONOLAYER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name}_test)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(MONOLAYER_ASAN OR MONOLAYER_TSAN)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 8")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# monolayer_fuzz(safetensors SOURCES f.cc DEPS monolayer_checkpoint): fuzz_safetensors, with its
# seed corpus in tests/fuzz/corpus/safetensors.
function(monolayer_fuzz name)
  if(NOT MONOLAYER_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(fuzz_${name} ${ARG_SOURCES})
  target_link_libraries(fuzz_${name} PRIVATE ${ARG_DEPS} monolayer_flags)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
endfunction()
