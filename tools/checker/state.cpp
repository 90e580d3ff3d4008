// SPDX-License-Identifier: Apache-2.0
// What tells two states apart: nothing that can make no difference any more.
#include <algorithm>
#include <cstring>
#include <vector>

#include "engine.hpp"

namespace escrow::model {

// Somebody or something that knows: a thread, a message that may yet be read, a lock.
struct engine::holder {
  std::uint64_t tag;
  knowledge const* knows;
  std::uint32_t thread;  // threads_max: none
};

namespace {

std::uint64_t tag_of(std::uint64_t kind, std::uint64_t which) {
  return mixed(mixed(0, kind), which);
}

std::size_t oldest_for(location const& where, knowledge const* reader) {
  return where.oldest_for(reader->seen, std::memory_order_relaxed);
}

}  // namespace

// Plain memory: what is in it, and who knows of which access.
std::uint64_t engine::state_of_plain(std::vector<holder> const& holders) {
  std::uint64_t sum = 0;
  table<granule>& granules = shadow_.granules();
  for (std::size_t i = 0; i < granules.size(); ++i) {
    granule const& cell = granules[i];
    std::uint64_t content = 0;
    if (!cell.is_freed) {
      std::memcpy(&content, reinterpret_cast<void const*>(cell.where * shadow::granule_bytes),
                  sizeof(content));
    }
    sum += mixed(tag_of(10, cell.where), cell.is_freed ? 1 : mixed(2, content));
    for (granule::access const& each : cell.accesses) {
      if (cell.is_freed) break;
      bool const is_open = each.kind == access_kind::speculative &&
                           each.by.when == threads_[each.by.thread]->operations + 1;
      std::uint64_t const what =
          mixed(mixed(cell.where, each.by.thread), (static_cast<unsigned>(each.bytes) << 8U) |
                                                       (static_cast<unsigned>(each.kind) << 1U) |
                                                       (is_open ? 1U : 0U));
      std::uint64_t known_to = 0;
      bool is_known_to_all = true;
      for (holder const& one : holders) {
        if (one.thread == each.by.thread) continue;
        if (each.by.is_in(one.knows->happened)) {
          known_to += one.tag;
        } else if (one.thread != threads_max) {
          is_known_to_all = false;
        }
      }
      // What all threads know can race with nothing.
      if (!is_known_to_all) sum += mixed(what, known_to);
    }
  }
  return sum;
}

// Everything is counted from what is newest, and knowledge is told as what it leaves to be read and
// which accesses it orders, so that the number of operations that led here does not count.
std::uint64_t engine::state() {
  static thread_local std::vector<holder> holders;
  holders.clear();
  std::uint64_t sum = how_.switches_max ? mixed(switches_, running_) : 0;
  if (how_.older_max) sum = mixed(sum, older_reads_);

  for (std::uint32_t i = 0; i < count_; ++i) {
    model_thread const& each = *threads_[i];
    bool const waits = each.now != status::ready && each.now != status::ended;
    std::uint64_t const flags = (waits && can_run(each) ? 1U : 0U) |
                                (waits && each.was_woken ? 2U : 0U) | (each.is_mistaken ? 4U : 0U) |
                                (static_cast<std::uint64_t>(each.now) << 3U);
    bool const is_over = each.now == status::ended;
    std::uint64_t const hash = mixed(mixed(tag_of(1, i), flags), is_over ? 0 : each.history);
    sum += mixed(mixed(hash, waits ? each.object : 0), heap_.used(i) + (each.time << 24U));
    if (is_over && !each.is_started) continue;
    holders.push_back({tag_of(2, i), &each.known, i});
    if (!how_.has_fences) continue;
    holders.push_back({tag_of(3, i), &each.fenced, threads_max});
    holders.push_back({tag_of(4, i), &each.glimpsed, threads_max});
  }
  if (how_.has_fences) holders.push_back({tag_of(5, 0), &fences_, threads_max});
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    model_lock const& each = locks_[i];
    sum += mixed(tag_of(6, each.where), each.owner);
    holders.push_back({tag_of(7, each.where), &each.released, threads_max});
  }

  // Messages that somebody may still read.
  bool const reads_newest = how_.older_max && older_reads_ >= *how_.older_max;
  std::size_t const readers = holders.size();
  for (std::size_t i = 0; i < locations_.size(); ++i) {
    location& where = locations_[i];
    std::size_t oldest = where.newest();
    for (std::size_t j = 0; j < readers && !reads_newest; ++j) {
      oldest = std::min(oldest, oldest_for(where, holders[j].knows));
    }
    for (std::size_t message = oldest; message <= where.newest(); ++message) {
      std::uint64_t const tag = tag_of(8, where.where + ((where.newest() - message) << 52U));
      sum += mixed(tag, where.messages[message].value);
      holders.push_back({tag, &where.messages[message].released, threads_max});
    }
    std::size_t const sequential = std::max(oldest, where.sequential());
    sum += mixed(tag_of(9, where.where), where.newest() - sequential);
  }

  for (std::size_t i = 0; i < locations_.size() && !reads_newest; ++i) {
    location const& where = locations_[i];
    for (holder const& each : holders) {
      sum += mixed(each.tag ^ where.where, where.newest() - oldest_for(where, each.knows));
    }
  }
  return sum + state_of_plain(holders);
}

}  // namespace escrow::model
