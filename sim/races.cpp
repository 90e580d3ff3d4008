// SPDX-License-Identifier: Apache-2.0
// Compares what work uses with what other work has used that it is not behind.
#include "races.hpp"

#include "accesses.hpp"
#include "apart.hpp"
#include "memory.hpp"
#include "operands.hpp"
#include "pages.hpp"
#include "state.hpp"
#include "thread.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace escrow::sim::model {
namespace {

std::string stream_text(cudaStream_t stream) {
  return stream == nullptr ? "a default stream" : "stream " + text_of(stream);
}

// Whatever conflicts with `old` later conflicts with `now`, which is behind it.
bool stands_for(access const& now, access const& old) {
  bool const has_all_rows = now.width == 0 || (now.begin == old.begin && now.bytes == old.bytes &&
                                               now.width == old.width && now.pitch == old.pitch);
  bool const covers =
      has_all_rows && now.begin <= old.begin && old.begin + old.bytes <= now.begin + now.bytes;
  bool const is_alike = now.kind == old.kind && now.code == old.code;
  return covers && (is_alike || is_exclusive(now.kind));
}

std::string advice_for(access_kind now, access_kind before) {
  if (before == access_kind::allocates) {
    return "let the other stream wait for an event behind the allocation; a memory_source of your "
           "own returns what every stream may use at once: for a memory pool of CUDA's take "
           "memory_source::from()";
  }
  if (now == access_kind::frees) {
    return "free memory behind the last work that uses it: retire() its owner on that work's "
           "stream, or retire_after() an event behind it, and record that again only once the "
           "owner is destroyed; of a stream-shared object, "
           "record_stream() of each stream that uses it";
  }
  if (now == access_kind::may_read || now == access_kind::may_write) {
    return "record an event behind the first, and let the other stream wait for it "
           "(cudaStreamWaitEvent), or enqueue both on one stream; a "
           "kernel that only reads it takes a pointer to const; if both add to it, or use "
           "different parts, "
           "sim::let_work_share(true) permits it";
  }
  return "record an event behind the first, and let the other stream wait for it "
         "(cudaStreamWaitEvent); or enqueue both on one stream; sim::let_work_share(true) permits "
         "it";
}

[[noreturn]] void refuse(char const* call, touch const& now, touch const& before) {
  auto const* const shared =
      reinterpret_cast<void const*>(std::max(now.what.begin, before.what.begin));
  memory_use const its = lease_around(shared);
  give_up(std::string(call) + ": " + name_of(now.what) + " on " + stream_text(now.on) + " uses " +
          text_of(shared) + (its.of.empty() ? "" : ", of the pool \"" + its.of + "\",") +
          " as does " + name_of(before.what) + ", enqueued before on " + stream_text(before.on) +
          ", and nothing orders the two: " + advice_for(now.what.kind, before.what.kind) +
          (now.is_of_launch && !its.of.empty()
               ? "; if the graph does not keep this memory, claim in its capture"
               : ""));
}

// Two runs of one kernel may add to the same; those of two launches seldom do.
bool have_one_result(touch const& now, touch const& before) {
  access const& its = now.what;
  return now.is_of_launch && before.is_of_launch && its.kind == access_kind::may_write &&
         its.kind == before.what.kind && its.code == before.what.code &&
         its.argument == before.what.argument && its.begin == before.what.begin;
}

void look_at(char const* call, position const& at, touch const& now, used_memory::touches& others) {
  bool const of_kernels = asked_audits() == audits::all;
  std::erase_if(others, [&](touch const& other) {
    if (the().known_done.has(other.when)) return true;
    if (at.is_behind(other.when)) return stands_for(now.what, other.what);
    bool const is_one_result = of_kernels && have_one_result(now, other);
    if (is_one_result || is_conflict(now.what, other.what, of_kernels)) refuse(call, now, other);
    return false;
  });
}

}  // namespace

void note_accesses(char const* call, stream_state const& stream,
                   std::vector<access> const& accesses, bool is_of_launch) {
  if (asked_audits() == audits::off || the().may_work_share || the().fault != cudaSuccess) return;
  constexpr std::size_t short_max = used_memory::short_max;
  used_memory& used = the().used;
  for (access const& each : accesses) {
    if (!each.may_race) continue;
    touch const now{each, stream.at.own, stream.handle, is_of_launch};
    std::uintptr_t const first = each.begin - std::min<std::uintptr_t>(each.begin, short_max);
    auto at = used.short_ones.lower_bound(first);
    while (at != used.short_ones.end() && at->first < each.begin + each.bytes) {
      look_at(call, stream.at, now, at->second);
      at = at->second.empty() ? used.short_ones.erase(at) : std::next(at);
    }
    look_at(call, stream.at, now, used.long_ones);
    (each.bytes <= short_max ? used.short_ones[each.begin] : used.long_ones).push_back(now);
  }
}

namespace {

std::string user_text(lease_use const& its) {
  std::string const what = its.code != nullptr ? "kernel \"" + its.code->name + "\"" : its.what;
  return what + " on " + stream_text(its.on);
}

// If the two may not run at the same time: what to do.
char const* advice_against(lease_use const& now, lease_use const& other) {
  bool const was_launch = other.exec != nullptr;
  if (now.exec != nullptr) {
    if (!was_launch || other.exec == now.exec) return nullptr;
    return "launch by graph_exec or hoisted::launch(), which order their launches, or on one "
           "stream";
  }
  if (was_launch) {
    if (other.last >= now.number) return nullptr;
    return "launch by graph_exec or hoisted::launch(), or end the exec, or release what hoist() "
           "returned, behind the last launch";
  }
  if (other.number >= now.number) return nullptr;
  return "claim for the stream that the work is on, also of a claimer, which has one; or tell the "
         "lease by record_stream() of each other stream before its work is enqueued, and release "
         "it behind the last";
}

void forget_known_leases(used_memory& used) {
  std::erase_if(used.leases, [](auto const& each) {
    return std::ranges::all_of(each.second.all, [](lease_use const& use) {
      return the().known_done.has(use.ends_with->at.own);
    });
  });
  used.leases_max = 2 * used.leases.size() + 64;
}

// False: nobody knows that it is new, or it is too much.
bool add_new(memory_use const& of, std::vector<new_scratch>& to) {
  memory_lease const& its = of.lease;
  std::size_t bytes = its.new_end - its.new_begin;
  auto const* const begin = reinterpret_cast<void const*>(its.new_begin);
  if (its.new_begin == 0 || bytes > filled_max || place_of(begin).type != cudaMemoryTypeDevice)
    return false;
  // What is behind an allocation in its last page is its alone.
  bool const is_to_its_end = !is_beyond(begin, bytes) && is_beyond(begin, bytes + 1);
  if (is_to_its_end) bytes = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  to.push_back({its.new_begin, bytes, of.of});
  return true;
}

bool may_make_new() {
  return is_memory_apart() && asked_audits() != audits::off;
}

// What was in the memory of scratch before its claim has no meaning: if memory is apart, all of it
// is new for the first work of a lease, unless more of the lease's may run beside that.
void note_new(lease_uses& its, lease_use const& now, memory_use const& of) {
  memory_lease const& lease = of.lease;
  if (its.made_new == lease.number) {
    auto const first = its.first.lock();
    if (first == nullptr || first->began || now.ends_with->at.is_behind(first->at.own)) return;
    std::erase_if(first->makes_new,
                  [&](auto const& each) { return each.begin == lease.new_begin; });
    return;
  }
  its.made_new = lease.number;
  if (add_new(of, now.ends_with->makes_new)) its.first = now.ends_with;
}

void note_use(char const* call, lease_use const& now, memory_use const& of) {
  used_memory& used = the().used;
  if (used.leases.size() > used.leases_max) forget_known_leases(used);
  auto& its = used.leases[of.lease.memory];
  if (may_make_new()) note_new(its, now, of);
  position const& at = now.ends_with->at;
  std::erase_if(its.all, [&](lease_use const& other) {
    if (the().known_done.has(other.ends_with->at.own)) return true;
    if (at.is_behind(other.ends_with->at.own))
      return (now.exec == nullptr) == (other.exec == nullptr);
    char const* const what_to_do = advice_against(now, other);
    if (what_to_do == nullptr) return false;
    give_up(std::string(call) + ": " + user_text(now) + " uses memory of \"" + of.of +
            "\", a pool or a sharing group, and so does " + user_text(other) +
            ", which had it before, and nothing orders the two: " + what_to_do);
  });
  its.all.push_back(now);
}

}  // namespace

void note_uses(char const* call, op_ptr const& o, std::vector<memory_use> const& uses) {
  o->is_of_leases = !uses.empty();
  if (the().fault != cudaSuccess) return;
  auto const* const k = std::get_if<kernel_work>(&o->what);
  for (memory_use const& each : uses) {
    lease_use const now{.number = each.lease.number,
                        .ends_with = o,
                        .code = k == nullptr ? nullptr : k->code,
                        .what = std::holds_alternative<copy_work>(o->what) ? "a copy" : "a fill",
                        .on = o->stream->handle};
    note_use(call, now, each);
  }
}

void note_claimed(op_ptr const& next, memory_use const& of) {
  auto& its = the().used.leases[of.lease.memory];
  if (may_make_new() && its.made_new != of.lease.number) note_new(its, {.ends_with = next}, of);
}

void make_new_for_launch(op& first, std::vector<memory_use> const& uses) {
  if (!may_make_new()) return;
  for (memory_use const& each : uses) {
    if (each.lease.number == 0) add_new(each, first.makes_new);
  }
}

void note_uses(char const* call, op_ptr const& end, exec_state const& exec,
               std::vector<memory_use> const& uses) {
  if (the().fault != cudaSuccess) return;
  for (memory_use const& each : uses) {
    if (each.lease.number != 0) {  // the lease's owner orders the launch
      the().used.leases[each.lease.memory].made_new = each.lease.number;
      continue;
    }
    lease_use const now{.exec = &exec,
                        .last = each.lease.last,
                        .ends_with = end,
                        .what = "the launch of a graph",
                        .on = end->stream->handle};
    note_use(call, now, each);
  }
}

void refuse_used_after_retire(char const* call, void const* begin, std::size_t bytes) {
  moment const& retired = this_thread().retired_behind;
  if (retired.number == 0 || asked_audits() == audits::off || the().may_work_share) return;
  access const freed{
      .begin = reinterpret_cast<std::uintptr_t>(begin), .bytes = bytes, .kind = access_kind::frees};
  auto const look = [&](used_memory::touches const& all) {
    for (touch const& each : all) {
      bool const is_later = each.when.stream == retired.stream && each.when.number > retired.number;
      if (!is_later || !overlap(freed, each.what)) continue;
      give_up(
          std::string(call) + " by the owner of " + text_of(begin) + ", which " +
          name_of(each.what) + " uses, enqueued on " + stream_text(each.on) +
          " after the owner was retired there: retire it behind the last work that uses it; for "
          "a graph give it to retain() in its capture");
    }
  };
  used_memory const& used = the().used;
  auto at = used.short_ones.lower_bound(freed.begin);
  for (; at != used.short_ones.end() && at->first < freed.begin + bytes; ++at) look(at->second);
  look(used.long_ones);
}

}  // namespace escrow::sim::model

void escrow_simulated_destroys(cudaEvent_t ready) noexcept {
  using namespace escrow::sim::model;
  std::lock_guard const lock(the().mutex);
  auto const event = ready == nullptr ? nullptr : the().events.find(ready);
  bool const is_known = event != nullptr && event->last != nullptr;
  this_thread().retired_behind = is_known ? event->last->at.own : moment{};
}
