#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# clang's fuzzer with the address and undefined sanitizers, on the argument checks and on small problems.
#
# usage: tests/fuzz/fuzz.sh [arguments|problems] [FUZZER OPTION...]   until stopped, both at once; -max_total_time=60
#        tests/fuzz/fuzz.sh bounded                                   the same runs every time, about half a minute
#
# BUILD=dir   the ordinary build (default: build); this one goes into dir/variants/fuzz, what was found into dir/fuzz:
#             corpora, and crash-* with the bytes of a failure. Run the target with such a file to repeat it.
# TREE=dir    a tree in which the targets are built already

set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/tools.sh disable=SC1091
. tests/tools.sh
BUILD=${BUILD:-$PWD/build}
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
tree=${TREE:-$BUILD/variants/fuzz}
found=$BUILD/fuzz

build() {
    generator=
    command -v ninja >/dev/null 2>&1 && generator="-G Ninja"
    mkdir -p "$tree"
    # shellcheck disable=SC2086
    cmake -S . -B "$tree" $generator -DCMAKE_C_COMPILER=clang -DCMAKE_C_FLAGS=-fsanitize=fuzzer-no-link \
        -DSTREAMKL_SANITIZE=address,undefined -DSTREAMKL_FUZZ=ON -DSTREAMKL_THREADS=OFF -DSTREAMKL_TOOL=OFF \
        -DSTREAMKL_CUDA=OFF -DSTREAMKL_STAND_INS=OFF -DSTREAMKL_AVX512="$avx512" >"$tree.log" 2>&1 &&
        cmake --build "$tree" --parallel "$JOBS" --target fuzz_arguments fuzz_problems >>"$tree.log" 2>&1 && return 0
    tail -30 "$tree.log"
    return 1
}

# run TARGET OPTION...
run() {
    target=$1
    shift
    mkdir -p "$found/$target"
    # shellcheck disable=SC2086
    ${fixed:-} "$tree/tests/fuzz_$target" -artifact_prefix="$found/$target-" -rss_limit_mb=4096 -timeout=60 "$@"
}

# With a seed and a number of runs, from an empty corpus and with everything at the same addresses (pointers are among
# what it compares), the fuzzer does the same every time.
bounded() {
    fixed=
    setarch "$(uname -m)" -R true 2>/dev/null && fixed="setarch $(uname -m) -R"
    bounded_run arguments 30000 120 &
    other=$!
    bounded_run problems 300 48
    code=$?
    wait $other && return $code
}

# bounded_run TARGET RUNS BYTES
bounded_run() {
    run "$1" -seed=1 -runs="$2" -max_len="$3" -len_control=0 -verbosity=0 >"$found/$1.log" 2>&1 && {
        echo "fuzz_$1: $2 runs, nothing found"
        return 0
    }
    tail -40 "$found/$1.log"
    echo "fuzz_$1: FAILED; $found/$1-* repeats it"
    return 1
}

have_fuzzer || { echo "skipped: no clang with libFuzzer, and it cannot be installed"; exit 77; }
mkdir -p "$found"
avx512=ON # half of what there is to compile: not for the bounded run
[ "${1:-}" = bounded ] && avx512=OFF
[ -n "${TREE:-}" ] || build || exit 1
case ${1:-} in
bounded) bounded ;;
arguments | problems) target=$1 && shift && run "$target" -max_len=200 "$found/$target" "$@" ;;
*)
    run arguments -max_len=120 "$found/arguments" "$@" &
    other=$!
    run problems -max_len=64 "$found/problems" "$@"
    code=$?
    wait $other && exit $code
    ;;
esac
