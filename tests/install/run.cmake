# SPDX-License-Identifier: Apache-2.0
# Gets Escrow in each way that README names, builds examples against it, and runs them: all against what is installed from
# the build tree, one in the other ways.
# FROM=installed: the build tree BUILD_DIR, installed into a fresh folder. FROM=source: the source archive, built anew.
set(root ${BUILD_DIR}/install-test/${FROM})
set(prefix ${root}/prefix)
cmake_path(SET examples NORMALIZE ${SOURCE_DIR}/../../examples)
file(REMOVE_RECURSE ${root})
if(CUDA_INCLUDE_DIR)
  set(cuda -DESCROW_CUDA_INCLUDE_DIR=${CUDA_INCLUDE_DIR})
endif()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# consume(folder source options...): without optimisation, which takes longer than it saves.
function(consume folder source)
  run(${CMAKE_COMMAND} -S ${source} -B ${root}/${folder} -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} ${cuda} ${ARGN})
  run(${CMAKE_COMMAND} --build ${root}/${folder})
  run(${CMAKE_CTEST_COMMAND} --test-dir ${root}/${folder} --no-tests=error --output-on-failure)
endfunction()

# What find_package says to options that it cannot satisfy.
function(expect_refusal expected)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${root}/refused -G Ninja
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${prefix} ${ARGN}
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(result EQUAL 0 OR NOT said MATCHES "${expected}")
    message(FATAL_ERROR "expected: ${expected}\nsaid: ${said}")
  endif()
endfunction()

# The library that pkg-config names, without CMake. The arguments are the sanitizers of other programs.
function(consume_by_pkg_config)
  find_program(pkg_config NAMES pkg-config pkgconf)
  if(NOT pkg_config)
    return()
  endif()
  file(GLOB_RECURSE file ${prefix}/*/escrow_simulated.pc)
  cmake_path(GET file PARENT_PATH folder)
  set(ENV{PKG_CONFIG_PATH} ${folder})
  execute_process(COMMAND ${pkg_config} --cflags --libs escrow_simulated OUTPUT_VARIABLE flags
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${COMPILER} -std=c++20 ${examples}/scratch.cpp -o ${root}/by_pkg_config ${flags})
  cmake_path(GET folder PARENT_PATH libraries)
  set(ENV{LD_LIBRARY_PATH} ${libraries})
  run(${root}/by_pkg_config)
  # A program with a sanitizer, and the library without.
  foreach(sanitizer IN LISTS ARGN)
    run(${COMPILER} -std=c++20 -g -fsanitize=${sanitizer} ${SOURCE_DIR}/sanitized.cpp -o ${root}/${sanitizer} ${flags})
    run(${root}/${sanitizer})
  endforeach()
  # Two threads that use what one at a time may use are reported.
  if("${ARGN}" MATCHES "thread")
    foreach(used exec claimer)
      execute_process(COMMAND ${root}/thread ${used} RESULT_VARIABLE status ERROR_VARIABLE said)
      if(status EQUAL 0 OR NOT said MATCHES "data race.*one_thread_at_a_time_may_use_it")
        message(FATAL_ERROR "two threads with one ${used}, status ${status}: ${said}")
      endif()
    endforeach()
  endif()
endfunction()

# The Debian package has the library, and depends on the CUDA runtime where the library does.
function(check_debian_package)
  find_program(dpkg_deb dpkg-deb)
  if(NOT dpkg_deb)
    return()
  endif()
  run(${CPACK} --config ${BUILD_DIR}/CPackConfig.cmake -G DEB -B ${root}/debian)
  file(GLOB package ${root}/debian/*.deb)
  execute_process(COMMAND ${dpkg_deb} --field ${package} Depends OUTPUT_VARIABLE depends COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${dpkg_deb} --contents ${package} OUTPUT_VARIABLE contents COMMAND_ERROR_IS_FATAL ANY)
  set(has_cudart FALSE)
  if(contents MATCHES "/libescrow\\.so")
    set(has_cudart TRUE)
  endif()
  set(needs_cudart FALSE)
  if(depends MATCHES "cuda-cudart-1[0-9]-[0-9]")
    set(needs_cudart TRUE)
  endif()
  if(NOT has_cudart STREQUAL needs_cudart OR NOT depends MATCHES "libstdc\\+\\+6" OR NOT contents MATCHES "/libescrow_simulated\\.so")
    message(FATAL_ERROR "depends: ${depends}\n${contents}")
  endif()
endfunction()

if(FROM STREQUAL installed)
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
  consume(found ${examples} -DCMAKE_PREFIX_PATH=${prefix})
  consume_by_pkg_config(address thread)
  check_debian_package()
  expect_refusal("ESCROW_CUDA_INCLUDE_DIR to the folder of cuda_runtime_api.h \\(it is \"${SOURCE_DIR}\"\\)"
    -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -DESCROW_CUDA_INCLUDE_DIR=${SOURCE_DIR})
  file(WRITE ${root}/headers/cuda_runtime_api.h "")
  expect_refusal("There is no escrow::escrow: the CUDA Toolkit 12.8 or newer"
    -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -DESCROW_CUDA_INCLUDE_DIR=${root}/headers)
  expect_refusal("There is no escrow::other" -DCOMPONENTS=other)
  file(WRITE ${root}/other_cuda/cuda_runtime_api.h "#define CUDART_VERSION  99010\n")
  expect_refusal("Escrow was built with the headers of CUDA 1[0-9], and here are those of CUDA 99: use CUDA 1"
    -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -DESCROW_CUDA_INCLUDE_DIR=${root}/other_cuda -DCOMPONENTS=simulated)
else()
  run(${CPACK} --config ${BUILD_DIR}/CPackSourceConfig.cmake -B ${root}/archive)
  file(GLOB archive ${root}/archive/*.tar.gz)
  # Two ways in one folder, so that Escrow is compiled once.
  consume(built ${SOURCE_DIR} -DEXAMPLES=${examples} -DWAY=FetchContent -DESCROW_SOURCE=${archive}
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0)
  consume(built ${SOURCE_DIR} -DEXAMPLES=${examples} -DWAY=add_subdirectory -DESCROW_SOURCE=${root}/built/_deps/escrow-src
    -DBUILD_SHARED_LIBS=OFF -DESCROW_INSTALL=ON)
  run(${CMAKE_COMMAND} --install ${root}/built --prefix ${prefix})
  consume(found ${SOURCE_DIR} -DEXAMPLES=${examples} -DCMAKE_PREFIX_PATH=${prefix} -DCOMPONENTS=simulated)
  consume_by_pkg_config(address)  # of a static library the program's ThreadSanitizer sees a half
endif()
