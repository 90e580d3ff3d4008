// SPDX-License-Identifier: Apache-2.0
// Ranges of addresses, from their memory's allocation on.
#include "memory_book.hpp"

#include <cuda.h>

#include <array>
#include <cstdio>
#include <iterator>
#include <utility>

#include "escrow/internal/device.hpp"
#include "escrow/internal/never_destroyed.hpp"

// Of the simulated runtime, where that is linked: work that uses idle memory ends the process.
extern "C" [[gnu::weak, gnu::visibility("hidden")]] void escrow_simulated_asks(
    bool (*is_idle)(void const* question, void* lease) noexcept) noexcept;

namespace escrow::inline v0_2 {

namespace {

// What is wrong with memory that has no lease.
constexpr char const* problem_of_slot =
    "the pool \"%s\", where it is free; enqueue the work before its lease ends, or it is "
    "deallocated, and keep no address longer";
constexpr char const* problem_in_launch =
    "the pool \"%s\", where it is free; claim in the capture; change an exec by update() or set(), "
    "which keep owners; keep what hoist() returned until the last launch, and close a pool that is "
    "held_until_closed after it";
constexpr char const* problem_in_capture =
    "the pool \"%s\", whose lease has ended in this capture: a later claim there gets the same "
    "memory; end the lease behind the last work that uses it, or leave_to_graph() what stays";
constexpr char const* problem_of_captured =
    "the pool \"%s\", whose lease has ended in a capture, so that only its graph has it, and each "
    "claim there in turn: keep the lease of what is used after the launch (claim_kept()), or "
    "leave_to_graph() it";
constexpr char const* problem_if_given_up =
    "the pool \"%s\", which all that held it for graphs have given up: use it before "
    "hoisted::release_after() and the end of the `hoisted`, or before the graph and its graph_exec "
    "end";
constexpr char const* problem_of_arena =
    "the arena of the sharing group \"%s\", where no lease is: the next launch may overwrite it; "
    "claim what stays after its capture by claim_kept()";
constexpr char const* problem_of_arena_in_capture =
    "the arena of the sharing group \"%s\", where no lease is: a later claim of this capture gets "
    "the same memory; end the lease behind the last work that uses it";
constexpr char const* problem_if_unmapped =
    "the arena of the sharing group \"%s\", which has no memory there while it is parked; "
    "unpark() it first";

using used_in = simulated_question::use;

// Null: the work may use it.
char const* problem_with(known_address const& its, simulated_question const& asked) {
  bool const has_lease = its.used_by != known_address::use::none;
  bool const is_in_arena = its.group != nullptr;
  if (asked.by == used_in::in_capture) {  // what other graphs have is for audits
    if (has_lease || its.free_in != asked.capture) return nullptr;
    return is_in_arena ? problem_of_arena_in_capture : problem_in_capture;
  }
  if (its.what == known_address::kind::unmapped) return problem_if_unmapped;
  if (is_in_arena) return has_lease || asked.by == used_in::in_launch ? nullptr : problem_of_arena;
  if (has_lease) return nullptr;
  if (its.is_given_up) return problem_if_given_up;
  if (its.is_in_graphs) {
    return asked.by == used_in::on_stream && its.free_in != 0 ? problem_of_captured : nullptr;
  }
  return asked.by == used_in::in_launch ? problem_in_launch : problem_of_slot;
}

struct range_of_memory {
  std::uintptr_t begin;
  std::uintptr_t end;
};

simulated_lease lease_at(known_address const& its, simulated_question const& asked,
                         range_of_memory const& in, void const* owner) {
  bool const of_launch = asked.by == used_in::in_launch;
  simulated_lease lease;
  if (its.used_end != 0) {
    lease.used_end = in.begin + its.used_end;
    lease.end = in.begin + its.end;
  }
  auto const make_new_to = [&](std::uintptr_t end) {
    lease.new_begin = in.begin;
    lease.new_end = end;
  };
  if (its.group != nullptr) {
    if (its.what == known_address::kind::unmapped || (!of_launch && its.lease == 0)) return lease;
    lease.slot = owner;
    lease.number = of_launch ? 0 : its.lease;
    make_new_to(in.begin + its.mapped);
  } else if (its.used_by != known_address::use::none) {
    lease.slot = its.slot;
    lease.number = its.lease;
    if (its.used_end != 0 && !its.is_in_graphs) make_new_to(lease.end);
  } else if (of_launch && its.is_of_captures) {
    lease.slot = its.slot;
    lease.last = its.lease;
    if (its.free_in != 0 && its.is_scratch) make_new_to(in.end);
  }
  return lease;
}

std::uintptr_t number_of(void const* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

bool memory_book::is_idle(void const* its_question, void* its_lease) noexcept {
  auto const& asked = *static_cast<simulated_question const*>(its_question);
  memory_book& book = global();
  std::uintptr_t const number = number_of(asked.address);
  std::lock_guard const lock(book.mutex_);
  auto const found = book.owned_around(number);
  if (found == nullptr) return false;
  std::uintptr_t const begin = found->first;
  range const& its_range = found->second;
  known_address its{.what = known_address::kind::slot};
  its_range.owner->tell(its, number - begin);
  bool const is_in_capture = asked.by == used_in::in_capture;
  if (is_in_capture && its_range.owner->is_of(asked.capture, number - begin)) {
    its.free_in = asked.capture;
  }
  simulated_lease& lease = *static_cast<simulated_lease*>(its_lease);
  lease = lease_at(its, asked, {begin, its_range.end}, its_range.owner);
  auto const write = [&](char const* text) {
    static_cast<void>(std::snprintf(asked.text, asked.bytes, text, its_range.label.c_str()));
  };
  write("%s");
  char const* const problem = problem_with(its, asked);
  if (problem == nullptr) return false;
  // What its object does not have any more is somebody else's.
  if (its.group == nullptr && !its_range.owner->has(begin)) return false;
  // Where memory begins behind other memory without a gap, it may be the end of that.
  if (begin == number) {
    for (ranges const* const each : {&book.slots_, &book.blocks_, &book.arenas_}) {
      if (around(*each, number - 1) != each->end()) return false;
    }
  }
  write(problem);
  return true;
}

memory_book::ranges::value_type const* memory_book::owned_around(std::uintptr_t address) const {
  for (ranges const* const each : {&slots_, &blocks_, &arenas_}) {
    auto const found = around(*each, address);
    if (found != each->end() && found->second.owner != nullptr) return &*found;
  }
  return nullptr;
}

memory_book& memory_book::global() {
  static never_destroyed<memory_book> only;
  [[maybe_unused]] static bool const is_set = [] {
    set(*only);
    if (&escrow_simulated_asks != nullptr) escrow_simulated_asks(&is_idle);
    return true;
  }();
  return *only;
}

void memory_book::forget(ranges& ended, std::uintptr_t begin, std::uintptr_t end) noexcept {
  auto first = ended.upper_bound(begin);
  if (first != ended.begin() && std::prev(first)->second.end > begin) --first;
  while (first != ended.end() && first->first < end) first = ended.erase(first);
}

void memory_book::add(ranges& to, void const* begin, std::size_t bytes, range made) {
  std::uintptr_t const first = number_of(begin);
  made.end = first + bytes;
  std::lock_guard const lock(mutex_);
  forget(ended_, first, made.end);
  forget(older_, first, made.end);
  to.insert_or_assign(first, std::move(made));
}

memory_book::place memory_book::make_place(range_owner const& its, std::string label) {
  ranges made;
  made.try_emplace(0, range{.label = std::move(label), .owner = &its});
  return made.extract(made.begin());
}

void memory_book::add_slot(place made, void const* begin, std::size_t bytes) noexcept {
  made.key() = number_of(begin);
  made.mapped().end = made.key() + bytes;
  std::lock_guard const lock(mutex_);
  forget(ended_, made.key(), made.mapped().end);
  forget(older_, made.key(), made.mapped().end);
  slots_.erase(made.key());
  slots_.insert(std::move(made));
}

void memory_book::end(ranges& in, void const* begin) noexcept {
  std::lock_guard const lock(mutex_);
  auto ended = in.extract(number_of(begin));
  if (ended.empty()) return;
  ended.mapped().owner = nullptr;
  // A slot's label stays when its block ends.
  auto const known = ended_.find(ended.key());
  if (known != ended_.end()) {
    if (ended.mapped().label.empty()) ended.mapped().label.swap(known->second.label);
    ended_.erase(known);
  }
  if (ended_.size() >= ended_max) older_ = std::exchange(ended_, {});
  ended_.insert(std::move(ended));
}

made_blocks*& made_blocks::current() noexcept {
  thread_local made_blocks* innermost = nullptr;
  return innermost;
}

void memory_book::own_block(void const* begin, range_owner const& its, std::string const& label) {
  std::lock_guard const lock(mutex_);
  auto const found = blocks_.find(number_of(begin));
  if (found == blocks_.end()) return;
  found->second.label = label;
  found->second.owner = &its;
}

void memory_book::disown_block(void const* begin, range_owner const& its) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = blocks_.find(number_of(begin));
  if (found == blocks_.end() || found->second.owner != &its) return;
  found->second.owner = nullptr;
  found->second.label.clear();
}

void memory_book::restore_block(void const* begin) noexcept {
  std::lock_guard const lock(mutex_);
  for (ranges* const each : {&ended_, &older_}) {
    auto found = each->extract(number_of(begin));
    if (!found.empty()) blocks_.insert(std::move(found));
  }
}

void memory_book::add_pool(cudaMemPool_t made) {
  std::lock_guard const lock(mutex_);
  pools_.insert(made);
}

void memory_book::remove_pool(cudaMemPool_t doomed) noexcept {
  std::lock_guard const lock(mutex_);
  pools_.erase(doomed);
}

memory_book::ranges::const_iterator memory_book::around(ranges const& all, std::uintptr_t address) {
  auto const after = all.upper_bound(address);
  if (after == all.begin()) return all.end();
  auto const found = std::prev(after);
  return address < found->second.end ? found : all.end();
}

known_address memory_book::find(std::uintptr_t address, bool with_freed) {
  using kind = known_address::kind;
  std::lock_guard const lock(mutex_);
  for (auto const& [all, what] : {std::pair{&slots_, kind::slot}, std::pair{&blocks_, kind::block},
                                  std::pair{&arenas_, kind::arena}, std::pair{&ended_, kind::freed},
                                  std::pair{&older_, kind::freed}}) {
    if (what == kind::freed && !with_freed) break;
    auto const found = around(*all, address);
    if (found == all->end()) continue;
    range const& its_range = found->second;
    if (its_range.owner == nullptr) return {.what = what, .of = its_range.label};
    if (!its_range.owner->has(found->first)) return {.what = what};
    known_address its{.what = what == kind::block ? kind::slot : what, .of = its_range.label};
    its_range.owner->tell(its, address - found->first);
    return its;
  }
  return {};
}

bool memory_book::is_others(std::uintptr_t address) {
  using attributes_function =
      CUresult(CUDAAPI*)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);
  static auto const attributes =
      find_in_driver<attributes_function>("cuPointerGetAttributes", 7000);
  unsigned type = 0;
  CUmemoryPool pool = nullptr;
  std::array asked{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  std::array<void*, 2> answers{&type, &pool};
  check_driver(attributes(asked.size(), asked.data(), answers.data(), address),
               "cuPointerGetAttributes");
  std::lock_guard const lock(mutex_);
  return type != 0 && !pools_.contains(pool);  // one of these keeps it for the next allocation
}

}  // namespace escrow::inline v0_2
