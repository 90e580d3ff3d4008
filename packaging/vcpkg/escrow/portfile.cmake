# SPDX-License-Identifier: Apache-2.0
# Of the tree that this port lies in. A registry's port has vcpkg_from_github() or vcpkg_download_distfile() here.
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../..")

vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)  # a process needs one copy

vcpkg_find_cuda(OUT_CUDA_TOOLKIT_ROOT cuda)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    "-DCUDAToolkit_ROOT=${cuda}"
    -DESCROW_BUILD_TESTS=OFF
    -DESCROW_BUILD_BENCH=OFF
    -DCMAKE_DISABLE_FIND_PACKAGE_Doxygen=ON
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/escrow)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
  "${CURRENT_PACKAGES_DIR}/share/doc")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/NOTICE")
