#!/bin/sh
# Writes the licences of all that is compiled into the programs: packaging/notices.sh FILE [TARGET]
# Cargo says what is linked for TARGET, by default this machine, and has the sources, with their texts, since it built
# them. A text that several packages have stands once. The same sources make the same file.
set -eu
file=$1 target=${2:-$(rustc -vV | sed -n 's/^host: //p')}
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
LC_ALL=C
export LC_ALL

texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT

digest() {
  { sha256sum "$1" 2>/dev/null || shasum -a 256 "$1"; } | cut -d ' ' -f 1
}

# Macros are programs of the compiler; nothing of them is in ours, but what they write.
cargo tree --locked --package kubesvc --edges normal,no-proc-macro --target "$target" --prefix none --no-dedupe \
  --format '{p}|{l}' | grep -v '/crates/\|^kubesvc ' | sed 's/ (.*)|/|/' | sort -u > "$texts/packages"
[ -s "$texts/packages" ]

while IFS='|' read -r package licence; do
  name=${package% v*} version=${package##* v}
  folder=$(find "$sources" -mindepth 2 -maxdepth 2 -type d -name "$name-$version" | head -n 1)
  if [ -z "$folder" ]; then
    echo "the sources of $name $version are not in $sources: build first" >&2
    exit 1
  fi
  # One folder below, a package has the C library that it builds, with the library's licence.
  find "$folder" -maxdepth 2 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'copyright*' -o -iname 'notice*' \
    -o -iname 'unlicense*' \) ! -name '*.rs' ! -name '*.html' | sort > "$texts/files"
  if [ ! -s "$texts/files" ]; then
    authors=$(awk '/^authors = /{on=1} on{print} on&&/\]/{exit}' "$folder/Cargo.toml" | tr -d '\n[]"' |
      sed 's/^authors = *//; s/  */ /g; s/,* *$//')
    echo "$name $version: $licence. Copyright: ${authors:-the authors of $name}" >> "$texts/without"
  fi
  while read -r text; do
    key=$(digest "$text")
    cp "$text" "$texts/$key.text"
    echo "$name $version, ${text#"$folder"/}" >> "$texts/$key.of"
  done < "$texts/files"
done < "$texts/packages"

{
  echo "kubesvc contains these packages. Each is under the licence that is named, and the texts follow."
  echo
  sed 's/ v\([^|]*\)|/ \1: /' "$texts/packages"
  if [ -s "$texts/without" ]; then
    echo
    echo "These come without a text. Of alternatives, kubesvc takes Apache-2.0, which is its own licence (LICENSE); those under"
    echo "MIT alone have the text below:"
    echo
    cat "$texts/without"
    cat <<'MIT'

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
MIT
  fi
  for of in "$texts"/*.of; do
    printf '%s\t%s\n' "$(head -n 1 "$of")" "${of%.of}"
  done | sort | while IFS="$(printf '\t')" read -r _ text; do
    echo
    echo "========================================================================"
    cat "$text.of"
    echo "------------------------------------------------------------------------"
    cat "$text.text"
  done
} > "$file"
