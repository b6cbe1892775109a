# SPDX-License-Identifier: Apache-2.0
# A toolchain for 64-bit ARM, of Debian's cross compiler and qemu's user mode: cmake --preset aarch64.
# tools/aarch64.sh installs both, and unpacks what the tests need into the folder KVPOLICY_AARCH64_PACKAGES.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

set(_packages "$ENV{XDG_CACHE_HOME}")
if("${_packages}" STREQUAL "")
  set(_packages $ENV{HOME}/.cache)
endif()
set(KVPOLICY_AARCH64_PACKAGES ${_packages}/kvpolicy/aarch64 CACHE PATH "Where tools/aarch64.sh has unpacked Debian's packages for arm64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KVPOLICY_AARCH64_PACKAGES)
set(CMAKE_FIND_ROOT_PATH ${KVPOLICY_AARCH64_PACKAGES} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
