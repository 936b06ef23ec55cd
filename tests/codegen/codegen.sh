#!/bin/bash
# SPDX-License-Identifier: MIT
#
# codegen.sh SOURCE: what functions compile to. Each function of SOURCE that matters has a line above it,
#
#   // codegen: NAME memory=1 tests=1 branches<=1 instructions<=4
#
# with what its machine code must have, all of it optional, = or <=:
#   instructions  all but padding
#   memory        those with a memory operand
#   tests         those that only set flags: test, cmp, bt
#   branches      jumps, also a call at the end that became one
#   calls         calls
# NAME is the symbol, so the function is extern "C". A failure prints the function's code.
#
# Environment: CXX; TREE (a pvx tree); WORK (a folder for what is made); optionally OBJDUMP, WARNINGS, OPTIMISE (-O2).
# Exit code 77, with the reason: there is nothing here to look with.
set -u
export LC_ALL=C
source=${1:?usage: codegen.sh SOURCE}
: "${CXX:?}" "${TREE:?}" "${WORK:?}"
objdump=${OBJDUMP:-objdump}

skip() {
    echo "codegen: skipped: $*"
    exit 77
}
command -v "$objdump" >/dev/null || skip "no objdump (binutils): nothing to disassemble with"
machine=$("$CXX" -dumpmachine) || exit 2
[[ $machine == x86_64* ]] || skip "the expectations are for x86-64, and $CXX compiles for $machine"

mkdir -p "$WORK" || exit 2
object=$WORK/$(basename "$source" .cpp).o
# shellcheck disable=SC2086  # lists of flags
"$CXX" -std=c++20 ${OPTIMISE:--O2} -I"$TREE/include" -ffreestanding -nostdinc++ -fno-exceptions -fno-rtti -fno-pic \
    -mno-red-zone -mgeneral-regs-only -fcf-protection=none -fno-stack-protector -fno-asynchronous-unwind-tables \
    ${WARNINGS:-} -c -o "$object" "$source" || { echo "codegen: FAILED: $source does not compile"; exit 1; }

"$objdump" -d --no-show-raw-insn "$object" >"$WORK/code.txt" || exit 2
awk '
    function failed(what) { print "codegen: FAILED: " name ": " what; bad = 1; wrong = 1 }

    # The expectations come first, then the code.
    FNR == NR {
        if ($0 !~ /^\/\/ codegen: /) next
        if ($3 in expected) { print "codegen: FAILED: " $3 " is expected twice"; bad = 1 }
        expected[$3] = ""
        for (i = 4; i <= NF; ++i) expected[$3] = expected[$3] " " $i
        ++expectations
        next
    }
    /^[0-9a-f]+ <.*>:$/ { name = $2; gsub(/[<>:]/, "", name); code[name] = ""; next }
    /^ *[0-9a-f]+:[ \t]/ {  # as GNU and LLVM print it
        line = $0
        sub(/^ *[0-9a-f]+:[ \t]+/, "", line)
        if (line ~ /^(nop|data16|cs[ \t]+nop|xchgw?[ \t]+%ax, *%ax)/) next
        code[name] = code[name] "    " line "\n"
        ++count[name, "instructions"]
        if (line ~ /\(|%[c-gs]s:/ && line !~ /^lea/) ++count[name, "memory"]
        if (line ~ /^(test|cmp|bt)[bwlq]?[ \t]/) ++count[name, "tests"]
        if (line ~ /^j/) ++count[name, "branches"]
        if (line ~ /^call/) ++count[name, "calls"]
    }
    END {
        for (name in expected) {
            wrong = 0
            if (!(name in code)) { failed("not in the object, is it extern \"C\"?"); continue }
            n = split(expected[name], rule, " ")
            if (n == 0) failed("nothing is expected of it")
            for (i = 1; i <= n; ++i) {
                if (rule[i] !~ /^(instructions|memory|tests|branches|calls)<?=[0-9]+$/) {
                    failed("what is \"" rule[i] "\"?")
                    continue
                }
                what = most = rule[i]
                sub(/<?=.*/, "", what)
                sub(/.*=/, "", most)
                found = count[name, what] + 0
                if (rule[i] ~ /</ ? found > most + 0 : found != most + 0) failed(rule[i] ", but there are " found)
            }
            if (wrong) printf "%s", code[name]
        }
        if (expectations == 0) { print "codegen: FAILED: the source expects nothing"; bad = 1 }
        if (!bad) print "codegen: " expectations " functions compile to what they should"
        exit bad
    }' "$source" "$WORK/code.txt"
