# SPDX-License-Identifier: Apache-2.0
# What does not compile is refused in one error of few lines that says why: calls, and public headers in a program that
# Escrow does not support.
#   cmake -DCOMPILER=... -DPARTS=folder of the parts -DSOURCE=file to write -DINCLUDES=options, with | between -P refused.cmake
string(REPLACE "|" ";" folders "${INCLUDES}")

# Compiles with these options. An error looks like `error` and has `text` in it.
function(expect_refusal what error text lines_max)
  execute_process(COMMAND ${COMPILER} -fsyntax-only ${folders} ${ARGN} ERROR_VARIABLE said RESULT_VARIABLE status)
  string(REPLACE ";" "," said "${said}")
  string(REGEX REPLACE "(In file included|  +from )[^\n]*\n" "" said "${said}")
  string(REGEX MATCHALL "[^\n]*error: ${error}[^\n]*" errors "${said}")
  string(REGEX MATCHALL "\n" lines "${said}")
  list(LENGTH errors error_count)
  list(LENGTH lines line_count)
  if(text STREQUAL "compiles" AND status EQUAL 0)
    return()
  endif()
  if(status EQUAL 0 OR NOT error_count EQUAL 1 OR NOT errors MATCHES "${text}" OR line_count GREATER lines_max)
    message(FATAL_ERROR "${what}: ${error_count} errors in ${line_count} lines, not one of at most ${lines_max} that says: ${text}\n${said}")
  endif()
endfunction()

# Every public header.
set(old_standard "Escrow needs C\\+\\+20: compile with -std=c\\+\\+20")
# A null stream would be another one than the library's.
set(other_stream "Escrow does not support CUDA_API_PER_THREAD_DEFAULT_STREAM: pass cudaStreamPerThread")
file(GLOB umbrellas ${PARTS}/*/include/escrow/*.hpp)
list(FILTER umbrellas EXCLUDE REGEX "/sim/|version.hpp$")
file(GLOB others ${PARTS}/*/include/escrow/*/*.hpp)
list(FILTER others EXCLUDE REGEX "/sim/")
foreach(header IN LISTS umbrellas others)
  expect_refusal(${header} "(#error )?\"" "${old_standard}" 30 -std=c++17 -x c++ -include ${header} /dev/null)
endforeach()
foreach(header IN LISTS umbrellas)
  expect_refusal(${header} "(#error )?\"" "${other_stream}" 30 -std=c++20 -DCUDA_API_PER_THREAD_DEFAULT_STREAM
    -x c++ -include ${header} /dev/null)
endforeach()

set(frees_nothing "the owner frees nothing")
set(cannot_convert "an argument cannot be converted to the type of the kernel's parameter")
set(too_few "as many arguments as the kernel has parameters")
set(host_memory "std::default_delete owns host memory")

# Calls, each followed by the text of its error. The first ones compile.
set(cases
  "launch(stream, function, config, shared, 1), place.add(kernel_node(function, config, shared, 1)), \
launch(stream, function, config, std::move(device), 1), worker.retire(stream, shared), \
worker.retire(plain_graph, std::move(unique)), retain(stream, shared), worker.retire(stream, owned_stream()), \
worker.retire(stream, std::unique_ptr<void, frees_device_memory>()), retain(stream, std::shared_ptr<void>(shared)), \
worker.retire(std::unique_ptr<void, frees_device_memory>()), \
static_cast<void>(make_stream_shared<int>(1))" "compiles"
  # Owners.
  "worker.retire(stream)" "${frees_nothing}"
  "worker.retire(plain)" "${frees_nothing}"
  "worker.retire(plain_graph)" "${frees_nothing}"
  "worker.retire(event)" "${frees_nothing}"
  "worker.retire(stream, address)" "${frees_nothing}"
  "worker.retire(stream, unique.get())" "${frees_nothing}"
  "worker.retire(stream, event)" "${frees_nothing}"
  "worker.retire(plain_graph, exec)" "${frees_nothing}"
  "worker.retire_after(event_ref(event), address)" "${frees_nothing}"
  "worker.retire_after(escrow::event(), address)" "${frees_nothing}"
  "escrow::event done\; worker.retire_after(done, std::move(unique))" "std::move the event into the call"
  "retain(stream, plain)" "${frees_nothing}"
  "retain(stream, address)" "${frees_nothing}"
  "worker.retire(stream, std::weak_ptr<int>(shared))" "a std::weak_ptr keeps nothing alive"
  "worker.retire(stream, unique)" "the owner cannot be copied, or is const"
  "struct throws { std::unique_ptr<int> its\; ~throws() noexcept(false) {} }\; worker.retire(stream, throws())" "owner's destructor must not throw"
  "worker.retire(stream, [shared] {})" "the owner is destroyed, and not called"
  "retain(stream, [shared] {})" "the owner is destroyed, and not called"
  "static_cast<void>(make_stream_shared<float*>(address))" "a pointer or CUDA handle frees nothing"
  "record_stream(address, stream)" "no matching function"
  "worker.retire_after(event_ref(event))" "no matching (member )?function"
  # Arguments in another order: the declaration, which compilers show, says which one is the first.
  "worker.retire(std::move(unique), plain)" "deleted (member )?function .*retire"
  "scratch_pool().claim(16, plain)" "deleted (member )?function .*claim"
  "scratch_pool().claim<float>(numbers[0], stream)" "deleted (member )?function .*claim"
  "device_block(std::move(*scratch_pool().claim(stream, 16)))" "deleted"
  # Launches.
  "launch(nullptr, function, config, shared, 1)" "takes a stream first: a cudaStream_t"
  "launch(stream, function, dim3(1), dim3(1), shared, 1)" "takes .\\.grid = ..., .block = .... third"
  "launch(stream, kernel(function), shared, 1)" "takes .\\.grid = ..., .block = .... third"
  "launch(function, {.grid = {1}}, stream, shared, 1)" "takes a stream first, then the kernel"
  # Arguments of kernels.
  "launch(stream, function, config, shared)" "${too_few}"
  "place.add(kernel_node(function, config, shared, 1, 2))" "${too_few}"
  "built.set(kernel_node(function, config))" "${too_few}"
  "set(instance, built, kernel_node(function, config, shared))" "${too_few}"
  "launch(stream, function, config, other, 1)" "${cannot_convert}"
  "launch(stream, function, config, address, 1)" "${cannot_convert}"
  "built.set(kernel_node(function, config, 1, 1))" "${cannot_convert}"
  "launch(stream, function, config, shared, 1.5F)" "a floating-point argument would become an integer"
  "launch(stream, function, config, untyped, 1)" "a void. is not passed for a typed pointer"
  "place.add(kernel_node(function, config, untyped, 1))" "a void. is not passed for a typed pointer"
  "launch(stream, function, config, numbers, 1)" "an array is passed by the address of its first element: &array.0."
  "place.add(kernel_node(function, config, numbers, 1))" "an array is passed by the address of its first element"
  "launch(stream, function, config, std::move(unique), 1)" "${host_memory}"
  "launch(stream, kernel(function), config, std::move(array), 1)" "${host_memory}"
  "place.add(kernel_node(function, config, std::move(unique), 1))" "${host_memory}"
  "place.add(kernel_node(function, config, device, 1))"
  "the owner of this argument cannot be shared: std::move it into the launch"
  "escrow::capture(stream, [](int*) {})" "called with an escrow::stream_ref, or with nothing"
  "escrow::capture(stream, [] { return 1\; })" "returns nothing, or a cudaError_t"
  "sharing_group().run(stream, [](stream_ref) { return true\; })" "returns nothing, or a cudaError_t"
  "place.add(memset_node(constant, {}))" "no memory that can be written"
  "place.add(whole)" "a graph becomes a part by child_node.graph."
  "built.set(alloc_node(4))" "CUDA changes no other node"
  "set(instance, built, alloc_node(4))" "an exec changes no such node"
  "resource_pool<int>({}, [](int) { return 1\; })" "`make. takes nothing, returns a T, as of resource_pool<T>"
  "resource_pool<int>({}, [] { return 1\; }, [](int) {})" "`recycle. takes .T&, stream_ref."
  "resource_pool<int>({}, [] { return 1\; }, {}, [] {})" "`destroy. takes a T&"
  "launch(stream, kernel(function), config, std::string())"
  "kernels take values that can be copied bytewise, specialise")

set(begin [[
#include <memory>
#include <string>
using namespace escrow;
struct owned_stream {
  ~owned_stream();
  owned_stream(owned_stream&&) noexcept;
  owned_stream();
  cudaStream_t get() const;
};
struct frees_device_memory {
  void operator()(int* address) const noexcept;
  void operator()(void* address) const noexcept;
};
void refused(stream_ref stream, cudaStream_t plain, cudaEvent_t event, cudaGraph_t plain_graph,
             cudaGraphExec_t exec, deleter& worker, void (*function)(int*, int),
             graph_builder_ref const& place, node const& built, graph_exec& instance,
             std::shared_ptr<int> shared, std::unique_ptr<int> unique, std::unique_ptr<int[]> array,
             std::unique_ptr<int, frees_device_memory> device, std::shared_ptr<float> other,
             void* untyped, float* address, int (&numbers)[4], int const* constant,
             graph const& whole) {
  launch_config const config;
]])

# The headers, which take most of the time, are compiled once.
set(header ${SOURCE}.hpp)
file(WRITE ${header} "#include <escrow/deleter.hpp>\n#include <escrow/nodes.hpp>\n#include <escrow/pool.hpp>\n")
execute_process(COMMAND ${COMPILER} -std=c++20 ${folders} -x c++-header ${header} -o ${header}.gch
  COMMAND_ERROR_IS_FATAL ANY)
list(LENGTH cases count)
math(EXPR last "${count} - 1")
foreach(at RANGE 0 ${last} 2)
  math(EXPR next "${at} + 1")
  list(GET cases ${at} call)
  list(GET cases ${next} text)
  file(WRITE ${SOURCE} "${begin}  ${call};\n}\n")
  expect_refusal("${call}" "" "${text}" 22 -std=c++20 -include ${header} ${SOURCE})
endforeach()
