#!/bin/sh
# arm64.sh BUILD: compiles for arm64 and runs that under qemu, in a root of its own (tools/root.sh): ref_hashes.sh, whose weights
# must be those of the programs in BUILD, which this machine runs itself, then the unit tests. Exit 77, with one sentence, where no such
# root can be made.
# Promise: On emulated arm64 the unit tests pass, and ring, ps-sync and solo on ref end with the bytes of x86-64.
[ -x "$1/entrain" ] || { echo "arm64.sh BUILD: a build folder of this machine's own" >&2; exit 2; }
build=$(cd "$1" && pwd) || exit 2
cd "$(dirname "$0")/.." || exit 2
in_root() { tools/root.sh bookworm+arm64 "$@"; }

in_root make -s BUILD=/build ARCH=arm64 JOBS="${JOBS:-$(nproc)}" CMAKE_FLAGS=-DEN_WERROR=ON TESTS=units tests || exit
# arm64 has fused multiply-adds at its base, which round once: none may be in what promises the same bytes.
in_root sh -c 'aarch64-linux-gnu-objdump -d /build/entrain /build/psd /build/worker /build/plugins/*.so > /tmp/code &&
    ! grep -m 3 -wE "fn?m(add|sub)|fml[as]" /tmp/code' || exit 1
here=$(tools/ref_hashes.sh "$build") || exit 1
there=$(ROOT_SECONDS=${EMULATED_SECONDS:-600} in_root tools/ref_hashes.sh /build) || exit
if [ "$here" != "$there" ]; then
    printf 'ref ends with other bytes on arm64. Here:\n%s\non arm64:\n%s\n' "$here" "$there"
    exit 1
fi
echo "arm64 under qemu: weights trained on ref have the bytes of $(uname -m)'s in $(echo "$here" | wc -l) runs:"
echo "$here"

# Not these: qemu answers TCP_INFO with 4 bytes (net_socket, net_guard, net_tcp) and has page faults of its own (collective_arena,
# ops_step_alloc); a promised time, thousands of runs and differences of whole networks take minutes each (the others).
not='^(net_socket|net_guard|net_tcp|collective_arena|ops_step_alloc.*|report_comparisons|sim_thousand|sim_storm|models_split.*|models_threads.*|ops_device.*|ops_sweep.*|.*_far)$'
ROOT_SECONDS=${EMULATED_SECONDS:-600} in_root env JOBS="${JOBS:-$(nproc)}" tools/test.sh /build -L unit -E "$not"
