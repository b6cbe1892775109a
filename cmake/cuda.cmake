# SPDX-License-Identifier: Apache-2.0
# CUDA in this repository: its tests, benchmarks and examples. Included once, by the top folder, if CUDA is wanted.
include_guard(GLOBAL)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# What every CUDA source is compiled with. CMake 3.25 does not know CUDA C++20 and would compile as C++17 without a word.
add_library(kvpolicy_cuda_dev INTERFACE)
target_compile_options(
  kvpolicy_cuda_dev INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Werror=all-warnings;-Xcompiler=-Wall,-Wextra>)
target_include_directories(kvpolicy_cuda_dev INTERFACE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/examples)
target_link_libraries(kvpolicy_cuda_dev INTERFACE kvpolicy::kvpolicy CUDA::cudart_static)

# tools/gpu_bundle.sh: small programs, which find the libraries that travel with them in lib/ beside them.
option(KVPOLICY_GPU_BUNDLE "Link the CUDA programs for machines that have a driver and none of our packages" OFF)
if(KVPOLICY_GPU_BUNDLE)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/lib")
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  target_compile_options(kvpolicy_cuda_dev INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
  target_link_options(kvpolicy_cuda_dev INTERFACE -s LINKER:--disable-new-dtags) # libraries look there for theirs, too
endif()
