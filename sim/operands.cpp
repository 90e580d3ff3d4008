// SPDX-License-Identifier: Apache-2.0
// Looks whose memory work uses, and asks a library under test whether nobody has it.
#include "operands.hpp"

#include "apart.hpp"
#include "freed.hpp"
#include "memory.hpp"
#include "state.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace escrow::sim::model {
namespace {

// Set with release, once, before anything is idle.
std::atomic<idle_memory_question> question_of_library{nullptr};

using used_in = memory_question::use;

// What the library says of an address.
struct answer {
  bool is_idle = false;
  memory_lease lease = {};
  std::array<char, 320> text = {};
};

void ask(idle_memory_question is_idle, memory_question asked, answer& got) {
  asked.text = got.text.data();
  asked.bytes = got.text.size();
  got.is_idle = is_idle(&asked, &got.lease);
}

bool is_off() noexcept {
  return asked_audits() == audits::off;
}

// What uses memory, for one call.
class user {
 public:
  // `uses`: gets what leases have, and, of a launch, arenas.
  user(char const* call, used_in by, std::vector<memory_use>* uses)
      : user(call, by, uses, question_of_library.load(std::memory_order_acquire),
             is_memory_apart()) {}

  // Of what began, or ended: only what was freed.
  explicit user(char const* call) : user(call, used_in::on_stream, nullptr, nullptr, false) {}

  // In a capture, whose launches look at all else.
  user(char const* call, std::uint64_t capture)
      : call_(call),
        by_(used_in::in_capture),
        capture_(capture),
        is_idle_(is_off() ? nullptr : question_of_library.load(std::memory_order_acquire)),
        looks_(is_idle_ != nullptr) {}

  void refuse(work const& what) const {
    if (looks_) std::visit([this](auto const& each) { look(each); }, what);
  }
  void refuse(graph_state const& graph) const {
    for (auto const& node : graph.nodes) {
      if (node->enabled) refuse(node->what);
    }
  }

 private:
  user(char const* call, used_in by, std::vector<memory_use>* uses, idle_memory_question is_idle,
       bool is_apart)
      : call_(call),
        by_(by),
        uses_(uses),
        is_idle_(is_off() ? nullptr : is_idle),
        is_apart_(is_apart),
        looks_at_freed_(!is_off() && !the().freed.all.empty()),
        looks_(is_idle_ != nullptr || is_apart_ || looks_at_freed_) {}

  void look(kernel_work const& k) const {
    for (std::size_t i = 0; i < k.code->arg_sizes.size(); ++i) {
      std::size_t const bytes = k.code->arg_sizes[i];
      for (std::size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
        look(k.args.word(i, at), [&] {
          return name_of(*k.code, i) + (bytes == sizeof(void*)
                                            ? std::string()
                                            : ", byte " + std::to_string(at) +
                                                  " (null it where the kernel does not use it)");
        });
      }
      using kind = argument_kind;
      kind const what = k.code->kind_of(i);
      bool const is_pointer = what == kind::pointer || what == kind::pointer_to_const;
      if (is_pointer && is_apart_) refuse_host(k, i);
    }
  }
  void look(copy_work const& c) const {
    if (c.shape.extent.width == 0 || c.shape.extent.height == 0 || c.shape.extent.depth == 0)
      return;
    look(c.shape.dstPtr.ptr, [] { return std::string("copy, destination"); });
    look(c.shape.srcPtr.ptr, [] { return std::string("copy, source"); });
  }
  void look(fill_work const& f) const {
    if (f.shape.width != 0 && f.shape.height != 0)
      look(f.shape.dst, [] { return std::string("fill, destination"); });
  }
  void look(child_work const& its) const {
    if (by_ == used_in::in_launch) refuse(*its.graph);
  }
  void look(conditional_work const& its) const {
    if (by_ != used_in::in_launch) return;
    for (auto const& body : its.bodies) refuse(*body);
  }
  template <class Other>
  void look(Other const& /*what*/) const {}

  template <class Name>  // a function that returns it
  void look(void const* address, Name operand) const {
    if (looks_at_freed_ && is_freed(address)) {
      refuse(
          operand(), address,
          "is in memory that was freed, which work still uses: keep its owner until then, by "
          "retire() after the last work, or record_stream() of a stream-shared object; for a "
          "graph claim it in the capture, or give its owner to retain(), or to the node or set(); "
          "close a pool that is held_until_closed after the last launch");
    }
    if (is_idle_ == nullptr) return;
    answer got;
    ask(is_idle_, {.address = address, .by = by_, .capture = capture_}, got);
    if (got.is_idle) refuse(operand(), address, std::string("is of ") + got.text.data());
    if (got.lease.memory != nullptr && uses_ != nullptr) note(got.lease, got.text.data());
  }

  void note(memory_lease const& its, char const* of) const {
    auto const is_it = [&its](memory_use const& known) { return known.lease.memory == its.memory; };
    bool const is_launchs = its.number == 0;
    if ((is_launchs && by_ != used_in::in_launch) || std::ranges::any_of(*uses_, is_it)) return;
    uses_->push_back({its, of});
  }

  void refuse_host(kernel_work const& k, std::size_t index) const {
    auto const* const address = static_cast<char const*>(k.args.word(index, 0));
    auto const is_known = [](void const* at) {
      return place_of(at).type != cudaMemoryTypeUnregistered;
    };
    // A value that names no memory; or an end; or the begin of what is counted from 1.
    constexpr std::uintptr_t least = 1 << 16, most = std::uintptr_t{1} << 56;
    constexpr std::size_t element_max = 64;
    auto const number = reinterpret_cast<std::uintptr_t>(address);
    if (number < least || number > most || is_known(address) || is_known(address - 1) ||
        is_known(address + element_max)) {
      return;
    }
    refuse(name_of(*k.code, index), address,
           "is in no memory that CUDA has allocated: the host's, which most GPUs cannot use, or "
           "freed; give memory of the device, or pinned memory (ESCROW_MEMORY=apart)");
  }

  [[noreturn]] void refuse(std::string const& operand, void const* address,
                           std::string const& why) const {
    give_up(std::string(call_) + ": " + operand + ": " + text_of(address) + " " + why);
  }

  char const* const call_;
  used_in const by_;
  std::uint64_t const capture_ = 0;
  std::vector<memory_use>* const uses_ = nullptr;
  idle_memory_question const is_idle_;  // null: not asked
  bool const is_apart_ = false;
  bool const looks_at_freed_ = false;
  bool const looks_;
};

}  // namespace

audits asked_audits() noexcept {
  static audits const asked = [] {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): once, beside nothing of the simulator's that sets it.
    char const* const said = std::getenv("ESCROW_AUDIT");
    if (said == nullptr || said == std::string_view()) return audits::by_default;
    return said == std::string_view("0") ? audits::off : audits::all;
  }();
  return asked;
}

std::vector<memory_use> refuse_operands(char const* call, work const& what) {
  std::vector<memory_use> uses;
  user(call, used_in::on_stream, &uses).refuse(what);
  return uses;
}

std::vector<memory_use> refuse_operands(char const* call, graph_state const& graph) {
  std::vector<memory_use> uses;
  user(call, used_in::in_launch, &uses).refuse(graph);
  return uses;
}

void refuse_operands(char const* call, work const& what, std::uint64_t capture) {
  user(call, capture).refuse(what);
}

memory_use lease_around(void const* address) {
  auto const is_idle = question_of_library.load(std::memory_order_acquire);
  if (is_idle == nullptr || address == nullptr) return {};
  answer got;
  ask(is_idle, {.address = address}, got);
  if (got.is_idle) return {};
  return {got.lease, got.text.data()};
}

void refuse_free(char const* call, void const* address) {
  auto const is_idle = question_of_library.load(std::memory_order_acquire);
  if (is_idle == nullptr || is_off()) return;
  answer got;
  // What is idle may be part of a larger block, whose owner ends the pool first.
  ask(is_idle, {.address = address}, got);
  if (got.is_idle || got.lease.memory == nullptr) return;
  give_up(std::string(call) + " of memory of the pool \"" + got.text.data() +
          "\", which frees its own: end the lease, or deallocate it by its allocator");
}

bool is_library_used() noexcept {
  return question_of_library.load(std::memory_order_acquire) != nullptr;
}

void refuse_freed(work const& what) {
  user("work on a stream").refuse(what);
}

}  // namespace escrow::sim::model

void escrow_simulated_asks(escrow::sim::model::idle_memory_question is_idle) noexcept {
  escrow::sim::model::question_of_library.store(is_idle, std::memory_order_release);
}
