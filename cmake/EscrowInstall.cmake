# Installing: targets, headers and the package files that find_package(escrow) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(parts GLOBAL PROPERTY ESCROW_PARTS)
if(TARGET escrow_all)
  list(APPEND parts escrow_all)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/escrow)

install(TARGETS ${parts} EXPORT escrow_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT escrow_targets NAMESPACE escrow:: FILE escrow_targets.cmake DESTINATION ${package_dir})

configure_package_config_file(cmake/escrow-config.cmake.in escrow-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(escrow-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
    cmake/EscrowCuda.cmake
    ${PROJECT_BINARY_DIR}/escrow-config.cmake
    ${PROJECT_BINARY_DIR}/escrow-config-version.cmake
  DESTINATION ${package_dir})
