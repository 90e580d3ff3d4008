// What belongs to an address, found without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace escrow::inline v0_1 {

// A tree over addresses in steps of 256 bytes: each table is an array of the next ones, and those
// of level 0 have the values. A value is made when its address is first asked for, and stays.
// Thread safety: any thread, except the destructor. The caller orders accesses to a value.
template <class Value, int level>
class address_map {
 public:
  address_map() = default;
  address_map(address_map&&) = delete;
  ~address_map() {
    for (auto& place : entries_) delete place.load(std::memory_order_relaxed);  // no other user
  }

  // Null if at() was never called with the address.
  [[nodiscard]] Value* find(void const* address) const noexcept {
    entry* const found = entries_[index_of(address)].load(std::memory_order_acquire);
    if constexpr (level == 0) {
      return found;
    } else {
      return found == nullptr ? nullptr : found->find(address);
    }
  }

  // Throws std::bad_alloc.
  [[nodiscard]] Value& at(void const* address) {
    auto& place = entries_[index_of(address)];
    // Acquire: pairs with the release below, after what the entry was made of.
    entry* found = place.load(std::memory_order_acquire);
    if (found == nullptr) {
      auto made = std::make_unique<entry>();
      bool const is_first =
          place.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel);
      if (is_first) found = made.release();
    }
    if constexpr (level == 0) {
      return *found;
    } else {
      return found->at(address);
    }
  }

  template <class Call>
  void for_each(Call const& call) {
    for (auto& place : entries_) {
      entry* const found = place.load(std::memory_order_acquire);
      if (found == nullptr) continue;
      if constexpr (level == 0) {
        call(*found);
      } else {
        found->for_each(call);
      }
    }
  }

 private:
  using entry =
      typename std::conditional_t<level == 0, std::type_identity<Value>,
                                  std::type_identity<address_map<Value, level - 1>>>::type;
  static constexpr int step_bits = 8;
  static constexpr int bits = 10;  // of the address, for each level

  static std::size_t index_of(void const* address) noexcept {
    auto const number = reinterpret_cast<std::uintptr_t>(address);
    return (number >> (step_bits + bits * level)) % (std::size_t{1} << bits);
  }

  std::array<std::atomic<entry*>, std::size_t{1} << bits> entries_{};
};

}  // namespace escrow::inline v0_1
