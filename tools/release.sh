#!/bin/sh
# release.sh [OUT]: entrain-VERSION.tar.gz of the commit that is checked out, and proof that it is enough: the tarball is
# unpacked and built twice, in one place, without git, and both builds must have the same bytes.
set -e
cd "$(dirname "$0")/.."
version=$(sed -n 's/^project(entrain VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
out=$(realpath "${1:-.}") name=entrain-$version
git diff --quiet HEAD || { echo "there are changes that are not committed: commit them, or git stash"; exit 1; }
grep -q "^## $version (20" CHANGELOG.md || echo "CHANGELOG.md gives no date to $version: this is a trial"

# The commit's own time, in the tarball and in all that is built of it.
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
[ "$("$work/$name/build/entrain" --version)" = "entrain $version" ] || { echo "--version does not say $version"; exit 1; }
(cd "$out" && sha256sum "$name.tar.gz")
