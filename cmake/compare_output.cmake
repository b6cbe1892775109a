# SPDX-License-Identifier: Apache-2.0
# cmake -D PROGRAM=... -D ARGUMENTS=... -D EXPECTED=file -P compare_output.cmake: runs a program; its standard output must
# be the file's content.
execute_process(COMMAND ${PROGRAM} ${ARGUMENTS} RESULT_VARIABLE _status OUTPUT_VARIABLE _printed)
file(READ ${EXPECTED} _expected)
if(NOT _status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM}: exit status ${_status}\n${_printed}")
elseif(NOT _printed STREQUAL _expected)
  message(FATAL_ERROR "${PROGRAM} does not print ${EXPECTED}, but:\n${_printed}")
endif()
