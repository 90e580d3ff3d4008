// SPDX-License-Identifier: Apache-2.0
// Claims and ends of leases.
#include "claims.hpp"

#include "apart.hpp"
#include "memory.hpp"
#include "operands.hpp"
#include "races.hpp"
#include "state.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

namespace escrow::sim::model {
namespace {

enum class lease_event : int { claimed, told, given, ended, kept };

bool is_pinned(void const* memory) {
  return place_of(memory).type == cudaMemoryTypeHost;
}

bool is_all_of_an_allocation(void const* memory, std::size_t bytes) {
  auto const found = the().allocations.find(memory);
  return found != the().allocations.end() && found->second.bytes == bytes;
}

// Any work may write it from now on.
void forget_claim(void const* memory) {
  memory_lease const its = lease_around(memory).lease;
  if (its.number != 0) the().used.leases[its.memory].made_new = its.number;
  for (auto const& device : the().devices) {
    for (auto const& [id, stream] : device.streams) std::erase(stream->claimed, memory);
  }
}

// A kernel that takes a pointer to const only reads.
bool writes(kernel_work const& k, std::size_t argument) {
  return k.code->kind_of(argument) != argument_kind::pointer_to_const;
}

}  // namespace

void make_claimed_new(op_ptr const& next) {
  for (void const* const memory : std::exchange(next->stream->claimed, {})) {
    memory_use const its = lease_around(memory);
    if (its.lease.memory != nullptr && its.lease.number != 0) note_claimed(next, its);
  }
}

void note_constants(kernel_work& k) {
  if (!is_memory_apart() || asked_audits() == audits::off || the().may_work_share) return;
  for (std::size_t i = 0; i < k.code->arg_sizes.size(); ++i) {
    if (k.code->arg_sizes[i] != sizeof(void*) || writes(k, i)) continue;
    void const* const from = k.args.word(i, 0);
    if (is_pinned(from))
      k.pinned.push_back({.begin = reinterpret_cast<std::uintptr_t>(from), .bytes = 1});
  }
}

void take_given(thread_record& me, work& what) {
  auto* const k = std::get_if<kernel_work>(&what);
  if (k == nullptr || me.given.empty()) return;
  for (pinned_use each : std::exchange(me.given, {})) {
    bool is_used = false;
    for (std::size_t i = 0; i < k->code->arg_sizes.size(); ++i) {
      if (k->code->arg_sizes[i] != sizeof(void*)) continue;
      if (reinterpret_cast<std::uintptr_t>(k->args.word(i, 0)) != each.begin) continue;
      is_used = true;
      each.writes |= writes(*k, i);
    }
    if (is_used && !the().may_work_share) k->pinned.push_back(each);
  }
}

namespace {

// Throws std::bad_alloc, and then less is told.
void note_event(lease_event what, void const* memory, std::size_t bytes, cudaStream_t stream) {
  std::lock_guard const lock(the().mutex);
  bool const is_host = is_pinned(memory);
  if (what == lease_event::given) {
    auto const begin = reinterpret_cast<std::uintptr_t>(memory);
    if (is_host) this_thread().given.push_back({.begin = begin, .bytes = bytes});
    return;
  }
  if (what == lease_event::kept) {
    if (!is_host) set_left_for_work(memory, the().calls, lease_around(memory).of);
    return;
  }
  if (is_host) return set_idle(memory, bytes, what == lease_event::ended);
  if (what == lease_event::ended) {
    // What shares its allocation with other memory shares its pages, too.
    if (is_all_of_an_allocation(memory, bytes))
      set_idle_for_work(memory, the().calls, lease_around(memory).of);
  } else {
    end_idle_for_work(memory);
  }
  if (what != lease_event::claimed) return forget_claim(memory);
  auto const its = the().streams.find(stream);
  if (its != nullptr) its->claimed.push_back(memory);
}

}  // namespace
}  // namespace escrow::sim::model

void escrow_simulated_lease(int what, void const* memory, unsigned long long bytes,
                            cudaStream_t stream) noexcept {
  using namespace escrow::sim::model;
  if (!is_memory_apart() || asked_audits() == audits::off) return;
  try {
    note_event(static_cast<lease_event>(what), memory, bytes, stream);
  } catch (std::bad_alloc const&) {
  }
}
