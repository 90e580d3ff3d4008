# SPDX-License-Identifier: Apache-2.0
# For the wheel: CUDA's headers and runtime of the toolkit, or of PyPI's packages. It links libcudart by its name alone, so a
# machine with headers and nothing else can build it.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
# Those that are installed, then those that the build has got for itself. Some packages lack the folder crt.
execute_process(OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND ${Python_EXECUTABLE} -c "
import pathlib, site, sys, sysconfig
for place in [sysconfig.get_path('purelib'), site.getusersitepackages(), *sys.path]:
    for folder in sorted(pathlib.Path(place or '.').glob('nvidia/*/include'), reverse=True):
        if all((folder / name).exists() for name in ('cuda_runtime_api.h', 'crt/host_defines.h', 'cuda.h')):
            print(folder)")
string(REPLACE "\n" ";" found "${found}")
list(APPEND CMAKE_INCLUDE_PATH ${found})

include(cmake/EscrowCuda.cmake)
if(NOT TARGET CUDA::cudart AND escrow_cuda_major)
  message(STATUS "libcudart.so.${escrow_cuda_major} is not here: linked by its name")
  file(WRITE ${PROJECT_BINARY_DIR}/cudart_by_name.cpp "// Its name is what is linked.\n")
  add_library(escrow_cudart_by_name SHARED ${PROJECT_BINARY_DIR}/cudart_by_name.cpp)
  set_target_properties(escrow_cudart_by_name PROPERTIES
    OUTPUT_NAME cudart SOVERSION ${escrow_cuda_major} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cudart_by_name)
  target_link_libraries(escrow_cudart_by_name INTERFACE CUDA::toolkit)
  add_library(CUDA::cudart ALIAS escrow_cudart_by_name)
endif()
