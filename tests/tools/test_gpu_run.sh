#!/bin/sh
# test_gpu_run.sh: on a machine whose nvidia-smi finds no GPU, tests/gpu/run ends before it builds, and leaves no file.
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
bad() { echo "$*"; exit 1; }

mkdir "$work/bin"
printf '#!/bin/sh\necho "No devices were found"\nexit 6\n' > "$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
said=$(PATH=$work/bin:$PATH "$top/tests/gpu/run" --build="$work/build" --out="$work/out" --minutes=1 2>&1)
code=$?
[ $code = 2 ] || bad "exit $code: $said"
case $said in *"No devices were found"*--fake*) ;; *) bad "$said" ;; esac
[ "$(echo "$said" | wc -l)" = 1 ] || bad "$said"
[ "$(ls "$work")" = bin ] || bad "left: $(ls "$work")"
