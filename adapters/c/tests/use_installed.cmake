# SPDX-License-Identifier: Apache-2.0
# Installs the build tree BUILD_DIR into a fresh folder, builds a C program against that, and runs it; and a Python one.
set(root ${BUILD_DIR}/install-test/c)
file(REMOVE_RECURSE ${root})
foreach(command IN ITEMS
    "--install;${BUILD_DIR};--prefix;${root}/prefix"
    "-S;${SOURCE_DIR};-B;${root}/build;-G;Ninja;-DCMAKE_PREFIX_PATH=${root}/prefix;-DESCROW_CUDA_INCLUDE_DIR=${CUDA_INCLUDE_DIR}"
    "--build;${root}/build")
  execute_process(COMMAND ${CMAKE_COMMAND} ${command} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${root}/build --no-tests=error --output-on-failure
  COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE library ${root}/prefix/*/libescrow_c_simulated.so)
execute_process(COMMAND ${PYTHON} ${SOURCE_DIR}/consumer.py ${library} COMMAND_ERROR_IS_FATAL ANY)
