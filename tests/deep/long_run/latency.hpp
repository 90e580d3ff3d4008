// How long calls take: a histogram with steps of a sixteenth, and what it says.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace escrow::test {

/// Quantiles of one interval, in microseconds.
struct quantiles {
  double p50 = 0;
  double p99 = 0;
  double p999 = 0;
};

/// Any thread may add while another takes what came so far. Relaxed: they are counts.
class latency {
 public:
  void add(std::chrono::nanoseconds taken) {
    buckets_[bucket_of(static_cast<std::uint64_t>(std::max<std::int64_t>(taken.count(), 0)))]
        .fetch_add(1, std::memory_order_relaxed);
  }

  /// Times `call`, and returns what it returns.
  template <class Call>
  auto time(Call call) {
    struct timer {
      latency& to;
      std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
      ~timer() { to.add(std::chrono::steady_clock::now() - begin); }
    } const running{*this};
    return call();
  }

  /// Of what came since the last call.
  [[nodiscard]] quantiles take() {
    std::array<std::uint64_t, buckets> counts{};
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < buckets; ++i) {
      counts[i] = buckets_[i].exchange(0, std::memory_order_relaxed);
      total += counts[i];
    }
    return {at(counts, total, 0.5), at(counts, total, 0.99), at(counts, total, 0.999)};
  }

 private:
  static constexpr std::size_t buckets = 640;  // up to some minutes

  static std::size_t bucket_of(std::uint64_t ns) {
    if (ns < 16) return static_cast<std::size_t>(ns);
    auto const shift = static_cast<std::size_t>(std::bit_width(ns)) - 5;
    return std::min(buckets - 1, shift * 16 + static_cast<std::size_t>(ns >> shift));
  }
  static double ns_of(std::size_t bucket) {
    if (bucket < 32) return static_cast<double>(bucket);
    return static_cast<double>((bucket % 16 + 16) << (bucket / 16 - 1));
  }
  static double at(std::array<std::uint64_t, buckets> const& counts, std::uint64_t total,
                   double share) {
    auto const wanted = static_cast<std::uint64_t>(static_cast<double>(total) * share);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets; ++i) {
      seen += counts[i];
      if (seen > wanted) return ns_of(i) / 1000;
    }
    return 0;
  }

  std::array<std::atomic<std::uint64_t>, buckets> buckets_{};
};

}  // namespace escrow::test
