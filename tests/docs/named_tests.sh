#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# named_tests.sh TREE: every test that docs/regressions.md names by its sentence exists.
set -euo pipefail
cd "$1"
# A long name is several string literals in a row.
all=$(find tests -name '*_test.cpp' -exec cat {} + | tr '\n' ' ' | sed 's/" *"//g')
missing=0 named=0
while IFS= read -r sentence; do
    named=$((named + 1))
    if [[ $all != *"TEST_CASE(\"$sentence\""* && $all != *"TEST_CASE( \"$sentence\""* && $all != *"\"$sentence\","* ]]; then
        echo "FAILED: docs/regressions.md names a test that is not there: $sentence"
        missing=1
    fi
done < <(grep -o '"[^"]*"' docs/regressions.md | tr -d '"')
echo "$named tests named"
((missing == 0 && named > 0))
