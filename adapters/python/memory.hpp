// SPDX-License-Identifier: Apache-2.0
// What pools and allocators of the Python module have in common.
#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "escrow/internal/never_destroyed.hpp"
#include "module.hpp"

namespace escrow::python {

// The pools that Python made, for trim().
class pool_registry {
 public:
  void add(std::weak_ptr<scratch_pool> made) {
    std::lock_guard const lock(mutex_);
    std::erase_if(all_, [](auto const& each) { return each.expired(); });
    all_.push_back(std::move(made));
  }
  [[nodiscard]] std::vector<std::shared_ptr<scratch_pool>> living() const {
    std::vector<std::shared_ptr<scratch_pool>> result;
    std::lock_guard const lock(mutex_);
    for (auto const& each : all_) {
      if (auto its = each.lock()) result.push_back(std::move(its));
    }
    return result;
  }

 private:
  mutable std::mutex mutex_;  // guards the list
  std::vector<std::weak_ptr<scratch_pool>> all_;
};
inline pool_registry& registry() {
  static never_destroyed<pool_registry> its;
  return *its;
}

template <class Class>
void define_pool_calls(Class& defined, std::string const& name) {
  using type = typename Class::Type;
  static never_destroyed<std::list<std::string>> names;  // for errors; they stay where they are
  auto const named = [&](char const* call) {
    return names->emplace_back(name + "." + call).c_str();
  };
  char const* call = named("stats");
  defined.def(
      "stats",
      [call](type& its) {
        return dict_of(quickly(call, [&] { return to_json(its.need(call).stats()); }));
      },
      "Statistics as a dict of ints, in bytes of whole blocks: bytes, bytes_in_use, bytes_idle, "
      "bytes_in_graphs,\nbytes_peak, grown and returned (blocks), and others.");
  call = named("describe");
  defined.def(
      "describe",
      [call](type& its) { return quickly(call, [&] { return its.need(call).describe(); }); },
      "Statistics and what holds memory, in words, for a log.");
  call = named("trim");
  defined.def(
      "trim",
      [call](type& its, std::size_t keep_bytes) {
        return waiting(call, [&] { return its.need(call).trim(keep_bytes); });
      },
      "keep_bytes"_a = 0,
      "Frees memory that no work uses, until at most `keep_bytes` are allocated. Returns the bytes "
      "freed.");
  call = named("flush");
  defined.def(
      "flush",
      [call](type& its, nb::handle stream) {
        cudaStream_t const on = stream_of(stream);
        waiting(call, [&] { its.need(call).on(on).flush(); });
      },
      "stream"_a.none(),
      "Before a pause of `stream`: what was released on it without an event, as by "
      "streams_outlive_pool, is for\nall streams, captures and trims from now on. UsageError while "
      "the stream is being captured.");
  call = named("close");
  defined.def(
      "close",
      [call](type& its, double timeout) {
        return waiting(call, [&] { return its.need(call).close_for(time_of(timeout, {})).size(); });
      },
      "timeout"_a = 0.0,
      "Refuses claims from now on, frees what is free, and waits at most `timeout` seconds for the "
      "rest. Returns\nhow many hold something then, which describe() names.");
  defined.def_prop_ro(
      "device", [](type const& its) { return its.device; }, "The index of the memory's device.");
}

}  // namespace escrow::python
