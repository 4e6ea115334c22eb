#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Line coverage of src/base, src/core and src/api by the unit, contract, command and fuzz-replay tests; fails below 90 %.
# usage: tools/coverage.sh     LIMIT=90     the page for a reader: build/coverage/html/index.html
set -u
cd "$(dirname "$0")/.." || exit 1
tools/build.sh coverage || exit 1
find build/coverage -name '*.gcda' -delete
ctest --test-dir build/coverage --output-on-failure -j "${JOBS:-$(nproc)}" >build/log/coverage-ctest.log 2>&1 || {
    tail -n 30 build/log/coverage-ctest.log
    echo "tests failed in the coverage build"
    exit 1
}
mkdir -p build/coverage/html
gcovr --root . --object-directory build/coverage --filter 'src/(base|core|api)/' --exclude-unreachable-branches \
    --fail-under-line "${LIMIT:-90}" --print-summary --sort-uncovered --html-details build/coverage/html/index.html \
    --txt -j "${JOBS:-$(nproc)}" build/coverage
