# SPDX-License-Identifier: Apache-2.0
# Writes the source that names the commit, each time before it is compiled, and changes it only if the commit has changed.
# cmake -D FROM=... -D TO=... -P commit.cmake
set(KEEP_MAP_COMMIT "")
find_package(Git QUIET)
if(GIT_FOUND) # sources that lie in the checkout of something else have no commit of their own
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --show-prefix WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR}
                  OUTPUT_VARIABLE _inside OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(_inside STREQUAL "examples/keep_map/")
  execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --dirty=+ --exclude=* --abbrev=8
                  WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR} OUTPUT_VARIABLE KEEP_MAP_COMMIT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
configure_file(${FROM} ${TO} @ONLY)
