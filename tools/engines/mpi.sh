# SPDX-License-Identifier: Apache-2.0
# Tensor-parallel ranks over MPI: examples/mpi. tools/engines.sh reads this file, in the repository's root.
# install_mpi: installs what they need on Debian or Ubuntu. test_mpi: builds them and runs their tests, the long one too.

install_mpi() {
  tools/setup.sh libopenmpi-dev openmpi-bin
}

test_mpi() {
  cmake --preset release > /dev/null || return 1
  cmake --build --preset release --target tensor_parallel mpi_ranks || return 1
  ctest --test-dir build/release --tests-regex '^mpi\.' --output-on-failure --no-tests=error
}
