#!/bin/bash
# SPDX-License-Identifier: MIT
#
# codegen_test.sh: codegen.sh passes what is as it says, and reports each difference by name.
# Environment: as codegen.sh.
set -u
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/codegen.sh
: "${CXX:?}" "${TREE:?}" "${WORK:?}"
rm -rf "$WORK" && mkdir -p "$WORK" && cd "$WORK" || exit 2
bad=0
cases=0

# check STATUS WORDS EXPECTATION...: of three loads, three tests and one call at the end.
check() {
    local status=$1 words=$2 out got
    shift 2
    cases=$((cases + 1))
    {
        printf '// codegen: %s\n' "$@"
        # Volatile: compilers join what they can.
        echo 'extern "C" { void hit(); struct vcpu { volatile int apic, base, svr; };'
        echo 'void three(vcpu const& v) { if (v.apic && v.base && v.svr) hit(); }'
        echo 'int nothing() { return 1; }'
        echo 'int far(int i) { hit(); return i; } }'
    } >case.cpp
    out=$(WORK=$PWD/work bash "$script" case.cpp 2>&1)
    got=$?
    [ $got = 77 ] && { echo "$out"; exit 77; }
    [ $got = "$status" ] && grep -qF -- "$words" <<<"$out" && return
    printf '%s\n' "FAILED: expected status $status and \"$words\" of: $*" "status $got:" "$out"
    bad=1
}

check 0 "2 functions" "three memory=3 tests=3 calls=0" "nothing memory=0 tests=0 branches=0 calls=0 instructions=2"
check 0 "1 functions" "far calls=1 instructions<=9"
check 1 "three: memory<=1, but there are 3" "three memory<=1"
check 1 "three: tests=1, but there are 3" "three tests=1"
check 1 "three: tests=4, but there are 3" "three tests=4"
check 1 "three: branches=0" "three branches=0"
check 1 "nothing: instructions=1, but there are 2" "nothing instructions=1"
check 1 "far: calls=0, but there are 1" "far calls=0"
check 1 "gone: not in the object" "gone tests=1"
check 1 "nothing is expected of it" "nothing"
check 1 'what is "loads=1"?' "three loads=1"
check 1 "three is expected twice" "three tests=3" "three memory=3"

out=$(OBJDUMP=/nonexistent WORK=$PWD/work bash "$script" case.cpp)
if [ $? != 77 ] || ! grep -q "skipped: no objdump" <<<"$out"; then
    echo "FAILED: without objdump: $out"
    bad=1
fi

[ $bad = 0 ] && echo "$cases cases"
exit $bad
