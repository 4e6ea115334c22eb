#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Sourced by tools/check.sh and .ci/run: runs named steps, one line each, output kept in a log folder, and a closing
# line "N passed, N failed" that sums the tests counted in the logs (a step that counts nothing itself is one test).
steps_passed=0
steps_failed=0
steps_skipped=0
steps_bad=""
steps_start=$SECONDS
steps_log=${steps_log:-build/log}
mkdir -p "$steps_log"

# Numbers in a log: a last line "N passed, N failed", or ctest's summary, or none.
steps_count() { # log, exit status; sets p, f and s
    local line total skipped
    p=0 f=0 s=0
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$1" | tail -n 1)
    if [ -n "$line" ]; then
        p=${line%% *}
        line=${line#*, }
        f=${line%% *}
    else
        line=$(grep -E 'tests? passed, [0-9]+ tests? failed out of [0-9]+' "$1" | tail -n 1)
        if [ -n "$line" ]; then
            f=$(sed -E 's/.*passed, ([0-9]+) tests? failed out of.*/\1/' <<<"$line")
            total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$line")
            skipped=$(grep -cE '^ *[0-9]+/[0-9]+ Test.*\*\*\*Skipped' "$1")
            s=$skipped
            p=$((total - f - skipped))
        elif [ "$2" -eq 0 ]; then
            p=1
        fi
    fi
    if [ "$2" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
}

step() { # name, command...
    local name=$1 log rc start p f s
    shift
    log=$steps_log/$(tr ' /' '__' <<<"$name").log
    printf '%-34s ' "$name"
    start=$SECONDS
    "$@" >"$log" 2>&1 </dev/null
    rc=$?
    steps_count "$log" $rc
    steps_passed=$((steps_passed + p))
    steps_failed=$((steps_failed + f))
    steps_skipped=$((steps_skipped + s))
    if [ $rc -eq 0 ] && [ "$f" -eq 0 ]; then
        printf 'ok   %5d s   %s passed%s\n' $((SECONDS - start)) "$p" "$([ "$s" -eq 0 ] || echo ", $s skipped")"
        return 0
    fi
    printf 'FAIL %5d s   %s passed, %s failed, log: %s\n' $((SECONDS - start)) "$p" "$f" "$log"
    steps_bad="$steps_bad
  $name ($log)"
    grep -nE 'error:|warning:|\*\*\*Failed|\*\*\*Timeout|\*\*\*Exception|FAIL|mismatch|ERROR: ' "$log" | head -n 15 | cut -c1-220 | sed 's/^/    /'
    tail -n 12 "$log" | cut -c1-220 | sed 's/^/    | /'
    return 1
}

steps_end() {
    printf '\n'
    [ -z "$steps_bad" ] || printf 'failed steps:%s\n' "$steps_bad"
    printf 'time: %d min %d s%s\n' $(((SECONDS - steps_start) / 60)) $(((SECONDS - steps_start) % 60)) \
        "$([ $steps_skipped -eq 0 ] || echo ", skipped: $steps_skipped")"
    printf '%d passed, %d failed\n' $steps_passed $steps_failed
    [ $steps_failed -eq 0 ]
}
