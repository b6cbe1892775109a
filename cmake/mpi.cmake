# SPDX-License-Identifier: Apache-2.0
# MPI, for the example and the tests of tensor-parallel ranks. Include it in the folder that uses MPI::MPI_CXX.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)

# So that mpirun works as root, and on fewer cores than ranks: Open MPI 4 reads the first variables, Open MPI 5 those with
# PRTE, and MPICH needs none. Leaks are not looked for, because Open MPI keeps memory to the end of the program in libraries
# that it has unloaded by then.
set(KVPOLICY_MPI_ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_btl_vader_single_copy_mechanism=none
    PRTE_ALLOW_RUN_AS_ROOT=1
    PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1)

# kvpolicy_mpi_test(<name> <ranks> <program> <argument>...)
#
# A test that runs a program on so many ranks of this machine. Without MPI it is skipped. EXPECTED <file>: the text that it prints.
function(kvpolicy_mpi_test name ranks)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "EXPECTED" "")
  if(NOT MPI_CXX_FOUND)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "there is no MPI: apt-get install libopenmpi-dev openmpi-bin")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "there is no MPI")
    return()
  endif()
  list(POP_FRONT arg_UNPARSED_ARGUMENTS program)
  set(run ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${program}> ${MPIEXEC_POSTFLAGS}
          ${arg_UNPARSED_ARGUMENTS})
  if(arg_EXPECTED)
    list(POP_FRONT run program)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -D PROGRAM=${program} -D "ARGUMENTS=${run}" -D EXPECTED=${arg_EXPECTED} -P
                                  ${PROJECT_SOURCE_DIR}/cmake/compare_output.cmake)
  else()
    add_test(NAME ${name} COMMAND ${run})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 PROCESSORS 2 ENVIRONMENT "${KVPOLICY_MPI_ENVIRONMENT}")
endfunction()
