// SPDX-License-Identifier: Apache-2.0
// The sizes of tests: the sanitizer they are built with, the full size of those that have one; how
// long calls take, and the figures of a run.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "kernels.hpp"

// g++ 12 says it with macros of its own, clang 14 with __has_feature.
#ifndef __has_feature
#define ESCROW_TEST_HAS(feature) 0
#else
#define ESCROW_TEST_HAS(feature) __has_feature(feature)
#endif

// Macros too, for functions that must not exist beside a sanitizer's own.
#if defined(__SANITIZE_THREAD__) || ESCROW_TEST_HAS(thread_sanitizer)
#define ESCROW_TEST_TSAN 1
#else
#define ESCROW_TEST_TSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__) || ESCROW_TEST_HAS(address_sanitizer)
#define ESCROW_TEST_ASAN 1
#else
#define ESCROW_TEST_ASAN 0
#endif
#undef ESCROW_TEST_HAS

namespace escrow::test {

inline constexpr bool built_with_tsan = ESCROW_TEST_TSAN != 0;
inline constexpr bool built_with_asan = ESCROW_TEST_ASAN != 0;
/// With either: everything takes several times as long.
inline constexpr bool is_sanitized = built_with_tsan || built_with_asan;

/// Whether ESCROW_DEEP asks for the full sizes, which take minutes.
[[nodiscard]] inline bool is_deep() {
  char const* const given = std::getenv("ESCROW_DEEP");
  return given != nullptr && std::string(given) != "" && std::string(given) != "0";
}

/// The one size or the other.
template <class Size>
[[nodiscard]] Size deep_size(Size usual, Size deep) {
  return is_deep() ? deep : usual;
}

/// How long calls take: a histogram with steps of a sixteenth. Any thread may add while another
/// takes what came so far. Relaxed: they are counts.
class latency {
 public:
  /// Times `call`, and returns what it returns.
  auto time(auto call) {
    struct timer {
      latency& to;
      std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
      ~timer() { to.add(std::chrono::steady_clock::now() - begin); }
    } const running{*this};
    return call();
  }
  /// p50 and p99 of what came since the last call, in microseconds.
  [[nodiscard]] std::array<double, 2> take() {
    std::array<std::uint64_t, buckets> counts{};
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < buckets; ++i)
      total += counts[i] = counts_[i].exchange(0, std::memory_order_relaxed);
    auto const at = [&](double share) {
      auto left = static_cast<std::int64_t>(static_cast<double>(total) * share);
      std::size_t i = 0;
      while (i < buckets && (left -= static_cast<std::int64_t>(counts[i])) >= 0) ++i;
      if (i == buckets) return 0.0;
      double const ns = static_cast<double>(i < 32 ? i : (i % 16 + 16) << (i / 16 - 1));
      return ns / 1000;
    };
    return {at(0.5), at(0.99)};
  }

 private:
  static constexpr std::size_t buckets = 640;  // up to some minutes

  void add(std::chrono::nanoseconds taken) {
    auto const ns = static_cast<std::uint64_t>(taken.count());
    auto const shift = std::max<std::size_t>(static_cast<std::size_t>(std::bit_width(ns)), 5) - 5;
    std::size_t const bucket = ns < 16 ? ns : shift * 16 + static_cast<std::size_t>(ns >> shift);
    counts_[std::min(buckets - 1, bucket)].fetch_add(1, std::memory_order_relaxed);
  }

  std::array<std::atomic<std::uint64_t>, buckets> counts_{};
};

/// What a run found: printed line by line, and written as JSON to the folder that ESCROW_RESULTS
/// names, if any, as <program>_<runtime>.json.
class figures {
 public:
  explicit figures(std::string program)
      : program_(std::move(program) + (is_simulated() ? "_sim" : "_gpu")) {
    add("runtime", std::string(is_simulated() ? "simulated" : "GPU"));
    add("deep", std::string(is_deep() ? "yes" : "no"));
  }

  void add(std::string const& name, std::string const& text) { put(name, '"' + text + '"'); }
  template <std::integral Count>
  void add(std::string const& name, Count count) {
    put(name, std::to_string(count));
  }
  void add(std::string const& name, double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    put(name, text);
  }

  /// Call it once, at the end.
  void write() const {
    char const* const folder = std::getenv("ESCROW_RESULTS");
    if (folder == nullptr || std::string(folder) == "") return;
    std::string const path = std::string(folder) + "/" + program_ + ".json";
    std::ofstream file(path);
    file << "{\n" << json_ << "\n}\n";
    if (!file.flush()) std::printf("cannot write %s\n", path.c_str());
  }

 private:
  void put(std::string const& name, std::string const& value) {
    std::printf("%s: %s = %s\n", program_.c_str(), name.c_str(), value.c_str());
    std::fflush(stdout);
    json_ += (json_.empty() ? "  \"" : ",\n  \"") + name + "\": " + value;
  }

  std::string program_;
  std::string json_;
};

}  // namespace escrow::test
