# Calls that do not compile: each is refused in one line of error that says why.
#   cmake -DCOMPILER=... -DSOURCE=file to write -DINCLUDES=folders, with | between -P refused.cmake
set(call_0 "launch(stream, function, config, shared, 1); place.add(kernel_node(function, config, shared, 1))")
set(text_0 "")  # compiles
set(call_1 "launch(stream, function, config, shared)")
set(text_1 "as many arguments as the kernel has parameters")
set(call_2 "place.add(kernel_node(function, config, shared, 1, 2))")
set(text_2 "as many arguments as the kernel has parameters")
set(call_3 "launch(stream, function, config, other, 1)")
set(text_3 "an argument cannot be converted to the type of the kernel's parameter")
set(call_4 "place.add(kernel_node(function, config, untyped, 1))")
set(text_4 "an argument cannot be converted to the type of the kernel's parameter")
set(call_5 "place.add(kernel_node(function, config, unique, 1))")
set(text_5 "the owner of this argument cannot be shared: std::move it into the launch")
set(call_6 "launch(stream, kernel(function), config, std::string())")
set(text_6 "kernels take values that can be copied bytewise, specialise")
set(last 6)

set(begin [[
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <string>
using namespace escrow;
void refused(stream_ref stream, void (*function)(int*, int), graph_builder_ref const& place,
             std::shared_ptr<int> shared, std::unique_ptr<int> unique,
             std::shared_ptr<float> other, void* untyped) {
  launch_config const config;
]])

string(REPLACE "|" ";" folders "${INCLUDES}")
list(TRANSFORM folders PREPEND -I)
foreach(case RANGE ${last})
  file(WRITE ${SOURCE} "${begin}  ${call_${case}};\n}\n")
  execute_process(
    COMMAND ${COMPILER} -std=c++20 -fsyntax-only ${folders} ${SOURCE}
    ERROR_VARIABLE said RESULT_VARIABLE status)
  string(REPLACE ";" "," said "${said}")
  string(REGEX MATCHALL "[^\n]*error:[^\n]*" errors "${said}")
  list(LENGTH errors count)
  if(text_${case} STREQUAL "")
    if(NOT status EQUAL 0)
      message(FATAL_ERROR "a call that is correct does not compile:\n${said}")
    endif()
  elseif(NOT count EQUAL 1 OR NOT errors MATCHES "${text_${case}}")
    message(FATAL_ERROR "case ${case}: ${count} errors, not one that says: ${text_${case}}\n${said}")
  endif()
endforeach()
