// SPDX-License-Identifier: Apache-2.0
// Handles: what the caller gets for an object, and when one is given again.
#pragma once

#include "slots.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace escrow::sim::model {

// The objects of one kind that have a handle. The handle is the address of a slot and not of the
// object: the object may live on, and AddressSanitizer sees whoever touches it when it is gone.
template <class Handle, class Object>
class handle_table {
 public:
  // Sets the object's handle: the one that was given up last, as a driver does, or a new one.
  Handle add(std::shared_ptr<Object> object) {
    object->handle = static_cast<Handle>(slots_.take());
    return objects_.emplace(object->handle, std::move(object)).first->first;
  }
  // Null if there is none.
  [[nodiscard]] std::shared_ptr<Object> find(Handle handle) const {
    auto const found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  // The handle is given up; the object lives on where it is in use.
  void erase(Handle handle) {
    if (objects_.erase(handle) == 1) slots_.give_up(handle);
  }
  // A reset ends the objects: their handles are not given again.
  template <class Condition>
  void lose_if(Condition condition) {
    std::erase_if(objects_, [&](auto const& each) {
      if (!condition(*each.second)) return false;
      lost_.insert(each.first);
      return true;
    });
  }
  [[nodiscard]] bool is_lost(Handle handle) const { return lost_.contains(handle); }
  void lose_all() {
    for (auto const& each : objects_) lost_.insert(each.first);
    objects_.clear();
  }
  // A run begins: what was given up before is not given again.
  void begin_run(options const& how) { slots_.begin_run(how); }

  [[nodiscard]] std::size_t size() const { return objects_.size(); }
  [[nodiscard]] auto begin() const { return objects_.begin(); }
  [[nodiscard]] auto end() const { return objects_.end(); }

 private:
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
  std::unordered_set<Handle> lost_;
  slots slots_;
};

}  // namespace escrow::sim::model
