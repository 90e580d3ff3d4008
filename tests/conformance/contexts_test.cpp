// SPDX-License-Identifier: Apache-2.0
// Which calls make a context on the current device of a thread that never chose one, where the
// process uses another device alone. Nearly all do, also about the other device's things. Each in a
// process of its own; needs two devices.
#include <cuda.h>

#include <string>
#include <thread>

#include "build_graph.hpp"
#include "child.hpp"
#include "driver_function.hpp"

namespace escrow::test {
namespace {

bool is_in_use(int device) {
  auto* const state_of = driver_function<CUresult(CUDAAPI*)(CUdevice, unsigned*, int*)>(
      "cuDevicePrimaryCtxGetState", 7000);
  unsigned flags = 0;
  int is_active = 0;
  must(state_of(device, &flags, &is_active) == CUDA_SUCCESS, "the state of a context");
  return is_active != 0;
}

struct things {
  owned_stream stream = make_stream();
  owned_event event = make_event();
  owned_graph graph = tiny_graph();
  owned_exec exec = instantiate(graph);
};
using call = cudaError_t (*)(things&);

// Device 1 is in use; `made` on another thread, whose current device is 0.
void expect_context(bool is_made, call made) {
  must(cudaSetDevice(1));
  things its;
  must(cudaEventRecord(its.event, its.stream));
  must(cudaStreamSynchronize(its.stream));
  must(!is_in_use(0) && is_in_use(1), "device 1 alone is in use");
  std::thread([&] {
    must(made(its));
    int device = -1;
    must(cudaGetDevice(&device));
    must(device == 0, "the current device");
  }).join();
  must(is_in_use(0) == is_made, is_made ? "it makes one" : "it makes none");
}

// `inside()` while the primary context of device 1 is pushed.
template <class Inside>
cudaError_t pushed(Inside inside) {
  auto* const retain =
      driver_function<CUresult(CUDAAPI*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain", 7000);
  auto* const release =
      driver_function<CUresult(CUDAAPI*)(CUdevice)>("cuDevicePrimaryCtxRelease", 11000);
  auto* const push = driver_function<CUresult(CUDAAPI*)(CUcontext)>("cuCtxPushCurrent", 4000);
  auto* const pop = driver_function<CUresult(CUDAAPI*)(CUcontext*)>("cuCtxPopCurrent", 4000);
  CUcontext context = nullptr;
  must(retain(&context, 1) == CUDA_SUCCESS && push(context) == CUDA_SUCCESS, "push");
  int device = -1;
  must(cudaGetDevice(&device));
  must(device == 1, "the runtime has the context's device");
  cudaError_t const status = inside();
  must(pop(&context) == CUDA_SUCCESS && release(1) == CUDA_SUCCESS, "pop");
  return status;
}

constexpr call get_device = [](things&) {
  int device = 0;
  return cudaGetDevice(&device);
};
constexpr call query = [](things& its) { return cudaEventQuery(its.event); };
constexpr call make_object = [](things&) {
  cudaUserObject_t object = nullptr;
  return cudaUserObjectCreate(
      &object, nullptr, [](void*) {}, 1, cudaUserObjectNoDestructorSync);
};
constexpr call get_id = [](things& its) {
  unsigned long long id = 0;
  return cudaStreamGetId(its.stream, &id);
};
constexpr call get_id_in_driver = [](things& its) {
  auto* const id_of =
      driver_function<CUresult(CUDAAPI*)(CUstream, unsigned long long*)>("cuStreamGetId", 12000);
  unsigned long long id = 0;
  return static_cast<cudaError_t>(id_of(its.stream, &id));
};
constexpr call exchange_mode = [](things&) {
  auto mode = cudaStreamCaptureModeRelaxed;
  return cudaThreadExchangeStreamCaptureMode(&mode);
};
constexpr call record = [](things& its) { return cudaEventRecord(its.event, its.stream); };
constexpr call wait = [](things& its) { return cudaStreamWaitEvent(its.stream, its.event, 0); };
constexpr call launch = [](things& its) { return cudaGraphLaunch(its.exec, its.stream); };
constexpr call make_graph = [](things&) {
  cudaGraph_t made = nullptr;
  return cudaGraphCreate(&made, 0);
};
constexpr call destroy_exec = [](things& its) {
  its.exec.reset();
  return cudaSuccess;
};
constexpr call destroy_event = [](things& its) {
  its.event.reset();
  return cudaSuccess;
};
constexpr call there_and_back = [](things&) {
  must(cudaSetDevice(1));
  return cudaSetDevice(0);
};
constexpr call make_event_there = [](things& its) {
  return pushed([&] {
    cudaEvent_t made = nullptr;
    must(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    return cudaEventRecord(made, its.stream);
  });
};

template <call made>
constexpr auto makes_one = [] { expect_context(true, made); };
template <call made>
constexpr auto makes_none = [] { expect_context(false, made); };

std::vector<named_case> const cases = register_cases({
    {"cudaGetDevice_makes_none", makes_none<get_device>},
    {"cudaEventQuery_makes_none", makes_none<query>},
    {"cudaUserObjectCreate_makes_none", makes_none<make_object>},
    {"cudaStreamGetId_makes_one", makes_one<get_id>},
    {"cuStreamGetId_makes_none", makes_none<get_id_in_driver>},
    {"cudaThreadExchangeStreamCaptureMode_makes_one", makes_one<exchange_mode>},
    {"cudaEventRecord_makes_one", makes_one<record>},
    {"cudaStreamWaitEvent_makes_one", makes_one<wait>},
    {"cudaGraphLaunch_makes_one", makes_one<launch>},
    {"cudaGraphCreate_makes_one", makes_one<make_graph>},
    {"cudaGraphExecDestroy_makes_one", makes_one<destroy_exec>},
    {"cudaEventDestroy_makes_one", makes_one<destroy_event>},
    {"cudaSetDevice_there_and_back_makes_one", makes_one<there_and_back>},
    {"a_context_that_is_pushed_makes_none", makes_none<make_event_there>},
});

using Contexts = case_of_two_devices;

TEST_P(Contexts, AreMadeAsItsNameSays) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Of, Contexts, testing::ValuesIn(cases), name_of_case);

}  // namespace
}  // namespace escrow::test
