#!/bin/sh
# Sees to schemathesis in the cache folder, in the pinned version, and prints where the program is.
set -eu

wanted=$(cd "$(dirname "$0")" && pwd)/requirements.txt
folder=${XDG_CACHE_HOME:-$HOME/.cache}/kubesvc/openapi-check
if ! cmp -s "$wanted" "$folder/requirements.txt"; then
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$wanted" >&2
    # Last, so that an installation that breaks off is made anew.
    cp "$wanted" "$folder/requirements.txt"
fi
echo "$folder/bin/schemathesis"
