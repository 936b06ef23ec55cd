#!/bin/bash
# SPDX-License-Identifier: MIT
#
# exact_test.sh CASE-OBJECT...: exact_counts notices each change that is made to a copy of pvx's headers, by its name,
# and refuses what it cannot count.
# Environment: CXX; TREE (a pvx tree); FLAGS (of the cases); EXACT (exact_counts); LIBRARY (it without cases);
# WITHOUT_PTRACE (runs a command that may not trace); WORK (a folder for what is made).
set -u
export LC_ALL=C
: "${CXX:?}" "${TREE:?}" "${FLAGS:?}" "${EXACT:?}" "${LIBRARY:?}" "${WITHOUT_PTRACE:?}" "${WORK:?}"
objects=("$@")
rm -rf "$WORK" && mkdir -p "$WORK" && cd "$WORK" || exit 2
failed=0

# says NAME STATUS PATTERN COMMAND...: the command ends with this exit code and prints a line that matches; left in $out.
says() {
    local name=$1 status=$2 pattern=$3 got=0
    shift 3
    out=$("$@" 2>&1) || got=$?
    if [ "$got" = "$status" ] && grep -qE -- "$pattern" <<<"$out"; then
        echo "ok: $name"
        return
    fi
    printf '%s\n' "FAILED: $name: exit code $got, not $status, or no line like '$pattern' in:" "$out"
    failed=1
    return 1
}

# says_too NAME PATTERN: $out has a line that matches.
says_too() { says "$1" 0 "$2" echo "$out"; }

# says_only PATTERN: of what has grown or shrunk, $out names nothing else.
says_only() {
    local rest
    rest=$(grep -E '^(MORE|fewer|NEW|GONE) ' <<<"$out" | grep -vE -- "$1") || return 0
    printf '%s\n' "FAILED: it also says:" "$rest"
    failed=1
}

# built NAME CASES.CPP INCLUDE: a program with all cases, those of one file compiled again with other headers.
built() {
    local object others=()
    for object in "${objects[@]}"; do
        [[ $object = */$(basename "$2").* ]] || others+=("$object")
    done
    # shellcheck disable=SC2086
    "$CXX" $FLAGS -I"$3" -I"$TREE/bench/exact" -c "$2" -o "$1.o" && "$CXX" -no-pie "$1.o" "${others[@]}" "$LIBRARY" -o "$1"
}

# changed COMPONENT HEADER FROM TO: ./changed, where a line of a header is another.
changed() {
    rm -rf include
    cp -r "$TREE/include" . || exit 2
    sed -i "s/$3/$4/" "include/pvx/$2" || exit 2
    if cmp -s "$TREE/include/pvx/$2" "include/pvx/$2"; then
        echo "FAILED: $2 has no line like '$3' any more: change this test"
        exit 1
    fi
    built changed "$TREE/bench/exact/cases/$1.cpp" include || exit 1
}

baseline=$WORK/baseline.json
against=(--baseline "$baseline")
"$EXACT" --write-baseline "${against[@]}" >first 2>&1
status=$?
cat first
[ $status = 0 ] || exit $status

says "the same code has the same counts" 0 'cases are as in' "$EXACT" "${against[@]}" --json "$WORK/again.json"
cmp "$baseline" again.json || failed=1
built again "$TREE/bench/exact/cases/x2apic.cpp" "$TREE/include" || exit 1
says "and so it has when this test compiles it" 0 'cases are as in' ./again "${against[@]}" --filter x2apic

changed x2apic guest/x2apic.hpp 'void send_self(uint8_t vector) const {' '& __asm__ volatile("nop");'
says "one added instruction is caught" 1 '^MORE +x2apic/send_self: instructions: was 5, is 6$' ./changed "${against[@]}" &&
    says_only 'x2apic/send_self: instructions|x2apic: code bytes'
says_too "and the added byte" '^MORE +x2apic: code bytes: was '

changed seqcount base/seqcount.hpp '^    atomics.ref(version).store(odd + 1' \
    '    (void)atomics.ref(version).fetch_add(2, order::relaxed);\n&'
says "an added read-modify-write is caught" 1 '^MORE +seqcount/write, 1 field: shared rmw: was 0, is 1$' \
    ./changed "${against[@]}" --filter seqcount && says_only 'seqcount/write, 1 field: (instructions|LOCK|shared rmw)'
says_too "and that the processor locks for it" '^MORE +seqcount/write, 1 field: LOCK: was 0, is 1$'

changed qspinlock guest/qspinlock.hpp 'uint32_t found = detail::lock_held;' \
    'uint32_t no = 0xffff0000;\n        (void)machine_.ref(word).compare_exchange(no, 0, order::relaxed, order::relaxed);\n        &'
says "a third locked operation of a lock and its unlock is over their limit" 1 \
    '^OVER +qspinlock/lock and unlock, paravirtual: LOCK: is 3, and may be 2 at most$' \
    ./changed "${against[@]}" --filter "qspinlock/lock and unlock"
says "and no new baseline lifts it" 1 '^wrote no baseline' ./changed --write-baseline --baseline lifted.json
[ ! -e lifted.json ] || failed=1

changed ipi guest/ipi.hpp 'int64_t const delivered' '(void)machine_.hypercall(0, 0, 0, 0, 0); &'
says "an added hypercall is caught" 1 '^MORE +ipi/send, 64 targets: hypercalls: was 1, is 2$' \
    ./changed "${against[@]}" --filter '64 targets'

changed x2apic guest/x2apic.hpp 'if (fence_icr_) machine_.fence_before_wrmsr();' ''
says "a decrease asks for the new baseline" 3 '^  \./changed --write-baseline' \
    ./changed "${against[@]}" --filter x2apic && says_only '^fewer +x2apic/send,'
says_too "and names what has become less" '^fewer +x2apic/send, fenced: MFENCE: was 1, is 0$'

sed 's/"features\/has"/"features\/had"/' "$baseline" >other.json
says "a new case asks for the new baseline" 3 '^NEW +features/has$' "$EXACT" --baseline other.json --filter features
says_too "so does one that is gone" '^GONE +features/had$'
sed 's/"guest.hpp":[0-9]*/"guest.hpp":1/' "$baseline" >lines.json
says "more preprocessed lines are caught" 1 '^MORE +guest.hpp: preprocessed lines: was 1, is ' "$EXACT" --baseline lines.json
sed 's/-O2/-O3/' "$baseline" >flags.json
says "other flags are no comparison" 3 'flags are others' "$EXACT" --baseline flags.json --filter features/has
sed 's/"compiler": "[a-z]* /&1/' "$baseline" >compiler.json
says "a baseline of another compiler is skipped" 77 'no baseline for (gcc|clang) .*make one with' \
    "$EXACT" --baseline compiler.json
says "a compiler without a baseline is skipped" 77 '^  .*--write-baseline --baseline none.json' "$EXACT" --baseline none.json
says "where ptrace is forbidden it is skipped" 77 'forbids ptrace' "$WITHOUT_PTRACE" "$EXACT" "${against[@]}"

says "a filter compares a part" 0 '^1 cases are as in' "$EXACT" "${against[@]}" --filter features/has
says "a filter that nothing matches is refused" 64 'no case has xyzzy' "$EXACT" "${against[@]}" --filter xyzzy
says "a baseline of a part is refused" 64 'leave out --filter' "$EXACT" --write-baseline --filter ipi

objects=()
built broken "$TREE/bench/exact/broken_cases.cpp" "$TREE/include" || exit 1
refuses() { says "$1 is refused" 70 "$3" ./broken "${against[@]}" --filter "$2"; }
refuses "a case that waits" waits 'broken/waits: does not end'
refuses "a case that needs a library" library 'a function of a library'
refuses "a case that crashes" crashes 'broken/crashes: died: Segmentation'
refuses "a case that does not call its operation" 'not call' 'ended with exit code 0'
refuses "a case whose inputs change" changes 'counts differently'

exit $failed
