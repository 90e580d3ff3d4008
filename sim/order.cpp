// SPDX-License-Identifier: Apache-2.0
// Vector clocks of streams.
#include "order.hpp"

#include <algorithm>

namespace escrow::sim::model {

void host_knowledge::learn(position const& done) {
  if (has(done.own)) return;
  learn(done.own);
  if (done.others == nullptr) return;
  for (auto const& [stream, number] : *done.others) learn(moment{stream, number});
}

void host_knowledge::learn(moment const& done) {
  auto const found = done_.find(done.stream);
  if (found != done_.end()) found->second = std::max(found->second, done.number);
}

void come_behind(position& place, position const& other, host_knowledge const& known) {
  if (place.is_behind(other.own) || known.has(other.own)) return;
  auto joined = std::make_shared<past>();
  auto const add = [&](moment const& before) {
    if (before.stream == place.own.stream || known.has(before)) return;
    auto& last = (*joined)[before.stream];
    last = std::max(last, before.number);
  };
  for (auto const* const each : {place.others.get(), other.others.get()}) {
    if (each == nullptr) continue;
    for (auto const& [stream, number] : *each) add({stream, number});
  }
  add(other.own);
  place.others = std::move(joined);
}

}  // namespace escrow::sim::model
