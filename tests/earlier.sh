#!/bin/sh
# Builds operator and agent of an earlier version, the last tag or the revision in EARLIER, and prints their folder.
set -eu
revision=${EARLIER:-$(git describe --tags --abbrev=0 2>/dev/null || true)}
if [ -z "$revision" ]; then
    echo "tests/earlier.sh: there is no tag; name a revision: make skew EARLIER=…" >&2
    exit 1
fi
folder=$PWD/target/skew
commit=$(git rev-parse --verify --quiet "$revision^{commit}") || {
    echo "tests/earlier.sh: no revision $revision in this clone; git fetch --tags?" >&2
    exit 1
}
rm -rf "$folder/source"
mkdir -p "$folder/source"
# The files are as old as now, so that nothing of another revision passes for built.
git archive "$commit" | tar -xm -C "$folder/source"
echo "Building operator and agent of $revision…" >&2
${CARGO:-cargo} build --quiet --manifest-path "$folder/source/Cargo.toml" --target-dir "$folder/build" --bins >&2
echo "$folder/build/debug"
