// What the tests of whole computations share: device memory that tells when it goes.
#pragma once

#include <escrow/deleter.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "build_fixture.hpp"
#include "owners.hpp"

namespace escrow::test {

/// Device memory that ends with its last owner, and tells the fate.
template <class T>
[[nodiscard]] std::shared_ptr<T> device_memory(fate_ptr fate, std::size_t n = 1) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, n * sizeof(T)));
  return {static_cast<T*>(memory), [fate = std::move(fate)](T* freed) {
            static_cast<void>(cudaFree(freed));
            probe const goes(fate);
          }};
}

/// A test of a whole computation, whose memory is kept by its exec alone.
class build_integration_test : public build_test {
 protected:
  // Expects that only `exec` keeps what tells the fate, and ends both.
  void expect_kept_by(std::optional<graph_exec>& exec) {
    deleter_.drain();
    EXPECT_FALSE(fate_->was_destroyed());
    exec.reset();
    deleter_.drain();
    EXPECT_TRUE(fate_->wait());
    EXPECT_EQ(fate_->times(), 1);
  }
  template <class T>
  void upload(T* to, T const& value) {
    must(cudaMemcpy(to, &value, sizeof(T), cudaMemcpyHostToDevice));
  }

  deleter deleter_;
  fate_ptr fate_ = make_fate();
};

}  // namespace escrow::test
