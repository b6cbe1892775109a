# Tensor-parallel ranks over MPI: examples/mpi. tools/engines.sh reads this file, in the repository's root.
# install_mpi: installs what they need on Debian or Ubuntu. test_mpi: builds them and runs their tests, the long one too.

install_mpi() {
  local package missing=() as_root=() log
  tools/setup.sh
  if ! command -v dpkg > /dev/null; then
    echo 'tools/engines.sh knows Debian and Ubuntu; elsewhere install an MPI with its headers'
    return 0
  fi
  for package in libopenmpi-dev openmpi-bin; do
    dpkg -s "$package" 2> /dev/null | grep -q '^Status: install ok installed' || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  [[ $(id -u) -eq 0 ]] || as_root=(sudo)
  echo "installing ${missing[*]}"
  log=$(mktemp)
  # A stale source must not stop an installation that does not need it, so only install decides.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 update > "$log" 2>&1 < /dev/null || true
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 install -y \
    --no-install-recommends "${missing[@]}" >> "$log" 2>&1 < /dev/null; then
    tail -n 40 "$log" >&2
    rm -f "$log"
    echo 'tools/engines.sh: apt-get install failed' >&2
    return 1
  fi
  rm -f "$log"
}

test_mpi() {
  cmake --preset release > /dev/null || return 1
  cmake --build --preset release --target tensor_parallel mpi_ranks || return 1
  ctest --test-dir build/release --tests-regex '^mpi\.' --output-on-failure --no-tests=error
}
