// SPDX-License-Identifier: Apache-2.0
// The lock for CUDA's links between graphs. While a thread holds it, it may run destroy callbacks.
#include <chrono>
#include <mutex>
#include <thread>
#include <type_traits>

#include "escrow/core/capture.hpp"
#include "escrow/internal/driver.hpp"

namespace escrow::inline v0_2 {

namespace {
// Guards CUDA's links between graphs and their copies and execs. Held across CUDA calls, which may
// run destroy callbacks: Escrow's callbacks take no lock.
constinit std::recursive_mutex links;
static_assert(std::is_trivially_destructible_v<std::recursive_mutex>,
              "graphs are destroyed during exit, too");

// A guarded call takes some 20 us, and waking a thread for the next one as long again. So a thread
// looks for about two calls before it sleeps (measured: 8 threads that make and destroy graphs do
// 10 % more, 16 threads 25 % more).
void lock_links() noexcept {
  constexpr auto look_max = std::chrono::microseconds(50);
  if (links.try_lock()) return;
  auto const end = std::chrono::steady_clock::now() + look_max;
  do {
    std::this_thread::yield();
    if (links.try_lock()) return;
  } while (std::chrono::steady_clock::now() < end);
  links.lock();
}
}  // namespace

graph_lifetime_lock::graph_lifetime_lock() noexcept {
  lock_links();
  begin_destroy_callbacks();
}

graph_lifetime_lock::~graph_lifetime_lock() {
  end_destroy_callbacks();
  links.unlock();
}

}  // namespace escrow::inline v0_2
