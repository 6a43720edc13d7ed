#!/bin/sh
# summary.sh BUILD: the closing line of the last `make test` in that build folder, again.
tail -1 "$1/test-summary.txt"
