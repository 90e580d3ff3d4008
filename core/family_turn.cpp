// The lock of all families of graphs.
#include "escrow/core/family_turn.hpp"

#include <mutex>
#include <type_traits>

namespace escrow {

namespace {
// Guards CUDA's links between graphs and what was made of them. Held across calls of CUDA, which
// may run destroy callbacks: Escrow's take no lock.
constinit std::recursive_mutex links;
static_assert(std::is_trivially_destructible_v<std::recursive_mutex>, "graphs end during exit too");
}  // namespace

family_turn::family_turn() noexcept {
  links.lock();
}

family_turn::~family_turn() {
  links.unlock();
}

}  // namespace escrow
