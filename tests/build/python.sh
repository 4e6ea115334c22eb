#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The Python package's tests on one interpreter: of an environment that `make python` made, else the system's, if that has
# NumPy and pytest. Skipped without both.   $1 = build folder, $2 = source folder
set -u
for python in "$2"/build/python-env/3.*/bin/python "$(command -v python3)"; do
    if [ -x "$python" ] && "$python" -c 'import sys, numpy, pytest; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        cd "$2" || exit 1
        LIBATTN_LIBRARY=$1/libattn.so PYTHONPATH=$2/python PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -q -p no:cacheprovider python/tests
    fi
done
echo "no Python with NumPy and pytest: make python makes one"
exit 77
