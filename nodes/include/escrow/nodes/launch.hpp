// SPDX-License-Identifier: Apache-2.0
// Kernels that keep the code they are in, loaded at run time or not, and launching one whose
// arguments stay alive until it is done, captured or not.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/detail/bound_arguments.hpp"

namespace escrow::inline v0_2 {

namespace detail {
// The kernel's address, with a share of its library. Throws usage_error, in the name of
// kernel::from.
[[nodiscard]] ESCROW_API std::shared_ptr<void const> known_kernel(cudaKernel_t found);
}  // namespace detail

// What: a kernel, with a share of the library that it was found in, or of what keeps it loaded.
// Lifetime: the code stays loaded as long as a kernel of it is there, and launches, nodes and
//   graphs that have it. One that was moved from is null, and is not launched.
class kernel {
 public:
  // A __global__ function that is linked into the program, which stays.
  template <class... Parameters>
  // NOLINTNEXTLINE(google-explicit-constructor): a function is a kernel.
  kernel(void (*function)(Parameters...)) noexcept
      : kernel(reinterpret_cast<void const*>(function)) {}
  // The same, by the address that cudaLaunchKernel takes.
  explicit kernel(void const* function) noexcept : function_(std::shared_ptr<void>(), function) {}
  explicit kernel(char const* name) = delete;     // a name is looked up in a library
  explicit kernel(cudaKernel_t loaded) = delete;  // say what keeps it loaded: below
  // A kernel that other code loaded (cuda.core, cuLibraryLoadData), and what keeps it loaded: the
  // owner's last share unloads it, on the deleter's worker if a launch or a graph has that. Throws
  // usage_error if one of them is null. A CUkernel is a cudaKernel_t.
  kernel(cudaKernel_t loaded, std::shared_ptr<void const> owner,
         source_location where = source_location::current())
      : kernel(detail::called_at("kernel::kernel", where, [&] {
          if (loaded == nullptr || owner == nullptr) {
            throw usage_error("kernel::kernel",
                              loaded == nullptr ? "`loaded` is null" : "`owner` is null",
                              "pass a kernel that is loaded, and what unloads it at its end");
          }
          return std::shared_ptr<void const>(std::move(owner), static_cast<void const*>(loaded));
        })) {}
  // A driver module's function, which the runtime does not launch (measured:
  // cudaErrorInvalidResourceHandle): load its code with cuLibraryLoadData, or library::load, and
  // find the kernel there.
  kernel(cudaFunction_t, auto&&...) = delete;
  // A kernel that library::find() has returned, by its handle, with a share of the library. Throws
  // usage_error if there is none, or its library ends. Any thread.
  [[nodiscard]] static kernel from(cudaKernel_t found,
                                   source_location where = source_location::current()) {
    return detail::called_at("kernel::from", where,
                             [&] { return kernel(detail::known_kernel(found)); });
  }

  // What cudaLaunchKernel and kernel nodes take.
  [[nodiscard]] void const* get() const noexcept { return function_.get(); }
  // A share of the library, or owner, that the kernel keeps; null for one that is linked in.
  [[nodiscard]] std::shared_ptr<void const> library() const noexcept {
    return function_.use_count() == 0 ? nullptr : function_;
  }

  friend bool operator==(kernel const& one, kernel const& other) noexcept {
    return one.function_ == other.function_;
  }

 private:
  friend class library;

  explicit kernel(std::shared_ptr<void const> function) noexcept : function_(std::move(function)) {}

  std::shared_ptr<void const> function_;  // a share of the library, if any
};

// What: a share of loaded code: a cubin, PTX or fatbin.
// Lifetime: the code is unloaded by the deleter's worker, once, when this and its copies, the
//   kernels found in it, their launches, and the graphs that have them are destroyed.
// Capture: loading is capture-safe: it runs in Relaxed mode.
// Errors: cuda_error, std::bad_alloc. What is no code may be noticed by find() only: CUDA loads
//   lazily, and load() of anything succeeds then.
class ESCROW_API library {
 public:
  // Loads the code at `image`, which need not stay. Any thread. Bad code may be noticed by find()
  // only. Source: cudaLibraryLoadData.
  [[nodiscard]] static library load(void const* image, deleter& its = deleter::global(),
                                    source_location where = source_location::current());
  // Loads a file. Any thread. Source: cudaLibraryLoadFromFile.
  [[nodiscard]] static library load_file(std::filesystem::path const& file,
                                         deleter& its = deleter::global(),
                                         source_location where = source_location::current());

  // The kernel of that name, which keeps the library: the mangled one, unless the kernel is
  // extern "C". Throws cuda_error: cudaErrorSymbolNotFound if there is none,
  // cudaErrorInvalidKernelImage if what was loaded is no code; usage_error if this was moved from.
  // Any thread. Source: cudaLibraryGetKernel.
  [[nodiscard]] kernel find(std::string const& name,
                            source_location where = source_location::current()) const;

  // The CUDA handle. Never owning; null if moved from.
  [[nodiscard]] cudaLibrary_t get() const noexcept;

 private:
  struct loaded_code;
  explicit library(std::shared_ptr<loaded_code const> loaded) noexcept
      : loaded_(std::move(loaded)) {}

  std::shared_ptr<loaded_code const> loaded_;
};

// What: the shape of a launch, and the deleter that destroys what its arguments own.
struct launch_config {
  dim3 grid = {1, 1, 1};         // in blocks
  dim3 block = {1, 1, 1};        // in threads
  std::size_t shared_bytes = 0;  // of dynamic shared memory a block
  // Clusters, cooperative launch and the like. Source: cudaLaunchAttribute.
  std::vector<cudaLaunchAttribute> attributes = {};
  // Null: deleter::global(). Not for nodes, whose graph has one.
  escrow::deleter* deleter = nullptr;
};

namespace detail {

// On the simulated runtime: throws usage_error, naming `call`, unless the kernel's parameters have
// these sizes.
ESCROW_API void require_sizes(char const* call, kernel const& launched,
                              std::span<std::size_t const> given);
template <class... Values>
void require_values(char const* call, kernel const& launched,
                    std::tuple<Values...> const& /*values*/) {
  std::array<std::size_t, sizeof...(Values)> const given{sizeof(Values)...};
  require_sizes(call, launched, given);
}

inline constexpr char const* null_kernel_advice =
    "pass a __global__ function, or what library::find() returned; one that was moved from is null";

// All that one launch of a kernel, or a kernel node, keeps.
template <bound_to To, class... Arguments>
class launch_owner : public bound_arguments<To, Arguments...> {
 public:
  explicit launch_owner(kernel const& launched, std::remove_reference_t<Arguments>&... arguments)
      : bound_arguments<To, Arguments...>(arguments...), library_(launched.library()) {}

  [[nodiscard]] bool is_empty() const noexcept {
    return bound_arguments<To, Arguments...>::is_empty() && library_ == nullptr;
  }
  // What it keeps, if that is no library; else null. It is smaller, and most owners then fit into a
  // retired_object.
  [[nodiscard]] bound_arguments<To, Arguments...>* without_library() noexcept {
    return library_ == nullptr ? this : nullptr;
  }

 private:
  std::shared_ptr<void const> library_;
};

// For a launch, or a kernel node, that CUDA refused with `status`: what of its shape does not fit,
// and the shape; empty if that is not why.
[[nodiscard]] std::string misfit_note(cudaError_t status, kernel const& launched,
                                      launch_config const& config);
// Throws what a launch failed with, and says what of its shape does not fit.
[[noreturn]] ESCROW_API void refuse_launch(cudaError_t status, kernel const& launched,
                                           launch_config const& config);

// Enqueues the kernel with the values that `values` points to.
inline void launch_values(stream_ref stream, kernel const& launched, launch_config const& config,
                          void** values) {
  if (launched.get() == nullptr) {
    throw usage_error("launch", "the kernel is null", null_kernel_advice);
  }
  // CUDA takes the attributes through a pointer to what it does not change.
  auto* const attributes = const_cast<cudaLaunchAttribute*>(config.attributes.data());
  cudaLaunchConfig_t const shape{
      .gridDim = config.grid,
      .blockDim = config.block,
      .dynamicSmemBytes = config.shared_bytes,
      .stream = stream.get(),
      .attrs = attributes,
      .numAttrs = static_cast<unsigned>(config.attributes.size()),
  };
  cudaError_t const status = cudaLaunchKernelExC(&shape, launched.get(), values);
  if (status != cudaSuccess) [[unlikely]]
    refuse_launch(status, launched, config);
}

// In a capture, lets the graph keep an argument of which a launch elsewhere keeps nothing.
template <class Argument>
void share_with_capture(deleter& keeper, stream_ref stream,
                        std::remove_reference_t<Argument>& argument, source_location where) {
  using T = std::remove_cvref_t<Argument>;
  if constexpr (is_named<Argument> && outlasting_argument<T> && !shareable_argument<T>) {
    if (!usable_capture_of("launch", stream).is_active()) return;
    keeper.retire_as("launch", stream, kernel_argument_traits<T>::owner_in_graph(argument), where);
  }
}

// Keeps what has to be kept, and launches with `values`, of the types that the kernel has.
template <class... Values, class... Arguments>
void launch_keeping(stream_ref stream, source_location where, kernel const& launched,
                    launch_config const& config, std::tuple<Values...> values,
                    Arguments&&... arguments) {
  (announce_use(arguments, stream), ...);
  deleter& its = config.deleter != nullptr ? *config.deleter : deleter::global();
  (share_with_capture<Arguments>(its, stream, arguments, where), ...);
  auto pointers = addresses_of(values);
  auto const enqueue = [&] { launch_values(stream, launched, config, pointers.data()); };
  using owner = launch_owner<bound_to::stream, Arguments...>;
  owner kept(launched, arguments...);
  if (kept.is_empty()) {
    static_cast<void>(usable_capture_of("launch", stream));  // else retire_around() asks
    return enqueue();
  }
  auto const take = [](owner& in_place) noexcept { in_place.take(); };
  its.retire_around("launch", stream, std::move(kept), take, enqueue, where);
}

}  // namespace detail

// Launches a kernel on `stream`. An argument whose type owns what the kernel uses is passed as its
// device value, and kept until the kernel is done; in a capture, until the graph, its clones and
// execs are destroyed and their launches done. Such types have kernel_argument_traits:
// std::shared_ptr, std::unique_ptr, a pool's lease, a type of the caller's. Other arguments are
// passed as they are, and must have exactly the types that the kernel has. The library that the
// kernel was found in is kept as well. An argument that can only be moved has to be moved in;
// outside of captures it is moved from only if the launch succeeds. Throws cuda_error,
// std::bad_alloc. Throws usage_error for a null kernel, an empty lease, an invalidated capture, a
// lease that was not claimed in the capture, the legacy stream while a blocking stream captures,
// and a stopped deleter. Nothing was launched then, but leases may stay told of the stream, as by
// record_stream(). One exception: if, outside of captures, the error names cudaEventRecord, the
// kernel runs, and what it uses is leaked (deleter_stats::leaked). Any thread. Source:
// cudaLaunchKernelExC.
// Example: examples/retire.cpp.
template <class... Arguments>
void launch(detail::stream_at on, kernel const& launched, launch_config const& config,
            Arguments&&... arguments) {
  detail::called_at("launch", on.where, [&] {
    auto values = detail::values_of("launch", arguments...);
    detail::require_values("launch", launched, values);
    detail::launch_keeping(on.stream, on.where, launched, config, std::move(values),
                           std::forward<Arguments>(arguments)...);
  });
}

// The same for a __global__ function, whose parameters' types the arguments are converted to.
// Memory without a type, such as a device_block's, is passed for a pointer to any type.
template <class... Parameters, class... Arguments>
void launch(detail::stream_at on, void (*launched)(Parameters...), launch_config const& config,
            Arguments&&... arguments) {
  detail::called_at("launch", on.where, [&] {
    detail::launch_keeping(on.stream, on.where, kernel(launched), config,
                           detail::values_for<Parameters...>("launch", arguments...),
                           std::forward<Arguments>(arguments)...);
  });
}

// Internal: what begins with the kernel.
template <class Launched, class... Arguments>
void launch(Launched const&, launch_config const&,
            Arguments&&...) requires(!std::convertible_to<Launched, detail::stream_at>) {
  static_assert(std::convertible_to<Launched, detail::stream_at>,
                "launch() takes a stream first, then the kernel, then {.grid = ..., .block = ...}");
}

// Internal: what is no stream, or no launch_config.
template <class Stream, class Launched, class Config = launch_config, class... Arguments>
void launch(Stream const&, Launched const&, Config const&,
            Arguments&&...) requires(!std::convertible_to<Stream, detail::stream_at> ||
                                     !std::convertible_to<Config, launch_config>) {
  static_assert(std::convertible_to<Stream, detail::stream_at>,
                "launch() takes a stream first: a cudaStream_t, or what converts to one or has "
                "get() or value(); the default one is cudaStreamLegacy, or cudaStreamPerThread, "
                "and not null");
  static_assert(std::convertible_to<Config, launch_config>,
                "launch() takes {.grid = ..., .block = ...} third, before the kernel's arguments");
}

}  // namespace escrow::inline v0_2
