// SPDX-License-Identifier: Apache-2.0
// Finds where a claim or an allocation ends, and looks whether a kernel has written behind that.
#include "overruns.hpp"

#include "apart.hpp"
#include "operands.hpp"
#include "pages.hpp"
#include "state.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace escrow::sim::model {
namespace {

constexpr std::byte guard_value{0xa5};
constexpr std::byte new_value{0xff};

bool is_as_set(std::byte value) {
  return value == guard_value;
}

// Where what an address is in ends, and what nobody uses behind it.
struct end_of_memory {
  std::uintptr_t end = 0;
  std::uintptr_t guarded = 0;  // up to there
  std::string of;
};

std::optional<end_of_memory> end_of_allocation(std::uintptr_t address) {
  auto& s = the();
  auto const after = s.allocations.upper_bound(reinterpret_cast<void const*>(address));
  if (after == s.allocations.begin()) return std::nullopt;
  auto const& [start, what] = *std::prev(after);
  std::uintptr_t const end = reinterpret_cast<std::uintptr_t>(start) + what.bytes;
  if (address >= end) return std::nullopt;
  std::size_t const guard = what.host ? 0 : bytes_behind_memory();
  return end_of_memory{end, end + guard, "the allocation"};
}

std::string name_of(memory_use const& its) {
  return "what its claim of \"" + its.of + "\" has";
}

std::optional<end_of_memory> end_around(void const* address) {
  auto const number = reinterpret_cast<std::uintptr_t>(address);
  auto const allocated = end_of_allocation(number);
  memory_use const its = lease_around(address);
  if (its.lease.used_end == 0) return allocated;
  end_of_memory found{its.lease.used_end, its.lease.end, name_of(its)};
  if (allocated && found.guarded == allocated->end) found.guarded = allocated->guarded;
  return found;
}

constexpr char const* advice =
    ": claim all that the work uses; claim<T>(stream, count) counts elements, and claim(stream, "
    "bytes) bytes";

}  // namespace

std::vector<guarded_bytes> guards_of(kernel_code const& code, kernel_args const& args) {
  std::vector<guarded_bytes> all;
  if (asked_audits() == audits::off) return all;
  for (std::size_t i = 0; i < code.arg_sizes.size(); ++i) {
    bool const is_value = code.kind_of(i) == argument_kind::value;
    if (is_value || code.arg_sizes[i] != sizeof(void*)) continue;
    auto const found = end_around(args.word(i, 0));
    if (!found || found->guarded <= found->end) continue;
    std::uintptr_t const end = std::min(found->guarded, found->end + guard_bytes);
    for (std::uintptr_t at = found->end; at < end;) {  // in each page for itself
      std::uintptr_t const next = std::min(end, (at / page_bytes() + 1) * page_bytes());
      all.push_back({.begin = reinterpret_cast<std::byte*>(at),
                     .bytes = next - at,
                     .argument = i,
                     .of = found->of,
                     .end = found->end});
      at = next;
    }
  }
  return all;
}

void refuse_overrun(char const* operand, void const* begin, std::size_t bytes) {
  if (bytes == 0 || asked_audits() == audits::off) return;
  memory_use const its = lease_around(begin);
  auto const number = reinterpret_cast<std::uintptr_t>(begin);
  std::uintptr_t const end = its.lease.used_end;
  if (end == 0 || number + bytes <= end) return;
  give_up(std::string(operand) + " " + text_of(begin) + ": its " + std::to_string(bytes) +
          " bytes end " + std::to_string(number + bytes - end) + " bytes behind " + name_of(its) +
          advice);
}

void set_guards(work& what) {
  auto* const k = std::get_if<kernel_work>(&what);
  if (k == nullptr || k->guards.empty()) return;
  device_at_work const reaches_its_memory;
  for (guarded_bytes& each : k->guards) {
    each.are_new = is_new(each.begin);
    if (each.are_new) continue;  // to write there would hide who reads it
    std::span const bytes(each.begin, each.bytes);
    // Other kernels that use the memory may look at them now.
    if (!std::ranges::all_of(bytes, is_as_set)) std::ranges::fill(bytes, guard_value);
  }
}

void look_at_guards(work const& what) {
  auto const* const k = std::get_if<kernel_work>(&what);
  if (k == nullptr) return;
  for (guarded_bytes const& each : k->guards) {
    if (is_new(each.begin)) continue;
    std::span const bytes(each.begin, each.bytes);
    auto const written = std::ranges::find_if_not(bytes, [&](std::byte value) {
      return is_as_set(value) || (each.are_new && value == new_value);
    });
    if (written == bytes.end()) continue;
    std::lock_guard const lock(the().mutex);
    give_up(name_of(*k->code, each.argument) + ": it wrote at " + text_of(&*written) + ", " +
            std::to_string(reinterpret_cast<std::uintptr_t>(&*written) - each.end) +
            " bytes behind " + each.of + advice);
  }
}

}  // namespace escrow::sim::model
