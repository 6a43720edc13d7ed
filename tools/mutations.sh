#!/bin/sh
# mutations.sh [FOLDER [NAME..]]: copies the tree into FOLDER/tree, applies each known bug of tests/mutations (or those named)
# to the copy, alone, and runs the tests that should find it. Without a bug the same tests must pass. Prints a table; exit 1
# if a bug is not caught.
# mutations.sh --check: every patch applies to the product, and is listed in mutants.txt.
# Promise: The suite catches every known bug of tests/mutations/mutants.txt.
cd "$(dirname "$0")/.." || exit 2
command -v git >/dev/null || { echo "SKIP: git, which applies the bugs, is missing"; exit 77; }
list=tests/mutations/mutants.txt
trim() { sed 's/^ *//; s/ *$//'; }
field() { grep -E "^$1 *\|" $list | cut -d'|' -f"$2" | trim; }
listed() { grep -v '^#' $list | cut -d'|' -f1 | trim | sort; }

if [ "$1" = --check ]; then
    bad=0
    listed >"${TMPDIR:-/tmp}/mutants.$$"
    (cd tests/mutations && ls ./*.patch) | sed 's/^\.\///; s/\.patch$//' | sort | diff "${TMPDIR:-/tmp}/mutants.$$" - ||
        { echo "mutations: $list and the patches beside it differ in names"; bad=1; }
    rm -f "${TMPDIR:-/tmp}/mutants.$$"
    for patch in tests/mutations/*.patch; do
        GIT_CEILING_DIRECTORIES=$(dirname "$PWD") git apply --check "$patch" ||
            { echo "mutations: $patch does not apply: is its bug still possible, and where?"; bad=1; }
    done
    [ $bad = 0 ] && echo "mutations: $(listed | wc -l) patches apply"
    exit $bad
fi

folder=${1:-build-mutations}
[ $# -gt 0 ] && shift
names=${*:-$(listed)}
tests=$(for name in $names; do field "$name" 2; done | tr ' ' '\n' | sort -u)
[ -n "$tests" ] || { echo "mutations: $list does not list: $names"; exit 2; }
targets() { # the programs of the given tests, from cmake's files for ctest
    for test in "$@"; do
        sed -n "s/^add_test(\(\[=*\[\)*$test\(\]=*\]\)* \"[^\"]*\/\([^\"\/]*\)\".*/\3/p" "$build"/tests/*/CTestTestfile.cmake
    done | sort -u
}

mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 2
tree=$folder/tree build=$folder/build
rm -rf "$tree" && mkdir -p "$tree" || exit 2
git ls-files -co --exclude-standard -z | xargs -0 sh -c 'for f; do [ ! -e "$f" ] || echo "$f"; done' sh |
    tar -cf - -T - | tar -xmf - -C "$tree" || exit 2

# shellcheck disable=SC2046
compile() { cmake --build "$build" -j "${JOBS:-2}" --target $(targets "$@") >"$folder/build.log" 2>&1; }
run() { # the given tests, each for at most two minutes
    (cd "$build" && ctest --timeout 120 -R "^($(echo "$*" | tr ' ' '|'))\$" >"$folder/last.log" 2>&1)
}
plant() { (cd "$tree" && GIT_CEILING_DIRECTORIES=$folder git apply "$@"); }

cmake -S "$tree" -B "$build" -DENTRAIN_CUDA=OFF -DCMAKE_C_COMPILER_LAUNCHER="$(command -v ccache)" \
    >"$folder/build.log" || { tail -20 "$folder/build.log"; exit 2; }
# shellcheck disable=SC2086
compile $tests || { tail -20 "$folder/build.log"; exit 2; }
# shellcheck disable=SC2086
run $tests || { tail -30 "$folder/last.log"; echo "mutations: the tests fail without a mutant"; exit 1; }

missed=0
printf '%-28s %-20s %s\n' mutant 'caught by' bug
for name in $names; do
    patch=$PWD/tests/mutations/$name.patch caught=
    plant "$patch" || exit 2
    # shellcheck disable=SC2046
    if compile $(field "$name" 2); then
        for test in $(field "$name" 2); do
            run "$test" || { caught=$test; break; }
        done
    else
        tail -5 "$folder/build.log"
        caught='DOES NOT BUILD'
    fi
    plant -R "$patch" || exit 2
    [ -n "$caught" ] || caught='NOT CAUGHT'
    case $caught in *\ *) missed=$((missed + 1)) ;; esac
    printf '%-28s %-20s %s\n' "$name" "$caught" "$(field "$name" 3)"
done
# shellcheck disable=SC2086
set -- $names
echo "mutations: $(($# - missed)) of $# caught"
[ $missed = 0 ]
