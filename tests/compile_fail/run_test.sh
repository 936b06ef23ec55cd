#!/bin/bash
# SPDX-License-Identifier: MIT
#
# run_test.sh: run.sh reports what is wrong with a table. Environment as for run.sh.
set -u
run=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/run.sh
: "${CXX:?}" "${WORK:?}"
rm -rf "$WORK" && mkdir -p "$WORK" && cd "$WORK" || exit 2
here=$PWD
failed=0
tables=0
use='use | msr_policy | static_assert(pvx::msr_policy<subject>);'

# expect STATUS TEXT LINE...: what run.sh says of a table of these lines.
expect() {
    local status=$1 text=$2 out got
    shift 2
    tables=$((tables + 1))
    printf '%s\n' "$@" >"$here/cases.txt"
    out=$(CASES=$here/cases.txt WORK=$here/work JOBS=1 bash "$run" 2>&1)
    got=$?
    [ $got = "$status" ] && grep -qF "$text" <<<"$out" && return
    printf '%s\n' "FAILED: expected status $status and '$text' for:" "$@" "but got status $got and:" "$out"
    failed=1
}

expect 0 '1 programs refused, 1 controls' "$use" 'lacks | read_msr | m.read_msr(index) | msr_policy'
expect 1 'compiles, but must not'         "$use" 'lacks | tsc | m.tsc() | msr_policy'
expect 1 'do not name m.write_msr'            "$use" 'lacks | read_msr | m.write_msr(index, value) | msr_policy'
expect 1 'the control does not compile'   'use | msr_policy | static_assert(pvx::msr_policy<int>);'
expect 1 'no such use'                    "$use" 'lacks | read_msr | m.read_msr(index) | msr_polcy'
expect 1 'compiles, but must not'         'misuse | load | (void)w.load(order::relaxed); | (void)w.load(order::acquire);'
expect 1 'do not name bananas'            'misuse | bananas | (void)w.load(order::relaxed); | (void)w.load();'
expect 1 'the control does not compile'   'misuse | load | (void)w.load(); | (void)w.load();'
expect 1 "what is a 'misues'"             'misues | load | a | b'
echo "$tables tables"
exit $failed
