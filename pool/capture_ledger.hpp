// Which graph holds which slots of a pool.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/pool/holder.hpp"
#include "escrow/pool/slot.hpp"

namespace escrow {

// One entry a capture id, which identifies the graph for good, also when it is captured into again.
// Guards each slot's is_leased_ and graph_holds_ from the first hold of a graph on, and its last
// use in a capture while it is listed for reuse; before that, a lease's thread has it to itself.
// Thread safety: any thread. One lock, held across no call of CUDA.
class capture_ledger {
 public:
  // From here on, in place of a capture's id, that of a share for a node. CUDA counts from 1.
  static constexpr std::uint64_t first_share_id = std::uint64_t{1} << 63;

  // Notes that the graph captured as `capture_id` holds `held` through `hold`, which is about to be
  // handed to the graph. Throws std::bad_alloc and then has noted nothing.
  void add(slot& held, graph_hold& hold, std::uint64_t capture_id, source_location where);

  // Whether a graph holds the slot.
  [[nodiscard]] bool is_held(slot const& asked) const noexcept;

  // Takes the hold off again. True if nobody holds the slot any more: it is the caller's, to go
  // home.
  [[nodiscard]] bool remove(slot& held, std::uint64_t capture_id) noexcept;

  // The lease is over. With `reusable`, later claims of the same capture may have the slot after
  // slot::last_use_. True if nobody holds the slot any more.
  [[nodiscard]] bool end_lease(slot& held, std::uint64_t capture_id, bool reusable) noexcept;

  // A slot that a claim may take, and the use that it then has to come after.
  struct reusable_slot {
    slot* released;
    std::shared_ptr<slot::captured_use const> use;
  };
  // All of the capture, the one released last first. They are not taken, so that claims at the same
  // time do not hide them from each other. Throws std::bad_alloc.
  [[nodiscard]] std::vector<reusable_slot> reusable_slots(std::uint64_t capture_id) const;
  // Marks one as leased. False if it was taken meanwhile, be it released again since.
  [[nodiscard]] bool take(reusable_slot const& found, std::uint64_t capture_id) noexcept;
  // It stays with the graph, but serves no claim any more.
  void forget(reusable_slot const& found, std::uint64_t capture_id) noexcept;

  // The graphs that hold slots, and since when. Throws std::bad_alloc.
  [[nodiscard]] std::vector<holder> holders(std::string const& label) const;
  [[nodiscard]] std::size_t slots_held() const noexcept;

 private:
  struct entry {
    std::vector<slot*> held;      // each as often as it is held
    std::vector<slot*> reusable;  // of them, released in the capture
    std::chrono::steady_clock::time_point since;
    source_location where;
  };

  // Whether it was still reusable, and is not any more.
  bool remove_reusable(reusable_slot const& found, std::uint64_t capture_id) noexcept;

  mutable std::mutex mutex_;  // guards all, and in each held slot what the class comment names
  std::map<std::uint64_t, entry> entries_;
  std::size_t slots_held_ = 0;  // by one graph or several
};

}  // namespace escrow
