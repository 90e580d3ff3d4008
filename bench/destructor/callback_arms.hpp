// What a destroy callback may do with its object: the arms of the destructor bench.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "bench.hpp"

namespace escrow::bench {

// Objects whose destroy callback is timed, a round of them at a time.
class callback_arm {
 public:
  // As CUDA calls it.
  using callback_function = void (*)(void*);

  // `objects`: how many there are, which are the callbacks of a round.
  callback_arm(callback_function called, std::size_t objects)
      : callback(called), round_size(objects) {}
  virtual ~callback_arm() = default;

  // The callback's argument for one of them.
  [[nodiscard]] virtual void* object(std::size_t index) = 0;
  // Before a round. Returns false if what the arm promises, a sleeping worker, could not be seen.
  [[nodiscard]] virtual bool begin_round() { return true; }
  // After a round: all objects may be used again when it returns.
  virtual void end_round() {}
  // How often the worker has slept since the arm was made; 0 where there is none.
  [[nodiscard]] virtual std::size_t sleeps() const { return 0; }

  callback_function const callback;
  std::size_t const round_size;
};

using named_callback_arm = arm<std::unique_ptr<callback_arm>()>;

// An empty callback, Escrow's with its worker awake and asleep, and the wakeup alone.
[[nodiscard]] std::span<named_callback_arm const> callback_arms();

}  // namespace escrow::bench
