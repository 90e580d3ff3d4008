// SPDX-License-Identifier: Apache-2.0
// The texts of claims that are refused: why, who holds what, and which option would have helped.
#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "claim_search.hpp"
#include "escrow/core/error.hpp"

namespace escrow::inline v0_2 {

namespace {

// An option with its value.
std::string of_value(char const* option, std::size_t value) {
  return std::string(option) + " (" + std::to_string(value) + ")";
}
std::string of_value(char const* option, std::chrono::nanoseconds value) {
  constexpr std::int64_t ns_per_ms = 1'000'000;
  std::int64_t const ns = value.count();
  return std::string(option) + " (" +
         (ns % ns_per_ms == 0 ? std::to_string(ns / ns_per_ms) + " ms"
                              : std::to_string(ns) + " ns") +
         ")";
}

std::string joined(std::vector<std::string> const& remedies) {
  std::string text;
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    if (i != 0) text += i + 1 == remedies.size() ? (i == 1 ? " or " : ", or ") : ", ";
    text += remedies[i];
  }
  return text;
}

}  // namespace

void slot_pool::claim_search::refuse_size() const {
  throw pool_exhausted(std::string(asked.call) + ": a block for " + std::to_string(asked.bytes) +
                       " bytes has " + std::to_string(of.bytes) + ", more than all blocks of \"" +
                       in.options.label + "\" together may have; claim less, or raise " +
                       of_value("scratch_policy::bytes_max", in.sizes.bytes_max));
}

std::string slot_pool::claim_search::remedies() {
  std::vector<std::string> all;
  bool const is_out_of_memory = seen.failure != nullptr;
  bool const is_out_of_slots = !is_out_of_memory && of.slots.existing() >= in.slots_max;
  if (seen.is_busy || seen.is_on_its_way) {
    all.push_back("allow a longer wait with " +
                  of_value("capture_wait_max", in.options.capture_wait_max));
  }
  if (seen.was_worker_late) {
    all.push_back("allow the deleter a longer wait with " +
                  of_value("reclaim_wait_max", in.options.reclaim_wait_max));
  }
  if (is_out_of_slots) all.push_back("raise " + of_value("slots_max", in.slots_max));
  if (!is_out_of_memory && !is_out_of_slots) {
    all.push_back("raise " + of_value("scratch_policy::bytes_max", in.sizes.bytes_max));
  }
  bool is_any_held = false;
  bool is_any_unrecorded = false;
  auto const look = [&](size_class& each) {
    pool_stats const now = in.stats(each);
    is_any_held |= now.slots > now.idle;
    is_any_unrecorded |= now.unrecorded != 0;
  };
  is_out_of_slots ? look(of) : in.sizes.for_each(look);
  if (is_any_unrecorded)
    all.push_back("flush() the claimer, lower " +
                  of_value("unrecorded_max", in.options.unrecorded_max));
  if (is_any_held) {
    all.emplace_back("release earlier");
    if (!is_out_of_memory) {
      bool const waited = in.options.host_wait_max.count() > 0;
      all.push_back((waited ? "allow a longer wait with " : "allow a wait with ") +
                    of_value("host_wait_max", in.options.host_wait_max));
    }
  }
  if (is_out_of_memory) all.emplace_back("claim less");
  return joined(all);
}

std::string slot_pool::claim_search::describe_claim() {
  std::string text = detail::line_text("asked for at ", asked.where);
  if (of.bytes != 0) {
    text += text.empty() ? "asked for: " : ": ";
    text += std::to_string(asked.bytes) + " bytes of \"" + of.label + "\"";
  }
  if (!text.empty()) text += "; ";
  text += in.describe(of, 16);  // longer texts are not read
  pool_stats const now = in.stats(of);
  text += '\n';
  text += remedies();
  if (!in.options.track_leases && now.leased != 0) text += "; track_leases names the leases' lines";
  if (!in.options.group && now.in_graphs != 0) text += "; graphs can share slots: sharing_group";
  if (!is_eager()) text += "; a capture that plain CUDA began goes on: end it";
  return text;
}

void slot_pool::claim_search::refuse() {
  if (seen.failure == nullptr) {
    std::size_t const existing = of.slots.existing();
    char const* const where = seen.is_busy         ? "out or in use by earlier work"
                              : seen.is_on_its_way ? "out or being given back"
                                                   : "out";
    std::string const of_label = " of \"" + of.label + "\" ";
    throw pool_exhausted(
        std::string(asked.call) + ": " +
        (existing == 0 ? "no slot" + of_label + "can be made, and the others are "
                       : "all " + std::to_string(existing) + " slots" + of_label + "are ") +
        where + " (" + (existing >= in.slots_max ? "slots_max" : "the limit in bytes") + ")" +
        (seen.has_moved && !seen.is_busy && !seen.is_on_its_way
             ? ", and other threads took what became free"
             : "") +
        ", " + describe_claim());
  }
  try {
    std::rethrow_exception(seen.failure);
  } catch (cuda_error const& error) {
    bool const is_told = of.bytes != 0 || seen.was_worker_late;
    if (!is_told || error.status() != cudaErrorMemoryAllocation) throw;
    throw cuda_error(error.status(), error.api(), error.where(), describe_claim());
  }
}

}  // namespace escrow::inline v0_2
