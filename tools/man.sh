#!/bin/sh
# man.sh BUILD: writes man pages of entrain, each of its commands, psd and worker to BUILD/man: help2man makes them from
# --help=all, so they agree with the programs. Exit 77 without help2man.
set -e
entrain=$1/entrain out=$1/man
command -v help2man > /dev/null || { echo "no man pages: they need help2man (apt-get install help2man)"; exit 77; }
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$(dirname "$0")" log -1 --format=%ct 2>/dev/null || date +%s)}"

"$entrain" --version > /dev/null 2>&1 || { echo "no man pages: $entrain does not run on this machine"; exit 77; }

page() { # NAME, the words of its command line, what it does
    help2man --no-info --help-option="$3" --version-string="$("$entrain" --version | cut -d' ' -f2)" --name="$4" "$entrain$2" |
        sed "s/^\.TH [^ ]*/.TH $(echo "$1" | tr a-z A-Z)/" > "$out/$1.1"
}

rm -rf "$out"
mkdir -p "$out"
page entrain "" --help "one model, many workers, one flag for how they stay in step"
"$entrain" --help | sed -n 's/^  \([a-z]*\)  *\(.*\)/\1 \2/p' | while read -r command does; do
    page "entrain-$command" " $command" --help=all "$does"
done
