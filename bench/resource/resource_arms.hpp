// SPDX-License-Identifier: Apache-2.0
// Arms of memory resources under RMM's own patterns of allocations.
#pragma once

#include <cmath>
#include <cuda/stream_ref>
#include <memory>
#include <random>

#include "claim_arms.hpp"

namespace escrow::bench {

inline constexpr std::size_t resource_alignment = 256;

// Allocations of one size, each freed before the next. A block that is freed on another stream is
// that stream's from then on. `make` makes the resource.
template <auto make>
claim_setup pairs_of() {
  auto const shared = std::make_shared<decltype(make())>(make());
  return by_stream([=](cudaStream_t on, cudaStream_t last) {
    void* const memory = shared->allocate(cuda::stream_ref(on), claimed_bytes, resource_alignment);
    shared->deallocate(cuda::stream_ref(last), memory, claimed_bytes, resource_alignment);
  });
}

// What one thread has allocated, each on one of its streams: a step frees a random allocation on
// its stream, and makes another of a random size. All powers of two between the limits are as
// likely.
template <class Resource>
class random_allocations {
 public:
  random_allocations(std::shared_ptr<Resource> from, claim_streams streams)
      : from_(std::move(from)), streams_(std::move(streams)), alive_(alive_max) {
    constexpr double bits_min = 8, bits_max = 22;  // 256 bytes, 4 MiB
    std::minstd_rand numbers(1);                   // the same for all arms and threads
    std::uniform_int_distribution<std::size_t> places(0, alive_max - 1);
    std::uniform_real_distribution<double> exponents(bits_min, bits_max);
    for (auto& [place, bytes] : steps_) {
      place = places(numbers);
      bytes = static_cast<std::size_t>(std::exp2(exponents(numbers)));
    }
  }
  random_allocations(random_allocations&&) = delete;
  ~random_allocations() {
    for (allocation& each : alive_) end(each);
  }

  void step(std::size_t on) {
    auto const& [place, bytes] = steps_[next_];
    if (++next_ == steps_.size()) next_ = 0;
    allocation& its = alive_[place];
    end(its);
    its = {from_->allocate(cuda::stream_ref(streams_[on]), bytes, resource_alignment), bytes, on};
  }

 private:
  static constexpr std::size_t alive_max = 64;

  struct allocation {
    void* memory = nullptr;
    std::size_t bytes = 0;
    std::size_t on = 0;
  };

  void end(allocation& its) noexcept {
    if (its.memory == nullptr) return;
    from_->deallocate(cuda::stream_ref(streams_[its.on]), std::exchange(its.memory, nullptr),
                      its.bytes, resource_alignment);
  }

  std::shared_ptr<Resource> from_;
  claim_streams streams_;
  std::vector<allocation> alive_;
  std::vector<std::pair<std::size_t, std::size_t>> steps_{4096};  // place, bytes
  std::size_t next_ = 0;
};

template <auto make>
claim_setup random_of() {
  using resource = decltype(make());
  auto const shared = std::make_shared<resource>(make());
  return [=](claim_streams const& mine) -> claim_pair {
    auto const own = std::make_shared<random_allocations<resource>>(shared, mine);
    return [own](std::size_t on, std::size_t) { own->step(on); };
  };
}

template <auto make>
auto setup_of(bool is_random) {
  return is_random ? &random_of<make> : &pairs_of<make>;
}

// Null without RMM.
[[gnu::weak]] std::vector<claim_arm> rmm_arms(bool is_random);

// Registers cub_relaunch/.... Null on the simulated runtime, which has no CUB.
[[gnu::weak]] void register_cub_relaunch(settings const& how);

}  // namespace escrow::bench
