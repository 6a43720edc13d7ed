#!/bin/sh
# check_shape.sh: a file is one idea: no source over 800 lines, no header over 300; every folder of code has a
# folder of tests.
cd "$(dirname "$0")/.." || exit 2
bad=0
offence() { echo "$1"; bad=1; }
sources=$(find include core runtime ops config data remote models server rank worker report cli strategies examples bench -name '*.[ch]' | sort)
for file in $sources; do
    lines=$(wc -l < "$file")
    case $file in
    *.h) [ "$lines" -le 300 ] || offence "$file: $lines lines; a header has at most 300" ;;
    *) [ "$lines" -le 800 ] || offence "$file: $lines lines; a source has at most 800" ;;
    esac
    [ "$lines" -le 500 ] || echo "warning: $file has $lines lines: is it still one idea?"
done
for folder in net control spec collective store client host sim; do
    [ -d "tests/$folder" ] || offence "runtime/$folder has no tests/$folder"
done
for folder in core ops config data remote models server rank worker strategies report cli system; do
    [ -d "tests/$folder" ] || offence "$folder has no tests/$folder"
done
[ $bad = 0 ] && echo "shape: files are small, every folder has tests"
exit $bad
