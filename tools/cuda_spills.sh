#!/bin/sh
# cuda_spills.sh BUILD: reads ptxas's report on each kernel of the cuda device from the compilation in BUILD (keep_ptxas.sh): a
# kernel that spills registers to memory, or keeps arrays there, is slow. Exit 1 and one line per such kernel; 77 if BUILD has
# no cuda device.
build=${1:?build folder}
[ -e "$build/plugins/device_cuda.so" ] || { echo "skipped: $build has no cuda device"; exit 77; }
folder=$build/ops/cuda/CMakeFiles/device_cuda.dir
bad=0 kernels=0
for object in "$folder"/*.cu.o; do
    said=$object.ptxas
    n=$(grep -c 'bytes stack frame' "$said") || { echo "no ptxas report on $object: build it again"; exit 1; }
    kernels=$((kernels + n))
    awk -v file="$(basename "$object" .o)" '
        /Function properties for/ { name = $NF }
        /bytes stack frame/ && !/ 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/ {
            sub(/^ */, ""); print file ": " name ": " $0; found = 1 }
        END { exit found }' "$said" || bad=1
done
[ $bad = 0 ] && echo "$kernels kernels, counted once per architecture: none spills, none has a stack frame"
exit $bad
