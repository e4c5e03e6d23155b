# The CUDA language for sm_90a: CUDACXX, else the machine's own nvcc, else the one from PyPI
# (scripts/setup.sh cuda).
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  file(GLOB from_pypi ${CMAKE_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
  foreach(candidate /usr/local/cuda/bin/nvcc ${from_pypi})
    if(NOT CMAKE_CUDA_COMPILER AND EXISTS ${candidate})
      set(CMAKE_CUDA_COMPILER ${candidate})
    endif()
  endforeach()
endif()
set(CMAKE_CUDA_ARCHITECTURES 90a)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
# CMake 3.25 does not know how nvcc 13 is told its dialect.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
find_package(CUDAToolkit REQUIRED)
