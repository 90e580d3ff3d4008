# SPDX-License-Identifier: Apache-2.0
# Installing: libraries, headers, and the package files for find_package(escrow) and pkg-config; and packages by CPack.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(libraries GLOBAL PROPERTY ESCROW_LIBRARIES)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/escrow)

configure_package_config_file(cmake/escrow-config.cmake.in escrow-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(escrow-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
    cmake/EscrowCuda.cmake
    cmake/EscrowTestRuns.cmake
    ${PROJECT_BINARY_DIR}/escrow-config.cmake
    ${PROJECT_BINARY_DIR}/escrow-config-version.cmake
  DESTINATION ${package_dir})
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Each library can be found without the other: escrow-simulated.cmake does not name CUDA::cudart. The C API's needs the
# one that it calls.
file(RELATIVE_PATH include_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
get_target_property(cuda_include CUDA::toolkit INTERFACE_INCLUDE_DIRECTORIES)
list(JOIN cuda_include " -I" cuda_include)
set(private_if_shared .private)
if(NOT BUILD_SHARED_LIBS)
  set(private_if_shared "")
endif()
foreach(library IN LISTS libraries)
  get_target_property(name ${library} EXPORT_NAME)
  install(TARGETS ${library} EXPORT ${library} FILE_SET HEADERS)
  install(EXPORT ${library} NAMESPACE escrow:: FILE escrow-${name}.cmake DESTINATION ${package_dir})
  set(runtime "")
  if(library STREQUAL escrow)
    get_target_property(cudart CUDA::cudart IMPORTED_LOCATION)
    cmake_path(GET cudart PARENT_PATH cudart_dir)
    set(runtime "-L${cudart_dir} -lcudart")
  endif()
  set(requires "")
  if(library MATCHES "^escrow_c(_simulated)?$")
    set(requires escrow${CMAKE_MATCH_1})
  endif()
  configure_file(cmake/escrow.pc.in ${library}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${library}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_VERBATIM_VARIABLES ON)
  set(CPACK_GENERATOR TGZ DEB)
  set(CPACK_SOURCE_GENERATOR TGZ)
  set(CPACK_SOURCE_IGNORE_FILES "/\\.git" "^${PROJECT_SOURCE_DIR}/build[-/]")
  set(CPACK_SOURCE_PACKAGE_FILE_NAME escrow-${PROJECT_VERSION})
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Keeps GPU resources alive until the last work that uses them has finished")
  set(CPACK_PACKAGE_CONTACT "The Escrow authors")
  set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
  set(CPACK_DEBIAN_PACKAGE_NAME libescrow-dev)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  # What the compiler's libraries are, dpkg-shlibdeps says. CUDA's packages have the minor version in their names: any of the
  # major version serves that is not older than the headers Escrow was built with. Users need the headers, a server does not.
  find_program(ESCROW_SHLIBDEPS dpkg-shlibdeps DOC "For versions in the Debian package's dependencies")
  find_program(ESCROW_FILE file DOC "For the same")
  set(depends libc6 libstdc++6)
  if(ESCROW_SHLIBDEPS AND ESCROW_FILE)
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
    set(depends "")
  endif()
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})  # libescrow, for the C API
  if(TARGET CUDA::cudart)
    list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${cudart_dir})
    foreach(package cudart cudart-dev)
      set(any "")
      foreach(minor RANGE ${CUDAToolkit_VERSION_MINOR} 9)
        list(APPEND any cuda-${package}-${CUDAToolkit_VERSION_MAJOR}-${minor})
      endforeach()
      list(JOIN any " | " any_${package})
    endforeach()
    list(APPEND depends "${any_cudart}")
    set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "${any_cudart-dev}")
  endif()
  list(JOIN depends ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  include(CPack)
endif()
