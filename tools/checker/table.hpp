// SPDX-License-Identifier: Apache-2.0
// A hash table by address that is emptied at no cost, for what one execution touches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace escrow::model {

// Entries stay where they are and are used again, with the memory that they own, by later
// executions; `T::begin(address)` makes one new.
template <class T>
class table {
 public:
  table() : slots_(1024) {}

  void clear() noexcept {
    used_ = 0;
    ++round_;
  }

  [[nodiscard]] T* find(std::uintptr_t address) noexcept {
    slot const& found = slots_[place_of(address)];
    return found.round == round_ ? entries_[found.entry].get() : nullptr;
  }

  // The entry of that address, made if need be.
  T& at(std::uintptr_t address) {
    std::size_t place = place_of(address);
    if (slots_[place].round == round_) return *entries_[slots_[place].entry];
    if (2 * (used_ + 1) > slots_.size()) {
      grow();
      place = place_of(address);
    }
    if (used_ == entries_.size()) entries_.push_back(std::make_unique<T>());
    slots_[place] = {address, round_, used_};
    T& made = *entries_[used_++];
    made.begin(address);
    return made;
  }

  // Of this execution, in the order in which they were first touched.
  [[nodiscard]] std::size_t size() const noexcept { return used_; }
  [[nodiscard]] T& operator[](std::size_t index) noexcept { return *entries_[index]; }

 private:
  struct slot {
    std::uintptr_t address = 0;
    std::uint64_t round = 0;
    std::size_t entry = 0;
  };

  [[nodiscard]] std::size_t place_of(std::uintptr_t address) const noexcept {
    std::size_t place = (address * 0x9e3779b97f4a7c15U) >> 20U;
    while (true) {
      slot const& looked_at = slots_[place &= slots_.size() - 1];
      if (looked_at.round != round_ || looked_at.address == address) return place;
      ++place;
    }
  }

  void grow() {
    std::vector<slot> const old = std::move(slots_);
    slots_ = std::vector<slot>(old.size() * 2);
    for (slot const& each : old) {
      if (each.round == round_) slots_[place_of(each.address)] = each;
    }
  }

  std::vector<slot> slots_;
  std::vector<std::unique_ptr<T>> entries_;
  std::size_t used_ = 0;
  std::uint64_t round_ = 1;
};

}  // namespace escrow::model
