#!/bin/sh
# Runs all tests: parts of the test programs beside one another, each in a process of its own, those of tests/longest first.
# Prints what fails, the ten longest tests, and the totals. Arguments go to the test programs (`--include-ignored`); WITHOUT is
# an expression for ignored tests that are left out nevertheless.
#
# A part is a line of tests/longest, a share of the other modules of the integration tests, or another test program. LANES parts
# run at a time.
set -eu
cd "$(dirname "$0")/.."
FOLDER=${CARGO_TARGET_DIR:-target}/test-run
# Tests mostly wait, so that more of them run than there are cores. There are ports for eight (crates/testkit/src/ports.rs).
lanes=$(($(getconf _NPROCESSORS_ONLN) * 2))
LANES=${LANES:-$((lanes < 8 ? lanes : 8))}
# Seconds after which a part is ended: the last line of its output then names the test that hangs.
LIMIT=${LIMIT:-1200}
# Parts that share the modules of the integration tests which nobody listed: the tests of a part share one control plane, whose
# start costs more than most of these modules.
SHARES=6
# Programs written in Go, above all API servers, collect garbage rarely: they live for seconds.
export GOGC="${GOGC:-800}"

# Runs one part, as `xargs` says, and prints one line about it; everything if it fails.
if [ "${1:-}" = part ]; then
    name=$2
    shift 2
    begin=$(date +%s)
    folder=$(cut -f 1 "$FOLDER/parts/$name" | head -n 1)
    program=$(cut -f 2 "$FOLDER/parts/$name" | head -n 1)
    code=0
    # shellcheck disable=SC2046 # names of tests have no blanks
    (cd "$folder" && RUSTC_BOOTSTRAP=1 exec timeout --foreground "$LIMIT" "$program" --test-threads 1 -Z unstable-options --report-time "$@" \
        --exact $(cut -f 3 "$FOLDER_ABSOLUTE/parts/$name")) >"$FOLDER/out/$name" 2>"$FOLDER/err/$name" || code=$?
    tests=$(sed -n 's/^test result: [^.]*\. \([0-9]*\) passed; \([0-9]*\) failed.*/\1 passed, \2 failed/p' "$FOLDER/out/$name")
    printf '%5s s  %s: %s\n' "$(($(date +%s) - begin))" "$name" "${tests:-ended with $code}"
    [ "$code" = 0 ] && exit 0
    echo "$name" >>"$FOLDER/failed"
    cat "$FOLDER/out/$name" "$FOLDER/err/$name"
    exit 1
fi

rm -rf "$FOLDER"
mkdir -p "$FOLDER/parts" "$FOLDER/out" "$FOLDER/err"
FOLDER_ABSOLUTE=$(cd "$FOLDER" && pwd)
export FOLDER FOLDER_ABSOLUTE

# Cargo starts each test program by this, in the folder of its package.
cat >"$FOLDER/list" <<'LIST'
name=$(basename "$1")
list() { "$@" --list --format terse | sed -n "s|^\(.*\): test$|$PWD	$1	\1	${name%-*}|p"; }
without=$([ -z "${WITHOUT:-}" ] || list "$1" --ignored | grep -E "$WITHOUT" || true)
list "$1" | grep -vxF "$without" || true
LIST
"${CARGO:-cargo}" test --workspace --features failpoints --quiet \
    --config "target.\"cfg(unix)\".runner=[\"sh\",\"$FOLDER_ABSOLUTE/list\"]" >"$FOLDER/tests"

# The part of a test is the longest line of tests/longest that its name begins with, or else its program or a share of it.
awk -F '\t' -v folder="$FOLDER/parts/" -v shares="$SHARES" '
    FNR == NR { if ($0 !~ /^#/ && NF) longest[$0] = 1; next }
    {
        name = $4 "::" $3
        part = name
        while (!(part in longest) && sub(/::[^:]*$/, "", part)) { }
        if (!(part in longest)) {
            split($3, modules, "::")
            if ($4 == "it" && !(modules[1] in share)) share[modules[1]] = count++ % shares + 1
            part = $4 == "it" ? "it::others-" share[modules[1]] : $4
        }
        print $1 "\t" $2 "\t" $3 >(folder part)
    }' tests/longest "$FOLDER/tests"
sed -e '/^#/d' -e '/^$/d' tests/longest >"$FOLDER/order"
while read -r part; do
    [ -e "$FOLDER/parts/$part" ] || { echo "tests/longest: there is no part $part" >&2; exit 1; }
done <"$FOLDER/order"
# Modules that nobody listed: those with the most tests first.
wc -l "$FOLDER"/parts/* | sort -rn | sed -n 's|.*/parts/||p' | grep -vxF -f "$FOLDER/order" >>"$FOLDER/order" || true

xargs -P "$LANES" --process-slot-var=KUBESVC_TEST_LANE -I '{}' sh tests/run.sh part '{}' "$@" <"$FOLDER/order" || true

echo
echo "The ten longest tests:"
sed -n 's/^test \([^ ]*\) .*ok <\([0-9.]*\)s>$/\2 \1/p' "$FOLDER"/out/* | sort -rn | head -n 10 |
    while read -r seconds name; do printf '%7.1f s  %s\n' "$seconds" "$name"; done
echo
[ ! -s "$FOLDER/failed" ] || echo "Failed: $(tr '\n' ' ' <"$FOLDER/failed")"
sed -n 's/^test result: [^.]*\. \(.*\); 0 measured.*/\1/p' "$FOLDER"/out/* |
    awk '{ passed += $1; failed += $3; ignored += $5 } END { print passed + 0 " passed, " failed + 0 " failed, " ignored + 0 " skipped" }'
# A part that did not end by itself is in no count.
[ ! -s "$FOLDER/failed" ] && [ "$(grep -l '^test result: ok' "$FOLDER"/out/* | wc -l)" = "$(wc -l <"$FOLDER/order")" ]
