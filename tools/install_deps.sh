#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes sure that what the build needs is there. Debian and its kin: installs it when root, else prints the line to run.
# Probes for the tools themselves, so that other systems and hand-made installations pass too.
# usage: tools/install_deps.sh [build|man|check|full]
set -u
tier=${1:-build}

# tier, package, probe
table='
build build-essential     command -v cc && command -v make
build cmake               cmake --version | awk "NR == 1 { split(\$3, v, \".\"); new = v[1] > 3 || v[1] == 3 && v[2] >= 25 } END { exit !new }"
build ninja-build         command -v ninja
build pkg-config          command -v pkg-config
build libcmocka-dev       pkg-config --exists cmocka
build libjansson-dev      pkg-config --exists jansson
build libzstd-dev        pkg-config --exists libzstd
build libcairo2-dev       pkg-config --exists cairo
build fonts-dejavu-core   test -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf || fc-list 2>&1 | grep -qi dejavu
man   scdoc               command -v scdoc
check python3             command -v python3
check clang               command -v clang && command -v clang++
check clang-format        command -v clang-format
check binutils            command -v nm && command -v readelf
full  python3-venv        python3 -c "import ensurepip"
full  python3-pip         python3 -m pip --version || { command -v nvcc && command -v nvdisasm; }
full  clang-tidy          command -v clang-tidy
full  llvm                command -v llvm-symbolizer
full  gcovr               command -v gcovr
full  qemu-user           command -v qemu-x86_64
'
case $tier in
build) wanted="build" ;;
man) wanted="man" ;;
check) wanted="build man check" ;;
full) wanted="build man check full" ;;
*) echo "usage: $0 [build|man|check|full]" >&2; exit 2 ;;
esac

missing=""
while read -r row package probe; do
    case " $wanted " in *" ${row:--} "*) ;; *) continue ;; esac
    sh -c "$probe" >/dev/null 2>&1 || missing="$missing $package"
done <<<"$table"
[ -n "$missing" ] || exit 0

line="apt-get install -y --no-install-recommends$missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing (names of the Debian packages):$missing" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    printf 'Packages are missing. Run:\n\n    sudo %s\n\n' "$line" >&2
    exit 1
fi
echo "installing:$missing"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && $line; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    printf '\ncould not install; the line was:\n    %s\n' "$line" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"
