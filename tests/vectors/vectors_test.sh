#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# That the program for the golden vectors says no when it should. Usage: vectors_test.sh VECTORS WORK-DIR
set -euo pipefail
shopt -s inherit_errexit

vectors=$1 work=$2
rm -rf "$work" "$work.good"
mkdir -p "$work"
failures=0

fail() {
    printf 'FAILED: %s\n' "$*"
    failures=$((failures + 1))
}

# expect CODE TEXT ARGUMENT...: the program ends with CODE and says TEXT.
expect() {
    local want=$1 text=$2 code=0 said
    shift 2
    said=$("$vectors" "$@" 2>&1) || code=$?
    [[ $code = "$want" && $said = *"$text"* ]] && return
    fail "vectors $*: exit code $code, not $want, or it does not say '$text':"$'\n'"$said"
}

expect 0 'Usage: vectors --check DIR' --help
expect 0 'xsave_sizes' --list
expect 64 'see vectors --help'
expect 64 'see vectors --help' --check
expect 64 'see vectors --help' --wipe "$work"
expect 1 'xsave_sizes.json is missing' --check "$work"
expect 1 "If the new answers are the right ones: vectors --write $work" --check "$work"
expect 70 "cannot write $work/nowhere/" --write "$work/nowhere"
expect 0 '' --write "$work"
expect 0 '' --check "$work"

mapfile -t names < <("$vectors" --list)
for name in "${names[@]}"; do
    size=$(stat -c %s "$work/$name.json")
    ((size < 100000)) || fail "$name.json has $size bytes, and should stay below 100 KB"
    grep -q '^    {.*}$' "$work/$name.json" || fail "$name.json has no cases"
done
cp -r "$work" "$work.good"
# Each file is damaged in three ways: a change, a line less, and an end that is missing.
for damage in '1s/{/[/' 4d 6,9999d; do
    sed -i "$damage" "$work"/*.json
    said=$("$vectors" --check "$work" 2>&1) && fail "damage $damage passes"
    for name in "${names[@]}"; do
        [[ $said = *"$name.json differs from what the code computes, first in line "* ]] ||
            fail "damage $damage of $name.json is not named"
    done
    cp "$work.good"/*.json "$work"
done
rm -r "$work.good"

echo '{}' >"$work/left_over.json"
expect 1 'left_over.json is made by nothing any more: remove it' --check "$work"
rm "$work/left_over.json"
expect 0 '' --check "$work"

((failures == 0)) && echo "vectors: ${#names[@]} files, each guarded"
