# SPDX-License-Identifier: Apache-2.0
# Target docs: the reference and the pages as HTML, in docs/html of the build folder. Warnings are errors.
find_package(Doxygen 1.9 QUIET)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT DOXYGEN_FOUND OR NOT Python3_FOUND)
  message(STATUS "There is no target docs: Doxygen 1.9 or newer, or Python 3, was not found")
  return()
endif()
set(escrow_doxyfile ${PROJECT_BINARY_DIR}/Doxyfile)
configure_file(docs/reference/Doxyfile.in ${escrow_doxyfile} @ONLY)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
add_custom_target(docs
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${PROJECT_BINARY_DIR}/docs/html
  COMMAND Doxygen::doxygen ${escrow_doxyfile}
  COMMAND ${CMAKE_COMMAND} -E echo "${PROJECT_BINARY_DIR}/docs/html/index.html"
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  VERBATIM)
