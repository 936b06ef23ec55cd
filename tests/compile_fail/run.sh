#!/bin/bash
# SPDX-License-Identifier: MIT
#
# run.sh: compiles every line of cases.txt. Each use and each misuse's good half must compile (the control, so that a
# case cannot fail for a reason of its own); each defect must not, and the first lines of the error must name what the
# table says: the expression, not the compiler's wording.
# Environment: CXX; TREE (a pvx tree); WORK (a folder for what is made); WARNINGS (flags); optionally CASES, JOBS.
set -u
export LC_ALL=C
: "${CXX:?}" "${TREE:?}" "${WORK:?}" "${WARNINGS:?}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cases=${CASES:-$here/cases.txt}
jobs=${JOBS:-$(nproc)}
first_lines=24
rm -rf "$WORK" && mkdir -p "$WORK" && cd "$WORK" || exit 2

trim() { local s=${1#"${1%%[![:space:]]*}"}; echo "${s%"${s##*[![:space:]]}"}"; }

# compile NAME DEFECT CODE: the compiler's words go to NAME.log.
compile() {
    printf '%s\n' '#include "machine.hpp"' "inline constexpr defect subject_defect = defect::$2;" \
        'using subject = machine<subject_defect>;' 'using subject_request = request<subject_defect>;' \
        'using subject_host = environment<subject_defect>;' "$3" >"$1.cpp"
    # shellcheck disable=SC2086
    "$CXX" -I"$TREE/include" -I"$here" -std=c++20 -ffreestanding -fsyntax-only $WARNINGS -Werror "$1.cpp" >"$1.log" 2>&1
}

# statement CODE: the part of it that matters.
statement() {
    local s=${1#*(void)w;$'\n'}
    echo "${s%$'\n'\}}"
}

must_compile() {
    compile "$@" && return
    printf '%s\n' "FAILED: the control does not compile: $(statement "$3")" "$(cat "$1.log")"
    return 1
}

# must_fail NAME DEFECT CODE NAMED
must_fail() {
    if compile "$1" "$2" "$3"; then
        printf '%s\n' "FAILED: compiles, but must not, where $2 is wrong: $(statement "$3")"
        return 1
    fi
    # g++ prints m.template f<T>(x) as m.f<T>(x), and a line of its own with the source, where it is as written.
    head -n $first_lines "$1.log" | grep -qF -- "$4" && return
    printf '%s\n' "FAILED: the first $first_lines lines of the error do not name $4, where $2 is wrong: $(statement "$3")" "$(cat "$1.log")"
    return 1
}

# misused STATEMENTS: inside a function that has one of everything.
misused() {
    local parameters="guest::x2apic<subject> x2apic, guest::steal_time<subject> steal,
        guest::kvm_clock<subject>& clock, guest::tlb_flush<subject> flush, guest::deferred_flush<subject> deferred,
        host::steal_time<subject_host>& host_steal, host::runtime_cpuid<subject_host>& host_cpuid,
        host::hypercalls<subject_host>& host_calls, host::msrs<subject_host>& host_msrs,
        host::kvm_clock<subject_host>& host_clock, guest::flush_request request, subject machine,
        builtin_atomics atomics, uint32_t& word, unsigned long& mask, abi::apic_command command"
    printf '%s\n' "using namespace pvx;" "inline void user($parameters) {" \
        "    (void)x2apic, (void)steal, (void)clock, (void)machine, (void)atomics, (void)mask, (void)command;" \
        "    (void)flush, (void)deferred, (void)host_steal, (void)host_cpuid, (void)request;" \
        "    (void)host_calls, (void)host_msrs, (void)host_clock;" \
        "    auto const w = atomics.ref(word);" "    (void)w;" "$1" "}"
}

# The table as a list of jobs: function, file name, defect, code, what must be named.
functions=() names=() defects=() codes=() wanted=()
job() { functions+=("$1") names+=("$2") defects+=("$3") codes+=("$4") wanted+=("${5:-}"); }
declare -A use
while IFS='|' read -r kind second third fourth; do
    kind=$(trim "$kind") second=$(trim "${second:-}") third=$(trim "${third:-}") fourth=$(trim "${fourth:-}")
    case $kind in
        '' | '#'*) ;;
        use)
            use[$second]=$third
            job must_compile "use_$second" nothing "$third"
            ;;
        lacks)
            for name in $fourth; do
                [ -n "${use[$name]:-}" ] || { echo "FAILED: cases.txt: no such use: $name"; exit 1; }
                job must_fail "lacks_${#names[@]}" "$second" "${use[$name]}" "$third"
            done
            ;;
        misuse)
            job must_compile "good_${#names[@]}" nothing "$(misused "$third")"
            job must_fail "bad_${#names[@]}" nothing "$(misused "$fourth")" "$second"
            ;;
        *) echo "FAILED: cases.txt: what is a '$kind'?"; exit 1 ;;
    esac
done <"$cases"

pids=() failed=0
for ((worker = 0; worker < jobs; ++worker)); do
    (
        bad=0
        for ((i = worker; i < ${#names[@]}; i += jobs)); do
            "${functions[i]}" "${names[i]}" "${defects[i]}" "${codes[i]}" "${wanted[i]}" || bad=1
        done
        exit $bad
    ) >"worker$worker.out" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
cat worker*.out

controls=$(printf '%s\n' "${functions[@]}" | grep -c must_compile)
echo "$((${#names[@]} - controls)) programs refused, $controls controls"
exit $failed
