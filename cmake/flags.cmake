# SPDX-License-Identifier: Apache-2.0
# What every target is compiled with.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Fused multiply-adds are written by name. Contraction differs between compilers (gcc contracts under gnu11 and not
# under c11, clang under both), and a sum that is exact by design must not be contracted behind our back. Nobody reads
# errno after a logarithm, and without it the compiler takes the same one once.
add_compile_options(-Wall -Wextra -ffp-contract=off -fno-math-errno)
if(STREAMKL_WERROR)
  add_compile_options(-Werror)
endif()

if(STREAMKL_SANITIZE)
  add_compile_options(-fsanitize=${STREAMKL_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${STREAMKL_SANITIZE})
  # A compiler that checks every access takes two to four times as long over -O3.
  if(STREAMKL_SANITIZE MATCHES "address|undefined")
    add_compile_options(-O1)
  endif()
endif()

# The target processor, asked of the compiler: CMAKE_SYSTEM_PROCESSOR is whatever a toolchain file says.
include(CheckCSourceCompiles)
check_c_source_compiles("#ifndef __x86_64__\n#error\n#endif\nint main(void) { return 0; }" STREAMKL_TARGET_X86_64)
check_c_source_compiles("#ifndef __aarch64__\n#error\n#endif\nint main(void) { return 0; }" STREAMKL_TARGET_AARCH64)

# The program and some tests stand between the library and the C library: GNU's linker and lld can do that, Apple's not.
include(CheckLinkerFlag)
check_linker_flag(C -Wl,--wrap=streamkl_nothing STREAMKL_LINKER_WRAPS)  # a name that no run-time library calls
