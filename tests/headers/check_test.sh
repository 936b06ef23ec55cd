#!/bin/bash
# SPDX-License-Identifier: MIT
#
# check_test.sh: check.sh passes a tiny good tree, and reports each defect that is put into it, by name.
# Environment: CXX, WORK, WARNINGS, and what else check.sh takes.
set -u
check=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check.sh
: "${CXX:?}" "${WORK:?}" "${WARNINGS:?}"
rm -rf "$WORK" && mkdir -p "$WORK" && cd "$WORK" || exit 2
here=$PWD
cases=0

# tree LINE...: a tree whose guest.hpp has these lines, and sources that use it.
tree() {
    cases=$((cases + 1))
    dir=$here/$cases
    mkdir -p "$dir/include/pvx/host" "$dir/cmake" "$dir/sources"
    echo 'include/pvx/guest.hpp' >"$dir/cmake/headers.cmake"
    printf '%s\n' '#pragma once' '#include <stdint.h>' "$@" >"$dir/include/pvx/guest.hpp"
    echo 'struct host_half {};' >"$dir/include/pvx/host/half.hpp"
    echo '#define panic @' >"$dir/sources/hostile_macros.hpp"
    echo '#include <pvx/guest.hpp>' | tee "$dir/sources/"{everything,hot_paths,entry_paths}.cpp >/dev/null
}

# source_lines FILE LINE...: more of a source.
source_lines() {
    local file=$1
    shift
    printf '%s\n' "$@" >>"$dir/sources/$file.cpp"
}

passes() {
    local out
    out=$(TREE=$dir WORK=$dir/work SOURCES=$dir/sources JOBS=1 bash "$check" "$1" 2>&1) && return
    printf '%s\n' "FAILED: $1 refuses a good tree:" "$out"
    return 1
}

catches() {
    local out
    if out=$(TREE=$dir WORK=$dir/work SOURCES=$dir/sources JOBS=1 bash "$check" "$1" 2>&1); then
        printf '%s\n' "FAILED: $1 does not notice:" "$(cat "$dir/include/pvx/guest.hpp")"
        return 1
    fi
    grep -qE "$2" <<<"$out" && return
    printf '%s\n' "FAILED: $1 does not say '$2':" "$out"
    return 1
}

# Cases run side by side, two at a time; each is a check and the report that it must give.
failed=0
running=()
case_of() {
    "$@" >"$dir/log" 2>&1 &
    running+=("$!:$dir/log")
    [ ${#running[@]} -lt 2 ] || finish
}
finish() {
    local one
    for one in "${running[@]}"; do
        wait "${one%%:*}" || { cat "${one#*:}"; failed=1; }
    done
    running=()
}

good='inline int answer() { return 42; }'
for one in alone dependencies hostile size instantiated hot entry; do
    tree "$good"
    source_lines everything 'namespace PVX_PART { int f() { return answer(); } }'
    case_of passes $one
done

# alone
tree 'inline size_t words(unknown_type v) { return v; }';           case_of catches alone 'unknown_type'
tree 'int answer() { return 42; }';                                 case_of catches alone 'multiple definition'
tree 'inline unsigned answer(long v) { return v; }';                case_of catches alone 'conversion|Wshorten'
tree 'inline char* text(const char* p) { return (char*)p; }';       case_of catches alone 'Wold-style-cast'
tree 'void elsewhere(); inline void call() { elsewhere(); }';       case_of catches alone 'undefined symbol .*elsewhere'
tree 'int f(); inline int& one() { static int x = f(); return x; }'; case_of catches alone 'guarded: _ZGV'
tree 'inline int volatile source; inline int value = source;';      case_of catches alone '\.(init_array|ctors)'
tree 'inline thread_local int mine = 1; inline int get() { return mine; }'; case_of catches alone '\.t(data|bss)'
tree 'inline double half(double x) { return x / 2; }';              case_of catches alone 'SSE|undefined symbol __divdf3'
tree 'inline int answer() { return 42; }'
sed -i 1d "$dir/include/pvx/guest.hpp";                             case_of catches alone 'redefinition'

# dependencies
tree '#include <string.h>';                                         case_of catches dependencies 'string.h'
tree '#include <limits.h>';                                         case_of catches dependencies 'limits.h'
tree '#include <atomic>';                                           case_of catches dependencies 'atomic'
tree '#include <pvx/host/half.hpp>';                                case_of catches dependencies 'detour, host/half.hpp'

# hostile
tree 'inline void panic() {}';                                      case_of catches hostile 'panic'

# size
tree "$good"; SIZE_LIMIT=5 case_of catches size 'guest.hpp is too large'

# instantiated
tree 'template <class T>' 'T twice(T v) {' 'return v + v; }';       case_of catches instantiated 'not instantiate twice'
tree 'template <class T>' '    requires(sizeof(T) > 1)' 'class box {' 'T v; };'; case_of catches instantiated 'not instantiate box'
tree "$good"
source_lines everything 'int same_name() { return answer(); }'
case_of catches instantiated 'multiple definition'
tree "$good"
source_lines everything 'namespace PVX_PART { int f(int (*p)()) { return p() + p(); } }'
case_of catches instantiated 'undefined symbol .*(thunk|retpoline)'
tree "$good"
source_lines everything 'struct alignas(64) line { char c[64]; };' \
    'namespace PVX_PART { char f(int i) { line volatile l; l.c[i] = 1; return l.c[i & 1]; } }'
case_of catches instantiated 'aligns the stack'

# hot and entry
tree 'struct page { char c[65536]; }; inline void clear(page& p) { p = page{}; }'
case_of passes alone
tree 'struct page { char c[65536]; };'
source_lines hot_paths 'void clear(page* p); void clear(page* p) { *p = page{}; }'
case_of catches hot 'undefined symbol memset'
tree 'inline int traced(int v) { return v + 1; }'
source_lines entry_paths '[[gnu::no_instrument_function]] int e(int v); int e(int v) { return traced(v); }'
case_of catches entry '^    .*traced'
tree '[[gnu::always_inline]] inline int inlined(int v) { return v + 1; }'
source_lines entry_paths '[[gnu::no_instrument_function]] int e(int v); int e(int v) { return inlined(v); }'
case_of catches entry '__cyg_profile'
tree '[[gnu::no_instrument_function, gnu::noinline]] inline int out_of_line(int v) { return v + 1; }'
source_lines entry_paths '[[gnu::no_instrument_function]] int e(int v); int e(int v) { return out_of_line(v); }'
case_of catches entry '^    .*out_of_line'

finish
echo "$cases trees"
exit $failed
