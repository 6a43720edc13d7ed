#!/bin/sh
# release.sh [OUT]: makes entrain-VERSION.tar.gz of the current commit, and checks that it is complete: the tarball is unpacked
# and built twice, in one folder, without git, and both builds must have the same bytes.
set -e
cd "$(dirname "$0")/.."
version=$(sed -n 's/^project(entrain VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
out=$(realpath "${1:-.}") name=entrain-$version
git diff --quiet HEAD || { echo "the tree has uncommitted changes: commit them, or git stash"; exit 1; }
grep -q "^## $version (20" CHANGELOG.md || echo "CHANGELOG.md has no date for $version: this is a trial"

# The commit's time, used in the tarball and in builds from it.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
git archive --format=tar --prefix="$name/" HEAD | gzip -9 -n > "$out/$name.tar.gz"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for build in first second; do
    rm -rf "${work:?}/$name"
    tar -xzf "$out/$name.tar.gz" -C "$work"
    make -s -C "$work/$name" all > "$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
    (cd "$work/$name/build" && sha256sum entrain worker psd libentrain.so plugins/*.so) > "$work/$build"
done
diff "$work/first" "$work/second" || { echo "two builds of one tarball differ"; exit 1; }
[ "$("$work/$name/build/entrain" --version)" = "entrain $version" ] || { echo "--version does not print $version"; exit 1; }
(cd "$out" && sha256sum "$name.tar.gz")
