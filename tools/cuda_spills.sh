#!/bin/sh
# cuda_spills.sh BUILD: compiles each kernel of the cuda device once more, as BUILD does, and reads what ptxas says of it:
# a kernel that spills registers to memory, or keeps arrays there, has lost what it was written for. Exit 1 and one line
# per kernel that does; 77 where BUILD has no cuda device.
build=$(cd "${1:?build folder}" && pwd) || exit 2
[ -e "$build/plugins/device_cuda.so" ] || { echo "skipped: $build has no cuda device"; exit 77; }
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# "directory" and "command" of each .cu that nvcc compiles, a line each, out of JSON, without where its object goes. Makefiles
# name what they hand to nvcc in files (--options-file), relative to that directory.
sed -n '/^ *"directory": "/ { s///; s/",*$//; h; }
        /^ *"command": ".*nvcc .*\.cu / { s/^ *"command": "//; s/",*$//; H; x; p; }' "$build/compile_commands.json" |
    sed 's/\\\\/\x01/g; s/\\"/"/g; s/\x01/\\/g; s/ -o [^ ]*\.o$//' > "$work/commands"
[ -s "$work/commands" ] || { echo "no kernel in $build/compile_commands.json"; exit 1; }

bad=0 kernels=0
while IFS= read -r folder && IFS= read -r command; do
    file=$(basename "${command##* }")
    (cd "$folder" && eval "$command -Xptxas=-v -o '$work/object.o'") > "$work/said" 2>&1 ||
        { echo "$file does not compile:"; cat "$work/said"; bad=1; continue; }
    n=$(grep -c 'bytes stack frame' "$work/said")
    kernels=$((kernels + n))
    awk -v file="$file" '
        /Function properties for/ { name = $NF }
        /bytes stack frame/ && !/ 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/ {
            sub(/^ */, ""); print file ": " name ": " $0; found = 1 }
        END { exit found }' "$work/said" || bad=1
done < "$work/commands"
[ "$kernels" -gt 0 ] || { echo "ptxas said nothing"; exit 1; }
[ $bad = 0 ] && echo "$kernels kernels, counted once per architecture: none spills, none has a stack frame"
exit $bad
