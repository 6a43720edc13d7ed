#!/bin/sh
# check_subjects.sh [RANGE]: commit subjects in RANGE (default: since the rule) have at most 72 characters and the form
# `folder: what it does`.
cd "$(dirname "$0")/.." || exit 2
git log "${1:-ffe7276e..HEAD}" --no-merges --format='%h %s' 2>/dev/null | awk '
    { hash = $1; sub(/^[^ ]* /, "") }
    length($0) > 72 { print hash ": " length($0) " characters, at most 72: " $0; bad = 1 }
    $0 !~ /^[a-z0-9_.\/-]+(, [a-z0-9_.\/-]+)*: / { print hash ": not `folder: what it does`: " $0; bad = 1 }
    END { exit bad }'
