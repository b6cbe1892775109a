# SPDX-License-Identifier: Apache-2.0
# kvpolicy_compile_fail(<source> <compiler>)
#
# Registers a test for one source, and another for a compiler that is not the build's: built as it is, the source must
# compile, which for the build's compiler kvpolicy_compile_clean sees to. Built with KVPOLICY_MUST_FAIL defined, it must not,
# and the compiler must print a text that matches the regular expression of the first line:
#
#   // expect: this scorer needs a signal
#
# Where nvcc words it otherwise, or hides it, a second line '// expect nvcc: ...' says what nvcc must print.
# The expression is CMake's, without a semicolon; write [(] and [+] for characters that have a meaning in it.
# `compiler` is g++, clang++ or nvcc. The first test keeps the second from failing for a wrong reason.
function(kvpolicy_compile_fail source compiler)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} text)
  if(NOT text MATCHES "^// expect: ([^\n]+)\n(// expect nvcc: ([^\n]+)\n)?")
    message(FATAL_ERROR "${source}:1: the first line must be '// expect: <regular expression>'")
  endif()
  set(expected "${CMAKE_MATCH_1}")
  set(expected_of_nvcc "${CMAKE_MATCH_3}")

  cmake_path(GET source STEM name)
  cmake_path(GET compiler FILENAME compiler_name)
  if(compiler_name MATCHES "nvcc")
    if(expected_of_nvcc)
      set(expected "${expected_of_nvcc}")
    endif()
    set(command ${compiler} -x cu -std=c++20 -arch=sm_90 -Xcompiler=-Wall,-Wextra)
  else()
    set(command ${compiler} -std=c++20 -fdiagnostics-color=never -Wall -Wextra)
  endif()
  list(APPEND command -I ${PROJECT_SOURCE_DIR}/include)
  set(fixture "")
  if(compiler STREQUAL CMAKE_CXX_COMPILER)
    set(fixture compile_fail.header)
    kvpolicy_compile_fail_header(command)
  endif()

  set(test compile_fail.${name}.${compiler_name})
  if(compiler STREQUAL CMAKE_CXX_COMPILER) # a build knows quicker ways than a compiler a source
    set_property(GLOBAL APPEND PROPERTY KVPOLICY_CLEAN_SOURCES ${source})
  else()
    add_test(NAME ${test}.compiles_when_clean COMMAND ${command} -c ${source} -o /dev/null)
    set_tests_properties(${test}.compiles_when_clean PROPERTIES ENVIRONMENT LC_ALL=C LABELS compile_fail)
  endif()
  # With PASS_REGULAR_EXPRESSION ctest ignores the exit status, so the script prints the compiler's text only when the
  # compiler refused the source.
  add_test(NAME ${test}.is_refused
           COMMAND ${CMAKE_COMMAND} -P ${PROJECT_SOURCE_DIR}/cmake/expect_refusal.cmake -- ${command} -DKVPOLICY_MUST_FAIL
                   -c ${source} -o /dev/null)
  set_tests_properties(${test}.is_refused PROPERTIES PASS_REGULAR_EXPRESSION "${expected}")
  set_tests_properties(${test}.is_refused PROPERTIES ENVIRONMENT LC_ALL=C LABELS compile_fail FIXTURES_REQUIRED "${fixture}")
endfunction()

# kvpolicy_compile_fail_header(<variable>): appends the library's headers to the command in the variable. The test
# compile_fail.header, a fixture of the same name, precompiles them: with them a source takes a second, not five.
function(kvpolicy_compile_fail_header variable)
  set(header ${PROJECT_BINARY_DIR}/compile_fail/all.hpp)
  if(NOT TEST compile_fail.header)
    file(WRITE ${header} "#include <kvpolicy/kvpolicy.hpp>\n")
    add_test(NAME compile_fail.header COMMAND ${${variable}} -x c++-header ${header} -o ${header}.gch)
    set_tests_properties(compile_fail.header PROPERTIES FIXTURES_SETUP compile_fail.header LABELS compile_fail)
  endif()
  set(${variable} ${${variable}} -include ${header} PARENT_SCOPE)
endfunction()

# kvpolicy_compile_forms(<source> <compiler>): a test for a source with forms that must not compile, each with exactly one
# error near the top of the output; see expect_forms.py. With g++ one form of three sources is compiled here, and with nvcc one in all;
# all forms, with g++, clang and nvcc, are compiled in the night.
function(kvpolicy_compile_forms source compiler)
  cmake_path(GET source STEM name)
  cmake_path(GET compiler FILENAME compiler_name)
  set(test compile_fail.hooks.${name}.${compiler_name})
  set(forms ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/cmake/expect_forms.py)
  if(compiler_name MATCHES "nvcc")
    set(command ${compiler} -x cu -std=c++20 -arch=sm_90 -Xcompiler=-Wall,-Wextra -I ${PROJECT_SOURCE_DIR}/include -o /dev/null -c
                ${source})
    add_test(NAME ${test}.all COMMAND ${forms} ${command})
    set_tests_properties(${test}.all PROPERTIES ENVIRONMENT LC_ALL=C LABELS "compile_fail;nightly")
    if(name STREQUAL "derived")
      add_test(NAME ${test} COMMAND ${forms} --first ${command})
      set_tests_properties(${test} PROPERTIES ENVIRONMENT LC_ALL=C LABELS compile_fail)
    endif()
  else()
    set(command ${compiler} -std=c++20 -fdiagnostics-color=never -Wall -Wextra -I ${PROJECT_SOURCE_DIR}/include)
    set(fixture "")
    if(compiler STREQUAL CMAKE_CXX_COMPILER)
      set(fixture compile_fail.header)
      kvpolicy_compile_fail_header(command)
    endif()
    list(APPEND command -fsyntax-only ${source})
    add_test(NAME ${test}.all COMMAND ${forms} ${command})
    set_tests_properties(${test}.all PROPERTIES ENVIRONMENT LC_ALL=C LABELS "compile_fail;nightly" FIXTURES_REQUIRED "${fixture}")
    if(compiler_name MATCHES "g\\+\\+" AND NOT compiler_name MATCHES "clang" AND name MATCHES "^(scorer|applier|recorder)$")
      add_test(NAME ${test} COMMAND ${forms} --first ${command})
      set_tests_properties(${test} PROPERTIES ENVIRONMENT LC_ALL=C LABELS compile_fail FIXTURES_REQUIRED "${fixture}")
    endif()
  endif()
endfunction()

# A library of all those sources as they are, which must compile. Built by its name, in the night.
function(kvpolicy_compile_clean name)
  get_property(sources GLOBAL PROPERTY KVPOLICY_CLEAN_SOURCES)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${name} PRIVATE kvpolicy_dev)
  target_compile_options(${name} PRIVATE -O0 -Wno-unused)
  target_precompile_headers(${name} PRIVATE <kvpolicy/kvpolicy.hpp>)
endfunction()
