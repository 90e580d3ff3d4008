// SPDX-License-Identifier: Apache-2.0
// Slots: the addresses that are handles.
#include "slots.hpp"

namespace escrow::sim::model {

void reuse_choice::begin_run(options const& how) {
  how_ = how;
  random_.seed(how.seed);
}

bool reuse_choice::next() {
  return how_.reuses_handles && (!how_.stepped || random_() % 2 == 0);
}

void* slots::take() {
  if (idle_.empty() || !choice_.next()) return new slot{run_};
  auto* const newest = idle_.back();
  idle_.pop_back();
  return newest;
}

void slots::give_up(void* address) {
  auto* const given_up = static_cast<slot*>(address);
  (given_up->run == run_ ? idle_ : older_).push_back(given_up);
}

void slots::begin_run(options const& how) {
  ++run_;
  choice_.begin_run(how);
  forget();
}

void slots::forget() {
  for (auto* const list : {&idle_, &older_}) {
    for (auto const* const each : *list) delete each;
    list->clear();
  }
}

}  // namespace escrow::sim::model
