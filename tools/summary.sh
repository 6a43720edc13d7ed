#!/bin/sh
# summary.sh BUILD: repeats the closing line of the last `make test` in that build folder.
tail -1 "$1/test-summary.txt"
