#!/bin/sh
# mutations.sh [BUILD [NAME..]]: builds once with EN_MUTATIONS=ON, then re-introduces each known bug of
# tests/mutations/mutants.txt (or those named), alone, and runs the tests that should find it. Without any of them the
# same tests must pass. Prints a table; exit 1 if a bug is not caught.
cd "$(dirname "$0")/.." || exit 2
build=${1:-build-mutations}
[ $# -gt 0 ] && shift
list=tests/mutations/mutants.txt
trim() { sed 's/^ *//; s/ *$//'; }
field() { grep -E "^$1 *\|" $list | cut -d'|' -f"$2" | trim; }
names=${*:-$(grep -v '^#' $list | cut -d'|' -f1)}
tests=$(for name in $names; do field "$name" 2; done | tr ' ' '\n' | sort -u)
[ -n "$tests" ] || { echo "mutations: $list has none of: $names"; exit 2; }

run() { # the tests named, none of them for longer than a minute
    (cd "$build" && ctest --timeout 120 -R "^($(echo "$*" | tr ' ' '|'))\$" >last.log 2>&1)
}

tools/configured_here.sh "$build" || exit 2
cmake -S . -B "$build" -DEN_MUTATIONS=ON -DEN_ONEDNN=OFF >/dev/null || exit 2
# shellcheck disable=SC2046
cmake --build "$build" -j "${JOBS:-2}" --target $(for t in $tests; do echo "test_$t"; done) >"$build/build.log" 2>&1 ||
    { tail -20 "$build/build.log"; exit 2; }
# shellcheck disable=SC2086
run $tests || { tail -30 "$build/last.log"; echo "mutations: the tests fail without any mutant"; exit 1; }

missed=0
printf '%-28s %-20s %s\n' mutant 'caught by' bug
for name in $names; do
    caught=
    for test in $(field "$name" 2); do
        EN_MUTANT=$name run "$test" || { caught=$test; break; }
    done
    [ -n "$caught" ] || { caught='NOT CAUGHT'; missed=$((missed + 1)); }
    printf '%-28s %-20s %s\n' "$name" "$caught" "$(field "$name" 3)"
done
# shellcheck disable=SC2086
set -- $names
echo "mutations: $(($# - missed)) of $# caught"
[ $missed = 0 ]
