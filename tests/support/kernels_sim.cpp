// SPDX-License-Identifier: Apache-2.0
// The kernels for the simulated runtime: host functions, registered under their own addresses.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <escrow/sim.hpp>

#include "kernels.hpp"

namespace escrow::test {
namespace {

template <class Value>
Value argument(void** args, std::size_t index) {
  Value result;
  std::memcpy(&result, args[index], sizeof(Value));
  return result;
}

// Relaxed, so that the kernel orders nothing by itself: order is what the streams and events say.
bool add_kernel(void** args) {
  std::atomic_ref<int>{*argument<int*>(args, 0)}.fetch_add(argument<int>(args, 1),
                                                           std::memory_order_relaxed);
  return true;
}

// Plain accesses in the next three: a sanitizer sees memory that is used too early or too late.
bool fill_kernel(void** args) {
  std::fill_n(argument<int*>(args, 0), argument<std::size_t>(args, 1), argument<int>(args, 2));
  return true;
}

bool check_kernel(void** args) {
  auto const* const data = argument<int const*>(args, 0);
  auto const n = argument<std::size_t>(args, 1);
  auto const same = std::count(data, data + n, argument<int>(args, 2));
  auto const different = static_cast<int>(n) - static_cast<int>(same);
  // Relaxed for the same reason as in add_kernel.
  std::atomic_ref<int>{*argument<int*>(args, 3)}.fetch_add(different, std::memory_order_relaxed);
  return true;
}

bool copy_kernel(void** args) {
  std::copy_n(argument<int const*>(args, 1), argument<std::size_t>(args, 2),
              argument<int*>(args, 0));
  return true;
}

bool wait_flag_kernel(void** args) {
  int& flag = *const_cast<int*>(argument<int volatile*>(args, 0));
  // Acquire: what the host wrote before it raised the flag is visible to the work behind this
  // kernel.
  return std::atomic_ref<int>{flag}.load(std::memory_order_acquire) != 0;
}

bool tiny_kernel(void**) {
  return true;
}

bool two_pointers_kernel(void**) {
  return true;
}

bool sleep_kernel(void** args) {
  return escrow::sim::kernel_elapsed() >=
         std::chrono::microseconds{argument<std::uint64_t>(args, 0)};
}

bool illegal_address_kernel(void** args) {
  escrow::sim::fail_device(argument<int>(args, 0), cudaErrorIllegalAddress);
  return true;
}

bool set_condition_kernel(void** args) {
  escrow::sim::set_conditional(argument<cudaGraphConditionalHandle>(args, 0),
                               static_cast<unsigned int>(*argument<int const*>(args, 1)));
  return true;
}

bool set_condition_below_kernel(void** args) {
  bool const below = *argument<int const*>(args, 1) < argument<int>(args, 2);
  escrow::sim::set_conditional(argument<cudaGraphConditionalHandle>(args, 0), below ? 1 : 0);
  return true;
}

bool cluster_size_kernel(void** args) {
  *argument<int*>(args, 0) = static_cast<int>(escrow::sim::cluster_blocks());
  return true;
}

bool struct_kernel(void**) {
  return true;
}

template <class... Arguments>
void* registered(escrow::sim::kernel kernel, char const* name) {
  auto* const address = reinterpret_cast<void*>(kernel);
  escrow::sim::detail::register_typed_kernel(address, kernel, {sizeof(Arguments)...},
                                             {sim::detail::kind_of<Arguments>...}, name);
  return address;
}

// Leaked on purpose: libraries of it may be loaded as long as the program runs.
escrow::sim::library_image const& image() {
  static auto* const only = [] {
    auto* const made = new escrow::sim::library_image;
    made->add("library_add", &add_kernel, {sizeof(int*), sizeof(int)});
    made->add("library_tiny", &tiny_kernel, {});
    return made;
  }();
  return *only;
}

}  // namespace

void const* library_code() {
  return image().code();
}

void provide_library_file(char const* path) {
  image().provide_as_file(path);
}

bool is_simulated() noexcept {
  return true;
}

void* kernel_address(kernel_id id) {
  using handle = cudaGraphConditionalHandle;
  static std::array const in_order_of_ids{
      registered<int*, int>(&add_kernel, "add_kernel"),
      registered<int*, std::size_t, int>(&fill_kernel, "fill_kernel"),
      registered<int const*, std::size_t, int, int*>(&check_kernel, "check_kernel"),
      registered<int*, int const*, std::size_t>(&copy_kernel, "copy_kernel"),
      registered<int volatile*>(&wait_flag_kernel, "wait_flag_kernel"),
      registered<>(&tiny_kernel, "tiny_kernel"),
      registered<int*, int*>(&two_pointers_kernel, "two_pointers_kernel"),
      registered<std::uint64_t>(&sleep_kernel, "sleep_kernel"),
      registered<int>(&illegal_address_kernel, "illegal_address_kernel"),
      registered<handle, int const*>(&set_condition_kernel, "set_condition_kernel"),
      registered<handle, int const*, int>(&set_condition_below_kernel,
                                          "set_condition_below_kernel"),
      registered<int*>(&cluster_size_kernel, "cluster_size_kernel"),
      registered<pointer_pair>(&struct_kernel, "struct_kernel")};
  return in_order_of_ids.at(static_cast<std::size_t>(id));
}

}  // namespace escrow::test
