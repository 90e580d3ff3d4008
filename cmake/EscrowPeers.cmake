# SPDX-License-Identifier: Apache-2.0
# Libraries of others for adapters' tests and for benches: those that python3 has, or whose folders the cache variables name.

# Where a package of Python is, in a cache variable; empty: nowhere.
function(escrow_python_folder package variable)
  if(NOT DEFINED ${variable})
    execute_process(
      COMMAND python3 -c "import importlib.util as u; print(u.find_spec('${package}').submodule_search_locations[0])"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(${variable} "${folder}" CACHE PATH "The folder of Python's package ${package}; empty: without")
  endif()
endfunction()

# Sets `missing` to the first path that is not there, or to nothing.
function(escrow_first_missing missing)
  foreach(path IN LISTS ARGN)
    if(NOT EXISTS ${path})
      set(${missing} ${path} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${missing} "" PARENT_SCOPE)
endfunction()

# RMM (PyPI's librmm-cu13, and rapids-logger beside it), which ESCROW_RMM_DIR may name: the folder librmm. Its CMake
# package wants more than headers and libraries, e.g. a newer CMake. Sets escrow_rmm_include, escrow_rmm_libraries, and
# escrow_rmm_missing as above.
macro(escrow_find_rmm)
  escrow_python_folder(librmm ESCROW_RMM_DIR)
  cmake_path(GET ESCROW_RMM_DIR PARENT_PATH escrow_rmm_site)
  set(escrow_rmm_include
    ${ESCROW_RMM_DIR}/include/rapids ${ESCROW_RMM_DIR}/include ${escrow_rmm_site}/rapids_logger/include)
  set(escrow_rmm_libraries
    ${ESCROW_RMM_DIR}/lib64/librmm.so ${escrow_rmm_site}/rapids_logger/lib64/librapids_logger.so)
  escrow_first_missing(escrow_rmm_missing ${escrow_rmm_include} ${escrow_rmm_libraries})
endmacro()

# Sets ESCROW_CCCL_INCLUDE_DIR to a folder of headers of CCCL 3.2 or newer: RMM's own, those of PyPI's
# nvidia-cuda-cccl, or the CUDA toolkit's.
macro(escrow_find_cccl)
  escrow_python_folder(librmm ESCROW_RMM_DIR)
  escrow_python_folder(nvidia ESCROW_NVIDIA_DIR)
  find_path(ESCROW_CCCL_INCLUDE_DIR cuda/__memory_resource/any_resource.h
    HINTS ${ESCROW_RMM_DIR}/include ${ESCROW_NVIDIA_DIR}/cu13/include ${CUDAToolkit_INCLUDE_DIRS}
    PATH_SUFFIXES rapids cccl
    DOC "Headers of CCCL 3.2 or newer")
endmacro()
