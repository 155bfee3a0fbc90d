#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The tests once more, in ways that find other mistakes: sanitizers, valgrind, another compiler, no threads, and another
# processor under emulation. `make test` calls this after the tests of the ordinary build.
#
# usage: tests/run_all.sh [VARIANT...]     all variants, or: cuda browser sanitize thread valgrind clang serial aarch64
#                                          (clang and serial are a part of sanitize, unless the run is long)
#        tests/run_all.sh install          nothing but the tools that they need and that can be installed
#
# BUILD=dir                    the ordinary build (default: build); variants go into dir/variants
# STREAMKL_TEST_LONG=1         every C test in every variant; otherwise each builds and runs what finds its kind of mistake
# STREAMKL_TEST_NO_INSTALL=1   do not try to install missing tools with apt-get

set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=tests/tools.sh disable=SC1091
. tests/tools.sh
export BUILD="${BUILD:-$PWD/build}"
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
LONG=${STREAMKL_TEST_LONG:-0}
unset STREAMKL_TEST_LONG # it means more to the tests of the ordinary build
export STREAMKL_TEST_QUICK=1
summary=
failures=0

# note NAME RESULT
note() {
    summary="$summary
$(printf '%-10s %s' "$1" "$2")"
    printf '== %-10s %s\n' "$1" "$2"
}

# configure NAME OPTION...: a build of its own, and without CUDA: its kernels take minutes and are the same in each.
# targets: what is built of it, if not everything
configure() {
    name=$1
    shift
    generator=
    command -v ninja >/dev/null 2>&1 && generator="-G Ninja"
    # shellcheck disable=SC2086 # several words
    cmake -S . -B "$BUILD/variants/$name" $generator -DSTREAMKL_TOOL=OFF -DSTREAMKL_CUDA=OFF "$@" >"$BUILD/variants/$name.log" 2>&1 &&
        cmake --build "$BUILD/variants/$name" --parallel "$JOBS" ${targets:+--target $targets} \
            >>"$BUILD/variants/$name.log" 2>&1 && return 0
    tail -30 "$BUILD/variants/$name.log"
    return 1
}

# programs NAME [CTEST OPTION...]: its C tests
# at_once: how many, if not one for each processor
programs() {
    name=$1
    shift
    ctest --test-dir "$BUILD/variants/$name" -L program --output-on-failure --no-tests=error -j "${at_once:-$JOBS}" "$@"
}

# variant NAME FUNCTION: runs it, times it, remembers the result. A function that returns 77 has said why it skips.
variant() {
    started=$(date +%s)
    printf '== %s\n' "$1"
    why=
    targets=
    also=
    at_once=
    "$2"
    code=$?
    seconds=$(($(date +%s) - started))
    if [ $code = 77 ]; then
        note "$1" "skipped: $why"
    elif [ $code = 0 ]; then
        note "$1" "passed, $seconds s"
    else
        failures=$((failures + 1))
        note "$1" "FAILED, $seconds s"
    fi
}

# only NAME "SUBJECT..." OPTION...: builds and runs these tests alone, without the stand-ins of other units; with
# `make test` without AVX-512's kernels too, which a sanitizer's compiler takes half its time over
# also: what else is built
only() {
    name=$1
    avx512=OFF
    [ "$LONG" = 1 ] && avx512=ON
    # shellcheck disable=SC2086 # words
    targets="$(printf 'test_%s ' $2)$also"
    # shellcheck disable=SC2086
    regex=$(printf '|%s' $2)
    shift 2
    configure "$name" -DSTREAMKL_STAND_INS=OFF -DSTREAMKL_AVX512=$avx512 "$@" && programs "$name" -R "^test_(${regex#|})\$"
}

# A test of every subject that has code of its own in src/. Without the stand-ins: in the ordinary build, too, the operands
# that they are given lie between pages that cannot be read (tests/test.c). Where clang has its fuzzer, one build serves
# four purposes: sanitizers, the fuzzer's bounded run, clang's warnings, and a library without threads (which have a
# variant of their own).
sanitize() {
    if [ "$LONG" = 1 ]; then
        configure sanitize -DSTREAMKL_STAND_INS=ON -DSTREAMKL_AVX512=ON -DSTREAMKL_SANITIZE=address,undefined &&
            programs sanitize && (STREAMKL_TEST_QUICK=0 && programs sanitize -R '^test_(packed|keys)$')
        return
    fi
    some='vmath half engine divergences labels listed topk mixture sinks indexer pooled packed keys exact short errors isa
        device plan launches'
    if have_fuzzer; then
        some="$some threads"
        also='fuzz_arguments fuzz_problems'
        set -- -DCMAKE_C_COMPILER=clang -DCMAKE_C_FLAGS=-fsanitize=fuzzer-no-link -DSTREAMKL_FUZZ=ON \
            -DSTREAMKL_THREADS=OFF -DSTREAMKL_WERROR=ON
    fi
    only sanitize "$some" "$@" -DSTREAMKL_SANITIZE=address,undefined || return
    [ -z "$also" ] || TREE=$BUILD/variants/sanitize tests/fuzz/fuzz.sh bounded
}

thread() {
    some='threads team unload'
    [ "$LONG" = 1 ] && some="$some float_mode blas engine options laws"
    at_once=$((2 * JOBS)) # they wait for threads more than they compute
    export TSAN_OPTIONS=atexit_sleep_ms=20 # by default each child of test_team sleeps for a second when it ends
    only thread "$some" -DSTREAMKL_SANITIZE=thread || return
    [ "$LONG" = 0 ] || (STREAMKL_TEST_QUICK=0 && programs thread -R '^test_threads$')
}

valgrind_some() {
    have valgrind valgrind || { why="valgrind is not here and cannot be installed"; return 77; }
    some='engine memory errors'
    [ "$LONG" = 1 ] && some="$some isa device blas"
    # shellcheck disable=SC2086 # words
    printf 'test_%s\n' $some |
        STREAMKL_TEST_CASES=3 xargs -P "$JOBS" -I '{}' valgrind -q --error-exitcode=9 --leak-check=full \
            --errors-for-leak-kinds=definite --show-leak-kinds=definite "$BUILD/tests/{}"
}

with_clang() {
    have clang clang || { why="clang is not here and cannot be installed"; return 77; }
    configure clang -DCMAKE_C_COMPILER=clang -DSTREAMKL_WERROR=ON && programs clang
}

serial() {
    only serial 'threads memory options' -DSTREAMKL_THREADS=OFF -DSTREAMKL_WERROR=ON
}

aarch64() {
    [ "$(uname -m)" = aarch64 ] && { why="this machine is one: the ordinary tests did it"; return 77; }
    have aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu || { why="no compiler for aarch64"; return 77; }
    have qemu-aarch64 qemu-user || { why="no qemu-aarch64"; return 77; }
    set -- -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
        "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-cpu;max;-L;/usr/aarch64-linux-gnu"
    if [ "$LONG" = 1 ]; then
        configure aarch64 "$@" && programs aarch64
    else
        only aarch64 'vmath half engine divergences listed errors isa device plan' "$@"
    fi
}

# The ordinary build ran them, if it has CUDA: the summary says so, or why not.
cuda() {
    grep -q '^STREAMKL_CUDA:BOOL=ON' "$BUILD/CMakeCache.txt" && return 0
    why="built without CUDA (no nvcc): no kernel was compiled, emulated or counted"
    return 77
}

# The Python tests, which come after this, look at the report's page with it, and skip that without one.
browser() {
    have chromium chromium && return 0
    why="Chromium is not here and cannot be installed: nobody looked at the report's page"
    return 77
}

# While something else computes: packages come from elsewhere.
install_all() {
    have valgrind valgrind
    have_fuzzer
    have aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    have qemu-aarch64 qemu-user
    have chromium chromium
    return 0
}

mkdir -p "$BUILD/variants"
[ "${1:-}" = install ] && install_all && exit
# With `make test` there are two rows of variants side by side, since none of them keeps all processors busy: builds are
# configured and linked, and tests of threads wait for threads that do not come.
beside=
if [ $# = 0 ] && [ "$LONG" = 1 ]; then
    set -- cuda browser sanitize thread valgrind clang serial aarch64
elif [ $# = 0 ]; then
    tests/run_all.sh thread valgrind aarch64 >"$BUILD/variants/beside.out" 2>&1 &
    beside=$!
    trap 'kill "$beside"; exit 130' INT TERM # a shell's background jobs do not hear Ctrl-C
    set -- cuda browser sanitize
fi
for wanted in "$@"; do
    case $wanted in
    cuda | browser | sanitize | thread | serial | aarch64) variant "$wanted" "$wanted" ;;
    valgrind) variant valgrind valgrind_some ;;
    clang) variant clang with_clang ;;
    *) echo "unknown variant $wanted" && exit 2 ;;
    esac
done
if [ -n "$beside" ]; then
    wait "$beside" || failures=$((failures + 1))
    sed '/^variants:/,$d' "$BUILD/variants/beside.out"
    summary="$summary
$(sed '1,/^variants:/d' "$BUILD/variants/beside.out")"
fi
printf '\nvariants:%s\n' "$summary"
[ $failures = 0 ]
