// What kernels check when they run, and things when they are destroyed.
#include "things.hpp"

#include <escrow/sim.hpp>

namespace escrow::test {

namespace {

template <class T>
T& argument(void** arguments, std::size_t index) {
  return *static_cast<T*>(arguments[index]);
}

bool run_work(void** arguments) {
  piece_of_work& work = *argument<piece_of_work*>(arguments, 0);
  return work.all->run(work, argument<int>(arguments, 1));
}

/// The same, at an address of its own: a kernel with other parameters.
bool run_keeping_work(void** arguments) {
  return run_work(arguments);
}

bool run_memory_work(void** arguments) {
  piece_of_work& work = *argument<piece_of_work*>(arguments, 0);
  if (work.memory != nullptr && argument<void*>(arguments, 2) != work.memory)
    work.all->fail("a kernel got another address than that of its lease");
  if (work.memory != nullptr && work.slot < 0) {  // of a graph: there while its kernel runs
    auto& first = *static_cast<int volatile*>(work.memory);
    first = first + 1;
  }
  return run_work(arguments);
}

/// The kernel of that function, registered once.
template <bool (*run)(void**), class... Parameters>
auto kernel_of(char const* name) {
  [[maybe_unused]] static bool const registered =
      (sim::register_kernel(reinterpret_cast<void const*>(run), run, {sizeof(Parameters)...}, name),
       true);
  return reinterpret_cast<void (*)(Parameters...)>(reinterpret_cast<void*>(run));
}

}  // namespace

token::~token() {
  if (all_ != nullptr) all_->gone(thing_);
}

plain_kernel work_kernel() {
  return kernel_of<&run_work, piece_of_work*, int>("work");
}

keeping_kernel work_kernel_that_keeps() {
  return kernel_of<&run_keeping_work, piece_of_work*, int, int>("keeping_work");
}

memory_kernel work_kernel_of_memory() {
  return kernel_of<&run_memory_work, piece_of_work*, int, void*>("memory_work");
}

bool (*run_of_work())(void**) {
  return &run_work;
}

}  // namespace escrow::test
