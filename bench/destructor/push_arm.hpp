// What a destroy callback may do with its object: the arms of the destructor bench.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace escrow::bench {

// As CUDA calls it.
using destroy_callback = void (*)(void*);

// Objects whose destroy callback is timed, a round of them at a time.
class push_arm {
 public:
  virtual ~push_arm() = default;
  [[nodiscard]] virtual destroy_callback callback() const = 0;
  // How many objects there are: callbacks in a round.
  [[nodiscard]] virtual std::size_t round_size() const = 0;
  // The callback's argument for one of them.
  [[nodiscard]] virtual void* object(std::size_t index) = 0;
  // Before a round. Returns false if what the arm promises, a sleeping worker, could not be seen.
  [[nodiscard]] virtual bool begin_round() { return true; }
  // After a round: all objects may be used again when it returns.
  virtual void end_round() {}
  // How often the worker has slept since the arm was made; 0 where there is none.
  [[nodiscard]] virtual std::size_t sleeps() const { return 0; }
};

struct named_push_arm {
  char const* name;
  std::unique_ptr<push_arm> (*make)();
  bool is_asleep;  // takes much longer for each sample
};

// Escrow's callback with its worker awake and asleep.
[[nodiscard]] std::span<named_push_arm const> escrow_arms();
// An empty callback, other queues, and the wake-up alone.
[[nodiscard]] std::span<named_push_arm const> other_arms();

}  // namespace escrow::bench
