# Finds libllama: where CMAKE_PREFIX_PATH says, or where tools/engines.sh has installed the version that it names. Without
# it llama_FOUND is false. Imported targets belong to a folder, so each that links `llama` includes this file.
file(STRINGS ${PROJECT_SOURCE_DIR}/tools/engines/llama_cpp.sh _version REGEX "^llama_cpp_version=")
string(REPLACE "llama_cpp_version=" "" _version "${_version}")
set(_cache "$ENV{XDG_CACHE_HOME}")
if("${_cache}" STREQUAL "")
  set(_cache $ENV{HOME}/.cache)
endif()
find_package(llama QUIET PATHS ${_cache}/kvpolicy/llama.cpp-${_version})
if(NOT llama_FOUND AND NOT TARGET kvpolicy_llama_cpp_told)
  message(STATUS "There is no libllama, so examples/llama_cpp and its tests are left out. tools/engines.sh llama_cpp builds it.")
  add_custom_target(kvpolicy_llama_cpp_told) # targets are known everywhere: the message is printed once
endif()
