// The lock for CUDA's links between graphs.
#include "escrow/core/graph_lifetime_lock.hpp"

#include <mutex>
#include <type_traits>

namespace escrow::inline v0_1 {

namespace {
// Guards CUDA's links between graphs and their copies and execs. Held across CUDA calls, which may
// run destroy callbacks: Escrow's callbacks take no lock.
constinit std::recursive_mutex links;
static_assert(std::is_trivially_destructible_v<std::recursive_mutex>,
              "graphs are destroyed during exit, too");
}  // namespace

graph_lifetime_lock::graph_lifetime_lock() noexcept {
  links.lock();
}

graph_lifetime_lock::~graph_lifetime_lock() {
  links.unlock();
}

}  // namespace escrow::inline v0_1
