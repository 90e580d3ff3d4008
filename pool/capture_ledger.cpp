// Entries come with the first hold and go with the last.
#include "capture_ledger.hpp"

#include <algorithm>

namespace escrow {

void capture_ledger::add(slot& held, graph_hold& hold, std::uint64_t capture_id,
                         source_location where) {
  std::lock_guard const lock(mutex_);
  auto const [found, is_new] = entries_.try_emplace(capture_id);
  entry& graph = found->second;
  if (is_new) {
    graph.since = std::chrono::steady_clock::now();
    graph.where = where;
  }
  try {
    // Room for every slot to be reusable, so that end_lease() never allocates.
    graph.reusable.reserve(graph.held.size() + 1);
    graph.held.push_back(&held);
  } catch (...) {
    if (graph.held.empty()) entries_.erase(found);
    throw;
  }
  hold.capture_id_ = capture_id;
  held.is_leased_ = true;
  if (++held.graph_holds_ == 1) ++slots_held_;
}

bool capture_ledger::is_held(slot const& asked) const noexcept {
  std::lock_guard const lock(mutex_);
  return asked.graph_holds_ != 0;
}

bool capture_ledger::remove(slot& held, std::uint64_t capture_id) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(capture_id);
  entry& graph = found->second;
  graph.held.erase(std::find(graph.held.begin(), graph.held.end(), &held));
  std::erase(graph.reusable, &held);
  if (graph.held.empty()) entries_.erase(found);
  if (--held.graph_holds_ != 0) return false;
  --slots_held_;
  return !held.is_leased_;
}

bool capture_ledger::end_lease(slot& held, std::uint64_t capture_id, bool reusable) noexcept {
  std::lock_guard const lock(mutex_);
  held.is_leased_ = false;
  if (held.graph_holds_ == 0) return true;
  auto const found = entries_.find(capture_id);
  // One that others hold, too, serves no other claim.
  bool const is_its_own = found != entries_.end() && held.graph_holds_ == 1;
  if (reusable && is_its_own) found->second.reusable.push_back(&held);
  return false;
}

std::vector<capture_ledger::reusable_slot> capture_ledger::reusable_slots(
    std::uint64_t capture_id) const {
  std::lock_guard const lock(mutex_);
  std::vector<reusable_slot> result;
  auto const found = entries_.find(capture_id);
  if (found == entries_.end()) return result;
  std::vector<slot*> const& reusable = found->second.reusable;
  result.reserve(reusable.size());
  for (auto each = reusable.rbegin(); each != reusable.rend(); ++each) {
    result.push_back({*each, (*each)->last_use_});
  }
  return result;
}

bool capture_ledger::take(reusable_slot const& found, std::uint64_t capture_id) noexcept {
  std::lock_guard const lock(mutex_);
  if (!remove_reusable(found, capture_id)) return false;
  found.released->is_leased_ = true;
  return true;
}

void capture_ledger::forget(reusable_slot const& found, std::uint64_t capture_id) noexcept {
  std::lock_guard const lock(mutex_);
  static_cast<void>(remove_reusable(found, capture_id));
}

bool capture_ledger::remove_reusable(reusable_slot const& found,
                                     std::uint64_t capture_id) noexcept {
  auto const entry_found = entries_.find(capture_id);
  if (entry_found == entries_.end()) return false;
  // The slot is looked at only where it is listed: it may be gone with its graph. Each use is
  // another object, and stays the same one.
  std::vector<slot*>& reusable = entry_found->second.reusable;
  auto const place = std::find(reusable.begin(), reusable.end(), found.released);
  if (place == reusable.end() || found.released->last_use_ != found.use) return false;
  reusable.erase(place);
  return true;
}

std::vector<holder> capture_ledger::holders(std::string const& label) const {
  std::lock_guard const lock(mutex_);
  std::vector<holder> result;
  for (auto const& [id, graph] : entries_) {
    result.push_back({.capture_id = id < first_share_id ? id : 0,
                      .label = label,
                      .slots = graph.held.size(),
                      .since = graph.since,
                      .where = graph.where});
  }
  return result;
}

std::size_t capture_ledger::slots_held() const noexcept {
  std::lock_guard const lock(mutex_);
  return slots_held_;
}

}  // namespace escrow
