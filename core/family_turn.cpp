// The lock of all families of graphs.
#include "escrow/core/family_turn.hpp"

#include <mutex>

namespace escrow {

namespace {
// Guards CUDA's links between graphs and what was made of them. Held across calls of CUDA, which
// may run destroy callbacks: Escrow's take no lock. Never destroyed: graphs end during exit, too.
constinit std::mutex links;
}  // namespace

family_turn::family_turn() noexcept {
  links.lock();
}

family_turn::~family_turn() {
  links.unlock();
}

}  // namespace escrow
