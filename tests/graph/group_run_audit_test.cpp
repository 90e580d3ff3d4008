// SPDX-License-Identifier: Apache-2.0
// With ESCROW_AUDIT=1 a claim inside sharing_group::run() that shares nothing is refused.
#include <cstdlib>

#include "arena_world.hpp"

namespace escrow::test {
namespace {

[[maybe_unused]] int const is_asked = ::setenv("ESCROW_AUDIT", "1", 1);  // before main()

class GroupRunAudit : public group_scratch_world {};

TEST_F(GroupRunAudit, RefusesWhatIsClaimedForAnotherStreamOrByAClaimer) {
  scratch_pool other(options(4));
  auto claimer = scratch().on(one);
  group->run(one, [&] {
    auto const expect_refused = [](auto const& claim) {
      expect_error<usage_error>(claim, {"inside sharing_group::run() it shares nothing",
                                        "claim from the pool, not from a claimer"});
    };
    expect_refused([&] { static_cast<void>(scratch().claim(two, mebibyte)); });
    expect_refused([&] { static_cast<void>(claimer.claim(mebibyte)); });
    use_scratch(scratch(), one, 1);
    static_cast<void>(scratch().claim_kept(two, mebibyte));
    static_cast<void>(claimer.claim_kept(mebibyte));
    static_cast<void>(other.claim(two, mebibyte));
  });
  static_cast<void>(claimer.claim(mebibyte));
  static_cast<void>(scratch().claim(two, mebibyte));
  sync_all();
}

}  // namespace
}  // namespace escrow::test
