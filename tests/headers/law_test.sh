#!/bin/bash
# SPDX-License-Identifier: MIT
#
# law_test.sh WORK: law.sh passes a small good tree, and reports each violation that is put into a copy of it.
set -u
law=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/law.sh
work=${1:?usage: law_test.sh WORK}
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 2
failed=0
cases=0

# header FILE LINE...: a well-formed header with these lines.
header() {
    local file=good/include/pvx/$1
    shift
    mkdir -p "$(dirname "$file")"
    printf '%s\n' '// SPDX-License-Identifier: MIT' '#pragma once' '' '/// \file' '/// A header.' '' "$@" >"$file"
}

header base/bits.hpp '#include <stdint.h>' '#define PVX_ONE 1' 'inline constexpr uint32_t one = 1;'
header abi/page.hpp '#include <stddef.h>' '#include <pvx/base/bits.hpp>' '// asm, std::swap and KVM_PAGE in words only'
header arch/concepts.hpp '#include <pvx/abi/page.hpp>' 'template <class M> concept any = true; /* NULL' ' TRUE */'
header arch/x86_64.hpp '#include <pvx/arch/concepts.hpp>' 'inline void stop() { __asm__ volatile("hlt \"CLI\""); }'
header guest/features.hpp '#include <pvx/arch/concepts.hpp>'
header guest/clock.hpp '#include <pvx/guest/features.hpp>' "inline char letter() { return '\"' + 1'000; }"
header host/halt.hpp '#include <pvx/arch/concepts.hpp>'
header version.hpp '#define PVX_VERSION 1'
header guest.hpp '#include <pvx/guest/clock.hpp>' '#include <pvx/version.hpp>'
header host.hpp '#include <pvx/host/halt.hpp>'
header pvx.hpp '#include <pvx/guest.hpp>' '#include <pvx/host.hpp>'
mkdir good/cmake
(cd good && { echo 'set(pvx_headers'; find include -name '*.hpp' | sort; echo ')'; } >cmake/headers.cmake)

if ! out=$(bash "$law" good); then
    echo "FAILED: the good tree is refused:"
    echo "$out"
    failed=1
fi

# refuses TEXT FILE LINE...: the lines, put at the end of the file, are reported for that file with this text.
refuses() {
    local text=$1 file=$2 out
    shift 2
    cases=$((cases + 1))
    rm -rf bad && cp -r good bad
    printf '%s\n' "$@" >>"bad/include/pvx/$file"
    out=$(bash "$law" bad) && { echo "FAILED: not noticed in $file: $*"; failed=1; return; }
    grep -F "include/pvx/$file:" <<<"$out" | grep -qF "$text" ||
        { echo "FAILED: wrong report for $file: $*"; echo "$out"; failed=1; }
}

# Layers.
refuses 'base/bits.hpp may not include abi/page.hpp'        base/bits.hpp     ' # include <pvx/abi/page.hpp>'
refuses 'abi/page.hpp may not include arch/concepts.hpp'    abi/page.hpp      '#include <pvx/arch/concepts.hpp>'
refuses 'arch/concepts.hpp may not include arch/x86_64.hpp' arch/concepts.hpp '#include <pvx/arch/x86_64.hpp>'
refuses 'arch/concepts.hpp may not include guest/clock.hpp' arch/concepts.hpp '#include <pvx/guest/clock.hpp>'
refuses 'guest/clock.hpp may not include arch/x86_64.hpp'   guest/clock.hpp   '#include <pvx/arch/x86_64.hpp>'
refuses 'guest/clock.hpp may not include host/halt.hpp'     guest/clock.hpp   '#include <pvx/host/halt.hpp>'
refuses 'guest/clock.hpp may not include arch/hypercall.hpp' guest/clock.hpp  '#include <pvx/arch/hypercall.hpp>'
refuses 'host/halt.hpp may not include guest/clock.hpp'     host/halt.hpp     '#include <pvx/guest/clock.hpp>'
refuses 'host/halt.hpp may not include guest.hpp'           host/halt.hpp     '#include <pvx/guest.hpp>'
refuses 'guest.hpp may not include host.hpp'                guest.hpp         '#include <pvx/host.hpp>'
refuses 'host.hpp may not include guest/clock.hpp'          host.hpp          '#include <pvx/guest/clock.hpp>'
refuses 'version.hpp may not include base/bits.hpp'         version.hpp       '#include <pvx/base/bits.hpp>'

# What may be included at all.
refuses 'includes <atomic>'         base/bits.hpp   '#include <atomic>'
refuses 'includes <string.h>'       guest/clock.hpp '#include <string.h>'
refuses 'includes <linux/kvm.h>'    abi/page.hpp    '#include <linux/kvm.h> // the real one'
refuses 'in angle brackets'         abi/page.hpp    '#include "page.hpp"'
refuses 'in angle brackets'         abi/page.hpp    '#include PVX_ONE'
refuses 'only #include'             abi/page.hpp    '#include_next <stdint.h>'

# What may be written.
refuses 'inline assembly'           guest/clock.hpp 'inline void f() { asm volatile("cli"); }'
refuses 'inline assembly'           arch/concepts.hpp 'inline void f() { /* the */ __asm__("cli"); }'
refuses 'an atomic builtin'         guest/clock.hpp 'inline int f(int* p) { return __atomic_load_n(p, 0); }'
refuses 'does not start with PVX_'  base/bits.hpp   '#define BITS 3'
refuses 'does not start with PVX_'  base/bits.hpp   '#undef likely'
refuses 'capitals'                  abi/page.hpp    'inline constexpr int KVM_PAGE = 1;'
refuses 'capitals'                  abi/page.hpp    'enum class level { LOW };'
refuses 'capitals'                  abi/page.hpp    'inline void* nothing = NULL;'
refuses 'freestanding header: std'  base/bits.hpp   'using std::size_t;'
refuses 'thread_local'              base/bits.hpp   'inline thread_local int x;'

# changed TEXT SED-SCRIPT FILE: the same for a change of a file.
changed() {
    local text=$1 script=$2 file=$3 out
    cases=$((cases + 1))
    rm -rf bad && cp -r good bad
    sed -i "$script" "bad/$file"
    out=$(bash "$law" bad) && { echo "FAILED: not noticed in $file: $script"; failed=1; return; }
    grep -qF "$text" <<<"$out" || { echo "FAILED: wrong report for $file: $script"; echo "$out"; failed=1; }
}

# The form of a header, and the list.
changed 'abi/page.hpp:1: the first line is not the SPDX line'    1d                     include/pvx/abi/page.hpp
changed 'abi/page.hpp:2: the second line is not #pragma once'    's/^#pragma once/\/\//' include/pvx/abi/page.hpp
changed 'a \file comment must come before anything else'         '/\\file/d'            include/pvx/abi/page.hpp
changed 'abi/page.hpp:1: not listed'                             '/page/d'              cmake/headers.cmake
changed 'lists include/pvx/abi/gone.hpp, which is not there'     's/page/gone/'         cmake/headers.cmake
changed 'is listed twice'                                        '/page/p'              cmake/headers.cmake
changed 'in a circle'   '$a #include <pvx/guest/clock.hpp>'      include/pvx/guest/features.hpp

cases=$((cases + 1))
rm -rf bad && cp -r good bad
mkdir bad/include/pvx/misc && cp bad/include/pvx/base/bits.hpp bad/include/pvx/misc/bits.hpp
sed -i 's/^)/include\/pvx\/misc\/bits.hpp\n)/' bad/cmake/headers.cmake
bash "$law" bad | grep -qF 'no such layer: misc' || { echo "FAILED: a new layer is not noticed"; failed=1; }

echo "$cases violations put in"
exit $failed
