// SPDX-License-Identifier: Apache-2.0
// A capture whose work uses variables of a function that has returned is refused at its end.
#include <string>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class DeadStack : public pool_world {
 protected:
  /// What a user's function is, which has a frame of its own.
  [[gnu::noinline]] static void copy_from_variable(cudaStream_t on, int* to) {
    int value = 7;
    must(cudaMemcpyAsync(to, &value, sizeof(value), cudaMemcpyHostToDevice, on));
  }
  [[gnu::noinline]] static void copy_to_variable(cudaStream_t on, int const* from) {
    int value = 0;
    must(cudaMemcpyAsync(&value, from, sizeof(value), cudaMemcpyDeviceToHost, on));
  }
  [[gnu::noinline]] static void call_with_variable(cudaStream_t on) {
    int value = 0;
    must(cudaLaunchHostFunc(
        on, [](void* its) { ++*static_cast<int*>(its); }, &value));
  }

  static void expect_refused(auto const& capture_it, std::string const& what) {
    try {
      static_cast<void>(capture_it());
      FAIL() << "it was captured";
    } catch (usage_error const& error) {
      std::string const text = error.what();
      EXPECT_NE(text.find(what + " 0x"), std::string::npos) << text;
      EXPECT_NE(text.find("a variable of a function that has returned"), std::string::npos) << text;
    }
  }
  [[nodiscard]] graph captured_audited(auto const& enqueue) {
    return escrow::capture(one, [&](stream_ref on) { enqueue(on.get()); },
                           {cudaStreamCaptureModeThreadLocal, audit_use::yes});
  }

  device_ints memory{1};
};

TEST_F(DeadStack, IsRefused) {
  expect_refused(
      [&] {
        return captured_audited([&](cudaStream_t on) { copy_from_variable(on, memory.data()); });
      },
      "a copy was captured from");
  expect_refused(
      [&] {
        return captured_audited([&](cudaStream_t on) { copy_to_variable(on, memory.data()); });
      },
      "a copy was captured to");
  expect_refused([&] { return captured_audited([&](cudaStream_t on) { call_with_variable(on); }); },
                 "a host function was captured with the argument");
  expect_refused(
      [&] {
        capture_scope scope(one, {cudaStreamCaptureModeThreadLocal, audit_use::yes});
        copy_from_variable(one, memory.data());
        return scope.end();
      },
      "a copy was captured from");
}

TEST_F(DeadStack, IsNotWhereAVariableLives) {
  int value = 7;
  int read = 0;
  auto const copy_both = [&](cudaStream_t on) {
    must(cudaMemcpyAsync(memory.data(), &value, sizeof(value), cudaMemcpyHostToDevice, on));
    must(cudaMemcpyAsync(&read, memory.data(), sizeof(read), cudaMemcpyDeviceToHost, on));
  };
  graph_exec exec(captured_audited(copy_both));
  exec.launch(one);
  sync(one);
  EXPECT_EQ(read, 7);
  capture_scope scope(one, {cudaStreamCaptureModeThreadLocal, audit_use::yes});
  value = 8;
  copy_both(one);
  graph_exec other(scope.end());
  other.launch(one);
  sync(one);
  EXPECT_EQ(read, 8);
}

TEST_F(DeadStack, IsNotRefusedWithoutAnAudit) {
  graph const made =
      escrow::capture(one, [&](stream_ref on) { copy_from_variable(on.get(), memory.data()); },
                      {cudaStreamCaptureModeThreadLocal, audit_use::no});
  EXPECT_NE(made.get(), nullptr);
}

}  // namespace
}  // namespace escrow::test
