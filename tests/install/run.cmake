# Installs the build tree BUILD_DIR into a fresh folder, builds the consumer against it, and runs its examples.
set(prefix ${BUILD_DIR}/install-test/prefix)
set(consumer ${BUILD_DIR}/install-test/consumer)
file(REMOVE_RECURSE ${BUILD_DIR}/install-test)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${consumer} -G Ninja
  -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=${CXX_FLAGS}
  -DESCROW_CUDA_INCLUDE_DIR=${CUDA_INCLUDE_DIR})
run(${CMAKE_COMMAND} --build ${consumer})
run(${consumer}/main)
run(${consumer}/own_launch)
