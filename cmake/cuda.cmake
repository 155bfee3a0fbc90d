# SPDX-License-Identifier: Apache-2.0
# The CUDA back end: finding nvcc, what is compiled, and how. Sets 'cuda_sources' and 'cuda_objects' for the library,
# 'cuda_libraries' for who links it and 'cuda_planning' for the tests. CMake's own CUDA language is not used: it would
# link with a C++ compiler, and it cannot compile one source several times.

if(DEFINED ENV{CUDACXX})
  get_filename_component(cudacxx_dir "$ENV{CUDACXX}" DIRECTORY)
endif()
find_program(STREAMKL_NVCC nvcc HINTS "${cudacxx_dir}" ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin
  DOC "NVIDIA's compiler, for the CUDA back end")
get_filename_component(cuda_root "${STREAMKL_NVCC}" REALPATH)
get_filename_component(cuda_root "${cuda_root}" DIRECTORY)
find_path(STREAMKL_CUDA_INCLUDE cuda_runtime_api.h HINTS "${cuda_root}/.." PATH_SUFFIXES include
  DOC "NVIDIA's headers: for the CUDA back end, and in a build without it for the test of src/cuda/host/cudart.c")
mark_as_advanced(STREAMKL_NVCC STREAMKL_CUDA_INCLUDE)

if(CMAKE_CROSSCOMPILING OR NOT CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(cuda_default OFF)
  set(cuda_why "off by default when compiling for another system than this Linux")
elseif(STREAMKL_NVCC)
  set(cuda_default ON)
  set(cuda_why "-DSTREAMKL_CUDA=OFF")
else()
  set(cuda_default OFF)
  set(cuda_why "no nvcc on PATH, in CUDACXX, CUDA_HOME or /usr/local/cuda")
endif()
option(STREAMKL_CUDA "Build the CUDA back end" ${cuda_default})

# What decides which kernels run, and calls the device by the table of host/device.h alone: it needs nothing of NVIDIA's,
# and tests/test_launches.c runs it on a table of its own in every build.
set(cuda_planning
  src/cuda/host/arguments.c
  src/cuda/host/attention_grad.c
  src/cuda/host/details.c
  src/cuda/host/index.c
  src/cuda/host/kernels.c
  src/cuda/host/keys.c
  src/cuda/host/labels.c
  src/cuda/host/lists.c
  src/cuda/host/mixture.c
  src/cuda/host/plan.c
  src/cuda/host/run.c
  src/cuda/host/sinks.c
  src/cuda/host/slab_grad.c
  src/cuda/host/topk.c
  src/cuda/host/workspace.c)

set(cuda_sources src/cuda/host/none.c)
set(cuda_objects)
set(cuda_libraries)
if(NOT STREAMKL_CUDA)
  message(STATUS "CUDA: not built (${cuda_why})")
  return()
endif()
if(NOT STREAMKL_NVCC)
  message(FATAL_ERROR "STREAMKL_CUDA is ON and there is ${cuda_why}. Install the CUDA toolkit or set it OFF.")
endif()

# ------------------------------------------------------------------------------------------------ what ---

# Every kernel is a line of src/cuda/kernels.def: name, source, role, type, dim, least architecture ... A unit is a source
# compiled for a type and a width, if it has them: sweep_narrow.cu with SKL_TYPE and SKL_DIM as sweep_narrow_bf16_64. Its
# PTX is that of its kernels' architecture, and it has machine code from there on.
set(cuda_list ${PROJECT_SOURCE_DIR}/src/cuda/kernels.def)
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${cuda_list})
file(STRINGS ${cuda_list} cuda_lines REGEX "^SKL_KERNEL")
set(cuda_units)
foreach(line ${cuda_lines})
  if(NOT line MATCHES "^SKL_KERNEL\\(([a-z0-9_]+), ([a-z_]+), ([a-z_]+), (bf16|f16|any), ([0-9]+), ([0-9]+), .*\\)$")
    message(FATAL_ERROR "CUDA: cannot read this line of ${cuda_list}: ${line}")
  endif()
  set(source ${CMAKE_MATCH_2})
  set(type ${CMAKE_MATCH_4})
  set(dim ${CMAKE_MATCH_5})
  set(least ${CMAKE_MATCH_6})
  set(unit ${source})
  set(definitions)
  if(NOT type STREQUAL any)
    string(APPEND unit _${type})
    list(APPEND definitions -DSKL_TYPE=${type})
  endif()
  if(NOT dim EQUAL 0)
    string(APPEND unit _${dim})
    list(APPEND definitions -DSKL_DIM=${dim})
  endif()
  if(DEFINED cuda_least_${unit} AND NOT cuda_least_${unit} EQUAL least)
    message(FATAL_ERROR "CUDA: the kernels of ${unit} have different least architectures in ${cuda_list}")
  endif()
  list(APPEND cuda_units ${unit})
  set(cuda_source_${unit} ${PROJECT_SOURCE_DIR}/src/cuda/kernels/${source}.cu)
  set(cuda_definitions_${unit} ${definitions})
  set(cuda_least_${unit} ${least})
endforeach()
list(REMOVE_DUPLICATES cuda_units)

set(cuda_sources ${cuda_planning} src/cuda/host/blas.c src/cuda/host/cudart.c)

# ------------------------------------------------------------------------------------------------- how ---

# Machine code of an architecture also runs on the later ones of the same first digit: 80 serves 86 and 89, 100 serves
# 103, 120 serves 121. Not so on Jetson, between whose devices and the others NVIDIA promises nothing: Orin is 87, Thor
# 110 (an nvcc before 13 does not know it), both aarch64. What has no machine code compiles the PTX when it loads the
# library. All machine code of a kernel is made from one PTX, of the least architecture that the list has for it, and that is
# the PTX that the tests execute.
set(cuda_wanted 80 90 100 120)
if(STREAMKL_TARGET_AARCH64)
  list(APPEND cuda_wanted 87 110)
endif()
set(STREAMKL_CUDA_ARCHITECTURES "${cuda_wanted}" CACHE STRING "Architectures to make machine code for, 80 or later")
execute_process(COMMAND ${STREAMKL_NVCC} --list-gpu-code OUTPUT_VARIABLE cuda_known ERROR_QUIET)
set(cuda_architectures)
foreach(arch ${STREAMKL_CUDA_ARCHITECTURES})
  if(cuda_known MATCHES "sm_${arch}(\n|$)")
    list(APPEND cuda_architectures ${arch})
  else()
    message(STATUS "CUDA: no machine code for sm_${arch}, this nvcc does not know it; such a GPU compiles the PTX")
  endif()
endforeach()

# The tests' tree makes machine code of a few units only, which is half of what nvcc does; the others have PTX alone.
set(STREAMKL_CUDA_MACHINE_CODE ".*" CACHE STRING "Of which units to make machine code: a regular expression")
mark_as_advanced(STREAMKL_CUDA_MACHINE_CODE)

# Without guards of static variables and exceptions the objects need no C++ library. Compressed, they are a third as
# large.
set(cuda_flags -std=c++17 -O3 -I${PROJECT_SOURCE_DIR}/include)
set(cuda_host_flags
  -Xcompiler=-fPIC,-fno-threadsafe-statics,-fno-exceptions,-fvisibility=hidden,-fvisibility-inlines-hidden)
if(STREAMKL_WERROR)
  list(APPEND cuda_flags --Werror=all-warnings)
endif()
file(GLOB cuda_headers CONFIGURE_DEPENDS
  src/cuda/kernels/*.cuh src/cuda/*.h src/divergence.h src/row.h include/streamkl/*.h)
list(TRANSFORM cuda_headers REPLACE "^src" "${PROJECT_SOURCE_DIR}/src")

set(cuda_dir ${PROJECT_BINARY_DIR}/cuda)
file(MAKE_DIRECTORY ${cuda_dir}/ptx ${cuda_dir}/cubin)
set(cuda_ptx_files)
set(cuda_cubin_files)
foreach(unit ${cuda_units})
  set(command ${STREAMKL_NVCC} ${cuda_flags} ${cuda_definitions_${unit}})
  # nvcc keeps the PTX and the machine code it packs into the object: the tests and the model look at what is shipped.
  get_filename_component(stem ${cuda_source_${unit}} NAME_WE)
  set(keep ${cuda_dir}/keep/${unit})
  set(least ${cuda_least_${unit}})
  set(codes compute_${least})
  set(ptx ${cuda_dir}/ptx/${unit}.ptx)
  set(cubins)
  set(copies COMMAND ${CMAKE_COMMAND} -E copy ${keep}/${stem}.ptx ${ptx})
  foreach(arch ${cuda_architectures})
    if(arch LESS least OR NOT unit MATCHES "^(${STREAMKL_CUDA_MACHINE_CODE})$")
      continue()
    endif()
    string(APPEND codes ,sm_${arch})
    list(APPEND cubins ${cuda_dir}/cubin/${unit}.sm_${arch}.cubin)
    list(APPEND copies COMMAND ${CMAKE_COMMAND} -E copy ${keep}/${stem}.sm_${arch}.cubin
      ${cuda_dir}/cubin/${unit}.sm_${arch}.cubin)
  endforeach()
  add_custom_command(OUTPUT ${cuda_dir}/${unit}.o ${ptx} ${cubins}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${keep}
    COMMAND ${command} ${cuda_host_flags} -gencode arch=compute_${least},code=[${codes}] -Xfatbin -compress-all
      -keep -keep-dir ${keep} -c ${cuda_source_${unit}} -o ${cuda_dir}/${unit}.o
    ${copies}
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${keep}
    DEPENDS ${cuda_source_${unit}} ${cuda_headers}
    COMMENT "Building CUDA object ${unit}" VERBATIM)
  list(APPEND cuda_objects ${cuda_dir}/${unit}.o)
  list(APPEND cuda_cubin_files ${cubins})
  list(APPEND cuda_ptx_files ${ptx})
endforeach()
set_source_files_properties(${cuda_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)

# Both libraries and the tests use the same files: one target makes them, or two jobs of make would.
add_custom_target(cuda_objects DEPENDS ${cuda_objects} ${cuda_ptx_files} ${cuda_cubin_files})

# ------------------------------------------------------------------------------------------------ with ---

find_library(STREAMKL_CUDART cudart_static HINTS ${cuda_root}/.. PATH_SUFFIXES lib64 lib)
mark_as_advanced(STREAMKL_CUDART)
if(NOT STREAMKL_CUDA_INCLUDE OR NOT STREAMKL_CUDART)
  message(FATAL_ERROR "CUDA: ${STREAMKL_NVCC} is there, but not cuda_runtime_api.h or libcudart_static.a beside it. "
    "Install the rest of the toolkit or set STREAMKL_CUDA to OFF.")
endif()
get_filename_component(cuda_library_dir ${STREAMKL_CUDART} DIRECTORY)
set_property(SOURCE src/cuda/host/blas.c src/cuda/host/cudart.c APPEND PROPERTY
  COMPILE_OPTIONS -isystem ${STREAMKL_CUDA_INCLUDE})

# The runtime by path while building; an installed static library finds it as CMake's FindCUDAToolkit does.
set(cuda_libraries $<BUILD_INTERFACE:${STREAMKL_CUDART}> $<INSTALL_INTERFACE:CUDA::cudart_static> pthread dl rt)

string(REPLACE ";" ", sm_" cuda_shown "${cuda_architectures}")
message(STATUS "CUDA: ${STREAMKL_NVCC}, machine code for sm_${cuda_shown}, and PTX")
