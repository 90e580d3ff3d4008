// SPDX-License-Identifier: Apache-2.0
// Scratch memory for Python: pools with leases, and reports of the process.
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "escrow/pool/memory_report.hpp"
#include "memory.hpp"

namespace escrow::python {

namespace {

struct python_pool {
  ends_without_gil<std::shared_ptr<scratch_pool>> held;
  int device;

  [[nodiscard]] scratch_pool& need(char const* call) { return *held.need(call); }
};

// Has its stream: that must be alive when the lease ends. The cycle collector does not see it: it
// would end the stream of an unreachable cycle before the leases that are in the cycle, too.
struct python_lease {
  nb::object stream;  // first: it ends after the lease
  std::size_t size;
  lease<device_block> held;

  [[nodiscard]] lease<device_block>& need(char const* call) {
    if (held) return held;
    throw usage_error(call, "the lease has ended", "claim again");
  }
  [[nodiscard]] std::uintptr_t address(char const* call) {
    return reinterpret_cast<std::uintptr_t>(need(call)->data());
  }
};

// With escapes for bytes that are no text, as a file's name may have.
std::string text_of(nb::object const& given) {
  if (char const* const known = PyUnicode_AsUTF8AndSize(given.ptr(), nullptr)) return known;
  PyErr_Clear();
  return nb::cast<nb::bytes>(given.attr("encode")("utf-8", "backslashreplace")).c_str();
}

// The line of Python that calls; nowhere if there is none. Names of files are kept for reports.
source_location line_of_python() {
  PyFrameObject* const frame = PyEval_GetFrame();
  if (frame == nullptr) return {};
  nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  static never_destroyed<std::unordered_set<std::string>> files;  // these by the GIL
  struct known_code {
    nb::object its;  // so that no other gets its address
    char const* file;
  };
  static never_destroyed<std::unordered_map<PyObject*, known_code>> codes;
  std::unordered_map<PyObject*, known_code> forgotten;
  auto found = codes->find(code.ptr());
  if (found == codes->end()) [[unlikely]] {
    constexpr std::size_t most = 1024;
    char const* const file = files->emplace(text_of(code.attr("co_filename"))).first->c_str();
    // To drop a code object may run Python, which may come here again. So they are dropped when
    // this function returns, from a map that nobody else sees.
    if (codes->size() == most) codes->swap(forgotten);
    PyObject* const key = code.ptr();
    found = codes->try_emplace(key, known_code{std::move(code), file}).first;
  }
  int const line = PyFrame_GetLineNumber(frame);
  return source_location::current(found->second.file, "",
                                  static_cast<std::uint_least32_t>(line > 0 ? line : 0));
}

using claim_function = lease<device_block> (scratch_pool::*)(stream_ref, std::size_t,
                                                             source_location);

python_lease claim(python_pool& from, char const* call, claim_function how, cudaStream_t on,
                   nb::object stream, std::size_t size) {
  source_location const where = line_of_python();
  scratch_pool* its = nullptr;
  quickly(call, [&] { its = &from.need(call); });
  lease<device_block> claimed = waiting(call, [&] { return (its->*how)(on, size, where); });
  return python_lease{std::move(stream), size, std::move(claimed)};
}

template <class Class>
void define_claim(Class& pool, char const* name, char const* call, claim_function how,
                  char const* text) {
  pool.def(
      name,
      [call, how](python_pool& from, nb::object stream, std::size_t size) {
        cudaStream_t const on = stream_of(stream);
        return claim(from, call, how, on, std::move(stream), size);
      },
      "stream"_a.none(), "size"_a, text);
}

void define_pool(nb::module_& to) {
  nb::class_<python_pool> pool(
      to, "ScratchPool", nb::is_weak_referenceable(),
      "Scratch memory of one device, claimed for a stream, whether or not that is being "
      "captured.\n\n"
      "    with pool.claim(stream, 1 << 20) as lease:\n"
      "        launch(stream, lease.ptr)\n\n"
      "The memory is free after the stream's work so far; a graph keeps what was claimed in its "
      "capture until\nits last launch has ended. Any thread.");
  define_init(
      pool, "ScratchPool",
      [](python_pool* place, memory_options const& options) {
        auto made = std::make_shared<scratch_pool>(options.pool, options.policy);
        int device = options.pool.device;
        if (device < 0) check(cudaGetDevice(&device), "cudaGetDevice");
        registry().add(made);
        new (place) python_pool{ends_without_gil(std::move(made)), device};
      },
      "device: its index; -1 is the current one. label: in errors and reports. group: a Group "
      "whose "
      "graphs share\nthis memory. bytes_max: of all blocks. slots_max: blocks of each size (64). "
      "idle_max: seconds after which\nfree blocks are given back. host_wait_max, capture_wait_max: "
      "seconds for which a claim at a limit may block\nthe host, eagerly (0), and in a capture "
      "while a slot is on its way to the pool (10). "
      "track_leases: reports name each lease. pinned_host: host memory,\nwhose claims are all "
      "claim_for_host(). held_until_closed, streams_outlive_pool: see pool_options in\n"
      "escrow/pool/resource_pool.hpp.\n\nErrors: CudaError for a device that is not there.");
  define_claim(
      pool, "claim", "ScratchPool.claim", &scratch_pool::claim,
      "A lease of at least `size` bytes, not initialized, aligned to 256 bytes, for work on "
      "`stream`.\n\nErrors: PoolExhausted at a limit, also for more than bytes_max; OutOfMemory; "
      "UsageError for a closed pool and\nan invalidated capture; CudaError.");
  define_claim(
      pool, "claim_for_host", "ScratchPool.claim_for_host", &scratch_pool::claim_for_host,
      "The same for memory that the host writes or reads at once: no GPU work uses it. May "
      "block the host.");
  define_claim(pool, "claim_kept", "ScratchPool.claim_kept", &scratch_pool::claim_kept,
               "The same for a graph's results: no other graph of the group, and no later claim of "
               "the capture, gets it.");
  define_pool_calls(pool, "ScratchPool");
}

void release(python_lease& its, nb::object const& stream) {
  constexpr char const* call = "Lease.release";
  quickly(call, [&] {
    lease<device_block>& held = its.need(call);
    if (stream.is_none()) {
      held.release();
    } else {
      held.release(stream_of(stream));
    }
  });
}

// As NumPy's, for CuPy, Numba and PyTorch.
nb::dict array_interface(python_lease& its) {
  constexpr char const* call = "Lease.__cuda_array_interface__";
  nb::dict result;
  result["shape"] = nb::make_tuple(its.size);
  result["typestr"] = "|u1";
  result["data"] = nb::make_tuple(quickly(call, [&] { return its.address(call); }), false);
  result["version"] = 3;
  auto const stream = reinterpret_cast<std::uintptr_t>(stream_of(its.stream));
  result["stream"] = stream == 0 ? std::uintptr_t{1} : stream;  // 1: the legacy default stream
  return result;
}

void define_lease(nb::module_& to) {
  nb::class_<python_lease> lease(
      to, "Lease", nb::is_weak_referenceable(),
      "The right to use memory of a pool until its release, which is the end of its `with` block, "
      "release() or\nits end as an object. The claiming stream must be alive then: the lease keeps "
      "the object that was given,\nalso from the cycle collector. An object of a stream that "
      "refers to its own lease is not collected.\nOne thread at a time.");
  lease.def_prop_ro(
      "ptr",
      [](python_lease& its) {
        return quickly("Lease.ptr", [&] { return its.address("Lease.ptr"); });
      },
      "The address. UsageError once the lease has ended.");
  lease.def_ro("size", &python_lease::size, "The bytes that were claimed.");
  lease.def_ro("stream", &python_lease::stream, "The stream, as it was given.");
  lease.def_prop_ro("__cuda_array_interface__", &array_interface,
                    "As an array of `size` bytes, for work on the claiming stream.");
  lease.def("release", &release, "stream"_a = nb::none(),
            "Ends the lease after the work on the claiming stream so far, or on `stream`, which "
            "must be ordered after\nall earlier uses. Does not block.");
  lease.def(
      "record_stream",
      [](python_lease& its, nb::handle stream) {
        constexpr char const* call = "Lease.record_stream";
        cudaStream_t const on = stream_of(stream);
        quickly(call, [&] { its.need(call).record_stream(on); });
      },
      "stream"_a.none(),
      "The memory is used on `stream`, too: its work after this call comes after the memory's "
      "earlier users, and\nthe release waits for it. If `stream` is captured, its graph keeps the "
      "memory.");
  lease.def(
      "leave_to_graph",
      [](python_lease& its) {
        constexpr char const* call = "Lease.leave_to_graph";
        quickly(call, [&] { its.need(call).leave_to_graph(); });
      },
      "Ends a lease of a capture that is over: the graph keeps the memory until its end.");
  lease.def("__enter__", [](nb::object its) { return its; });
  lease.def(
      "__exit__",
      [](python_lease& its, nb::handle type, nb::handle, nb::handle) {
        if (!its.held) return;
        if (type.is_none()) return release(its, nb::none());
        // The body's error is the one to see: what fails now goes to standard error.
        escrow::lease<device_block> const ended = std::move(its.held);
      },
      "type"_a.none(), "value"_a.none(), "traceback"_a.none());
  lease.def("__bool__", [](python_lease const& its) { return static_cast<bool>(its.held); });
}

// What CuPy calls for each array. `pools`: by device; pool(device) makes the others.
struct cupy_calls {
  nb::object current_device;
  nb::object current_stream;
  nb::object memory;   // (address, size, owner, device)
  nb::object pointer;  // (memory, offset)
  std::vector<nb::object> pools;
};

nb::object allocate(nb::handle self, std::size_t size) {
  auto& its = nb::cast<cupy_calls&>(self);
  nb::object const device = its.current_device();
  auto const index = nb::cast<std::size_t>(device);
  if (its.pools.size() <= index) its.pools.resize(index + 1);
  if (!its.pools[index].is_valid()) its.pools[index] = self.attr("pool")(device);
  nb::object stream = its.current_stream();
  auto* const on = reinterpret_cast<cudaStream_t>(  // NOLINT(performance-no-int-to-ptr)
      nb::cast<std::uintptr_t>(stream.attr("ptr")));
  nb::object lease = nb::cast(claim(nb::cast<python_pool&>(its.pools[index]), "ScratchPool.claim",
                                    &scratch_pool::claim, on, std::move(stream), size));
  std::uintptr_t const address = nb::cast<python_lease&>(lease).address("ScratchPool.claim");
  return its.pointer(its.memory(address, size, std::move(lease), device), 0);
}

void define_cupy_calls(nb::module_& to) {
  nb::class_<cupy_calls> calls(to, "_CuPyCalls", nb::is_weak_referenceable(), nb::dynamic_attr());
  calls.def(
      "__init__",
      [](cupy_calls* made, nb::object device, nb::object stream, nb::object memory,
         nb::object pointer) {
        new (made) cupy_calls{
            std::move(device), std::move(stream), std::move(memory), std::move(pointer), {}};
      },
      "current_device"_a, "current_stream"_a, "memory"_a, "pointer"_a);
  calls.def("__call__", &allocate, "size"_a);
}

std::size_t trim(int device) {
  return waiting("trim", [device] {
    int on = device;
    if (on < 0) check(cudaGetDevice(&on), "cudaGetDevice");
    std::size_t freed = 0;
    for (auto const& each : registry().living()) freed += each->trim();
    return freed + trim_device_memory(on);
  });
}

}  // namespace

void add_memory(nb::module_& to) {
  nb::class_<python_group> group(to, "Group", nb::is_weak_referenceable(),
                                 "Graphs of a group share their scratch memory, one after another: "
                                 "together they need what the largest needs.");
  define_pool(to);
  define_lease(to);
  define_cupy_calls(to);
  add_allocators(to);
  to.def("trim", &trim, "device"_a = -1,
         "Frees memory that no work uses: of the pools and allocators that Python made, on any "
         "device, "
         "and what\nEscrow keeps of `device` (-1: the current one). Returns the bytes freed.");
  to.def(
      "_memory_info",
      [] {
        std::size_t free = 0;
        std::size_t total = 0;
        waiting("memory_info", [&] { check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"); });
        return nb::make_tuple(free, total);
      },
      "Of the current device: free and total bytes.");
  to.def(
      "report", [] { return dict_of(waiting("report", [] { return to_json(report_memory()); })); },
      "Who holds the memory of the process, in all pools, also those of C++ and C, as a dict: "
      "devices, "
      "pools,\ngroups, graphs, execs. Members as memory_report's in "
      "escrow/pool/memory_report.hpp.");
  to.def(
      "describe", [] { return waiting("describe", [] { return describe(report_memory()); }); },
      "The report in words, for a log.");
}

}  // namespace escrow::python
