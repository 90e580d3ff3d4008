// Which ready events are done one after another.
#pragma once

#include <cstdint>

namespace escrow {

// What: events that one thread records on one stream are done in the order in which they were
//   recorded, and so, pushed by that thread in turn, in the order of their arrival at the worker.
//   Of several threads that is not so: one may record first and push last. Two releases of the same
//   order can be compared; an empty one is in no order.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: a value. Ids of streams are never reused; a thread's mark may be, after its end, and
//   then what the old thread recorded comes first, as it should.
// Capture: none.
// Errors: none.
struct release_order {
  std::uint64_t stream = 0;      // the stream's id; 0: in no order
  void const* thread = nullptr;  // a mark of the thread

  // For an event that the calling thread recorded on the stream with that id and pushes next.
  [[nodiscard]] static release_order of_this_thread(std::uint64_t stream) noexcept {
    static thread_local char mark;
    return {.stream = stream, .thread = &mark};
  }

  [[nodiscard]] explicit operator bool() const noexcept { return stream != 0; }
  bool operator==(release_order const&) const = default;
};

}  // namespace escrow
