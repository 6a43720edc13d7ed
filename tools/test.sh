#!/bin/sh
# test.sh BUILD [ctest arguments]: runs the suites, then prints promises and measurements, and one closing line.
build=$1; shift
unset BUILD MAKEFLAGS MAKEOVERRIDES MFLAGS # set by `make BUILD=/elsewhere test`; some tests call make
log=$build/Testing/Temporary/LastTest.log
rm -f "$log"
# Three slots per core (cmake/Entrain.cmake): most tests wait more than they compute.
ctest --test-dir "$build" --no-tests=error -j "$((3 * ${JOBS:-2}))" --output-on-failure "$@" > "$build/ctest.out" 2>&1
status=$?
# A line per suite.
awk '/^ *[0-9]+\/[0-9]+ +Test +#/ { name=$4; state="passed"; if (/\*\*\*Skipped/) state="skipped"; else if (/\*\*\*|Failed/) state="FAILED";
       sec=""; for (i=1;i<NF;i++) if ($(i+1)=="sec") sec=$i; printf "  %-34s %-8s %7s s\n", name, state, sec }' "$build/ctest.out"
echo
echo "What is promised, and what was measured:"
grep -ah '^PROMISE ' "$log" 2>/dev/null | sed 's/^PROMISE /  /' | sort -u
passed=$(grep -cE 'Test +#.* Passed ' "$build/ctest.out")
skipped=$(grep -cE 'Test +#.*\*\*\*Skipped' "$build/ctest.out")
total=$(grep -cE '^ *[0-9]+/[0-9]+ +Test +#' "$build/ctest.out")
failed=$((total - passed - skipped))
echo
if [ "$skipped" -gt 0 ]; then
    echo "Skipped, with reasons:"
    awk '/^[0-9]+\/[0-9]+ Testing:/ { name=$3 } /^SKIP: / { sub(/^SKIP: /, ""); printf "  %-34s %s\n", name, $0 }' "$log"
    echo
fi
# Last, where a truncated log still has it: the end of each failed suite's output, then their names.
if [ $status -ne 0 ]; then
    awk 'function show(  i) { if (name) { printf "%s failed:\n", name; for (i = said > 40 ? said - 40 : 0; i < said; i++) print "  " line[i] } name = "" }
         /^ *[0-9]+\/[0-9]+ +Test +#/ { show(); said = 0; if (!/ Passed |\*\*\*Skipped/) { name = $4; names = names " " $4 } next }
         /tests passed, .* failed out of/ { show() }
         /^ +Start +[0-9]+:/ || /^\[ +(RUN|OK) +\]/ || /^PROMISE / { next }
         name && NF { line[said++] = $0 }
         END { show(); print "\nFailed:" names }' "$build/ctest.out"
fi
[ "$status" -ne 0 ] && [ "$failed" -eq 0 ] && failed=1
echo "$passed passed, $failed failed, $skipped skipped" | tee "$build/test-summary.txt"
exit $status
