// A lease of whatever pool, so that one operation serves all.
#pragma once

#include <escrow/pool.hpp>
#include <utility>
#include <variant>

#include "things.hpp"

namespace escrow::test {

/// What: a lease of a slot of a resource_pool, or of a block of the scratch_pool.
/// Thread safety: as lease.
class held_lease {
 public:
  explicit held_lease(lease<token>&& claimed) : lease_(std::move(claimed)) {}
  explicit held_lease(lease<device_block>&& claimed) : lease_(std::move(claimed)) {}

  /// Calls `use` with the lease itself.
  template <class Use>
  decltype(auto) with(Use use) {
    return std::visit(use, lease_);
  }
  void release() {
    with([](auto& held) { held.release(); });
  }
  void release(stream_ref stream) {
    with([stream](auto& held) { held.release(stream); });
  }
  void record_stream(stream_ref stream) {
    with([stream](auto& held) { held.record_stream(stream); });
  }
  explicit operator bool() const {
    return std::visit([](auto const& held) { return static_cast<bool>(held); }, lease_);
  }

 private:
  std::variant<lease<token>, lease<device_block>> lease_;
};

/// The kernel that takes such a lease in the place of its last argument.
[[nodiscard]] inline keeping_kernel kernel_for(lease<token> const& /*held*/) {
  return work_kernel_that_keeps();
}
[[nodiscard]] inline memory_kernel kernel_for(lease<device_block> const& /*held*/) {
  return work_kernel_of_memory();
}

}  // namespace escrow::test
