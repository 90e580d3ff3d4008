// What the long run measures each second, and whether it stayed flat.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "world.hpp"

namespace escrow::test {

/// One moment. Rates and quantiles are of the time since the last one.
struct sample {
  double seconds = 0;
  double rss_kib = 0;
  double malloced_kib = 0;  // in use, as malloc sees it
  double heap_kib = 0;      // the same without what CUDA leaves of plain execs
  double device_kib = 0;    // in use on all devices
  double threads = 0;
  double events = 0;  // of the simulated runtime; 0 on a GPU, which does not tell
  double pending = 0;
  std::array<double, deeds> per_second{};
  quantiles claim;
  quantiles launch;
  quantiles retire;
};

class samples {
 public:
  samples(world& all, double seconds, std::size_t devices);

  void take();
  [[nodiscard]] std::vector<sample> const& all() const noexcept { return taken_; }

  /// How fast a value rises over the second half of the run, per minute: the slope of a line
  /// through the lowest values of ten equal parts. What is in flight comes and goes, and a leak
  /// raises the lowest values too.
  [[nodiscard]] double rise_per_minute(double sample::*value) const;
  /// The medians of a latency over the second and the last quarter: the first is for warming up.
  struct change {
    double early;
    double late;
  };
  [[nodiscard]] change of(quantiles sample::*latency, double quantiles::*which) const;

  /// Of all kinds together, in the second half.
  [[nodiscard]] double operations_per_minute() const;

  /// What CUDA leaves of each plain exec, which does not count as memory in use.
  [[nodiscard]] double bytes_left_by_cuda() const noexcept { return left_by_cuda_; }

  [[nodiscard]] std::string json() const;
  void print_table() const;

 private:
  [[nodiscard]] double median(std::size_t from, std::size_t to, quantiles sample::*latency,
                              double quantiles::*which) const;

  world& all_;
  std::size_t devices_;
  double left_by_cuda_;
  double begin_;
  std::array<std::uint64_t, deeds> counted_{};
  std::vector<sample> taken_;
};

/// Memory in use on the heap, as malloc sees it.
[[nodiscard]] double heap_kib_now();

/// Memory in use on all devices. Leaves the last one current.
[[nodiscard]] double device_kib_now(std::size_t devices);

}  // namespace escrow::test
