// What the tests of make_stream_shared() share.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "escrow/deleter/deleter.hpp"
#include "escrow/deleter/shared_object.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "owners.hpp"

namespace escrow::test {

/// A test with an object whose end is watched, and streams that can be held up.
class stream_shared_test : public testing::Test {
 protected:
  template <class T = probe>
  [[nodiscard]] std::shared_ptr<T> share() {
    return make_stream_shared_by<T>(deleter_, fate_);
  }
  void hold_up(cudaStream_t stream) { must(launch_wait_flag(stream, flag_.get())); }
  [[nodiscard]] bool stays() const {
    return stays_false([this] { return fate_->was_destroyed(); });
  }
  // Whatever has been pushed by now, and no running work uses, has been reclaimed.
  [[nodiscard]] bool lives() {
    deleter_.drain();
    return !fate_->was_destroyed();
  }

  pinned_flag flag_;
  owned_stream stream_ = make_stream();
  owned_stream other_ = make_stream();
  fate_ptr fate_ = make_fate();
  deleter deleter_;
};

}  // namespace escrow::test
