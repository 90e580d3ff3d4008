// What kernels check when they run, and owners when they go.
#include "things.hpp"

#include <algorithm>
#include <cstring>
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

}  // namespace

token::~token() {
  if (all_ != nullptr) all_->gone(thing_);
}

token things::make(reference::kind is) {
  return {*this, make_bare(is)};
}

int things::make_bare(reference::kind is) {
  slots_.resize(model.size() + 1);  // out of memory, no thing was made
  return model.add(is);
}

things::slot_state& things::slot_of(int thing) {
  return slots_.at(static_cast<std::size_t>(thing));
}

int things::begin_use() {
  closes_.push_back(false);
  return static_cast<int>(closes_.size()) - 1;
}

void things::fail(std::string what) {
  if (failure_.empty()) failure_ = std::move(what);
}

void things::gone(int thing) noexcept {
  reference::thing_state& state = model.state_of(thing);
  if (state.gone) return fail("thing " + std::to_string(thing) + " was destroyed twice");
  if (std::string const why = model.why_alive(thing); !why.empty())
    fail("thing " + std::to_string(thing) + " was destroyed, but " + why);
  state.gone = true;
}

bool things::check_uses(piece_of_work const& work) {
  bool all_there = true;
  for (piece_of_work::use const& each : work.uses) {
    if (model.state_of(each.thing).gone) {
      fail("work runs whose thing " + std::to_string(each.thing) + " is destroyed");
      all_there = false;
    }
    if (each.generation >= 0 && slot_of(each.thing).generation != each.generation)
      fail("a graph runs whose slot " + std::to_string(each.thing) + " was handed out again");
  }
  return all_there;
}

void things::check_value(piece_of_work const& work) {
  slot_state& slot = slot_of(work.slot);
  std::string const name = "slot " + std::to_string(work.slot);
  bool const counts = values_count && !slot.racy && !work.is_racy;
  int found = slot.value;
  if (work.memory != nullptr) std::memcpy(&found, work.memory, sizeof found);
  switch (work.what) {
    case piece_of_work::role::plain:
      return;
    case piece_of_work::role::fill:
      if (counts && slot.open != 0 && closes_.at(static_cast<std::size_t>(slot.open)))
        fail(name + " is written by one use while another goes on");
      slot.value = work.value;
      slot.open = work.value;
      if (work.memory != nullptr) std::memcpy(work.memory, &work.value, sizeof work.value);
      return;
    case piece_of_work::role::close:
      if (counts && found != work.value) fail(name + " was written by another use");
      slot.open = 0;
      return;
    case piece_of_work::role::look:
      if (counts && found != work.value) fail(name + " was written before its use was over");
  }
}

void things::set_condition(piece_of_work const& work) {
  looked_at& at = *work.sets;
  if (work.ends_turn) {
    if (++at.turns % 2 == 0) sim::set_conditional(at.handle, 0);
    return;
  }
  bool const is_chosen = ++at.launches % 3 != 0 && at.can_run;
  sim::set_conditional(at.handle, is_chosen ? at.chosen : at.otherwise);
}

bool things::run(piece_of_work const& work, int& rounds_left) {
  bool const all_there = check_uses(work);
  if (rounds_left-- > 0) return false;
  if (work.slot >= 0 && all_there) check_value(work);
  if (work.sets != nullptr) set_condition(work);
  model.set_mark(work.mark);
  ++runs_;
  return true;
}

plain_kernel work_kernel() {
  static bool const registered =
      (sim::register_kernel(reinterpret_cast<void const*>(&run_work), &run_work,
                            {sizeof(piece_of_work*), sizeof(int)}, "work"),
       true);
  static_cast<void>(registered);
  return reinterpret_cast<plain_kernel>(reinterpret_cast<void*>(&run_work));
}

keeping_kernel work_kernel_that_keeps() {
  static bool const registered =
      (sim::register_kernel(reinterpret_cast<void const*>(&run_keeping_work), &run_keeping_work,
                            {sizeof(piece_of_work*), sizeof(int), sizeof(int)}, "keeping_work"),
       true);
  static_cast<void>(registered);
  return reinterpret_cast<keeping_kernel>(reinterpret_cast<void*>(&run_keeping_work));
}

memory_kernel work_kernel_of_memory() {
  static bool const registered =
      (sim::register_kernel(reinterpret_cast<void const*>(&run_memory_work), &run_memory_work,
                            {sizeof(piece_of_work*), sizeof(int), sizeof(void*)}, "memory_work"),
       true);
  static_cast<void>(registered);
  return reinterpret_cast<memory_kernel>(reinterpret_cast<void*>(&run_memory_work));
}

bool (*run_of_work())(void**) {
  return &run_work;
}

}  // namespace escrow::test
