# Tensor-parallel ranks over MPI, examples/mpi. tools/engines.sh reads this file; it runs in the repository's root.
# install_mpi: what they need on Debian or Ubuntu. test_mpi: builds them and runs their tests, the long one included.

install_mpi() {
  local package missing=() as_root=()
  tools/setup.sh
  command -v dpkg > /dev/null || { echo 'tools/engines.sh mpi knows Debian and Ubuntu; elsewhere install an MPI with its C headers'; return 0; }
  for package in libopenmpi-dev openmpi-bin; do
    dpkg -s "$package" 2> /dev/null | grep -q '^Status: install ok installed' || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  [[ $(id -u) -eq 0 ]] || as_root=(sudo)
  echo "installing ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 update || true
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 install -y \
    --no-install-recommends "${missing[@]}"
}

test_mpi() {
  cmake --preset release
  cmake --build --preset release --target tensor_parallel mpi_ranks
  ctest --test-dir build/release --tests-regex '^mpi\.' --output-on-failure --no-tests=error
}
