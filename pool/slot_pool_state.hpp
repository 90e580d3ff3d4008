// SPDX-License-Identifier: Apache-2.0
// The implementation of slot_pool.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "capture_reuse.hpp"
#include "claimer_streams.hpp"
#include "deferred_slots.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/shared_count.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/environment.hpp"
#include "escrow/internal/group_scope.hpp"
#include "escrow/internal/reference_set.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "escrow/pool/scratch_pool.hpp"
#include "kept_bound.hpp"
#include "pool_list.hpp"
#include "pool_sizes.hpp"
#include "search.hpp"
#include "size_class.hpp"
#include "stream_use.hpp"

namespace escrow::inline v0_2 {

struct ESCROW_LOCAL slot_pool::state final : listed_pool {
  state(slot_pool& pool, pool_options given, make_function made, scratch_policy const* policy,
        deleter_core& used, int devices);

  // claim.cpp
  [[nodiscard]] claimed_slot claim(claim_request const& asked, size_class& of);
  [[nodiscard]] claim_kind kind_of(claim_request const& asked) const noexcept {
    bool const is_for_host = is_host_ordered.load(std::memory_order_relaxed);
    return is_for_host ? claim_kind::for_host : asked.kind;
  }
  // Of audits, if there may be an arena: a claim inside sharing_group::run() that gets nothing of
  // it.
  void refuse_beside_arena(claim_request const& asked);
  [[nodiscard]] claimed_slot leased(slot& taken, stream_use const& on, claim_request const& asked,
                                    std::uint64_t capture_id = 0) noexcept {
    if (is_watched) [[unlikely]]
      note_claim(taken, asked, on, capture_id);
    track(taken);
    taken.booked_.used.store(asked.used, std::memory_order_relaxed);
    auto& number = taken.booked_.lease;
    number.store(number.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    taken.recorded_at_ = 0;
    if (!taken.kept_in_.empty()) [[unlikely]]
      taken.kept_in_.clear();
    taken.resource_->note_access(on.id);
    if (keeps_contents) [[unlikely]]
      note_kept(taken, capture_id);
    return {&taken, taken.resource_.get(), taken.was_used_, on, capture_id};
  }
  [[nodiscard]] claimed_slot leased_in_order(slot& own, claim_request const& asked,
                                             stream_use const& on) {
    if (!own.also_ready_.empty()) wait_for(own, asked.stream, true);
    return leased(own, on, asked);
  }
  // The newest slot of the stream's own, which an event covers.
  [[nodiscard]] slot* take_own(size_class& of, stream_use const& on) {
    slot* own = of.free.take_newest(on.id);
    if (own == nullptr || !own->is_uncovered_) [[likely]]
      return own;
    cover(of.free.take_uncovered(on.id, own), on, true);  // a claimer's
    return of.free.take_newest(on.id);
  }
  // An idle slot. Asks about the last launch of each exec in flight, then about each list's oldest
  // slot, each once in a pass. On the first look: at most 32 lists, which takes as long as making a
  // slot; none if the pool is full and has one list, whose oldest slot the claim gets anyway.
  [[nodiscard]] slot* take_idle(size_class& of, search_pass& pass, bool is_first_look = false);
  // If only other streams' work is not done, the slot gets a list of its own: it hides no release.
  [[nodiscard]] static bool is_done(slot& free) noexcept;
  [[nodiscard]] search_pass next_pass() noexcept {
    return {.number = passes.fetch_add(1, std::memory_order_relaxed) + 1};
  }
  void wait_for(slot& taken, stream_ref stream, bool is_its_own);
  void require_open(char const* call, size_class const& of, stream_ref stream) {
    if (sizes.is_closed()) throw_closed(call, of.label, stream);
  }
  [[noreturn]] void throw_closed(char const* call, std::string const& label, stream_ref stream);
  // Of the slots for a claim of so many bytes. Found without a lock.
  [[nodiscard]] size_class& size_for(char const* call, std::size_t bytes, stream_ref stream) {
    if (bytes <= sizes.smallest.bytes) return sizes.smallest;
    size_class* const its = sizes.larger_for(call, bytes);
    if (its == nullptr) [[unlikely]]
      throw_closed(call, sizes.label_of(scratch_pool::block_bytes(bytes)), stream);
    return *its;
  }
  // `remedy`: what to do instead, for the error.
  void require_device(char const* call, stream_ref stream, capture_info const& capture,
                      char const* remedy = "use a pool of the stream's device");

  // kept_memory.cpp
  // Until at most so many bytes are there with one more slot: the least recently used goes first.
  void free_idle(size_class const& of, std::size_t kept_max);
  std::size_t destroy_done(size_class& of, std::size_t count_max);
  // In a claim, once in scratch_policy::idle_max: the worker destroys what was free since the time
  // before. Calls no CUDA function.
  void retire_unused() noexcept {
    if (unused_max.count() != 0) [[unlikely]]
      retire_unused_now();
  }
  void retire_unused_now() noexcept;

  // arena_claims.cpp
  [[nodiscard]] arena* ask_for_arena();                       // null: there is none
  [[nodiscard]] std::shared_ptr<arena> known_arena() const {  // the same, and none is made
    return in_arena.may_be ? arena::known(*options.group->order()) : nullptr;
  }
  void leave_arena(slot& idle) noexcept;  // free for its scope's next claims, or destroyed
  // The end of a run() covers its stream: on its thread, the host waits for uses that could not be
  // recorded.
  void wait_in_scope(slot& used) noexcept;

  // captured.cpp
  static void count_outside(slot& held, bool is_claim, int change) noexcept;
  graph_hold& make_hold(slot& taken, std::uint64_t id, bool is_claim, source_location where);
  // Makes the captured graph hold the slot, claimed in that capture or not; if it throws, not.
  void hold_in_graph(slot& taken, capture_info const& capture, bool is_claim,
                     source_location where);

  void look_at(void const* memory) noexcept;  // lifecycle.cpp: of a new block

  // uses.cpp
  // For work that is being captured, with a lease that was not claimed in that capture: its graph
  // keeps the slot. Throws as record_stream().
  void use_in_capture(char const* call, claimed_slot const& lease, capture_info const& capture);

  // lease_end.cpp
  // The ways in which a lease ends. Each empties the lease, or throws.
  // `claim`: the lease's state_of(). Not `is_claiming_stream`: not known to be; of any device.
  void release_on(claimed_slot& lease, stream_use on, capture_reuse::claim_state const& claim,
                  bool is_claiming_stream, char const* call);
  // Records on `on`, which does not capture. Returns the first failure, already reported.
  record_status release_eager(claimed_slot& lease, stream_use on) noexcept;
  // Of a claim in a sharing_group::run(), on its stream. False: otherwise, or it captures.
  bool release_in_run(claimed_slot& lease, stream_use on) noexcept;
  void release_or_defer(claimed_slot& lease, stream_use const& on) noexcept;
  // Of a capture that is over: its graph has its uses, but for those told since.
  void release_after_capture(claimed_slot& lease) noexcept;
  void release_idle(claimed_slot& lease) noexcept;  // only graphs use it
  void release_reclaimed(claimed_slot& lease, stream_use const& on) noexcept;
  // `is_behind_claim`: that comes after the claim, without work between them, too.
  void release_captured(claimed_slot& lease, capture_info const& of, capture_frontier& end,
                        bool is_behind_claim);
  // `is_told`: the failure was reported.
  void release_after_failure(claimed_slot& lease, bool is_told) noexcept;
  [[nodiscard]] slot& take_used(claimed_slot& lease) noexcept;
  [[nodiscard]] static bool was_told_after_its_capture(slot const& leased) noexcept;
  // For a cudaStreamPerThread of another thread: throws usage_error.
  [[noreturn]] static void refuse_other_thread(slot const& leased, char const* what_it_did);

  // release.cpp
  // `stream` without its id; the device queried only for an ambiguous handle.
  [[nodiscard]] stream_use use_without_id(stream_ref stream) const;
  void end_lease(slot& used, bool may_be_shared = false) noexcept;
  void track(slot& leased) noexcept {  // again, if the lease did not end after all
    if (is_watched) [[unlikely]]
      list_lease(leased);
    leased.booked_.use.store(known_address::use::lease, std::memory_order_relaxed);
  }
  void untrack(slot& ended) noexcept {
    if (is_watched) [[unlikely]]
      unlist_lease(ended);
    ended.booked_.use.store(known_address::use::none, std::memory_order_relaxed);
    if (ended.surplus_ != 0) [[unlikely]]
      bound.remove_surplus(std::exchange(ended.surplus_, 0));
  }
  // watched_leases.cpp
  void note_claim(slot& taken, claim_request const& asked, stream_use const& on,
                  std::uint64_t capture_id) noexcept;
  void list_lease(slot& leased) noexcept;
  void unlist_lease(slot& ended) noexcept;
  // The lease is used on another stream, or given to a launch.
  void note_use(slot const& used, environment::lease_event what) const noexcept;
  void note_kept(slot const& taken, std::uint64_t capture_id) noexcept;  // if keeps_contents
  void go_home(slot& idle) noexcept {
    // In no stream's list, where it would stand behind busy ones.
    if (idle.is_done_) idle.key_ = free_lists::idle;
    if (idle.place_ != nullptr) return leave_arena(idle);
    if (!idle.of_.free.put(idle)) destroy(idle);
  }

  // deferred.cpp
  // Records on the slot's unrecorded streams where possible now, and removes those; only on `given`
  // if it is not null, which is asked then. Returns the first failure, reported if none was given.
  record_status record_uses(slot& used, stream_use const* given = nullptr) noexcept;
  void finish_release(slot& used) noexcept;  // after record_uses(): frees or defers
  // Uncovered slots of `on`, linked by newer_ from the oldest on: covers them by one event and
  // frees them. If that is not possible now, each is recorded by an event of its own, or deferred.
  void cover(slot* oldest, stream_use const& on, bool is_asked,
             char const* call = "claimer::~claimer") noexcept;
  // In each call with a stream that is not capturing: records what was deferred on it.
  void record_deferred(stream_use const& on) noexcept {
    if (deferred.may_have(on)) [[unlikely]]
      record_deferred_on(on);
  }
  void record_deferred_on(stream_use on) noexcept;
  enum class leak_reason : std::uint8_t { stream_gone, not_recorded, not_closed };
  // `one` of them, which stays for ever; null: none is named.
  void report_leaked(std::size_t count, leak_reason why, slot const* one = nullptr) noexcept;

  // uncovered.cpp
  // For a stream whose releases may record no event while `by` lives.
  [[nodiscard]] claimed_slot claim_uncovered(claimer_stream const& by, stream_use const& on,
                                             claim_request const& asked, size_class& of);
  // Frees the slot without an event and empties the lease. False: it must be released with one.
  // Throws as lease::release.
  [[nodiscard]] bool release_uncovered(claimed_slot& lease);
  // Half of a size's slots may be uncovered: streams that make no call leave the rest to others.
  [[nodiscard]] std::size_t uncovered_max() const noexcept { return slots_max / 2; }
  // With pool_options::check_streams: throws usage_error if the stream was destroyed.
  void require_stream(char const* call, stream_use const& on, slot const* of = nullptr) const {
    if (options.check_streams) [[unlikely]]
      refuse_destroyed(call, on, of);
  }
  void refuse_destroyed(char const* call, stream_use const& on, slot const* of) const;
  void cover_lasting(size_class& of) noexcept;  // what streams that outlive the pool have
  // Covers the slots of that stream, which does not capture; false: there were none.
  bool cover_all(size_class& of, stream_use const& on) noexcept {
    slot* const found = of.free.take_uncovered(on.id);
    cover(found, on, true);
    return found != nullptr;
  }

  // describe.cpp
  [[nodiscard]] pool_stats stats(size_class& of) const noexcept;
  void add_holders(size_class& of, std::vector<holder>& all) const;
  // The pool, and at most `holders_max` holders, those of `first` before others.
  [[nodiscard]] std::string describe(size_class const& first, std::size_t holders_max);

  // lifecycle.cpp
  void bind_group();  // to the pool's device; throws usage_error if it is another's
  void destroy(slot& idle) noexcept;
  // Leaks and counts a slot that may be in use. It makes room below slots_max, not below bytes_max.
  void leak(slot& unknown) noexcept;
  void drop_reference() noexcept;  // callers may hold a lock or capture
  struct let_go {
    void operator()(state* held) const noexcept { held->drop_reference(); }
  };
  // All pools that live. Throws std::bad_alloc.
  [[nodiscard]] static std::vector<std::unique_ptr<state, let_go>> all();

  [[nodiscard]] std::uint64_t stamp() noexcept {
    std::uint64_t const now = releases.load(std::memory_order_relaxed) + 1;
    releases.store(now, std::memory_order_relaxed);
    return now;
  }

  // What the pool does on the worker, if it is in a queue.
  struct worker_node final : reclaimable {
    worker_node(state& its, deleter_core& used, reclaim_function call)
        : reclaimable(used, release_lane::destroy, its.options.device, call), of(its) {}
    state& of;
  };
  static void end(reclaimable& node) noexcept;  // after the last reference: frees the pool
  static void sweep(reclaimable& node) noexcept;

  slot_pool& owner;
  pool_options options;
  std::size_t const slots_max;
  char const* const source;  // memory_source::name; empty: a resource_pool's
  make_function const make;
  deleter_core& core;
  bool const is_only_device;  // no stream can be of another device
  // ESCROW_REUSE=late, for tests: what is used after its lease stays free longer, and is told.
  bool const is_reused_late;
  bool keeps_contents = false;      // see slot_pool::keep_contents(); before any claim
  bool const is_hosts_reused_late;  // what the host writes: also where that is watched
  bool const is_watched;  // pool_options::track_leases, or the simulated runtime asks for leases
  // All claims are for the host, which writes the resources, or may: until a block tells. Relaxed:
  // values alone, and a claim that does not see the last one only waits.
  std::atomic<bool> is_host_ordered;
  std::atomic<bool> is_memory_unknown;
  worker_node end_on_worker;

  pool_sizes sizes;
  kept_bound bound;
  search_turns turns;
  std::atomic<std::uint64_t> passes{0};  // relaxed: numbers only need to be unique

  // Streams.
  deferred_slots deferred;
  claimer_streams claimers;
  mutable std::mutex leases_mutex;  // guards the list, across no CUDA call
  slot_list leases;                 // that live, if pool_options::track_leases

  // Graphs.
  capture_reuse reuse;
  std::shared_ptr<kept_sets> const kept = make_apart<kept_sets>();  // held_until_closed
  arena_use in_arena;
  std::shared_ptr<lease_origin const> const of_leases;  // of a pool in a group

  // Of retire_unused(). Relaxed: numbers and times.
  std::chrono::nanoseconds const unused_max;  // see scratch_policy::idle_max
  std::atomic<std::chrono::steady_clock::duration> checked_at;
  std::atomic<std::uint64_t> releases_seen{0};  // at the last check
  std::atomic<std::uint64_t> swept_to{0};       // the last release of what is unused
  worker_node sweep_on_worker;
  // Taken by who pushes the node, released by the worker before it sweeps.
  std::atomic<bool> is_sweep_due{false};

  // Stamps releases, to find the oldest. Relaxed, in two steps: simultaneous ones may get the same.
  // Written by each release with an event, so in a cache line of its own.
  alignas(64) std::atomic<std::uint64_t> releases{1};

  // Statistics: relaxed.
  alignas(64) std::atomic<std::uint64_t> grown{0};
  std::atomic<std::uint64_t> stream_waits{0};
  std::atomic<std::uint64_t> host_waits{0};
  std::atomic<std::uint64_t> edges_added{0};
};

}  // namespace escrow::inline v0_2
