#!/bin/bash
# test_pack.sh BUILD: what tests/gpu/pack packs starts in a bare Debian 13 without a network, with the checkout at another path.
# The root is the one that tools/root.sh keeps; where there is none, exit 77.
set -euo pipefail
build=$(realpath "$1")
top=$(cd "$(dirname "$0")/../.." && pwd)
tar=${XDG_CACHE_HOME:-$HOME/.cache}/entrain-roots/trixie.tar
skip() { echo "SKIP: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "only the administrator can enter a root"
[ -e "$tar" ] || skip "there is no bare Debian 13 (tools/root.sh trixie true makes one)"
unshare --mount --pid --net --fork true 2>/dev/null || skip "this machine gives no namespaces"
git -C "$top" rev-parse >/dev/null 2>&1 || skip "there is no git checkout"

command -v xz >/dev/null || skip "there is no xz"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$top/tests/gpu/pack" --fake --images=100 "$build" "$work"
mkdir "$work/root" && tar -C "$work/root" -xf "$tar"
mkdir -p "$work/root"/{elsewhere,packed}
(cd "$top" && git ls-files -z | tar -cf - --null -T -) | tar -xf - -C "$work/root/elsewhere" # what travels
cp "$work/entrain-gpu.tar.xz" "$work/root/packed"
cp "$(command -v xz)" "$work/root/usr/local/bin/" # or python3: what a machine with PyTorch has
# shellcheck disable=SC2016
unshare --mount --pid --net --fork --kill-child sh -ec '
    mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/tmp" && mount --rbind /dev "$1/dev"
    exec env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$1" bash -ec "
        cd /elsewhere
        tests/gpu/run --packed=/packed --build=/tmp/build --fake --only=gpus
        export LD_LIBRARY_PATH=/tmp/build/base
        /tmp/build/worker --help > /tmp/help && grep -q -- --strategy /tmp/help
        [ -f /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ]
        /tmp/build/test/test_ops ops_gpu_ops /tmp/build/fake/plugins > /tmp/ops || { cat /tmp/ops; exit 1; }
    "' sh "$work/root"
