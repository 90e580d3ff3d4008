// The lock for CUDA's links between graphs.
#include "escrow/core/graph_lifetime_lock.hpp"

#include <chrono>
#include <mutex>
#include <thread>
#include <type_traits>

namespace escrow::inline v0_1 {

namespace {
// Guards CUDA's links between graphs and their copies and execs. Held across CUDA calls, which may
// run destroy callbacks: Escrow's callbacks take no lock.
constinit std::recursive_mutex links;
static_assert(std::is_trivially_destructible_v<std::recursive_mutex>,
              "graphs are destroyed during exit, too");
}  // namespace

// A guarded call takes some 20 us, and waking a thread for the next one as long again. So a thread
// looks for about two calls before it sleeps (measured: 8 threads that make and destroy graphs do
// 10 % more, 16 threads 25 % more).
graph_lifetime_lock::graph_lifetime_lock() noexcept {
  constexpr auto look_max = std::chrono::microseconds(50);
  if (links.try_lock()) return;
  auto const end = std::chrono::steady_clock::now() + look_max;
  do {
    std::this_thread::yield();
    if (links.try_lock()) return;
  } while (std::chrono::steady_clock::now() < end);
  links.lock();
}

graph_lifetime_lock::~graph_lifetime_lock() {
  links.unlock();
}

}  // namespace escrow::inline v0_1
