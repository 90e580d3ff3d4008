// The implementation of slot_pool.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "capture_reuse.hpp"
#include "claimer_streams.hpp"
#include "deferred_slots.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/detail/reclaimable.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/group_scope.hpp"
#include "escrow/internal/reference_set.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "pool_list.hpp"
#include "search.hpp"
#include "size_class.hpp"
#include "stream_use.hpp"
#include "use_peak.hpp"

namespace escrow::inline v0_1 {

struct ESCROW_LOCAL slot_pool::state final : listed_pool {
  state(slot_pool& pool, pool_options given, make_function made, scratch_policy const* policy,
        deleter_core& used, int devices);
  ~state();

  // claim.cpp
  [[nodiscard]] claimed_slot claim(claim_request const& asked, size_class& of);
  [[nodiscard]] claim_kind kind_of(claim_request const& asked) const noexcept {
    return is_host_ordered ? claim_kind::for_host : asked.kind;
  }
  [[nodiscard]] claimed_slot leased(slot& taken, stream_use const& on, source_location where,
                                    std::uint64_t capture_id = 0) noexcept {
    if (options.track_leases) taken.note_ = {where, std::chrono::steady_clock::now()};
    track(taken);
    taken.recorded_at_ = 0;
    if (!taken.kept_in_.empty()) [[unlikely]]
      taken.kept_in_.clear();
    taken.resource_->note_access(on.id);
    return {&taken, taken.resource_.get(), taken.was_used_, on, capture_id};
  }
  [[nodiscard]] claimed_slot leased_in_order(slot& own, claim_request const& asked,
                                             stream_use const& on) {
    if (!own.also_ready_.empty()) wait_for(own, asked.stream, true);
    return leased(own, on, asked.where);
  }
  [[nodiscard]] claimed_slot claim_slowly(claim_request const& asked, size_class& of,
                                          stream_use const& on, capture_info capture = {},
                                          capture_frontier frontier = {});

  // at_limit.cpp
  // After a first look that found nothing. One claim at a time searches, also for room; `may_wait`:
  // for its turn. Null, and what was seen, if there is no slot.
  [[nodiscard]] slot* search_at_limit(claim_request const& asked, size_class& of,
                                      stream_use const& on, capture_info const& capture,
                                      capture_frontier const& frontier, bool may_wait,
                                      search_result& seen);
  // After a search that found nothing: false if the claim ends so. A search that others disturbed
  // is repeated at most as often as there are slots.
  [[nodiscard]] bool may_search_again(claim_request const& asked, size_class& of,
                                      search_result& seen, claim_waits& waits);
  // The deleters whose workers may free memory, and how much all of them have reclaimed so far.
  [[nodiscard]] std::array<deleter_core const*, 2> workers() const noexcept;
  [[nodiscard]] std::uint64_t reclaimed() const noexcept;
  // Waits until the workers have reclaimed something. Runs no owner's destructor. False if they
  // have nothing, or if the time is over.
  [[nodiscard]] bool wait_for_workers(claim_request const& asked, search_result& seen,
                                      claim_waits& waits) noexcept;

  // claim.cpp
  // These return null if no slot is available now. `seen.failure`: why no slot could be made.
  [[nodiscard]] slot* take(claim_request const& asked, size_class& of, stream_use const& on,
                           capture_info const& capture, capture_frontier const& frontier,
                           search_result& seen);
  // The newest slot of the stream's own, which an event covers.
  [[nodiscard]] slot* take_own(size_class& of, stream_use const& on) {
    slot* own = of.free.take_newest(on.id);
    if (own == nullptr || !own->is_uncovered_) [[likely]]
      return own;
    cover(of.free.take_uncovered(on.id, own), on, true);  // a claimer's
    return of.free.take_newest(on.id);
  }
  [[nodiscard]] slot* take_eager(size_class& of, stream_ref stream, stream_use const& on,
                                 search_result& seen);
  // One that no GPU work uses: idle or new. `on`: the claim's stream, null if it captures.
  [[nodiscard]] slot* take_unused(size_class& of, stream_use const* on, search_result& seen);
  // An idle slot. Asks about the last launch of each exec in flight, then about each list's oldest
  // slot, each once in a pass. `is_first_look`: not for longer than making a slot takes; and not
  // about a full pool's only list, whose oldest slot the claim gets anyway.
  [[nodiscard]] slot* take_idle(size_class& of, search_pass& pass, bool is_first_look = false);
  // If only other streams' work is not done, the slot gets a list of its own: it hides no release.
  [[nodiscard]] static bool is_done(slot& free) noexcept;
  [[nodiscard]] search_pass next_pass() noexcept {
    return {.number = passes.fetch_add(1, std::memory_order_relaxed) + 1};
  }
  // Null if a limit is reached. On failure null, and `seen` has the reason.
  slot* make_slot(size_class& of, search_result& seen) noexcept;
  // The same as a last resort, after it has made room in other sizes, also of what is idle on `on`.
  slot* grow_in_room(size_class& of, search_result& seen, stream_use const* on);
  [[nodiscard]] bool may_make_room(size_class const& of, search_result const& seen) const noexcept;
  void wait_for(slot& taken, stream_ref stream, bool is_its_own);
  void require_open(char const* call, size_class const& of, stream_ref stream) {
    if (is_closed.load(std::memory_order_relaxed)) throw_closed(call, of.label, stream);
  }
  [[noreturn]] void throw_closed(char const* call, std::string const& label, stream_ref stream);
  // `remedy`: what to do instead, for the error.
  void require_device(char const* call, stream_ref stream, capture_info const& capture,
                      char const* remedy = "use a pool of the stream's device");

  // kept_memory.cpp
  // As make_slot(), within scratch_policy::keep_factor. `own`: a larger block of that stream will
  // do.
  [[nodiscard]] slot* grow(size_class& of, search_result& seen, stream_use const* own);
  [[nodiscard]] slot* take_larger(size_class const& of, stream_use const& own);
  void free_idle(size_class const& of, std::size_t kept_max);
  [[nodiscard]] std::size_t bytes_alive(bool is_in_use) noexcept;

  // arena_claims.cpp
  [[nodiscard]] arena* ask_for_arena();  // null: there is none; the next two: as make_slot()
  [[nodiscard]] slot* take_in_arena(claim_request const& asked, size_class& of,
                                    capture_info const& capture, capture_frontier const& frontier,
                                    search_result& seen);
  // The place's slot, which is made or moved there; null: the claim has nothing.
  [[nodiscard]] slot* slot_at(size_class& of, arena::claimed const& got, search_result& seen);
  void give_from_arena(slot& made, capture_info const& capture, source_location where,
                       arena::claimed const& got);  // as give_to_graph(); the users before stay
  [[nodiscard]] claimed_slot claim_in_scope(claim_request const& asked, size_class& of,
                                            stream_use const& on, group_scope& scope);
  void leave_arena(slot& idle) noexcept;  // free for its scope's next claims, or destroyed

  // captured.cpp
  [[nodiscard]] slot* take_captured(claim_request const& asked, size_class& of,
                                    capture_info const& capture, capture_frontier const& frontier,
                                    search_result& seen);
  // The same without growth, waits and edges.
  [[nodiscard]] slot* take_existing(size_class& of, capture_info const& capture,
                                    capture_frontier const& frontier, source_location where,
                                    search_pass& pass);
  // In a sharing group: of the sizes `from` up to `bytes_most`.
  [[nodiscard]] slot* take_held(size_class* from, std::size_t bytes_most,
                                capture_info const& capture, capture_frontier const& frontier,
                                source_location where);
  // The captured graph holds what a claim took; `is_exclusive`: nothing else gets it meanwhile. If
  // it throws, the slot is where it was.
  void give_to_graph(slot& taken, capture_info const& capture, source_location where,
                     bool is_exclusive = false);
  // The graph gets a note of the lease that a claim has taken; if it throws, the lease has ended.
  void note_in_group(slot& taken, claim_request const& asked, capture_info const& capture,
                     capture_frontier const& frontier, lease_log::room spare);
  void end_unused(slot& taken, capture_info const& capture,
                  capture_frontier const& frontier) noexcept;
  graph_hold& make_hold(slot& taken, std::uint64_t id, bool is_claim, source_location where);
  // Makes the captured graph hold the slot, claimed in that capture or not; if it throws, not.
  void hold_in_graph(slot& taken, capture_info const& capture, bool is_claim,
                     source_location where);

  // release.cpp
  // `stream` without its id; the device queried only for an ambiguous handle.
  [[nodiscard]] stream_use use_without_id(stream_ref stream) const;
  [[nodiscard]] static bool was_told_after_its_capture(slot const& leased) noexcept;
  [[nodiscard]] capture_reuse::claim_state state_of(claimed_slot const& lease) const noexcept;
  // `claim`: state_of(lease). Not `is_claiming_stream`: not known to be; of any device.
  void release_on(claimed_slot& lease, stream_use on, capture_reuse::claim_state const& claim,
                  bool is_claiming_stream, char const* call);
  [[nodiscard]] slot& take_used(claimed_slot& lease) noexcept;  // empties the lease
  // Records on `on`, which does not capture. Returns the first failure, already reported.
  cudaError_t release_eager(claimed_slot& lease, stream_use on) noexcept;
  void release_or_defer(claimed_slot& lease, stream_use const& on) noexcept;
  // The lease of a capture that is over: its graph has its uses, but for those told since.
  void release_after_capture(claimed_slot& lease) noexcept;
  void release_idle(claimed_slot& lease) noexcept;  // nothing but graphs uses it
  void release_reclaimed(claimed_slot& lease, stream_use const& on) noexcept;  // in a destructor
  static void forget_captured_uses(slot& used) noexcept;
  // `is_behind_claim`: that comes after the claim, without work between them, too.
  void release_captured(claimed_slot& lease, capture_info const& of, capture_frontier& end,
                        bool is_behind_claim);
  void release_after_failure(claimed_slot& lease, bool is_told) noexcept;  // which was reported
  void end_lease(slot& used, bool may_be_shared = false) noexcept;
  void go_home(slot& idle) noexcept {
    // In no stream's list, where it would stand behind busy ones.
    if (idle.is_done_) idle.key_ = free_lists::idle;
    if (idle.place_ != nullptr) return leave_arena(idle);
    if (!idle.of_.free.put(idle)) destroy(idle);
  }

  // uses.cpp
  [[nodiscard]] bool has_earlier_users(char const* call, claimed_slot const& lease);
  void wait_for_earlier_users(char const* call, claimed_slot const& lease);
  void order_after_earlier_users(char const* call, claimed_slot const& lease, stream_ref stream);
  // As record(); it covers all work on the slot so far but that on streams that were told.
  cudaError_t record_claiming_stream(claimed_slot const& lease) noexcept;
  void use_in_capture(char const* call, claimed_slot const& lease, capture_info const& capture);
  void keep_in_graph(char const* call, claimed_slot const& lease, capture_info const& capture);
  static void refuse_of_scope(char const* call, claimed_slot const& lease);  // given to a graph

  // deferred.cpp
  [[nodiscard]] static bool is_destroyed(stream_use const& use) noexcept;  // or has another id
  // Returns the first failure, or `not_now`: it captures, or cannot be asked on this thread.
  // `is_asked`: this call was given the stream and knows that it does not capture.
  [[nodiscard]] static cudaError_t record(stream_use const& use, cached_event& to,
                                          bool is_asked) noexcept;
  static constexpr cudaError_t not_now = cudaErrorNotReady;  // no record fails with that
  // Records on the slot's unrecorded streams where possible now, and removes those; only on `given`
  // if it is not null, which is asked then. Returns the first failure, reported if none was given.
  cudaError_t record_uses(slot& used, stream_use const* given = nullptr) noexcept;
  void finish_release(slot& used) noexcept;  // after record_uses(): frees or defers
  // Uncovered slots of `on`, linked by newer_ from the oldest on: covers them by one event and
  // frees them. If that is not possible now, each is recorded by an event of its own, or deferred.
  void cover(slot* oldest, stream_use const& on, bool is_asked) noexcept;
  // In each call with a stream that is not capturing: records what was deferred on it.
  void record_deferred(stream_use const& on) noexcept {
    if (deferred.may_have(on)) [[unlikely]]
      record_deferred_on(on);
  }
  void record_deferred_on(stream_use on) noexcept;
  enum class leak_reason : std::uint8_t { stream_gone, not_recorded, not_closed };
  void report_leaked(std::size_t count, leak_reason why) noexcept;

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
  void require_stream(char const* call, stream_use const& on) const {
    if (options.check_streams) [[unlikely]]
      refuse_destroyed(call, on);
  }
  void refuse_destroyed(char const* call, stream_use const& on) const;
  void cover_lasting(size_class& of) noexcept;  // what streams that outlive the pool have
  // Covers the slots of that stream, which does not capture; false: there were none.
  bool cover_all(size_class& of, stream_use const& on) noexcept {
    slot* const found = of.free.take_uncovered(on.id);
    cover(found, on, true);
    return found != nullptr;
  }

  // describe.cpp
  // If options.track_leases: adds the slot to the list of leases, and removes it.
  void track(slot& leased) noexcept {
    if (options.track_leases) add_lease(leased);
  }
  void untrack(slot& ended) noexcept {
    if (options.track_leases) remove_lease(ended);
    if (ended.surplus_ != 0) [[unlikely]]
      surplus.fetch_sub(std::exchange(ended.surplus_, 0), std::memory_order_relaxed);
  }
  void add_lease(slot& leased) noexcept;
  void remove_lease(slot& ended) noexcept;
  [[nodiscard]] pool_stats stats(size_class& of) const noexcept;
  void add_holders(size_class& of, std::vector<holder>& all) const;
  // The pool, and at most `holders_max` holders, those of `first` before others.
  [[nodiscard]] std::string describe(size_class const& first, std::size_t holders_max);

  // refuse.cpp
  [[noreturn]] void refuse_size(claim_request const& asked, size_class const& of) const;
  [[nodiscard]] std::string describe_claim(claim_request const& asked, size_class& of,
                                           search_result const& seen);
  // The options that would have helped, with their values.
  [[nodiscard]] std::string remedies(size_class& of, search_result const& seen);
  // The end of a claim that gets nothing: throws its failure, if it has one, or pool_exhausted.
  [[noreturn]] void refuse(claim_request const& asked, size_class& of, search_result const& seen);

  // sizes.cpp
  [[nodiscard]] std::string label_of(std::size_t size) const;
  // Of the slots for a claim of so many bytes. Never removed: found without a lock.
  [[nodiscard]] size_class& size_for(char const* call, std::size_t bytes, stream_ref stream) {
    return bytes <= smallest.bytes ? smallest : larger_size_for(call, bytes, stream);
  }
  [[nodiscard]] size_class& larger_size_for(char const* call, std::size_t bytes, stream_ref stream);
  template <class Call>
  void for_each_size(Call call) {
    for (size_class* each = &smallest; each != nullptr;) {
      call(*std::exchange(each, each->larger()));
    }
  }
  // Takes room for a slot. False: it is at the limit in bytes, or left to the claim with the turn.
  [[nodiscard]] bool reserve(size_class const& of, bool has_turn) noexcept;
  // A slot was destroyed or leaked, or, if not `was_made`, is not made after all.
  void give_back(size_class const& of, bool was_made = true) noexcept;
  // Whether room will come by itself: work on free slots ends, slots are being destroyed.
  void look_for_room(search_result& seen) noexcept;
  // How many times a slot of that size, or `is_of_all`, has become free, or memory was given back
  // so far. A search that finds neither a slot, nor room, nor one on its way has missed none if
  // this is equal before and after it.
  [[nodiscard]] std::uint64_t moves(size_class& of, bool is_of_all) noexcept;
  [[nodiscard]] std::size_t slots_of(size_class& of, bool is_of_all) noexcept;  // existing ones
  std::size_t destroy_done(size_class& of, std::size_t count_max);
  // In a claim, once in scratch_policy::idle_max: the worker destroys what was free since the time
  // before. Calls no CUDA function.
  void retire_unused() noexcept {
    if (unused_max.count() != 0) [[unlikely]]
      retire_unused_now();
  }
  void retire_unused_now() noexcept;

  // lifecycle.cpp
  void bind_group();  // to the pool's device; throws usage_error if it is another's
  void destroy(slot& idle) noexcept;
  // Leaks and counts a slot that may be in use, and makes room for another one.
  void leak(slot& unknown) noexcept;
  void drop_reference() noexcept;  // callers may hold a lock or capture

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
  bool const is_only_device;   // no stream can be of another device
  bool const is_host_ordered;  // all claims are for the host: it writes the resources
  worker_node end_on_worker;
  worker_node sweep_on_worker;
  // Taken by who pushes the node, released by the worker before it sweeps.
  std::atomic<bool> is_sweep_due{false};
  std::atomic<std::uint64_t> swept_to{0};  // the last release of what is unused. Relaxed: a number
  capture_reuse reuse;
  std::shared_ptr<kept_sets> const kept = std::make_shared<kept_sets>();  // held_until_closed

  std::atomic<std::uint64_t> passes{0};  // relaxed: numbers only need to be unique
  // Releases by the last retire_unused(). Relaxed: a number.
  std::atomic<std::uint64_t> releases_seen{0};
  deferred_slots deferred;
  claimer_streams claimers;

  mutable std::mutex leases_mutex;  // guards it; held across no CUDA call
  slot_list leases;                 // if options.track_leases

  // Guards the list of sizes, and the closing of the pool against it; held across no CUDA call.
  std::mutex sizes_mutex;
  // The last used size above the smallest, by hash. Stored with release under the lock, acquired by
  // claims without it.
  std::array<std::atomic<size_class*>, 256> by_size{};
  size_class smallest;  // the first of the list of all, by size

  std::size_t const bytes_max;                // of all slots
  std::chrono::nanoseconds const unused_max;  // see scratch_policy::idle_max
  // When idle slots were last looked for. Relaxed: a time.
  std::atomic<std::chrono::steady_clock::duration> checked_at;

  // Bytes. Relaxed: what allocates and frees orders the memory.
  std::atomic<std::size_t> reserved{0};  // for slots, and for those that are being made
  std::atomic<std::size_t> bytes_peak{0};
  std::atomic<std::uint64_t> returned{0};
  std::atomic<std::uint64_t> given_back{0};  // the same, and what was reserved in vain
  search_turns turns;
  arena_use in_arena;
  std::shared_ptr<lease_origin const> const of_leases;  // of a pool in a group
  double const keep_factor;                             // see scratch_policy; 0 if all is kept
  use_peak peak;
  std::atomic<std::size_t> surplus{0};  // of all leases, see slot; relaxed: a measure

  // Stamps releases, to find the oldest. Relaxed, in two steps: simultaneous ones may get the same.
  // Written by each release with an event, so in a cache line of its own.
  alignas(64) std::atomic<std::uint64_t> releases{1};

  // A concurrent claim may still succeed; its slot is destroyed later. Stored under sizes_mutex,
  // read by each claim: a cache line, too. Relaxed: who misses the change sees it the next time.
  alignas(64) std::atomic<bool> is_closed{false};

  // Statistics: relaxed.
  alignas(64) std::atomic<std::uint64_t> grown{0};
  std::atomic<std::uint64_t> stream_waits{0};
  std::atomic<std::uint64_t> host_waits{0};
  std::atomic<std::uint64_t> edges_added{0};
};

}  // namespace escrow::inline v0_1
