#!/bin/bash
# SPDX-License-Identifier: MIT
#
# check.sh CHECK: compiles the headers of a pvx tree as a kernel would, and looks at what comes out.
#
#   alone         each header by itself, twice in one translation unit, and in two linked ones; no warning, no symbol
#                 left undefined, no constructor, no thread-local
#   dependencies  each header needs nothing but pvx and the compiler's own <stddef.h> and <stdint.h>, and guest and host
#                 never meet the other half or the machine base
#   hostile       all headers after the words that kernels define as macros
#   size          lines that guest.hpp and host.hpp preprocess to
#   instantiated  every template with minimal policies, in two linked translation units; the same of the code itself
#   hot           the hot paths: no symbol at all is left undefined, not even memcpy
#   entry         what runs in an NMI or under a tracer: no call, no instrumentation, whatever the optimisation level
#
# Environment: CXX; TREE (a pvx tree); WORK (a folder for what is made); WARNINGS (flags); and optionally SOURCES (the
# folder of the .cpp files here), NM, OBJDUMP, JOBS. A failure prints the header, the command and the compiler's words.
set -u
export LC_ALL=C
: "${CXX:?}" "${TREE:?}" "${WORK:?}" "${WARNINGS:?}"
check=${1:?usage: check.sh CHECK}
sources=${SOURCES:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
nm=${NM:-nm}
objdump=${OBJDUMP:-objdump}
jobs=${JOBS:-$(nproc)}
tree=$(cd "$TREE" && pwd) || exit 2
rm -rf "$WORK" && mkdir -p "$WORK" && work=$(cd "$WORK" && pwd) || exit 2
cd "$work" || exit 2

freestanding="-ffreestanding -nostdlib -nostdinc++ -fno-exceptions -fno-rtti -fno-threadsafe-statics -mno-red-zone
              -mgeneral-regs-only"
levels="-O0 -Os -O2"
# GNU mode differs in what is predefined and accepted, not in the code that comes out: one level will do.
modes=("-std=c++20 -O0" "-std=c++20 -Os" "-std=c++20 -O2" "-std=gnu++20 -O2")
may_be_undefined="memcpy memmove memset memcmp"

case $("$CXX" --version) in
    *clang*)
        emit_inline=-femit-all-decls
        own_headers=$("$CXX" -print-resource-dir)/include
        # What Linux adds, and what makes every indirect call visible as an undefined symbol.
        kernel="-mcmodel=kernel -fno-pic -fno-strict-aliasing -fshort-wchar -funsigned-char -mstack-alignment=8
                -fno-jump-tables -mretpoline-external-thunk"
        ;;
    *)
        emit_inline=-fkeep-inline-functions
        own_headers=$("$CXX" -print-file-name=include)
        kernel="-mcmodel=kernel -fno-pic -fno-strict-aliasing -fshort-wchar -funsigned-char
                -mpreferred-stack-boundary=3 -fno-jump-tables -mindirect-branch=thunk-extern"
        ;;
esac

mapfile -t headers < <(grep -oE 'include/pvx/[^ )]+' "$tree/cmake/headers.cmake" | sed 's,^include/,,')
[ ${#headers[@]} -gt 0 ] || { echo "no headers in $tree/cmake/headers.cmake"; exit 2; }

# run WHAT COMMAND...: silent if the command succeeds.
run() {
    local what=$1 out
    shift
    out=$("$@" 2>&1) && return
    printf '%s\n' "FAILED: $what" "  $*" "$out" ""
    return 1
}

# compile WHAT SOURCE FLAGS...: with what every check has in common. FLAGS may hold several words each.
compile() {
    local what=$1 source=$2
    shift 2
    # shellcheck disable=SC2048,SC2086
    run "$what" "$CXX" -I"$tree/include" $freestanding $WARNINGS -Werror $* "$source"
}

# in_parallel FUNCTION [LIMIT]: calls it once for each line of the input, which becomes its arguments; LIMIT failures of
# a worker are enough.
in_parallel() {
    local items pids=() worker i failed=0 limit=${2:-1000}
    mapfile -t items
    for ((worker = 0; worker < jobs; ++worker)); do
        (
            bad=0
            for ((i = worker; i < ${#items[@]}; i += jobs)); do
                # shellcheck disable=SC2086
                "$1" ${items[i]} </dev/null || [ $((++bad)) -lt "$limit" ] || break
            done
            exit $((bad > 0))
        ) >"worker$worker.log" 2>&1 &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || failed=1; done
    cat worker*.log
    return $failed
}

# undefined ALLOWED OBJECT...: no symbol but those allowed is left to somebody else.
undefined() {
    local allowed=$1
    shift
    "$nm" -A -u "$@" | awk -v allowed="$allowed" '
        BEGIN { n = split(allowed, word, " "); for (i = 1; i <= n; ++i) ok[word[i]] = 1 }
        !($NF in ok) { sub(/:.*/, "", $1); print "FAILED: " $1 ": undefined symbol " $NF; bad = 1 }
        END { exit bad }'
}

# sections OBJECT...: nothing that needs a loader: no constructor, destructor, thread-local or guarded static.
sections() {
    local bad=0
    "$objdump" -h "$@" | awk '
        /file format/ { object = $1 }
        $2 ~ /^\.(preinit_array|init_array|fini_array|ctors|dtors|tdata|tbss|gcc_except_table)/ {
            print "FAILED: " object " has a section " $2; bad = 1
        }
        END { exit bad }' || bad=1
    "$nm" -A "$@" | awk '
        $NF ~ /^_ZGV/ { sub(/:.*/, "", $1); print "FAILED: " $1 ": a static that is guarded: " $NF; bad = 1 }
        END { exit bad }' || bad=1
    return $bad
}

object_name() { echo "o${1//[^a-zA-Z0-9]/_}"; }

# --- alone -----------------------------------------------------------------------------------------------------------

alone_one() {
    local header=$1 name mode
    name=$(object_name "$header")
    # Included twice: what the first line needs is not there yet, so this is also the header alone.
    printf '#include <%s>\n#include <%s>\n' "$header" "$header" >"$name.cpp"
    for mode in "${modes[@]}"; do
        compile "$header at $mode" "$name.cpp" "$mode" $emit_inline -c -o "$name.${mode//[ -]/}.o" || return
    done
}

check_alone() {
    printf '%s\n' "${headers[@]}" | in_parallel alone_one 3 || return
    local bad=0 mode objects
    for mode in "${modes[@]}"; do
        objects=(*."${mode//[ -]/}.o")
        undefined "$may_be_undefined" "${objects[@]}" || bad=1
        sections "${objects[@]}" || bad=1
        # Each object goes in twice: two translation units that include the same header.
        run "all headers in two translation units, $mode" \
            "$CXX" -nostdlib -r -o all "${objects[@]}" "${objects[@]}" || bad=1
    done
    echo "${#headers[@]} headers, ${#modes[@]} modes"
    return $bad
}

# --- dependencies ----------------------------------------------------------------------------------------------------

dependencies_one() {
    local header=$1 name
    name=$(object_name "$header")
    echo "#include <$header>" >"$name.cpp"
    # No system folder is searched: clang's -M also names what a header only asked about (__has_include_next).
    compile "$header needs a header of the system" "$name.cpp" \
        "-std=c++20 -nostdinc -isystem $own_headers -M -MF $name.d" || return
    tr -s ' \\' '\n\n' <"$name.d" | awk -v header="$header" -v pvx="$tree/include/pvx/" -v own="$own_headers/" '
        NF == 0 || /:$/ || $0 !~ /\// { next }
        index($0, pvx) == 1 {
            file = substr($0, length(pvx) + 1)
            half = header ~ /^pvx\/guest[.\/]/ ? "guest" : header ~ /^pvx\/host[.\/]/ ? "host" : ""
            other = half == "guest" ? "host" : half == "host" ? "guest" : "guest|host"
            layered = half != "" || header ~ /^pvx\/(base|abi|arch)\//
            if (layered && file ~ "^(" other ")[./]" ||
                layered && file == "arch/x86_64.hpp" && header != "pvx/arch/x86_64.hpp") {
                print "FAILED: " header " includes, by a detour, " file; bad = 1
            }
            next
        }
        index($0, own) == 1 && substr($0, length(own) + 1) ~ /^(stddef|stdint|stdint-gcc|__stddef_[a-z_]*)\.h$/ { next }
        { print "FAILED: " header " includes " $0; bad = 1 }
        END { exit bad }'
}

check_dependencies() {
    printf '%s\n' "${headers[@]}" | in_parallel dependencies_one && echo "${#headers[@]} headers"
}

# --- hostile ---------------------------------------------------------------------------------------------------------

hostile_one() { compile "the words of kernels as macros, $*" hostile.cpp "$*" -fsyntax-only; }

check_hostile() {
    local words
    {
        echo "#include \"$sources/hostile_macros.hpp\""
        printf '#include <%s>\n' "${headers[@]}"
    } >hostile.cpp
    words=$(grep -cE '^ *# *define ' "$sources/hostile_macros.hpp")
    printf '%s\n' "-std=c++20" "-std=gnu++20" | in_parallel hostile_one && echo "$words macros before ${#headers[@]} headers"
}

# --- size ------------------------------------------------------------------------------------------------------------

check_size() {
    local half lines bad=0 limit=${SIZE_LIMIT:-10000}
    for half in guest host; do
        [ -f "$tree/include/pvx/$half.hpp" ] || continue
        echo "#include <pvx/$half.hpp>" >"$half.cpp"
        compile "$half.hpp" "$half.cpp" "-std=c++20 -E -o $half.ii" || return
        lines=$(wc -l <"$half.ii")
        echo "$half.hpp: $lines preprocessed lines, less than $limit allowed"
        [ "$lines" -lt "$limit" ] || { echo "FAILED: $half.hpp is too large"; bad=1; }
    done
    return $bad
}

# --- instantiated ----------------------------------------------------------------------------------------------------

instantiated_one() {
    local name=$1 part=$2
    shift 2
    compile "everything instantiated, $*" "$sources/everything.cpp" "-I$sources/.." "$@" -DPVX_PART="part_$part" \
        -c -o "$name.$part.o"
}

# Every class and function template in a header is named in everything.cpp.
templates_named() {
    cd "$tree/include" || return
    awk -v everything="$sources/everything.cpp" '
        BEGIN {
            while ((getline line < everything) > 0) {
                sub(/\/\/.*/, "", line)
                gsub(/[^A-Za-z0-9_]+/, " ", line)
                n = split(line, word, " ")
                for (i = 1; i <= n; ++i) named[word[i]] = 1
            }
        }
        { sub(/\/\/.*/, "") }
        /^template </ { text = ""; inside = 1 }
        inside {
            text = text " " $0
            if ($0 !~ /[{;]/) next
            inside = 0
            if (text !~ /{/ || text ~ /[> ]concept |[> ]using |inline constexpr [^(]*=/) next
            gsub(/requires[^;{]*(class|struct) /, "class ", text)
            gsub(/alignas\([^)]*\) */, "", text)
            if (match(text, /(class|struct) [a-z_0-9]+ *[{:]/)) {
                name = substr(text, RSTART, RLENGTH)
                gsub(/(class|struct) | *[{:]/, "", name)
            } else {
                name = text
                gsub(/requires\([^)]*\)/, "", name)
                sub(/\(.*/, "", name)
                sub(/.*[^A-Za-z0-9_]/, "", name)
            }
            if (name != "" && !(name in named)) {
                print "FAILED: " FILENAME ":" FNR ": everything.cpp does not instantiate " name; bad = 1
            }
        }
        END { exit bad }' "${headers[@]}"
}

check_instantiated() {
    local mode part first bad=0
    (templates_named) || return
    for part in 1 2; do
        for mode in "${modes[@]}"; do echo "${mode//[ -]/} $part $mode"; done
        echo "kernel $part -std=gnu++20 -O2 $(echo $kernel)"
    done | in_parallel instantiated_one 1 || return
    for first in *.1.o; do
        run "everything in two translation units" \
            "$CXX" -nostdlib -r -o "${first%.1.o}.both" "$first" "${first%.1.o}.2.o" || bad=1
    done
    undefined "$may_be_undefined" ./*.both && sections ./*.both || bad=1
    # A kernel's stack is aligned to 8 bytes: a function that aligns it for itself has an over-aligned variable.
    if "$objdump" -d kernel.both | grep -E 'and[lq]?[[:space:]]+\$(0xf+[0-9a-f]*[08]|-[0-9]+), *%[re]sp'; then
        echo "FAILED: a function aligns the stack for a variable of its own"
        bad=1
    fi
    echo "$("$nm" ./kernel.both | grep -c ' [tTwW] ') functions"
    return $bad
}

# --- hot and entry ---------------------------------------------------------------------------------------------------

hot_one() {
    compile "hot paths, $*" "$sources/hot_paths.cpp" "-I$sources/.." "$@" -c -o "$(object_name "$*").o"
}

check_hot() {
    for level in $levels; do echo "-std=c++20 $level"; done | in_parallel hot_one 1 || return
    if ! undefined "" ./*.o; then
        "$objdump" -drC ./*.o | awk '
            /file format/ { object = $1 }
            /^[0-9a-f]+ <.*>:$/ { sub(/^[0-9a-f]+ /, ""); name = $0 }
            /R_X86_64_[A-Z0-9]+[ \t]+mem(set|cpy|move|cmp)/ { print "    " object " " name }' | sort -u
        return 1
    fi
    sections ./*.o && echo "$("$nm" "$(ls ./*.o | head -1)" | grep -c ' T .*hot_') hot paths"
}

entry_one() {
    compile "entry paths, $*" "$sources/entry_paths.cpp" "-I$sources/.." "$@" -c -o "$(object_name "$*").o"
}

# What the code of an object calls, or jumps to outside of the function: with a relocation, or without where the target
# is in the same section.
calls_of() {
    "$objdump" -drC --no-show-raw-insn "$1" | awk '
        /R_X86_64_PLT32/ { sub(/.*R_X86_64_PLT32[ \t]*/, ""); sub(/-0x[0-9a-f]+$/, ""); print }
        /[ \t]call[a-z]*[ \t]/ && !/\+0x[0-9a-f]+>/ { sub(/.*[ \t]call[a-z]*[ \t]+/, ""); print }' | sort -u
}

check_entry() {
    local level flag object calls
    for level in $levels; do
        printf '%s\n' "-std=c++20 $level -pg" "-std=c++20 $level -finstrument-functions"
    done | in_parallel entry_one 1 || return
    # First what names most: at -O0 every function that is not forced inline is called by its name.
    for flag in -pg -finstrument-functions; do
        for level in $levels; do
            object=$(object_name "-std=c++20 $level $flag").o
            calls=$(calls_of "$object")
            [ -z "$calls" ] && continue
            echo "FAILED: with $level $flag the entry paths call, or are instrumented by way of:"
            sed 's/^/    /' <<<"$calls"
            return 1
        done
    done
    undefined "" ./*.o && echo "$("$nm" "$object" | grep -c ' T .*entry_') entry paths"
}

"check_$check"
