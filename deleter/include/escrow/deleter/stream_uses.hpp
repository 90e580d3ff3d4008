// Which streams have used a shared object, and when it may go.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "escrow/core/event.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/deleter/graph_reference.hpp"

namespace escrow {

class deleter;

// What: the part of an object of make_stream_shared() that does not depend on its type: the uses
//   that record_stream() has noted, and the way to the worker, which destroys the object after all
//   of them. Its holders are the shares of the object together, and each graph that uses it.
// Thread safety: note() and let_go() from any thread.
// Memory ordering: as graph_reference.
// Lifetime: made with one holder, for the shares. After the last has let go it is reclaimed as
//   often as one of its events is not done yet, and then frees itself with the object.
// Capture: note() is capture-safe.
// Errors: as record_stream().
class stream_uses : public graph_reference {
 public:
  // The object is used by the work that `stream` has so far, or by the graph that it captures.
  void note(stream_ref stream);

 protected:
  using destroy_function = void (*)(stream_uses&) noexcept;

  // The object's device is the current one. Throws std::bad_alloc, cuda_error.
  stream_uses(deleter& its, destroy_function destroy);
  ~stream_uses();

 private:
  struct use {
    std::uint64_t stream;
    event ready = event::none();
    int device = -1;           // the event's
    bool is_recorded = false;  // not if the last record failed: nothing tells when it is over
  };

  // Worker:
  static void reclaim_uses(release_node& node) noexcept;
  void await(use const& last) noexcept;
  void drop_last() noexcept;

  void record(use& noted, stream_ref stream);
  void use_for_ever();
  [[nodiscard]] use& use_on(std::uint64_t stream);
  void make_room();
  void forget_uses_that_are_over();

  deleter& deleter_;
  destroy_function const destroy_;
  int const home_;  // the object's device

  // Guards the rest until the last holder has let go. Held across event queries and one record,
  // which run no destructor: others who note a use of this object wait for that.
  std::mutex mutex_;
  std::vector<use> uses_;            // one a stream: a later record covers the earlier ones
  bool is_in_use_for_ever_ = false;  // by work that could not be noted
  bool awaits_last_ = false;         // the worker said that the last use is over
};

}  // namespace escrow
