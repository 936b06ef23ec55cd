#!/bin/bash
# SPDX-License-Identifier: MIT
#
# law.sh TREE: the include law and the form of the headers of the pvx tree TREE. Needs bash, awk and coreutils.
# Every violation is one line, "file:line: what is wrong"; exit code 1 if there is any.
set -u
tree=${1:?usage: law.sh TREE}
cd "$tree" || exit 2
[ -d include/pvx ] && [ -f cmake/headers.cmake ] || { echo "$tree: no include/pvx or no cmake/headers.cmake"; exit 2; }

export LC_ALL=C
bad=0
listed=$(grep -oE 'include/[^ )]+' cmake/headers.cmake | sort)
present=$(find include -type f | sort)

# cmake/headers.cmake lists exactly the files there are.
while read -r file; do
    [ -n "$file" ] && echo "$file:1: not listed in cmake/headers.cmake" && bad=1
done < <(comm -13 <(echo "$listed") <(echo "$present"))
while read -r file; do
    [ -n "$file" ] && echo "cmake/headers.cmake:1: lists $file, which is not there (or is listed twice)" && bad=1
done < <(comm -23 <(echo "$listed") <(echo "$present"))

# shellcheck disable=SC2086  # one word a header; names have no blanks
awk '
function violation(what) { print FILENAME ":" FNR ": " what; bad = 1 }

# The line without comments, and with strings and characters emptied.
function code_of(line,    out, i, two, one) {
    out = ""
    for (i = 1; i <= length(line); ++i) {
        two = substr(line, i, 2)
        one = substr(line, i, 1)
        if (in_comment) {
            if (two == "*/") { in_comment = 0; ++i }
        } else if (two == "//") {
            break
        } else if (two == "/*") {
            in_comment = 1
            ++i
        } else if (one == "\"" || (one == "\047" && out !~ /[0-9A-Fa-f]$/)) {  # not a digit separator
            for (++i; i <= length(line) && substr(line, i, 1) != one; ++i)
                if (substr(line, i, 1) == "\\") ++i
            out = out one one
        } else {
            out = out one
        }
    }
    return out
}

function layer_of(header) { return header ~ /\// ? substr(header, 1, index(header, "/") - 1) : "top" }

# The law: may `from` include `to` (both relative to include/pvx)?
function may_include(from, to,    f, t) {
    f = layer_of(from)
    t = layer_of(to)
    if (f == "top") {
        if (from == "version.hpp") return 0
        if (from == "guest.hpp" && (t == "host" || to == "host.hpp")) return 0
        if (from == "host.hpp" && (t == "guest" || to == "guest.hpp")) return 0
        return 1
    }
    if (t == "top" || to == "arch/x86_64.hpp") return 0
    if (f == "base") return t == "base"
    if (f == "abi") return t == "base" || t == "abi"
    if (f == "arch") return t == "base" || t == "abi" || t == "arch"
    if (f == "guest" || f == "host") return t == "base" || t == "abi" || to == "arch/concepts.hpp" || t == f
    return 0
}

function check_include(code,    target) {
    if (code ~ /^[ \t]*#[ \t]*(include_next|import)/) { violation("only #include is used here"); return }
    if (code !~ /</) { violation("#include names a header in angle brackets"); return }
    target = code
    sub(/^[^<]*</, "", target)
    sub(/>.*/, "", target)
    if (target == "stddef.h" || target == "stdint.h") return
    if (target !~ /^pvx\//) { violation("includes <" target ">, which is neither pvx nor <stddef.h> nor <stdint.h>"); return }
    sub(/^pvx\//, "", target)
    if (!may_include(header, target)) violation("the include law: " header " may not include " target)
}

FNR == 1 {
    header = FILENAME
    sub(/^include\/pvx\//, "", header)
    in_comment = 0
    started = 0
    if (layer_of(header) !~ /^(top|base|abi|arch|guest|host)$/) violation("no such layer: " layer_of(header))
    if (header !~ /\.hpp$/) violation("the name of a header ends in .hpp")
    if ($0 != "// SPDX-License-Identifier: MIT") violation("the first line is not the SPDX line")
}
FNR == 2 && $0 != "#pragma once" { violation("the second line is not #pragma once") }
FNR > 2 && !started && $0 != "" {
    started = 1
    if ($0 !~ /^\/\/\/ \\file/) violation("a \\file comment must come before anything else")
}
{
    code = code_of($0)
    if (code ~ /^[ \t]*#[ \t]*(include|include_next|import)([^a-z_]|$)/) { check_include(code); next }
    if (code ~ /^[ \t]*#[ \t]*(define|undef)[ \t]/) {
        name = code
        sub(/^[ \t]*#[ \t]*(define|undef)[ \t]+/, "", name)
        if (name !~ /^PVX_[A-Z0-9_]+/) violation("a macro whose name does not start with PVX_")
    }
    gsub(/[^A-Za-z0-9_]+/, " ", code)
    n = split(code, word, " ")
    for (i = 1; i <= n; ++i) {
        w = word[i]
        if (w ~ /^[A-Z][A-Z0-9_]+$/ && w ~ /[A-Z_].*[A-Z_]/ && w !~ /^PVX_/)
            violation("an identifier in capitals, which kernels keep for macros: " w)
        else if (w ~ /^(asm|__asm|__asm__)$/ && header != "arch/x86_64.hpp")
            violation("inline assembly outside arch/x86_64.hpp")
        else if (w ~ /^__(atomic|sync)_[a-z]/ && header != "base/atomics.hpp")
            violation("an atomic builtin outside base/atomics.hpp: " w)
        else if (w == "std" || w == "thread_local" || w == "__thread")
            violation("not in a freestanding header: " w)
    }
}
END { exit bad }
' $present || bad=1

# No header includes itself by a detour: #pragma once would hide that.
cycle=$(awk '/^[ \t]*#[ \t]*include[ \t]*<pvx\// {
    to = $0; sub(/^[^<]*</, "", to); sub(/>.*/, "", to); print FILENAME, "include/" to
}' $present | tsort 2>&1 >/dev/null) || {
    echo "include/pvx:1: headers include each other in a circle:" $cycle
    bad=1
}

[ $bad = 0 ] && echo "$(echo "$present" | wc -l) headers keep the law"
exit $bad
