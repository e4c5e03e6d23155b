# The CUDA language for sm_90a: CUDACXX, else the nvcc from PyPI, which scripts/setup.sh installs
# where the machine has no nvcc 13, else the machine's own.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  file(GLOB from_pypi ${CMAKE_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
  foreach(candidate ${from_pypi} /usr/local/cuda/bin/nvcc)
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
