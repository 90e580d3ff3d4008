// The kernels for the simulated runtime: host functions, registered under their own addresses.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
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

bool heat_step_kernel(void** args) {
  auto* const to = argument<double*>(args, 0);
  auto const* const from = argument<double const*>(args, 1);
  auto const n = argument<std::size_t>(args, 2);
  auto const ratio = argument<double>(args, 3);
  for (std::size_t i = 0; i < n; ++i) {
    bool const is_end = i == 0 || i + 1 == n;
    to[i] = is_end ? from[i] : std::fma(ratio, (from[i - 1] - 2 * from[i]) + from[i + 1], from[i]);
  }
  return true;
}

bool heat_go_on_kernel(void** args) {
  auto& progress = *argument<heat_progress*>(args, 1);
  auto const limits = argument<heat_limits>(args, 2);
  auto const* const now = argument<double const*>(args, 3);
  auto const* const before = argument<double const*>(args, 4);
  double residual = 0;
  for (std::size_t i = 0; i < argument<std::size_t>(args, 5); ++i) {
    residual = std::fmax(residual, std::fabs(now[i] - before[i]));
  }
  progress.residual = residual;
  ++progress.rounds;
  bool const go_on = residual > limits.residual && progress.rounds < limits.rounds_max;
  escrow::sim::set_conditional(argument<cudaGraphConditionalHandle>(args, 0), go_on ? 1 : 0);
  return true;
}

template <class... Arguments>
void add_to_runtime(escrow::sim::kernel kernel, char const* name) {
  escrow::sim::register_kernel(reinterpret_cast<void const*>(kernel), kernel,
                               {sizeof(Arguments)...}, name);
}

bool register_all() {
  add_to_runtime<int*, int>(&add_kernel, "add_kernel");
  add_to_runtime<int*, std::size_t, int>(&fill_kernel, "fill_kernel");
  add_to_runtime<int const*, std::size_t, int, int*>(&check_kernel, "check_kernel");
  add_to_runtime<int*, int const*, std::size_t>(&copy_kernel, "copy_kernel");
  add_to_runtime<int volatile*>(&wait_flag_kernel, "wait_flag_kernel");
  add_to_runtime<>(&tiny_kernel, "tiny_kernel");
  add_to_runtime<int*, int*>(&two_pointers_kernel, "two_pointers_kernel");
  add_to_runtime<std::uint64_t>(&sleep_kernel, "sleep_kernel");
  add_to_runtime<int>(&illegal_address_kernel, "illegal_address_kernel");
  add_to_runtime<cudaGraphConditionalHandle, int const*>(&set_condition_kernel,
                                                         "set_condition_kernel");
  add_to_runtime<cudaGraphConditionalHandle, int const*, int>(&set_condition_below_kernel,
                                                              "set_condition_below_kernel");
  add_to_runtime<double*, double const*, std::size_t, double>(&heat_step_kernel,
                                                              "heat_step_kernel");
  add_to_runtime<cudaGraphConditionalHandle, heat_progress*, heat_limits, double const*,
                 double const*, std::size_t>(&heat_go_on_kernel, "heat_go_on_kernel");
  return true;
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

void* address(escrow::sim::kernel kernel) {
  return reinterpret_cast<void*>(kernel);
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
  [[maybe_unused]] static bool const registered = register_all();
  switch (id) {
    case kernel_id::add:
      return address(&add_kernel);
    case kernel_id::fill:
      return address(&fill_kernel);
    case kernel_id::check:
      return address(&check_kernel);
    case kernel_id::copy:
      return address(&copy_kernel);
    case kernel_id::wait_flag:
      return address(&wait_flag_kernel);
    case kernel_id::tiny:
      return address(&tiny_kernel);
    case kernel_id::two_pointers:
      return address(&two_pointers_kernel);
    case kernel_id::sleep:
      return address(&sleep_kernel);
    case kernel_id::illegal_address:
      return address(&illegal_address_kernel);
    case kernel_id::set_condition:
      return address(&set_condition_kernel);
    case kernel_id::set_condition_below:
      return address(&set_condition_below_kernel);
    case kernel_id::heat_step:
      return address(&heat_step_kernel);
    case kernel_id::heat_go_on:
      return address(&heat_go_on_kernel);
  }
  return nullptr;
}

}  // namespace escrow::test
