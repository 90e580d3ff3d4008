# CUDA::toolkit, which has CUDA's headers, and CUDA::cudart. escrow::simulated needs the headers alone. The build and the
# installed package include this file.
find_package(CUDAToolkit 12.8)
if(NOT CUDAToolkit_FOUND)
  find_path(ESCROW_CUDA_INCLUDE_DIR cuda_runtime_api.h DOC "CUDA's headers, 12.8 or newer")
  message(STATUS "CUDA's headers alone: ${ESCROW_CUDA_INCLUDE_DIR}")
  if(ESCROW_CUDA_INCLUDE_DIR AND NOT TARGET CUDA::toolkit)
    add_library(CUDA::toolkit INTERFACE IMPORTED GLOBAL)
    target_include_directories(CUDA::toolkit INTERFACE ${ESCROW_CUDA_INCLUDE_DIR})
  endif()
endif()
set(escrow_cudart_missing "the CUDA Toolkit 12.8 or newer, with the library cudart, was not found")
if(NOT TARGET CUDA::toolkit)
  set(escrow_cuda_missing "CUDA's headers are missing: install the CUDA Toolkit 12.8 or newer, or set \
ESCROW_CUDA_INCLUDE_DIR to a folder that has its headers")
endif()
