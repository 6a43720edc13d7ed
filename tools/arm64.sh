#!/bin/sh
# arm64.sh BUILD: compiles for arm64 and runs the result under qemu, in a separate root (tools/root.sh): ref_hashes.sh, whose
# weights must equal those of the native programs in BUILD, then the unit tests. Exit 77, with one sentence, if the root cannot
# be made.
# Promise: On emulated arm64 the unit tests pass, and ring, ps-sync and solo on ref end with the bytes of x86-64.
[ -x "$1/entrain" ] || { echo "arm64.sh BUILD: expected a native build folder" >&2; exit 2; }
build=$(cd "$1" && pwd) || exit 2
cd "$(dirname "$0")/.." || exit 2
in_root() { tools/root.sh bookworm+arm64 "$@"; }

in_root make -s BUILD=/build ARCH=arm64 JOBS="${JOBS:-$(nproc)}" CMAKE_FLAGS=-DEN_WERROR=ON TESTS=units tests || exit
# arm64's base instruction set has fused multiply-adds, which round once: code that promises the same bytes must have none.
in_root sh -c 'aarch64-linux-gnu-objdump -d /build/entrain /build/psd /build/worker /build/plugins/*.so > /tmp/code &&
    ! grep -m 3 -wE "fn?m(add|sub)|fml[as]" /tmp/code' || exit 1
here=$(tools/ref_hashes.sh "$build") || exit 1
there=$(ROOT_SECONDS=${EMULATED_SECONDS:-600} in_root tools/ref_hashes.sh /build) || exit
if [ "$here" != "$there" ]; then
    printf 'ref ends with different bytes on arm64. Here:\n%s\non arm64:\n%s\n' "$here" "$there"
    exit 1
fi
echo "arm64 under qemu: weights trained on ref are equal to $(uname -m)'s byte for byte in $(echo "$here" | wc -l) runs:"
echo "$here"

# Excluded: qemu answers TCP_INFO with 4 bytes (net_socket, net_guard, net_tcp) and adds page faults (collective_arena,
# ops_step_alloc); the others take minutes each: timed promises, thousands of runs, differences of whole networks.
not='^(net_socket|net_guard|net_tcp|collective_arena|ops_step_alloc.*|report_comparisons|sim_thousand|sim_storm|models_split.*|models_threads.*|ops_device.*|ops_sweep.*|.*_far)$'
ROOT_SECONDS=${EMULATED_SECONDS:-600} in_root env JOBS="${JOBS:-$(nproc)}" tools/test.sh /build -L unit -E "$not"
