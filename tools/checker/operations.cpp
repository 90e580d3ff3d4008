// SPDX-License-Identifier: Apache-2.0
// Atomic operations on weak memory, each a place where other threads may go on first.
#include "operations.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"

namespace escrow::model {

namespace {

// For the history.
std::uint64_t identity(location const& where, message const& read) {
  return mixed(where.where, read.value);
}

std::uint64_t masked(std::uint64_t value, std::size_t size) {
  return size == 8 ? value : value & ((std::uint64_t{1} << (8 * size)) - 1);
}

void learn(model_thread& reader, message const& read, std::memory_order order) {
  (acquires(order) ? reader.known : reader.glimpsed).join(read.released);
}

void write(location& to, target const& at, std::uint64_t value, moment now, std::memory_order order,
           message const* replaced) {
  engine& all = engine::the();
  model_thread& writer = all.self();
  message stored{masked(value, at.size), now, releases(order) ? writer.known : writer.fenced};
  if (replaced != nullptr)
    stored.released.join(knowledge(replaced->released));  // a release sequence
  to.append(stored);
  to.note(now, to.newest(), order);
  std::memcpy(reinterpret_cast<void*>(at.where), &stored.value, at.size);
  all.changed();
}

std::string hex(std::uint64_t value) {
  std::array<char, 24> text{};
  static_cast<void>(std::snprintf(text.data(), text.size(), value < 4096 ? "%llu" : "0x%llx",
                                  static_cast<unsigned long long>(value)));
  return text.data();
}

void trace(target const& at, char const* operation, std::memory_order order,
           std::string const& values) {
  engine& all = engine::the();
  if (all.is_traced()) all.trace(at.caller, operation, at.where, values + "  " + name_of(order));
}

// Looks that read the same once more, one right after another, are one look: a loop that spins.
// True if `at` was just read, and has to be read so again.
bool is_same_look(model_thread& reader, target const& at) {
  if (reader.spin_site != at.caller || reader.spin_where != at.where ||
      reader.spin_operations != reader.operations) {
    reader.spin_count = 0;
    return false;
  }
  constexpr std::uint32_t looks_max = 200;  // more than our loops make before they yield
  return ++reader.spin_count < looks_max;
}

}  // namespace

std::uint64_t atomic_load(target const& at, std::memory_order order) {
  engine& all = engine::the();
  model_thread& reader = all.self();
  location* where = &all.at(at.where, at.size, at.caller);
  order = all.order_at(at.caller, *where, "load", order);
  if (is_same_look(reader, at)) return where->messages[reader.spin_message].value;
  std::size_t oldest = 0;
  if (reader.spin_count != 0) {
    // Nothing but another value ends this loop.
    reader.spin_count = 0;
    std::uint64_t const value = where->messages[reader.spin_message].value;
    all.wait(status::spins, at.where, value);
    oldest = reader.spin_message + 1;
  }
  // Others need not go on between this and what the thread does next: a later load may read all
  // that an earlier one may. But what others read sequentially consistently tells of this one.
  oldest = std::max(oldest, where->oldest_for(reader.known.seen, order));
  std::size_t const newest = where->newest();
  std::size_t const read = all.choose_message(oldest, newest);
  message const& found = where->messages[read];
  moment const now = all.step(identity(*where, found));
  where->note(now, read, order);
  learn(reader, found, order);
  reader.spin_site = at.caller;
  reader.spin_where = at.where;
  reader.spin_message = read;
  reader.spin_operations = reader.operations;
  trace(at, "load", order, hex(found.value) + (read == newest ? "" : " (an older value)"));
  std::uint64_t const value = found.value;
  if (order == std::memory_order_seq_cst) all.after_step();
  return value;
}

void atomic_store(target const& at, std::uint64_t value, std::memory_order order) {
  engine& all = engine::the();
  location& where = all.at(at.where, at.size, at.caller);
  order = all.order_at(at.caller, where, "store", order);
  write(where, at, value, all.step(at.where), order, nullptr);
  trace(at, "store", order, "-> " + hex(where.messages.back().value));
  all.after_step();
}

std::uint64_t atomic_modify(target const& at, char const* operation, std::memory_order order,
                            std::function<std::uint64_t(std::uint64_t)> const& change) {
  engine& all = engine::the();
  location& where = all.at(at.where, at.size, at.caller);
  order = all.order_at(at.caller, where, operation, order);
  message const read = where.messages.back();
  moment const now = all.step(identity(where, read));
  learn(all.self(), read, order);
  write(where, at, change(read.value), now, order, &read);
  trace(at, operation, order, hex(read.value) + " -> " + hex(where.messages.back().value));
  all.after_step();
  return read.value;
}

bool atomic_compare_exchange(target const& at, std::uint64_t& expected, std::uint64_t desired,
                             std::memory_order success, std::memory_order failure) {
  engine& all = engine::the();
  location& where = all.at(at.where, at.size, at.caller);
  model_thread& self = all.self();
  success = all.order_at(at.caller, where, "compare_exchange", success);
  // It takes the newest value if that is the expected one, or fails with any that is not; where
  // all ways are gone, with the newest only: ours are tried again then, and nothing else follows.
  std::size_t const newest = where.newest();
  std::size_t const oldest =
      all.way().is_random() ? where.oldest_for(self.known.seen, failure) : newest;
  std::vector<std::size_t> ways;
  for (std::size_t i = newest + 1; i-- > oldest;) {
    if (i == newest || where.messages[i].value != expected) ways.push_back(i);
  }
  std::size_t const read = ways[all.way().choose(ways.size())];
  message const found = where.messages[read];
  moment const now = all.step(identity(where, found));
  // What Boost's free list reads in a race, it must not use: the exchange that follows fails.
  bool const is_mistaken = std::exchange(self.is_mistaken, false);
  if (found.value != expected) {
    where.note(now, read, failure);
    learn(self, found, failure);
    trace(at, "compare_exchange", failure, hex(found.value) + ", not " + hex(expected));
    expected = found.value;
    all.after_step();
    return false;
  }
  learn(self, found, success);
  write(where, at, desired, now, success, &found);
  trace(at, "compare_exchange", success, hex(expected) + " -> " + hex(desired));
  if (is_mistaken) {
    all.fail("what was read in a race was used");
    all.end_execution();
  }
  all.after_step();
  return true;
}

void atomic_fence(std::memory_order order) {
  engine& all = engine::the();
  model_thread& self = all.self();
  if (!all.how().has_fences) std::abort();  // see options
  static_cast<void>(all.step(static_cast<std::uint64_t>(order)));
  if (acquires(order)) self.known.join(self.glimpsed);
  if (order == std::memory_order_seq_cst) {
    self.known.seen.join(all.fences().seen);
    all.fences().seen = self.known.seen;
    all.changed();
  }
  if (releases(order)) self.fenced = self.known;
  if (order == std::memory_order_seq_cst) all.after_step();
}

bool sleep_on(target const& at, std::uint64_t value, bool has_end) {
  engine& all = engine::the();
  location& where = all.at(at.where, at.size, at.caller);
  message const& newest = where.messages.back();
  moment const now = all.step(identity(where, newest));
  where.note(now, where.newest(), std::memory_order_relaxed);
  bool const sleeps = newest.value == masked(value, at.size);
  trace(at, "sleep", std::memory_order_relaxed, sleeps ? "sleeps" : "need not");
  if (!sleeps) {
    all.after_step();
    return false;
  }
  all.wait(has_end ? status::sleeps_awhile : status::sleeps, at.where);
  static_cast<void>(all.step(all.self().was_woken ? 1 : 0));
  trace(at, "sleep", std::memory_order_relaxed, all.self().was_woken ? "was woken" : "time is up");
  return true;
}

std::size_t wake(std::uintptr_t where, std::size_t count, void const* caller) {
  engine& all = engine::the();
  std::uint64_t woken = 0;
  std::size_t number = 0;
  for (; number < count; ++number) {
    std::vector<std::uint32_t> sleepers;
    for (std::uint32_t i = 0; i < all.thread_count(); ++i) {
      model_thread const& each = all.thread(i);
      bool const sleeps = each.now == status::sleeps || each.now == status::sleeps_awhile;
      if (sleeps && each.object == where && !each.was_woken) sleepers.push_back(i);
    }
    if (sleepers.empty()) break;
    std::uint32_t const chosen = sleepers[all.way().choose(sleepers.size())];
    all.thread(chosen).was_woken = true;
    woken = mixed(woken, chosen);
    if (all.is_traced()) all.trace(caller, "wake", where, all.thread(chosen).name);
  }
  static_cast<void>(all.step(mixed(where, woken)));
  if (number != 0) all.changed();
  if (number == 0 && all.is_traced()) all.trace(caller, "wake", where, "nobody sleeps");
  all.after_step();
  return number;
}

}  // namespace escrow::model
