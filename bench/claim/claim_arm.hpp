// One way to claim something for a stream and to release it again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>

namespace escrow::bench {

// What all arms claim: as much memory as an arm that allocates memory is asked for.
constexpr std::size_t claimed_bytes = std::size_t{1} << 20;

// What one thread does. Its pairs are on `streams` in turn.
class claimer {
 public:
  virtual ~claimer() = default;
  virtual void run(std::span<cudaStream_t const> streams, int pairs) = 0;
};

// What the threads share.
class claim_arm {
 public:
  virtual ~claim_arm() = default;
  // A claimer for the calling thread.
  [[nodiscard]] virtual std::unique_ptr<claimer> make_claimer() = 0;
};

// A claimer from a function that does one pair on a stream.
template <class Pair>
class looping_claimer final : public claimer {
 public:
  explicit looping_claimer(Pair pair) : pair_(static_cast<Pair&&>(pair)) {}

  void run(std::span<cudaStream_t const> streams, int pairs) override {
    std::size_t at = 0;
    for (int i = 0; i < pairs; ++i) {
      pair_(streams[at]);
      if (++at == streams.size()) at = 0;
    }
  }

 private:
  Pair pair_;
};

template <class Pair>
[[nodiscard]] std::unique_ptr<claimer> make_looping(Pair pair) {
  return std::make_unique<looping_claimer<Pair>>(static_cast<Pair&&>(pair));
}

struct named_arm {
  char const* name;
  std::unique_ptr<claim_arm> (*make)();
  int pairs_max;               // in one timed row: few for what is slow
  bool is_simulatable = true;  // exists on the simulated runtime too
};

// Arms with several threads, and arms on two streams in turn.
[[nodiscard]] std::span<named_arm const> threaded_arms();
[[nodiscard]] std::span<named_arm const> ping_pong_arms();

}  // namespace escrow::bench
