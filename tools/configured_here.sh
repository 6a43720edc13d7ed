#!/bin/sh
# configured_here.sh BUILD..: exit 1, with one sentence, if a build folder was configured for another source folder, or under
# another path: it was moved or copied with its tree. It would build and install the other tree's files.
cd "$(dirname "$0")/.." || exit 2
for build; do
    [ -f "$build/CMakeCache.txt" ] || continue
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:[A-Z]*=//p' "$build/CMakeCache.txt")
    self=$(sed -n 's/^CMAKE_CACHEFILE_DIR:[A-Z]*=//p' "$build/CMakeCache.txt")
    [ "$home" -ef . ] && [ "$self" -ef "$build" ] && continue
    echo "$build was configured as $self for the sources in $home, not for these in $PWD: remove it (rm -rf $build)," \
        "and run make again" >&2
    exit 1
done
