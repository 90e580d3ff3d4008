# Whether clang-format would change a file. Versions differ in details; 14 is the one that counts.
execute_process(COMMAND ${CLANG_FORMAT} --version OUTPUT_VARIABLE version)
if(NOT version MATCHES "version 14\\.")
  message(STATUS "not checked: ${version}")
  return()
endif()
file(GLOB_RECURSE sources
  ${SOURCE_DIR}/core/*.?pp ${SOURCE_DIR}/deleter/*.?pp ${SOURCE_DIR}/pool/*.?pp
  ${SOURCE_DIR}/graph/*.?pp ${SOURCE_DIR}/nodes/*.?pp ${SOURCE_DIR}/sim/*.?pp
  ${SOURCE_DIR}/bench/*.?pp ${SOURCE_DIR}/examples/*.?pp ${SOURCE_DIR}/tests/*.?pp
  ${SOURCE_DIR}/tools/*.?pp)
list(FILTER sources EXCLUDE REGEX "/examples/scratch.cpp$")  # laid out for the README
execute_process(COMMAND ${CLANG_FORMAT} --dry-run -Werror ${sources} COMMAND_ERROR_IS_FATAL ANY)
