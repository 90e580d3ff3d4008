// SPDX-License-Identifier: Apache-2.0
// Work that uses what was retired before it ends the process where its owner is destroyed, whether
// the work is done or not.
#include <memory>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class UseAfterRetire : public world {
 protected:
  UseAfterRetire() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  struct cuda_free {
    void operator()(int* memory) const { static_cast<void>(cudaFree(memory)); }
  };
  using plain_buffer = std::unique_ptr<int, cuda_free>;
  [[nodiscard]] static plain_buffer make_plain() {
    void* memory = nullptr;
    must(cudaMalloc(&memory, sizeof(int)));
    return plain_buffer(static_cast<int*>(memory));
  }
  /// `use` enqueues work behind the retirement.
  template <class Owner, class Use>
  void retire_and_use(Owner owner, int* memory, Use use) {
    must(launch_add(one, memory, 1));
    polled.retire(one, std::move(owner));
    use(memory);
    sync_all();
    polled.poll();
  }
  void expect_told(auto make) {
    EXPECT_DEATH(make(),
                 "by the owner of 0x.*, which kernel .*add.*, argument 0 uses, enqueued on "
                 "stream 0x.* after the owner was retired there");
  }

  deleter polled{{.own_worker = false}};
};

TEST_F(UseAfterRetire, IsToldThoughTheWorkIsDone) {
  auto const add = [&](int* memory) { must(launch_add(one, memory, 1)); };
  expect_told([&] {
    plain_buffer plain = make_plain();
    int* const memory = plain.get();
    retire_and_use(std::move(plain), memory, add);
  });
  expect_told([&] {
    device_buffer<int> buffer(1);
    int* const memory = buffer.data();
    retire_and_use(std::move(buffer), memory, add);
  });
  expect_told([&] {
    auto owned = make_device<int>(1);
    int* const memory = owned.get();
    retire_and_use(std::move(owned), memory, add);
  });
}

TEST_F(UseAfterRetire, OfSomethingElseIsRight) {
  device_buffer<int> other(1);
  device_buffer<int> buffer(1);
  int* const memory = buffer.data();
  retire_and_use(std::move(buffer), memory, [&](int*) { must(launch_add(one, other.data(), 1)); });
}

// The other stream's work is behind the retirement of the last copy.
TEST_F(UseAfterRetire, OfASharedOwnerIsRightBeforeTheLastRetirement) {
  auto shared = std::make_shared<device_buffer<int>>(1);
  int* const memory = shared->data();
  polled.retire(two, std::shared_ptr(shared));
  must(launch_add(one, memory, 1));
  polled.retire(one, std::move(shared));
  sync_all();
  polled.poll();
}

TEST_F(UseAfterRetire, OfAnEventsOwnerIsTold) {
  auto const retire_after = [&] {
    owned_event const done = make_event();
    device_buffer<int> buffer(1);
    int* const memory = buffer.data();
    must(cudaEventRecord(done, one));
    must(launch_add(one, memory, 1));
    polled.retire_after(done.get(), std::move(buffer));
    sync_all();
    polled.poll();
  };
  expect_told(retire_after);
}

}  // namespace
}  // namespace escrow::test
