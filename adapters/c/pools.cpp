// SPDX-License-Identifier: Apache-2.0
// The C API of pools of a caller's resources.
#include <utility>

#include "calls.hpp"
#include "escrow/pool/resource_pool.hpp"

using namespace escrow;

struct escrow_pool : in_handle_memory<escrow_pool> {
  resource_pool<void*> held;
};

struct escrow_lease : in_handle_memory<escrow_lease> {
  lease<void*> held;
};

namespace {

// This thread's claim, which calls the pool's functions as it was called: with Python's lock or
// without.
thread_local without_gil* claiming = nullptr;

template <class Function>
cudaError_t as_called(Function const& function) {
  if (claiming == nullptr) return function();
  without_gil::as_before const called(*claiming);
  return function();
}

using claim_function = lease<void*> (resource_pool<void*>::*)(stream_ref, source_location);

escrow_status claim(char const* function, claim_function how, escrow_pool* pool,
                    cudaStream_t stream, escrow_lease** lease) noexcept {
  without_gil others_run(without_gil::python::if_known);
  without_gil* const outer = std::exchange(claiming, &others_run);
  escrow_status const status = run(function, [&](c_call by) {
    escrow_lease*& result = by.need(lease, "lease");
    result = new escrow_lease{{}, (by.need(pool, "pool").held.*how)(stream, by.where)};
  });
  claiming = outer;
  return status;
}

int given_device(int device) {
  if (device == -1) check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

// A pool's device is the current one during this scope. Throws cuda_error.
class pool_device {
 public:
  explicit pool_device(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ == device) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    is_other_ = true;
  }
  pool_device(pool_device&&) = delete;
  ~pool_device() {
    if (is_other_) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int before_ = 0;
  bool is_other_ = false;
};

}  // namespace

escrow_status escrow_pool_create(int device, escrow_resource_functions const* functions,
                                 escrow_options const* options, escrow_pool** pool) {
  return run_without_gil(__func__, [&](c_call by) {
    escrow_pool*& result = by.need(pool, "pool");
    escrow_resource_functions const its = by.need(functions, "functions");
    static_cast<void>(by.need(its.make, "functions->make"));
    escrow_options const given = by.options(options);
    if (given.bytes_max != 0 || given.idle_max_ns != 0 || given.pinned_host != 0) {
      by.refuse("options", "limit bytes or idle times, or name memory",
                "set these for allocators alone");
    }
    auto const make = [its] {
      static char unset;  // null may be a resource
      void* made = &unset;
      check(as_called([&] { return its.make(its.user, &made); }),
            "escrow_resource_functions::make");
      if (made == &unset) {
        throw usage_error("escrow_resource_functions::make",
                          "it returned cudaSuccess, and did not set `*resource`",
                          "set it, or return an error");
      }
      return made;
    };
    resource_pool<void*>::recycle_function recycle;
    if (its.recycle != nullptr) {
      recycle = [its, of = given_device(device)](void* resource, stream_ref stream) {
        pool_device const current(of);
        check(as_called([&] { return its.recycle(its.user, resource, stream.get()); }),
              "escrow_resource_functions::recycle");
      };
    }
    auto const destroy = [its](void* resource) {
      if (its.destroy != nullptr) its.destroy(its.user, resource);
    };
    result = new escrow_pool{
        {}, resource_pool<void*>(pool_options_of(by, device, given), make, recycle, destroy)};
  });
}

void escrow_pool_destroy(escrow_pool* pool) {
  destroy_without_gil(__func__, pool);
}

escrow_status escrow_pool_claim(escrow_pool* pool, cudaStream_t stream, escrow_lease** lease) {
  return claim(__func__, &resource_pool<void*>::claim, pool, stream, lease);
}

escrow_status escrow_pool_claim_for_host(escrow_pool* pool, cudaStream_t stream,
                                         escrow_lease** lease) {
  return claim(__func__, &resource_pool<void*>::claim_for_host, pool, stream, lease);
}

escrow_status escrow_pool_claim_kept(escrow_pool* pool, cudaStream_t stream, escrow_lease** lease) {
  return claim(__func__, &resource_pool<void*>::claim_kept, pool, stream, lease);
}

escrow_status escrow_pool_flush(escrow_pool* pool, cudaStream_t stream) {
  return run_without_gil(__func__, [&](c_call by) {
    resource_pool<void*>& its = by.need(pool, "pool").held;
    by.refuse_capturing(stream);
    its.on(stream).flush();
  });
}

escrow_status escrow_pool_close(escrow_pool* pool, uint64_t timeout_ns, size_t* holders) {
  return run_without_gil(__func__, [&](c_call by) {
    size_t& result = by.need(holders, "holders");
    result = by.need(pool, "pool").held.close_for(time_of(timeout_ns)).size();
  });
}

escrow_status escrow_lease_resource(escrow_lease* lease, void** resource) {
  return run(__func__, [&](c_call by) {
    void*& result = by.need(resource, "resource");
    result = by.need(lease, "lease").held.get();
  });
}

escrow_status escrow_lease_record_stream(escrow_lease* lease, cudaStream_t stream) {
  return run(__func__, [&](c_call by) { by.need(lease, "lease").held.record_stream(stream); });
}

escrow_status escrow_lease_release(escrow_lease* lease, cudaStream_t stream) {
  return run(__func__, [&](c_call by) {
    auto& held = by.need(lease, "lease").held;
    try {
      held.release(stream);
    } catch (...) {
      if (held) throw;  // else released, with a deferred record, and reported to on_error
    }
    delete lease;
  });
}

escrow_status escrow_lease_leave_to_graph(escrow_lease* lease) {
  return run(__func__, [&](c_call by) {
    by.need(lease, "lease").held.leave_to_graph();
    delete lease;
  });
}

void escrow_lease_destroy(escrow_lease* lease) {
  destroy_without_gil(__func__, lease);
}

escrow_status escrow_pool_statistics(escrow_pool* pool, escrow_pool_stats* stats) {
  return run(__func__, [&](c_call by) {
    pool_stats const now = by.need(pool, "pool").held.stats();
    by.copy_stats({.size = 0,
                   .slots = now.slots,
                   .leased = now.leased,
                   .idle = now.idle,
                   .in_graphs = now.in_graphs,
                   .deferred = now.deferred,
                   .slots_peak = now.slots_peak,
                   .grown = now.grown,
                   .stream_waits = now.stream_waits,
                   .host_waits = now.host_waits},
                  stats);
  });
}

escrow_status escrow_pool_describe(escrow_pool* pool, char* text, size_t capacity, size_t* length) {
  return run(__func__, [&](c_call by) {
    by.copy_text(by.need(pool, "pool").held.describe(), text, capacity, length);
  });
}
