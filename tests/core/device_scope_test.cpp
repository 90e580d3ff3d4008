// SPDX-License-Identifier: Apache-2.0
// A scope on another device: what is made there, what is current after it, and that it makes no
// context on a device that is not used. Each case in a process of its own; needs two devices.
#include <escrow/core.hpp>
#include <escrow/internal/device.hpp>
#include <escrow/internal/ready_event.hpp>
#include <thread>

#include "child.hpp"

namespace escrow::test {
namespace {

// `body()` on a thread that never chose a device, where device 1 alone is in use. It is current
// again after that.
void with_device_0_unused(std::function<void()> const& body) {
  must(cudaSetDevice(1));
  owned_stream const stream = make_stream();
  must(!is_in_use(0), "device 0 is not used");
  std::thread([&] {
    body();
    must(current_device() == 0, "the current device");
  }).join();
}

void a_scope_makes_no_context_on_the_threads_device() {
  with_device_0_unused([] {
    {
      device_scope const there(1);
      must(current_device() == 1, "inside");
      {
        device_scope const same(1);
        must(current_device() == 1, "inside both");
      }
      event const made;
      must(static_cast<bool>(made), "an event");
    }
    event_cache::put(1, event_cache::take(1));
    must(!is_in_use(0), "no context");
  });
}

void a_scope_uses_a_device_that_nobody_used() {
  must(current_device() == 0 && !is_in_use(1), "not used");
  std::optional<event> made;
  {
    device_scope const there(1);
    made.emplace();
  }
  must(is_in_use(1) && made->ref().is_done(), "what was made there stays");
  device_scope const again(1);
  owned_stream const stream = make_stream();
  made->ref().record(stream.get());
  must(cudaStreamSynchronize(stream));
}

void a_device_that_is_chosen_inside_is_not_kept() {
  with_device_0_unused([] {
    for (int chosen : {0, 1}) {
      {
        device_scope const there(1);
        must(cudaSetDevice(chosen));
      }
      must(current_device() == 0, "after it");
    }
  });
}

void scopes_nest() {
  with_device_0_unused([] {
    device_scope const there(1);
    {
      device_scope const back(0);
      must(current_device() == 0, "the inner one");
      static_cast<void>(make_event());
    }
    must(current_device() == 1, "the outer one");
  });
}

std::vector<named_case> const cases = register_cases({
    {"a_scope_makes_no_context_on_the_threads_device",
     &a_scope_makes_no_context_on_the_threads_device},
    {"a_scope_uses_a_device_that_nobody_used", &a_scope_uses_a_device_that_nobody_used},
    {"a_device_that_is_chosen_inside_is_not_kept", &a_device_that_is_chosen_inside_is_not_kept},
    {"scopes_nest", &scopes_nest},
});

using DeviceScopes = case_of_two_devices;

TEST_P(DeviceScopes, GoAsTheirNamesSay) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Of, DeviceScopes, testing::ValuesIn(cases), name_of_case);

}  // namespace
}  // namespace escrow::test
