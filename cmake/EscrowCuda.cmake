# CUDA::toolkit, which has CUDA's headers. Only programs for a GPU need the CUDA Toolkit with nvcc and cudart; where it
# is missing, the headers are enough. The build and the installed package include this file.
find_package(CUDAToolkit 12.8)
if(NOT CUDAToolkit_FOUND)
  find_path(ESCROW_CUDA_INCLUDE_DIR cuda_runtime_api.h DOC "CUDA's headers, 12.8 or newer")
  message(STATUS "CUDA's headers alone: ${ESCROW_CUDA_INCLUDE_DIR}")
  if(ESCROW_CUDA_INCLUDE_DIR AND NOT TARGET CUDA::toolkit)
    add_library(CUDA::toolkit INTERFACE IMPORTED GLOBAL)
    target_include_directories(CUDA::toolkit INTERFACE ${ESCROW_CUDA_INCLUDE_DIR})
  endif()
endif()
if(NOT TARGET CUDA::toolkit)
  set(escrow_cuda_missing "CUDA's headers are missing: install the CUDA Toolkit 12.8 or newer, or set \
ESCROW_CUDA_INCLUDE_DIR to a folder that has its headers")
endif()
