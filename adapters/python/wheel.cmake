# SPDX-License-Identifier: Apache-2.0
# What the wheel has: escrow with its module and libescrow, and escrow_torch beside it.
set(ESCROW_WHEEL_SIMULATED "" CACHE FILEPATH "For tests where there is no GPU: libescrow_simulated.so, which the wheel then has instead")
set(library escrow)
set(torch escrow_torch)
set(library_name libescrow.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
if(ESCROW_WHEEL_SIMULATED)
  set(library escrow_built)
  set(torch escrow_torch_built)
  set(library_name libescrow_simulated.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  add_library(escrow_built SHARED IMPORTED GLOBAL)
  set_target_properties(escrow_built PROPERTIES IMPORTED_LOCATION ${ESCROW_WHEEL_SIMULATED})
  target_link_libraries(escrow_built INTERFACE CUDA::toolkit)
  foreach(part core deleter pool graph nodes)
    target_include_directories(escrow_built INTERFACE ${PROJECT_SOURCE_DIR}/${part}/include)
  endforeach()
  target_include_directories(escrow_built INTERFACE ${PROJECT_SOURCE_DIR}/include)
  escrow_torch(escrow_torch_built escrow_built)
endif()
python_module(escrow_python ${library})

# Where the CUDA runtime is, if nobody has loaded it before: in CUDA's packages, which PyTorch depends on, in older PyTorch's
# own folder, or, as in conda, in the environment's lib. Seen from a folder in site-packages.
set(runtime_folders
  $ORIGIN/../nvidia/cu${escrow_cuda_major}/lib $ORIGIN/../nvidia/cuda_runtime/lib $ORIGIN/../torch/lib $ORIGIN/../../..)
if(NOT ESCROW_WHEEL_SIMULATED)
  set_target_properties(escrow PROPERTIES
    EXCLUDE_FROM_ALL OFF VERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "${runtime_folders}")
  target_link_options(escrow PRIVATE -Wl,--no-as-needed)  # also a libcudart that is here by its name alone
  install(TARGETS escrow LIBRARY DESTINATION escrow NAMELINK_SKIP)
else()
  install(FILES ${ESCROW_WHEEL_SIMULATED} DESTINATION escrow RENAME ${library_name})
endif()
set_target_properties(${torch} PROPERTIES INSTALL_RPATH "$ORIGIN/../escrow;${runtime_folders}" OUTPUT_NAME escrow_torch)

add_custom_target(escrow_wheel DEPENDS escrow_python ${torch})
install(TARGETS escrow_python LIBRARY DESTINATION escrow)
install(FILES ${python_files} DESTINATION escrow)
install(TARGETS ${torch} LIBRARY DESTINATION escrow_torch)
install(FILES ../torch/escrow_torch/__init__.py ../torch/escrow_torch/_replaced.py DESTINATION escrow_torch)
