// SPDX-License-Identifier: Apache-2.0
// The C API of scratch memory.
#include "calls.hpp"
#include "escrow/pool/memory_report.hpp"
#include "escrow/pool/stream_allocator.hpp"

using namespace escrow;

struct escrow_allocator : in_handle_memory<escrow_allocator> {
  stream_allocator held;
};

namespace {

std::size_t alignment_of(std::size_t given) noexcept {
  return given == 0 ? stream_allocator::default_alignment : given;
}

using allocate_function = void* (stream_allocator::*)(stream_ref, std::size_t, std::size_t,
                                                      source_location);

escrow_status allocate(char const* function, allocate_function how, escrow_allocator* allocator,
                       cudaStream_t stream, size_t bytes, size_t alignment, void** memory) {
  return run_claim(function, [&](c_call by) {
    void*& result = by.need(memory, "memory");
    stream_allocator& from = by.need(allocator, "allocator").held;
    result = (from.*how)(stream, bytes, alignment_of(alignment), by.where);
  });
}

}  // namespace

escrow_status escrow_allocator_create(int device, escrow_options const* options,
                                      escrow_allocator** allocator) {
  return run_without_gil(__func__, [&](c_call by) {
    escrow_allocator*& result = by.need(allocator, "allocator");
    escrow_options const given = by.options(options);
    scratch_policy policy;
    if (given.bytes_max != 0) policy.bytes_max = given.bytes_max;
    policy.idle_max = time_of(given.idle_max_ns);
    if (given.pinned_host != 0) policy.source = memory_source::pinned_host();
    result = new escrow_allocator{{}, stream_allocator(pool_options_of(by, device, given), policy)};
  });
}

void escrow_allocator_destroy(escrow_allocator* allocator) {
  destroy_without_gil(__func__, allocator);
}

escrow_status escrow_allocator_allocate(escrow_allocator* allocator, cudaStream_t stream,
                                        size_t bytes, size_t alignment, void** memory) {
  return allocate(__func__, &stream_allocator::allocate, allocator, stream, bytes, alignment,
                  memory);
}

escrow_status escrow_allocator_allocate_for_host(escrow_allocator* allocator, cudaStream_t stream,
                                                 size_t bytes, size_t alignment, void** memory) {
  return allocate(__func__, &stream_allocator::allocate_for_host, allocator, stream, bytes,
                  alignment, memory);
}

escrow_status escrow_allocator_allocate_kept(escrow_allocator* allocator, cudaStream_t stream,
                                             size_t bytes, size_t alignment, void** memory) {
  return allocate(__func__, &stream_allocator::allocate_kept, allocator, stream, bytes, alignment,
                  memory);
}

escrow_status escrow_allocator_free(escrow_allocator* allocator, cudaStream_t stream,
                                    void* memory) {
  return run(__func__,
             [&](c_call by) { by.need(allocator, "allocator").held.deallocate(stream, memory); });
}

escrow_status escrow_allocator_record_stream(escrow_allocator* allocator, cudaStream_t stream,
                                             void* memory) {
  return run(__func__, [&](c_call by) {
    by.need(allocator, "allocator").held.record_stream(stream, memory);
  });
}

escrow_status escrow_allocator_allocate_sync(escrow_allocator* allocator, size_t bytes,
                                             size_t alignment, void** memory) {
  return run_claim(__func__, [&](c_call by) {
    void*& result = by.need(memory, "memory");
    result =
        by.need(allocator, "allocator").held.allocate(bytes, alignment_of(alignment), by.where);
  });
}

escrow_status escrow_allocator_free_sync(escrow_allocator* allocator, void* memory) {
  return run(__func__, [&](c_call by) { by.need(allocator, "allocator").held.deallocate(memory); });
}

escrow_status escrow_allocator_leave_to_graph(escrow_allocator* allocator, void* memory) {
  return run(__func__, [&](c_call by) {
    stream_allocator& from = by.need(allocator, "allocator").held;
    static_cast<void>(by.need(static_cast<char*>(memory), "memory"));
    from.leave_to_graph(memory);
  });
}

escrow_status escrow_allocator_trim(escrow_allocator* allocator, size_t keep_bytes,
                                    size_t* freed_bytes) {
  return run_without_gil(__func__, [&](c_call by) {
    size_t& result = by.need(freed_bytes, "freed_bytes");
    result = by.need(allocator, "allocator").held.pool().trim(keep_bytes);
  });
}

escrow_status escrow_allocator_flush(escrow_allocator* allocator, cudaStream_t stream) {
  return run_without_gil(__func__, [&](c_call by) {
    scratch_pool& its = by.need(allocator, "allocator").held.pool();
    by.refuse_capturing(stream);
    its.on(stream).flush();
  });
}

escrow_status escrow_allocator_close(escrow_allocator* allocator, uint64_t timeout_ns,
                                     size_t* holders) {
  return run_without_gil(__func__, [&](c_call by) {
    size_t& result = by.need(holders, "holders");
    result = by.need(allocator, "allocator").held.pool().close_for(time_of(timeout_ns)).size();
  });
}

escrow_status escrow_allocator_statistics(escrow_allocator* allocator,
                                          escrow_allocator_stats* stats) {
  return run(__func__, [&](c_call by) {
    scratch_stats const now = by.need(allocator, "allocator").held.pool().stats();
    by.copy_stats({.size = 0,
                   .bytes = now.bytes,
                   .bytes_in_use = now.bytes_in_use,
                   .bytes_idle = now.bytes_idle,
                   .bytes_in_graphs = now.bytes_in_graphs,
                   .bytes_peak = now.bytes_peak,
                   .grown = now.grown,
                   .returned = now.returned},
                  stats);
  });
}

escrow_status escrow_allocator_describe(escrow_allocator* allocator, char* text, size_t capacity,
                                        size_t* length) {
  return run(__func__, [&](c_call by) {
    by.copy_text(by.need(allocator, "allocator").held.pool().describe(), text, capacity, length);
  });
}

escrow_status escrow_memory_report(char* text, size_t capacity, size_t* length) {
  return run(__func__,
             [&](c_call by) { by.copy_text(describe(report_memory()), text, capacity, length); });
}

escrow_status escrow_memory_report_json(char* text, size_t capacity, size_t* length) {
  return run(__func__,
             [&](c_call by) { by.copy_text(to_json(report_memory()), text, capacity, length); });
}

escrow_status escrow_process_statistics(int device, escrow_process_stats* stats) {
  return run(__func__, [&](c_call by) {
    static_cast<void>(by.need(stats, "stats"));
    if (device < -1) by.refuse("device", "is no device", "pass one, or -1 for all");
    memory_report const report = report_memory();
    escrow_process_stats now{};
    auto const is_asked = [device](auto const& of) { return device < 0 || of.device == device; };
    for (device_memory const& each : report.devices) {
      if (is_asked(each)) now.bytes_reserved += each.reserved + each.ranges + each.arenas;
    }
    for (pool_memory const& each : report.pools) {
      if (!is_asked(each)) continue;
      ++now.pools;
      now.bytes += each.bytes.bytes;
      now.bytes_in_use += each.bytes.bytes_in_use;
      now.bytes_idle += each.bytes.bytes_idle;
      now.bytes_in_graphs += each.bytes.bytes_in_graphs;
    }
    for (group_layout const& each : report.groups) {
      if (!is_asked(each)) continue;
      ++now.groups;
      now.bytes_in_arenas += each.bytes;
    }
    now.graphs = report.graphs.size();
    now.execs = report.execs;
    by.copy_stats(now, stats);
  });
}
