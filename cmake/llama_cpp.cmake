# SPDX-License-Identifier: Apache-2.0
# Finds libllama where CMAKE_PREFIX_PATH says; tools/engines.sh, which installs it, says so. Without it llama_FOUND is false.
# Imported targets belong to a folder, so each that links `llama` includes this file.
find_package(llama QUIET)
if(NOT llama_FOUND AND NOT TARGET kvpolicy_llama_cpp_told)
  message(STATUS "There is no libllama, so examples/llama_cpp and its tests are left out. tools/engines.sh llama_cpp builds it.")
  add_custom_target(kvpolicy_llama_cpp_told) # targets are known everywhere: the message is printed once
endif()
