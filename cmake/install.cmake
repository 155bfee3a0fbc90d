# SPDX-License-Identifier: Apache-2.0
# Header, libraries, pkg-config file and CMake package; or, inside a Python wheel, the library and its header.

if(SKBUILD)
  install(TARGETS streamkl LIBRARY DESTINATION lib COMPONENT runtime)
  install(FILES include/streamkl/streamkl.h DESTINATION include/streamkl COMPONENT devel)
  return()
endif()

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/streamkl)

install(FILES include/streamkl/streamkl.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/streamkl COMPONENT devel)
install(TARGETS streamkl streamkl_static EXPORT streamklTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT devel
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT devel
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

install(EXPORT streamklTargets NAMESPACE streamkl:: DESTINATION ${package_dir} COMPONENT devel)
set(package "include(\${CMAKE_CURRENT_LIST_DIR}/streamklTargets.cmake)\n")
if(STREAMKL_CUDA)
  # The CUDA runtime is for who links the static library: without it the shared one is still good.
  set(package "find_package(CUDAToolkit QUIET)\n${package}")
endif()
file(WRITE ${PROJECT_BINARY_DIR}/streamklConfig.cmake "${package}")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/streamklConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/streamklConfig.cmake ${PROJECT_BINARY_DIR}/streamklConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT devel)

# The pkg-config file finds its prefix from where it lies, so an installed tree can be moved.
set(pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix ${pc_dir} ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
set(pc_libs ${CMAKE_THREAD_LIBS_INIT})
if(STREAMKL_CUDA)
  list(APPEND pc_libs -L${cuda_library_dir} -lcudart_static -lpthread -ldl -lrt)
endif()
string(REPLACE ";" " " pc_libs "-lm;${pc_libs}")
configure_file(cmake/streamkl.pc.in streamkl.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/streamkl.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)
