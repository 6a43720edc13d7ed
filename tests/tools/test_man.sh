#!/bin/bash
# test_man.sh BUILD man|completion: man pages have every flag of --help=all, and completion offers commands, flags and names.
here=$(dirname "$0") entrain=$1/entrain bad=0
fail() { echo "$*"; bad=1; }
flags() { "$entrain" "$1" --help=all | sed -nE 's/^  (    |-., )--(\[no-\])?([a-z0-9-]+).*/\3/p'; }
commands=$("$entrain" --help | sed -n 's/^  \([a-z]*\) .*/\1/p')
[ "$(echo "$commands" | wc -l)" -ge 19 ] || fail "--help lists few commands: $commands"

if [ "$2" = man ]; then
    work=$(mktemp -d) # the build folder belongs to all tests
    trap 'rm -rf "$work"' EXIT
    ln -s "$(realpath "$1")"/* "$work"
    "$here/../../tools/man.sh" "$work" || exit $?
    for command in $commands; do
        page=$work/man/entrain-$command.1 text=$(sed 's/\\f[A-Z]//g; s/\\-/-/g; s/\\[,/]//g' "$work/man/entrain-$command.1") n=0
        for flag in $(flags "$command"); do
            n=$((n + 1))
            grep -qE -- "--(\[no-\])?$flag\b" <<< "$text" || fail "$page lacks --$flag"
        done
        [ $n -gt 0 ] || fail "$command: --help=all lists no flag"
        grep -q "^\.TH ENTRAIN-$(tr a-z A-Z <<< "$command") " "$page" || fail "$page: another title"
        [ "$(grep -c '^\.SS ' "$page")" -gt 0 ] || fail "$page has no sections"
    done
    [ -s "$work/man/entrain.1" ] || fail "there is no page of entrain itself"
    exit $bad
fi

# The completions that a shell would offer for the words of a line.
offers() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _entrain
    printf '%s\n' "${COMPREPLY[@]}"
}
compopt() { :; } # works within a completion only
. "$here/../../tools/entrain.bash"
[ "$(offers "$entrain" comp)" = compare ] || fail "comp: $(offers "$entrain" comp)"
[ "$(offers "$entrain" run --momen)" = --momentum= ] || fail "--momen: $(offers "$entrain" run --momen)"
[ "$(offers "$entrain" run - | wc -l)" = "$(flags run | wc -l)" ] || fail "-: not every flag"
[ "$(offers "$entrain" run --strategy = ps-)" = "$(printf 'ps-sync\nps-async')" ] || fail "ps-: $(offers "$entrain" run --strategy = ps-)"
[ "$(offers "$entrain" run --model = resn)" = resnet18 ] || fail "resn: $(offers "$entrain" run --model = resn)"
[ "$(offers "$entrain" run --data = cifar1 | wc -l)" = 2 ] || fail "cifar1: $(offers "$entrain" run --data = cifar1)"
cd "$here" && [ "$(offers "$entrain" run --save = test_man)" = test_man.sh ] || fail "a file: $(offers "$entrain" run --save = test_man)"
exit $bad
