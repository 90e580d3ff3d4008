// The implementation of scratch_pool: one pool per size, and the memory that they share.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/pool/scratch_pool.hpp"

namespace escrow::inline v0_1 {

struct ESCROW_LOCAL scratch_pool::state final : memory_budget, std::enable_shared_from_this<state> {
  state(pool_options given, scratch_policy const& chosen)
      : options(std::move(given)), policy(chosen), checked_at(clock::now().time_since_epoch()) {}
  ~state() override {
    for_each([](size_class& each) { delete &each; });
  }

  using blocks = resource_pool<device_block>;
  using clock = std::chrono::steady_clock;

  struct size_class {
    std::size_t bytes;           // of each block
    std::optional<blocks> pool;  // until the scratch_pool and its claimers have ended
    size_class* next;            // with the same hash
  };

  // The pool for claims of `bytes`. Never removed: found without a lock.
  slot_pool& of(char const* call, std::size_t bytes);
  // What all claims do; `claim_of_size` claims a block that no graph holds yet.
  template <class Claim>
  lease<device_block> claim(claim_request const& asked, std::size_t bytes, Claim claim_of_size);
  template <class Call>
  void for_each(Call call) const {
    for (auto const& first : by_size) {
      for (size_class* next = first.load(std::memory_order_acquire); next != nullptr;) {
        call(*std::exchange(next, next->next));
      }
    }
  }
  // In a capture: the smallest block that fits, of those that graphs hold. Else an empty claim. An
  // idle one that is larger than asked for stays: eager claims would make it once more.
  [[nodiscard]] claimed_slot claim_existing(claim_request const& asked, std::size_t bytes);
  static slot_pool& slots_of(size_class& each) noexcept { return *each.pool->slots_; }
  // The pool's label in errors and holders.
  [[nodiscard]] std::string label_of(std::size_t size) const {
    return options.label + " of " + std::to_string(size) + " bytes";
  }

  void close() noexcept;  // all sizes; the call does not wait
  std::size_t trim(std::size_t keep_bytes);
  void give_back_unused() noexcept;  // see scratch_policy::idle_max
  // What uses the memory, for the errors of a claim. `named`: the label of a pool whose holders the
  // error has named already.
  [[nodiscard]] std::string describe_claim(std::size_t bytes, source_location where,
                                           std::string const& named = {}) const;
  [[nodiscard]] std::vector<holder> holders() const;
  [[nodiscard]] scratch_stats stats() const noexcept;

  bool reserve(std::size_t bytes) noexcept override;
  device_block make(std::size_t bytes);
  void give_back(std::size_t bytes, bool was_made) noexcept override;
  bool make_room(std::size_t bytes, bool is_out_of_memory) override;
  void record_deferred(stream_ref stream, std::uint64_t stream_id) noexcept override;
  void give_all(stream_use const& on) noexcept override;
  bool is_room_coming(std::size_t bytes) noexcept override;
  std::uint64_t moves() noexcept override;

  pool_options options;
  scratch_policy const policy;
  // Guards the creation of sizes and `is_closed`. Held while a size is created, which runs no
  // destructor.
  std::mutex mutex;
  bool is_closed = false;
  deleter_core* core = nullptr;  // of the first size, whose use keeps it; guarded by `mutex`
  // Owned, by size. Stored with release under the lock, acquired by claims without it.
  std::array<std::atomic<size_class*>, 256> by_size{};

  // Bytes and counts. Relaxed: the memory itself is ordered by what allocates and frees it.
  std::atomic<std::size_t> reserved{0};  // for blocks, and for those that are being made
  std::atomic<std::size_t> peak{0};
  std::atomic<std::uint64_t> returned{0};
  std::atomic<std::uint64_t> given_back{0};  // the same, and what was reserved in vain
  std::atomic<clock::duration> checked_at;   // for idle blocks; relaxed: a time
};

template <class Claim>
lease<device_block> scratch_pool::state::claim(claim_request const& asked, std::size_t bytes,
                                               Claim claim_of_size) {
  if (bytes > bytes_max) {
    throw usage_error(asked.call, "`bytes` is " + std::to_string(bytes),
                      "claim at most scratch_pool::bytes_max");
  }
  if (policy.idle_max.count() != 0) give_back_unused();
  try {
    if (options.group) {
      claimed_slot const shared = claim_existing(asked, bytes);
      if (shared.what != nullptr) return lease<device_block>([&] { return shared; });
    }
    return lease<device_block>(claim_of_size);
  } catch (pool_exhausted const& error) {
    throw pool_exhausted(std::string(error.what()) + "; " +
                         describe_claim(bytes, asked.where, label_of(block_bytes(bytes))));
  } catch (cuda_error const& error) {
    if (error.status() != cudaErrorMemoryAllocation) throw;
    throw cuda_error(error.status(), error.api(), asked.where, describe_claim(bytes, asked.where));
  }
}

}  // namespace escrow::inline v0_1
