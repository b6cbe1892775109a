# SPDX-License-Identifier: Apache-2.0
# What tests, benchmarks and examples of this repository are built with. Nothing of it reaches a user of kvpolicy.

add_library(kvpolicy_dev INTERFACE)
target_link_libraries(kvpolicy_dev INTERFACE kvpolicy::kvpolicy)
target_link_libraries(kvpolicy_kernels PRIVATE kvpolicy_dev)
target_compile_options(
  kvpolicy_dev INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wsign-conversion;-Wshadow>
                         $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KVPOLICY_WERROR}>>:-Werror>)
target_compile_definitions(kvpolicy_dev INTERFACE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)

# Every header alone, with these warnings, as a program that includes by -I compiles it: all_verify_interface_header_sets.
# Kernels are no headers: simd/each_isa.hpp includes them, for the file that names them.
list(FILTER _kvpolicy_headers EXCLUDE REGEX "\\.kernel\\.hpp$|/each_isa\\.hpp$")
add_library(kvpolicy_headers INTERFACE)
target_sources(kvpolicy_headers INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${_kvpolicy_headers})
target_link_libraries(kvpolicy_headers INTERFACE kvpolicy_dev)
set_target_properties(kvpolicy PROPERTIES VERIFY_INTERFACE_HEADER_SETS OFF) # that would be without warnings

if(KVPOLICY_SANITIZE)
  string(REPLACE ";" "," _kvpolicy_sanitizers "${KVPOLICY_SANITIZE}")
  target_compile_options(
    kvpolicy_dev
    INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${_kvpolicy_sanitizers};-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_link_options(kvpolicy_dev INTERFACE -fsanitize=${_kvpolicy_sanitizers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # instrumented, a copy of a std::variant looks uninitialised to it
    target_compile_options(kvpolicy_dev INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
endif()

if(KVPOLICY_COVERAGE) # as tools/coverage.sh reads it
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "kvpolicy: coverage is measured with clang: cmake --preset coverage")
  endif()
  target_compile_options(kvpolicy_dev INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fprofile-instr-generate;-fcoverage-mapping>)
  target_link_options(kvpolicy_dev INTERFACE -fprofile-instr-generate)
endif()

# Finds a package or says in one line which Debian or Ubuntu package has it.
macro(kvpolicy_find package debian_package)
  find_package(${package} QUIET ${ARGN})
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "kvpolicy: ${package} was not found; apt-get install ${debian_package}, or run tools/setup.sh")
  endif()
endmacro()

# Sets `result` to TRUE if the CUDA parts are wanted and can be compiled. KVPOLICY_CUDA=AUTO asks and prints nothing.
function(kvpolicy_want_cuda result)
  set(${result} FALSE PARENT_SCOPE)
  if(KVPOLICY_CUDA STREQUAL "AUTO")
    set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  elseif(KVPOLICY_CUDA)
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()
