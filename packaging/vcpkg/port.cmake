# SPDX-License-Identifier: Apache-2.0
# Runs the port without vcpkg, to check it: cmake -DROOT=folder -P port.cmake. The functions here do what vcpkg's of these
# names do with a release build of a shared library; then a program finds the package and runs. `version` is checked by tidy.
file(REMOVE_RECURSE ${ROOT})
set(PORT escrow)
set(CURRENT_PACKAGES_DIR ${ROOT}/package)
set(build ${ROOT}/build)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_check_linkage)
  set(VCPKG_LIBRARY_LINKAGE dynamic PARENT_SCOPE)
endfunction()
function(vcpkg_find_cuda)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_CUDA_TOOLKIT_ROOT" "")
  set(${arg_OUT_CUDA_TOOLKIT_ROOT} "$ENV{CUDA_PATH}" PARENT_SCOPE)
endfunction()
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  list(FILTER arg_OPTIONS EXCLUDE REGEX "=$")
  run(${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${build} -G Ninja -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}
    -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=ON -DCMAKE_UNITY_BUILD=ON ${arg_OPTIONS}
    "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG")  # in half the time
endfunction()
function(vcpkg_cmake_install)
  run(${CMAKE_COMMAND} --build ${build} --target install)
endfunction()
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  set(share ${CURRENT_PACKAGES_DIR}/share/${PORT})
  file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/share)
  file(RENAME ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH} ${share})
  file(GLOB files ${share}/*.cmake)
  foreach(file IN LISTS files)  # two folders below the prefix in place of three
    file(READ ${file} text)
    string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}/../../../" "\${CMAKE_CURRENT_LIST_DIR}/../../" text "${text}")
    string(REGEX REPLACE "(get_filename_component\\(_IMPORT_PREFIX \"\\\${_IMPORT_PREFIX}\" PATH\\)\n)+" "\\1\\1" text "${text}")
    file(WRITE ${file} "${text}")
  endforeach()
endfunction()
function(vcpkg_fixup_pkgconfig)
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  foreach(file IN LISTS arg_FILE_LIST)
    file(READ ${file} text)
    file(APPEND ${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright "${text}")
  endforeach()
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/escrow/portfile.cmake)

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/../consumer -B ${ROOT}/program -G Ninja
  -DCMAKE_PREFIX_PATH=${CURRENT_PACKAGES_DIR})
run(${CMAKE_COMMAND} --build ${ROOT}/program)
run(${ROOT}/program/scratch)
