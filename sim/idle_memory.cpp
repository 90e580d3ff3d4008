// SPDX-License-Identifier: Apache-2.0
// Asks a library under test whether work uses memory that nobody has.
#include "idle_memory.hpp"

#include "state.hpp"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace escrow::sim::model {
namespace {

using question = bool (*)(void const*, char*, std::size_t) noexcept;

// Set with release, once, before anything is idle.
std::atomic<question> asked{nullptr};

question whom_to_ask() noexcept {
  static bool const is_off = [] {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): once, beside nothing of the simulator's that sets it.
    char const* const said = std::getenv("ESCROW_AUDIT");
    return said != nullptr && said == std::string_view("0");
  }();
  return is_off ? nullptr : asked.load(std::memory_order_acquire);
}

void refuse(char const* call, question is_idle, void const* address, std::string const& operand) {
  std::array<char, 160> owner{};
  if (!is_idle(address, owner.data(), owner.size())) return;
  std::array<char, 32> number{};
  static_cast<void>(std::snprintf(number.data(), number.size(), "%p", address));
  give_up(std::string(call) + ": " + operand + ": " + number.data() + " is of " + owner.data() +
          ", where it is free; enqueue the work before the lease ends, and keep no address of one "
          "that has ended");
}

void refuse(char const* call, question is_idle, kernel_work const& k) {
  std::string const begin = "kernel \"" + k.code->name + "\", argument ";
  for (std::size_t i = 0; i < k.code->arg_sizes.size(); ++i) {
    if (k.code->arg_sizes[i] != sizeof(void*)) continue;
    refuse(call, is_idle, k.args.word(i), begin + std::to_string(i));
  }
}

void refuse(char const* call, question is_idle, copy_work const& c) {
  if (c.shape.extent.width == 0 || c.shape.extent.height == 0 || c.shape.extent.depth == 0) return;
  refuse(call, is_idle, c.shape.dstPtr.ptr, "copy, destination");
  refuse(call, is_idle, c.shape.srcPtr.ptr, "copy, source");
}

void refuse(char const* call, question is_idle, fill_work const& f) {
  if (f.shape.width == 0 || f.shape.height == 0) return;
  refuse(call, is_idle, f.shape.dst, "fill, destination");
}

void refuse(char const* call, question /*is_idle*/, child_work const& its) {
  refuse_idle_memory(call, *its.graph);
}

void refuse(char const* call, question /*is_idle*/, conditional_work const& its) {
  for (auto const& body : its.bodies) refuse_idle_memory(call, *body);
}

template <class Other>
void refuse(char const* /*call*/, question /*is_idle*/, Other const& /*what*/) {}

}  // namespace

void refuse_idle_memory(char const* call, work const& what) {
  question const is_idle = whom_to_ask();
  if (is_idle == nullptr) return;
  std::visit([&](auto const& each) { refuse(call, is_idle, each); }, what);
}

void refuse_idle_memory(char const* call, graph_state const& graph) {
  for (auto const& node : graph.nodes) {
    if (node->enabled) refuse_idle_memory(call, node->what);
  }
}

}  // namespace escrow::sim::model

void escrow_simulated_asks(bool (*is_idle)(void const*, char*, std::size_t) noexcept) noexcept {
  escrow::sim::model::asked.store(is_idle, std::memory_order_release);
}
