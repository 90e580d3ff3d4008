# What the wheel has: escrow with its module and libescrow, and escrow_torch beside it. With ESCROW_WHEEL_SIMULATED all is
# on the simulated runtime, for tests where there is no GPU.
option(ESCROW_WHEEL_SIMULATED "Build the wheel on the simulated runtime" OFF)
if(ESCROW_WHEEL_SIMULATED)
  set(library escrow_simulated)
  set(torch escrow_torch_simulated)
elseif(TARGET escrow)
  set(library escrow)
  set(torch escrow_torch)
else()
  message(FATAL_ERROR "CUDA's headers are missing: install the CUDA Toolkit 12.8 or newer, or PyPI's nvidia-cuda-runtime")
endif()
python_module(escrow_python ${library})

# Where the CUDA runtime is, if nobody has loaded it before: in PyTorch's dependencies, in CUDA's own packages, or, as in
# conda, in the environment's lib. Seen from the folder escrow in site-packages.
set(runtime_folders
  $ORIGIN/../nvidia/cu${escrow_cuda_major}/lib $ORIGIN/../nvidia/cuda_runtime/lib $ORIGIN/../torch/lib $ORIGIN/../../..)
set_target_properties(${library} PROPERTIES EXCLUDE_FROM_ALL OFF INSTALL_RPATH "${runtime_folders}" VERSION ""
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
list(TRANSFORM runtime_folders REPLACE "^(.ORIGIN)" "\\1/../escrow/.." OUTPUT_VARIABLE from_torch)
set_target_properties(${torch} PROPERTIES INSTALL_RPATH "$ORIGIN/../escrow;${from_torch}" OUTPUT_NAME escrow_torch)

add_custom_target(escrow_wheel DEPENDS escrow_python ${torch})
install(TARGETS ${library} LIBRARY DESTINATION escrow NAMELINK_SKIP)
install(TARGETS escrow_python LIBRARY DESTINATION escrow)
install(FILES ${python_files} DESTINATION escrow)
install(TARGETS ${torch} LIBRARY DESTINATION escrow_torch)
install(FILES ../torch/escrow_torch/__init__.py DESTINATION escrow_torch)
