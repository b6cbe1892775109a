# SPDX-License-Identifier: Apache-2.0
# cmake -D ROOT=folder -P vcpkg_dry_run.cmake: runs the vcpkg port of this tree without vcpkg and packages into
# ROOT/packages. vcpkg's functions are stood in for by what they do for a port of headers alone. What this finds is a
# portfile that no longer fits the tree; vcpkg itself is not run.
cmake_minimum_required(VERSION 3.25)

set(PORT kvpolicy)
set(CURRENT_PORT_DIR ${CMAKE_CURRENT_LIST_DIR}/../packaging/vcpkg/ports/${PORT})
set(CURRENT_PACKAGES_DIR ${ROOT}/packages)
set(_build ${ROOT}/build)
file(REMOVE_RECURSE ${ROOT})

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 _with "" SOURCE_PATH OPTIONS)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${_with_SOURCE_PATH} -B ${_build} -G Ninja -D CMAKE_BUILD_TYPE=Release
            -D CMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR} ${_with_OPTIONS}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_cmake_install)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${_build} --target install OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Moves the package's files to share/<port>, removes a folder share/cmake, and tells the files that they lie two folders
# below the prefix.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 _with "" CONFIG_PATH "")
  file(GLOB _files ${CURRENT_PACKAGES_DIR}/${_with_CONFIG_PATH}/*.cmake)
  if(NOT _files)
    message(FATAL_ERROR "the port says CONFIG_PATH ${_with_CONFIG_PATH}, but the install puts no package there")
  endif()
  foreach(_file IN LISTS _files)
    cmake_path(GET _file FILENAME _name)
    file(READ ${_file} _text)
    set(_up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
    string(REPLACE "${_up}${_up}${_up}" "${_up}${_up}" _text "${_text}")
    string(REPLACE "/../../../\" ABSOLUTE" "/../../\" ABSOLUTE" _text "${_text}")
    file(WRITE ${CURRENT_PACKAGES_DIR}/share/${PORT}/${_name} "${_text}")
  endforeach()
  file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/share/cmake)
endfunction()

function(vcpkg_fixup_pkgconfig)
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 _with "" "" FILE_LIST)
  file(READ ${_with_FILE_LIST} _text)
  file(WRITE ${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright "${_text}")
endfunction()

include(${CURRENT_PORT_DIR}/portfile.cmake)

# The port repeats the version, because vcpkg reads it before anything else.
file(READ ${CURRENT_PORT_DIR}/vcpkg.json _manifest)
string(JSON _version GET "${_manifest}" version)
file(READ ${SOURCE_PATH}/include/kvpolicy/version.hpp _text)
if(NOT _text MATCHES "version\\[\\] = \"([^\"]+)\"" OR NOT CMAKE_MATCH_1 STREQUAL _version)
  message(FATAL_ERROR "vcpkg.json: version is ${_version}, but version.hpp says ${CMAKE_MATCH_1}")
endif()
