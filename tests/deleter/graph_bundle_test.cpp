// A bundle is reclaimed where its parts are: the worker makes no other device's context.
#include "escrow/deleter/graph_bundle.hpp"

#include <gtest/gtest.h>

#include "escrow/deleter/deleter.hpp"

namespace escrow {
namespace {

class part_of_device final : public graph_reference {
 public:
  part_of_device(release_hub& hub, int device)
      : graph_reference(hub, release_lane::destroy, device, [](release_node& node) noexcept {
          delete static_cast<part_of_device*>(&node);
        }) {}
};

TEST(GraphBundle, IsOfTheDeviceOfItsParts) {
  deleter polled{deleter_options{.own_worker = false}};
  auto* const part = new part_of_device(polled.hub(), 1);
  part->hold();
  {
    graph_bundle::pointer const bundle(&graph_bundle::make(polled.hub(), {part}));
    part->let_go();
    EXPECT_EQ(bundle->device(), 1);
  }
  EXPECT_EQ(polled.poll(), 2U);
}

}  // namespace
}  // namespace escrow
