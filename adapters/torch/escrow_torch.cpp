// SPDX-License-Identifier: Apache-2.0
// Memory for PyTorch: a stream_allocator for each device, and the graphs that were captured on it.
#include "escrow_torch.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <escrow/core/capture.hpp>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/internal/device.hpp>
#include <escrow/internal/never_destroyed.hpp>
#include <escrow/pool.hpp>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "without_gil.hpp"
#include "without_place.hpp"

namespace {

using escrow::check;
using escrow::device_scope;  // the default stream's handle is the same for each device
using escrow::relaxed_capture_scope;
using escrow::stream_allocator;

struct device_memory {
  std::mutex mutex;  // guards the rest, but for reads of `made`
  escrow::pool_options options{.label = "torch"};
  escrow::scratch_policy policy;
  // Release and acquire: whoever uses it has what its constructor wrote. Never destroyed.
  std::atomic<stream_allocator*> made{nullptr};

  // Guards `spare`; taken after `mutex`. Held across cudaFree: who waits for it has the byte, too.
  std::mutex spare_mutex;
  void* spare = nullptr;  // a byte on the device, for wait_for()
};

constexpr std::size_t devices_max = 128;

std::array<device_memory, devices_max>& all_devices() {
  static escrow::never_destroyed<std::array<device_memory, devices_max>> devices;
  return *devices;
}

device_memory& of_device(int device) {
  if (device >= 0 && static_cast<std::size_t>(device) < devices_max) {
    return all_devices()[static_cast<std::size_t>(device)];  // NOLINT: checked
  }
  throw escrow::usage_error("escrow_torch", "`device` is " + std::to_string(device),
                            "pass the index of a device");
}

stream_allocator* find(device_memory& its) noexcept {
  return its.made.load(std::memory_order_acquire);
}

// With the device current and in Relaxed mode, under the lock. The device may lack memory.
void make_spare(device_memory& its) noexcept {
  if (its.spare == nullptr) static_cast<void>(escrow::succeeded(cudaMalloc(&its.spare, 1)));
}

// Waits for the current device as cudaFree does, which in Relaxed mode invalidates no capture.
void wait_for(device_memory& its) {
  std::lock_guard const lock(its.spare_mutex);
  relaxed_capture_scope const relaxed;
  make_spare(its);
  if (its.spare == nullptr) return check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaFree(std::exchange(its.spare, nullptr)), "cudaFree");
  make_spare(its);
}

stream_allocator& allocator_of(int device) {
  device_memory& its = of_device(device);
  if (stream_allocator* const made = find(its)) return *made;
  escrow::without_gil const others_run;
  std::lock_guard const lock(its.mutex);
  if (stream_allocator* const made = find(its)) return *made;
  its.options.device = device;
  auto made = std::make_unique<stream_allocator>(its.options, its.policy);
  device_scope const current(device);
  relaxed_capture_scope const relaxed;
  std::lock_guard const spare_lock(its.spare_mutex);
  make_spare(its);  // while there is memory
  its.made.store(made.get(), std::memory_order_release);
  return *made.release();
}

// A graph whose references are held for the Python object that launches it.
struct held_graph {
  escrow::hoisted references;
  int device;
  bool is_open = false;  // a launch was begun, and its end is not known
};

held_graph& as_held(void* held) {
  if (held != nullptr) return *static_cast<held_graph*>(held);
  throw escrow::usage_error("escrow_torch", "`held` is null", "hoist the graph first");
}

// After a launch that failed, or whose end is not known. If its stream is being captured, it stays
// open, and what comes next refuses that.
void leave_failed(held_graph& its) noexcept {
  if (!its.is_open) return;
  try {
    its.references.leave();
  } catch (std::exception const&) {  // it was left before, and its end is not known
  }
}

void record_on(stream_allocator& its, void* memory, cudaStream_t stream) {
  // Throws for the legacy stream while a blocking stream captures: its work could not be recorded.
  if (escrow::capture_of(stream).status == escrow::capture_status::invalidated) {
    throw escrow::usage_error("escrow_torch_record_stream",
                              "the capture of `stream` has been invalidated",
                              "end it, and record the tensor's use again");
  }
  its.record_stream(stream, memory);
}

using allocate_function = void* (stream_allocator::*)(escrow::stream_ref, std::size_t, std::size_t,
                                                      escrow::source_location);
// How this thread allocates: see escrow_torch_keep().
thread_local allocate_function allocate_now = &stream_allocator::allocate;

void* allocate(std::size_t bytes, int device, cudaStream_t stream, allocate_function how) {
  stream_allocator& its = allocator_of(device);
  escrow::without_gil const others_run(escrow::without_gil::python::if_known);
  device_scope const current(device);
  return (its.*how)(stream, bytes, stream_allocator::default_alignment,
                    escrow::source_location::current());
}

// Twice if need be, since nobody else will: the failure may not repeat. Misuse does, and by then
// its address may be another caller's.
template <class Call>
void or_report(char const* function, Call call) noexcept {
  for (bool is_last : {false, true}) {
    try {
      return call();
    } catch (std::exception const& error) {
      is_last |= dynamic_cast<escrow::usage_error const*>(&error) != nullptr;
      if (!is_last) continue;
      static_cast<void>(std::fprintf(stderr, "%s: %s\n", function, escrow::without_place(error)));
      return;
    }
  }
}

std::string& stats_text() {
  thread_local std::string text;
  return text;
}

std::array<char, 4096>& error_text() noexcept {
  thread_local std::array<char, 4096> text{};
  return text;
}

// What `call` returns; if it throws, `failed`.
template <class Result, class Call>
Result or_failed(Result failed, Call call) noexcept {
  try {
    return call();
  } catch (std::exception const& error) {
    auto& text = error_text();
    static_cast<void>(std::snprintf(text.data(), text.size(), "%s", escrow::without_place(error)));
    return failed;
  }
}

constexpr int failed = -1;

}  // namespace

void* escrow_torch_allocate(std::size_t bytes, int device, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  try {
    return allocate(bytes, device, stream, allocate_now);
  } catch (escrow::pool_exhausted const& error) {
    throw std::runtime_error(std::string("CUDA out of memory: ") + escrow::without_place(error));
  }
}

void escrow_torch_free(void* memory, std::size_t /*bytes*/, int device,
                       cudaStream_t stream) noexcept {
  or_report("escrow_torch_free", [&] {
    stream_allocator& its = allocator_of(device);
    std::optional<device_scope> current;
    try {
      if (escrow::is_ambiguous(stream)) current.emplace(device);
    } catch (escrow::cuda_error const& error) {  // a callback has no current device, and needs none
      if (error.status() != cudaErrorNotPermitted) throw;
    }
    its.deallocate(stream, memory);
  });
}

void escrow_torch_record_stream(void* memory, cudaStream_t stream) {
  for (device_memory& its : all_devices()) {
    stream_allocator* const made = find(its);
    if (made == nullptr || !made->is_allocated(memory)) continue;
    record_on(*made, memory, stream);
    if (!escrow::is_ambiguous(stream)) return;
    device_scope const current(made->device());  // see the header
    return record_on(*made, memory, stream);
  }
}

void escrow_torch_empty_cache() {
  escrow::without_gil const others_run;
  for (device_memory& its : all_devices()) {
    if (stream_allocator* const made = find(its)) made->pool().trim();
  }
}

void* escrow_torch_allocate_segment(std::size_t bytes, int device, cudaStream_t stream) {
  try {
    return allocate(bytes, device, stream, &stream_allocator::allocate);
  } catch (escrow::pool_exhausted const&) {
    return nullptr;
  } catch (escrow::cuda_error const& error) {
    if (error.status() == cudaErrorMemoryAllocation) return nullptr;
    throw;
  }
}

void escrow_torch_free_segment(void* memory, std::size_t /*bytes*/, int device,
                               cudaStream_t /*stream*/) noexcept {
  escrow::without_gil const others_run;
  or_report("escrow_torch_free_segment", [&] {
    device_scope const current(device);
    wait_for(of_device(device));
    allocator_of(device).deallocate(memory);
  });
}

char const* escrow_torch_error() noexcept {
  return error_text().data();
}

int escrow_torch_configure(int device, std::size_t bytes_max, char const* label, char const* group,
                           int streams_outlive) noexcept {
  escrow::without_gil const others_run;
  return or_failed(failed, [&] {
    device_memory& its = of_device(device);
    std::lock_guard const lock(its.mutex);
    if (find(its) != nullptr) {
      throw escrow::usage_error("escrow_torch_configure",
                                "device " + std::to_string(device) + " has its allocator already",
                                "configure before the first allocation on the device");
    }
    escrow::pool_options options = its.options;
    if (label != nullptr) options.label = label;
    options.group.reset();
    if (group != nullptr) options.group.emplace(escrow::sharing_options{.label = group});
    options.streams_outlive_pool = streams_outlive != 0;
    its.options = options;
    its.policy.bytes_max = bytes_max;
    return 0;
  });
}

int escrow_torch_keep(int is_kept) noexcept {
  constexpr allocate_function kept = &stream_allocator::allocate_kept;
  constexpr allocate_function usual = &stream_allocator::allocate;
  return std::exchange(allocate_now, is_kept != 0 ? kept : usual) == kept ? 1 : 0;
}

char const* escrow_torch_stats(int device) noexcept {
  escrow::without_gil const others_run;
  return or_failed(static_cast<char const*>(nullptr), [&] {
    std::string& text = stats_text();
    device_memory& its = of_device(device);
    stream_allocator* const made = find(its);
    std::lock_guard const lock(its.mutex);
    auto const memory = made != nullptr ? made->pool().stats() : escrow::scratch_stats{};
    text = R"({"memory": )" + to_json(memory) + R"(, "deleter": )" +
           to_json(escrow::deleter::global().stats());
    if (its.options.group) text += R"(, "group": )" + to_json(its.options.group->stats());
    text += "}";
    return text.c_str();
  });
}

long long escrow_torch_trim(int device, std::size_t keep_bytes) noexcept {
  escrow::without_gil const others_run;
  return or_failed(-1LL, [&] {
    stream_allocator* const made = find(of_device(device));
    return made != nullptr ? static_cast<long long>(made->pool().trim(keep_bytes)) : 0LL;
  });
}

namespace {

bool has_group(device_memory& its) {
  std::lock_guard const lock(its.mutex);
  return its.options.group.has_value();
}

// What `call` returns for the device's sharing group; -1 if there is none, or it throws.
template <class Call>
long long of_group(int device, char const* name, Call call) noexcept {
  escrow::without_gil const others_run;
  return or_failed(-1LL, [&] {
    device_memory& its = of_device(device);
    std::optional<escrow::sharing_group> group;
    {
      std::lock_guard const lock(its.mutex);
      group = its.options.group;
    }
    if (!group) {
      throw escrow::usage_error(name, "device " + std::to_string(device) + " has no group",
                                "configure(group=...) before the first allocation");
    }
    return static_cast<long long>(call(*group));
  });
}

}  // namespace

long long escrow_torch_park(int device, int keep_contents, double wait_max_s) noexcept {
  constexpr double most = 1e9;
  auto const wait_max = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::clamp(wait_max_s, 0.0, most)));
  return of_group(device, "escrow_torch_park", [&](escrow::sharing_group const& its) {
    return its.park({.keep_contents = keep_contents != 0, .wait_max = wait_max});
  });
}

long long escrow_torch_unpark(int device) noexcept {
  return of_group(device, "escrow_torch_unpark",
                  [](escrow::sharing_group const& its) { return its.unpark(); });
}

void* escrow_torch_hoist(cudaGraph_t graph) noexcept {
  escrow::without_gil const others_run;
  return or_failed(static_cast<void*>(nullptr), [&]() -> void* {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    escrow::hoisted references = escrow::hoist(graph);
    if (!references.is_bare() && has_group(of_device(device))) {
      references.release();  // nobody can have launched it
      throw escrow::usage_error(
          "escrow_torch_hoist",
          "a body of a conditional node may use memory of the group, in whose "
          "turn the graph would not be launched",
          "if no body allocates, capture it by torch.cuda.graph, after exclude(graph)");
    }
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): handled by or_failed
    auto* const made = new held_graph{.references = std::move(references), .device = device};
    made->references.launches_in_turn();  // Graph's hooks
    return made;
  });
}

int escrow_torch_enter(void* held, cudaStream_t stream) noexcept {
  escrow::without_gil const others_run;
  return or_failed(failed, [&] {
    held_graph& its = as_held(held);
    device_scope const current(its.device);
    leave_failed(its);
    its.references.enter(stream);
    its.is_open = true;
    return 0;
  });
}

int escrow_torch_leave(void* held) noexcept {
  escrow::without_gil const others_run;
  return or_failed(failed, [&] {
    held_graph& its = as_held(held);
    device_scope const current(its.device);
    its.references.leave();
    its.is_open = false;
    return 0;
  });
}

int escrow_torch_release(void* held) noexcept {
  escrow::without_gil const others_run;
  return or_failed(failed, [&] {
    held_graph& its = as_held(held);
    device_scope const current(its.device);
    if (its.is_open) wait_for(of_device(its.device));
    leave_failed(its);
    its.references.release();
    delete &its;
    return 0;
  });
}
