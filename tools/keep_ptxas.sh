#!/bin/sh
# keep_ptxas.sh COMPILER ..: runs the compiler and stores ptxas's report on each kernel (-Xptxas=-v) in OBJECT.ptxas, for
# tools/cuda_spills.sh. The rest of its output is passed on.
object=/dev/null previous=
for word; do [ "$previous" = -o ] && object=$word; previous=$word; done
"$@" 2> "$object.said"
status=$?
grep -E '^ptxas info|bytes stack frame' "$object.said" > "$object.ptxas"
grep -vE '^ptxas info|bytes stack frame' "$object.said" >&2
rm -f "$object.said"
exit $status
