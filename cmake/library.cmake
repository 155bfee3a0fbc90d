# SPDX-License-Identifier: Apache-2.0
# The library: its sources, the flags of each instruction set, and the targets made of them.

set(sources
  src/adopt.c
  src/api.c
  src/check.c
  src/check_labels.c
  src/check_listed.c
  src/check_mixture.c
  src/check_outputs.c
  src/check_packed.c
  src/check_shard.c
  src/check_sink.c
  src/check_support.c
  src/check_topk.c
  src/error.c
  src/partial.c
  src/tensor.c
  src/work.c
  src/cpu/block.c
  src/cpu/choices.c
  src/cpu/cpus.c
  src/cpu/details.c
  src/cpu/exchange.c
  src/cpu/gather.c
  src/cpu/grad.c
  src/cpu/grad_sparse.c
  src/cpu/index.c
  src/cpu/isa.c
  src/cpu/keys.c
  src/cpu/keys_in_place.c
  src/cpu/layout.c
  src/cpu/listed.c
  src/cpu/kept_heads.c
  src/cpu/mixture.c
  src/cpu/phases.c
  src/cpu/plan.c
  src/cpu/pool.c
  src/cpu/results.c
  src/cpu/run.c
  src/cpu/schedule.c
  src/cpu/score.c
  src/cpu/shares.c
  src/cpu/sink.c
  src/cpu/support.c
  src/cpu/team.c
  src/cpu/topk.c
  src/cpu/value.c)

# One template, compiled once per instruction set. Only these objects may hold instructions beyond the baseline, so
# they are never part of link-time optimisation: it would inline them into code that runs on every processor.
set(kernels src/cpu/kernels/baseline.c)
set(units)

# A set that not every compiler and assembler knows: without them it is left out. isa.c is told what there is.
function(streamkl_unit isa source)
  string(TOUPPER ${isa} name)
  string(REPLACE ";" " " CMAKE_REQUIRED_FLAGS "${flags_${isa}}")
  check_c_source_compiles("${source}" STREAMKL_COMPILES_${name})
  if(STREAMKL_COMPILES_${name})
    set(kernels ${kernels} src/cpu/kernels/${isa}.c PARENT_SCOPE)
    set(units ${units} SKL_WITH_${name} PARENT_SCOPE)
  endif()
endfunction()

option(STREAMKL_AVX512 "Build the kernels that need AVX-512 or AMX" ON)
if(STREAMKL_TARGET_X86_64)
  list(APPEND kernels src/cpu/kernels/avx2.c src/cpu/kernels/avx2_narrow.c)
  set(flags_avx2 -mavx2 -mfma -mf16c)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(flags_avx512bf16 ${flags_avx512} -mavx512bf16)
  set(flags_amx ${flags_avx512} -mamx-tile -mamx-bf16)
  set(flags_emulated ${flags_avx2} -Wno-psabi)  # vectors wider than a register never leave their file
  if(STREAMKL_AVX512)
    list(APPEND kernels src/cpu/kernels/avx512.c src/cpu/kernels/avx512_narrow.c)
    list(APPEND units SKL_WITH_AVX512)
    streamkl_unit(avx512bf16 "#include <immintrin.h>
      int main(void) { __m512 c = _mm512_setzero_ps(); c = _mm512_dpbf16_ps(c, (__m512bh)c, (__m512bh)c); return 0; }")
    streamkl_unit(amx "#include <immintrin.h>
      int main(void) { _tile_zero(0); _tile_dpbf16ps(0, 1, 2); _tile_release(); return 0; }")
  endif()
  if(STREAMKL_STAND_INS AND NOT SKBUILD)  # reached by STREAMKL_ISA=amx-emulated and the like
    list(APPEND kernels src/cpu/kernels/emulated_amx.c src/cpu/kernels/emulated_avx512bf16.c)
    list(APPEND units SKL_WITH_STAND_INS)
  endif()
elseif(STREAMKL_TARGET_AARCH64)
  list(APPEND kernels src/cpu/kernels/neon.c)
  set(flags_neonbf16 -march=armv8.2-a+bf16+fp16)
  streamkl_unit(neonbf16 "#include <arm_neon.h>
    int main(void) { return (int)vgetq_lane_f32(vbfdotq_f32(vdupq_n_f32(0), vreinterpretq_bf16_u32(vdupq_n_u32(0)),
    vreinterpretq_bf16_u32(vdupq_n_u32(0))), 0); }")
endif()
set_property(SOURCE src/cpu/isa.c APPEND PROPERTY COMPILE_DEFINITIONS ${units})
set(level $<$<NOT:$<CONFIG:Debug>>:-O3>)
if(STREAMKL_SANITIZE MATCHES "address|undefined")
  set(level -O1)  # as in cmake/flags.cmake
endif()
foreach(kernel ${kernels})
  string(REGEX REPLACE ".*kernels/([a-z0-9]*).*\\.c" "\\1" isa ${kernel})
  set_property(SOURCE ${kernel} APPEND PROPERTY COMPILE_OPTIONS ${level} -fno-lto ${flags_${isa}})
endforeach()

add_library(streamkl_objects OBJECT ${sources} ${kernels} ${cuda_sources})
target_include_directories(streamkl_objects PRIVATE include)

# Threads: POSIX ones, in a pool of our own. No other file knows of them.
set(libraries m ${cuda_libraries})
if(STREAMKL_THREADS)
  set(THREADS_PREFER_PTHREAD_FLAG OFF)
  find_package(Threads REQUIRED)
  list(APPEND libraries ${CMAKE_THREAD_LIBS_INIT})
  set_property(SOURCE src/cpu/cpus.c src/cpu/team.c APPEND PROPERTY COMPILE_DEFINITIONS SKL_THREADS)
else()
  message(STATUS "STREAMKL_THREADS is OFF: streamkl will run on one thread")
endif()

foreach(target streamkl streamkl_static)
  if(target STREQUAL streamkl)
    add_library(${target} SHARED $<TARGET_OBJECTS:streamkl_objects> ${cuda_objects})
    target_link_libraries(${target} PRIVATE ${libraries})
  else()
    add_library(${target} STATIC $<TARGET_OBJECTS:streamkl_objects> ${cuda_objects})
    target_link_libraries(${target} INTERFACE ${libraries})
  endif()
  add_library(streamkl::${target} ALIAS ${target})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
endforeach()
set_target_properties(streamkl_static PROPERTIES OUTPUT_NAME streamkl)
if(STREAMKL_CUDA)
  add_dependencies(streamkl cuda_objects)
  add_dependencies(streamkl_static cuda_objects)
  target_link_options(streamkl PRIVATE -Wl,--exclude-libs,ALL)  # the CUDA runtime inside it is nobody else's
endif()
if(SKBUILD)
  set_target_properties(streamkl PROPERTIES NO_SONAME ON)  # a wheel cannot hold symbolic links
else()
  set_target_properties(streamkl PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endif()
