#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of kernels on a processor with AVX-512, which Bochs emulates: for machines that have none.
# tools/avx512.sh [TEST.cpp...]     by default those that compare kernels bit by bit
# Installs Bochs and what makes an image that it starts, and unpacks a kernel of Linux into XDG_CACHE_HOME or ~/.cache,
# kvpolicy/avx512. The emulated machine starts in a minute and runs some 50 million instructions a second.
set -euo pipefail
cd "$(dirname "$0")/.."

tests=(tests/ops/golden/*_test.cpp tests/ops/slot_kernels_test.cpp)
[[ $# -eq 0 ]] || tests=("$@")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvpolicy/avx512
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tools/setup.sh bochs bochs-term bochsbios vgabios grub-pc-bin grub-common xorriso mtools busybox-static cpio

if [[ ! -f $cache/vmlinuz ]]; then
  kernel=$(apt-cache depends linux-image-cloud-amd64 2> /dev/null | grep -oE 'linux-image-[0-9][^ ]*' | head -n 1) || true
  if [[ -z $kernel ]]; then
    echo 'tools/avx512.sh: it takes its kernel of Linux from Debian, and apt has none here: skipped'
    exit 0
  fi
  (cd "$work" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download "$kernel" && dpkg-deb -x "$kernel"_*.deb linux)
  mkdir -p "$cache"
  cp "$work"/linux/boot/vmlinuz-* "$cache/vmlinuz"
fi

objects=()
options=(-std=c++20 -O1 -static -pthread -I include -I tests -isystem /usr/include/eigen3 "-DKVPOLICY_SOURCE_DIR=\"$PWD\"")
for source in tests/main.cpp "${tests[@]}"; do
  objects+=("$work/${#objects[@]}.o")
  "${CXX:-g++}" "${options[@]}" -c "$source" -o "${objects[-1]}"
done
mkdir -p "$work"/{rd/bin,rd/proc,rd/dev,iso/boot/grub}
"${CXX:-g++}" "${options[@]}" "${objects[@]}" -o "$work/rd/bin/tests" -lrapidcheck

# A machine that starts, runs the tests, and turns itself off. The pause lets the serial line end.
cp /bin/busybox "$work/rd/bin/"
cat > "$work/rd/init" << 'END'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
echo "begin"
/bin/busybox grep -q avx512bw /proc/cpuinfo || echo "there is no AVX-512"
/bin/tests --no-colors
echo "status $?"
/bin/busybox sleep 3
/bin/busybox poweroff -f
END
chmod +x "$work/rd/init"
(cd "$work/rd" && find . | cpio -o -H newc --quiet | gzip -1 > "$work/iso/boot/initrd.gz")
cp "$cache/vmlinuz" "$work/iso/boot/vmlinuz"
# Bochs 2.7 tells a wrong size of the compact form of registers (xsavec, xsaves), after which Linux would not use AVX.
cat > "$work/iso/boot/grub/grub.cfg" << 'END'
set timeout=0
menuentry tests {
  linux /boot/vmlinuz console=ttyS0 quiet nokaslr mitigations=off noapic clearcpuid=321,323 noxsaves
  initrd /boot/initrd.gz
}
END
grub-mkrescue -o "$work/tests.iso" "$work/iso" > "$work/image.log" 2>&1 || { cat "$work/image.log" >&2; exit 1; }
cat > "$work/bochsrc" << END
megs: 512
cpu: model=corei7_skylake_x, count=1, ips=200000000
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path=$work/tests.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
display_library: term
log: $work/bochs.log
clock: sync=none
panic: action=fatal
error: action=report
END
echo c > "$work/rc" # continue: Bochs begins in its debugger
# Bochs draws on its terminal and waits where nobody reads it: `script` gives it one, and reads.
timeout "${KVPOLICY_AVX512_SECONDS:-1800}" script -q -c "bochs -q -f '$work/bochsrc' -rc '$work/rc'" "$work/screen" \
  > "$work/drawn" 2>&1 < /dev/null || true
tr -d '\r' < "$work/serial" | sed -n '/^begin/,/^status/p'
if grep -q 'there is no AVX-512' "$work/serial" || ! grep -q '^status 0' <(tr -d '\r' < "$work/serial"); then
  echo 'tools/avx512.sh: the tests failed, or the emulated machine did not run them' >&2
  exit 1
fi
