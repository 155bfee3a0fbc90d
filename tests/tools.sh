# SPDX-License-Identifier: Apache-2.0
# Tools that the tests use and a machine may lack. For run_all.sh and fuzz.sh, which read it with `.`.
# shellcheck shell=sh

# install PACKAGE...: with Debian's packages, by who may. An old or missing list of packages is fetched anew.
install() {
    [ "${STREAMKL_TEST_NO_INSTALL:-0}" = 1 ] && return 1
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    echo "installing $*"
    export DEBIAN_FRONTEND=noninteractive
    timeout 300 apt-get install -y -q "$@" >/dev/null 2>&1 && return 0
    timeout 300 apt-get update -q >/dev/null 2>&1
    timeout 300 apt-get install -y -q "$@" >/dev/null 2>&1
}

# have PROGRAM PACKAGE: is it here, or can it be installed?
have() {
    command -v "$1" >/dev/null 2>&1 && return 0
    install "$2"
    command -v "$1" >/dev/null 2>&1
}

# Is clang here with its fuzzer, or can it be installed?
clang_fuzzes() {
    echo 'int LLVMFuzzerTestOneInput(const char *x, unsigned long n) { return x && n > 9; }' |
        clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null
}

have_fuzzer() {
    clang_fuzzes && return 0
    have clang clang && install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
    clang_fuzzes
}
