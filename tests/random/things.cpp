// What kernels check when they run, and things when they are destroyed.
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

void set_condition(piece_of_work const& work) {
  looked_at& at = *work.sets;
  if (work.ends_turn) {
    if (++at.turns % 2 == 0) sim::set_conditional(at.handle, 0);
    return;
  }
  bool const is_chosen = ++at.launches % 3 != 0 && at.can_run;
  sim::set_conditional(at.handle, is_chosen ? at.chosen : at.otherwise);
}

}  // namespace

things* things::running_ = nullptr;

token::~token() {
  if (all_ != nullptr) all_->gone(thing_);
}

int things::add(reference::kind is) {
  slots_.resize(static_cast<std::size_t>(model.size()) + 1);  // out of memory, no thing was added
  return model.add(is);
}

token things::make(reference::kind is) {
  return {*this, add(is)};
}

int things::make_of(void const* handle, reference::kind is, situation when_gone) {
  int const made = add(is);
  if (!handles_.emplace(handle, handle_state{made, when_gone}).second)
    fail("a new object has the handle of one that is there");
  return made;
}

std::optional<int> things::thing_of(void const* handle) const {
  auto const found = handles_.find(handle);
  return found == handles_.end() ? std::nullopt : std::optional(found->second.thing);
}

void things::handle_gone(void const* handle) noexcept {
  if (running_ == nullptr) return;
  auto const found = running_->handles_.extract(handle);
  if (found.empty()) return;
  running_->counts.meet(found.mapped().when_gone);
  running_->gone(found.mapped().thing);
}

piece_of_work& things::add_work() {
  piece_of_work& added = work_.emplace_back();
  added.all = this;
  added.rounds = static_cast<int>(work_.size() % 3);
  return added;
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
  bool const is_ordered = values_count && !slot.racy && !work.is_racy;
  int found = slot.value;
  if (work.memory != nullptr) std::memcpy(&found, work.memory, sizeof found);
  switch (work.what) {
    case piece_of_work::role::plain:
      return;
    case piece_of_work::role::fill:
      if (is_ordered && slot.open != 0 && closes_.at(static_cast<std::size_t>(slot.open)))
        fail(name + " is written by one use while another goes on");
      slot.value = work.value;
      slot.open = work.value;
      if (work.memory != nullptr) std::memcpy(work.memory, &work.value, sizeof work.value);
      return;
    case piece_of_work::role::close:
      if (is_ordered && found != work.value) fail(name + " was written by another use");
      slot.open = 0;
      return;
    case piece_of_work::role::look:
      if (is_ordered && found != work.value) fail(name + " was written before its use was over");
  }
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
