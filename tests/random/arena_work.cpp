// SPDX-License-Identifier: Apache-2.0
// What programs with an arena enqueue: claims whose memory is filled and compared, and captures.
#include "arena_run.hpp"

#include <algorithm>
#include <utility>

namespace escrow::test {

namespace {

// Values of a block that are written and compared: the first, the last, and some between.
template <class Visit>
void sample(std::size_t count, Visit visit) {
  constexpr std::size_t ends = 16, stride = 997;
  for (std::size_t i = 0; i < count; i += i < ends || i + ends >= count ? 1 : stride) visit(i);
  if (count != 0) visit(count - 1);
}
void fill_on_device(int* data, std::size_t count, int value) {
  sample(count, [&](std::size_t i) { data[i] = value; });
}
void check_on_device(int const* data, std::size_t count, int value, int* mismatches) {
  sample(count, [&](std::size_t i) { *mismatches += data[i] == value ? 0 : 1; });
}
void copy_on_device(int* to, int const* from, std::size_t count) {
  sample(count, [&](std::size_t i) { to[i] = *from; });
}

void* address_of(auto* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

template <class... Values>
void arena_run::launch_kernel(void* kernel, std::size_t stream, Values... values) {
  std::array<void*, sizeof...(Values)> arguments{&values...};
  escrow::check(cudaLaunchKernel(kernel, {1}, {1}, arguments.data(), 0, streams_[stream]),
                "cudaLaunchKernel");
}

void arena_run::fill(use const& its) {
  static void* const kernel = address_of(sim::register_kernel<&fill_on_device>("fill"));
  launch_kernel(kernel, its.stream, its.held.data(), its.held.count(), its.value);
}

void arena_run::check(use const& its, std::size_t on) {
  static void* const kernel = address_of(sim::register_kernel<&check_on_device>("check"));
  launch_kernel(kernel, on, static_cast<int const*>(its.held.data()), its.held.count(), its.value,
                mismatches_);
  ++counts_.checks;
}

void arena_run::copy(use& to, use const& from) {
  static void* const kernel = address_of(sim::register_kernel<&copy_on_device>("copy"));
  launch_kernel(kernel, to.stream, to.held.data(), static_cast<int const*>(from.held.data()),
                to.held.count());
}

use arena_run::claim(std::size_t on, bool is_kept) {
  constexpr std::array<std::size_t, 7> sizes{64, 256, 1000, 4096, 20'000, 70'000, 3'000'000};
  std::size_t const bytes = sizes[below(coin(8) ? sizes.size() : sizes.size() - 1)];
  stream_ref const stream(streams_[on].get());
  bool const stays = is_kept && planted_ != arena_fault::output_is_scratch;
  auto const by_address = [&] {
    void* const address =
        stays ? allocator_->allocate_kept(stream, bytes) : allocator_->allocate(stream, bytes);
    return memory(*allocator_, stream, address, bytes);
  };
  use made{coin(4) ? by_address()
                   : memory(stays ? pool_->claim_kept(stream, bytes) : pool_->claim(stream, bytes)),
           on, ++values_};
  fill(made);
  return made;
}

void arena_run::release(use its) {
  check(its, its.stream);
  if (coin()) its.held.release(stream_ref(streams_[its.stream].get()));  // else at its end
}

void arena_run::order(std::size_t earlier, std::size_t later) {
  owned_event event;
  escrow::check(cudaEventCreateWithFlags(event.out(), cudaEventDisableTiming), "cudaEventCreate");
  escrow::check(cudaEventRecord(event, streams_[earlier]), "cudaEventRecord");
  escrow::check(cudaStreamWaitEvent(streams_[later], event, 0), "cudaStreamWaitEvent");
}

// The other stream reads it. That stream goes on beside its own, so the release has to know.
void arena_run::share(use& its, std::size_t other, bool is_told) {
  order(its.stream, other);
  if (is_told) its.held.record_stream(stream_ref(streams_[other].get()));
  check(its, other);
}

// Some work with claims on a stream; in a capture, what is in `kept` stays.
void arena_run::enqueue(std::size_t on, outputs* kept) {
  std::vector<use> all;
  std::uint64_t const count = 1 + below(7);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t const chosen = below(10);
    if (all.empty() || chosen < 4) {
      all.push_back(claim(on));
    } else if (chosen < 6) {
      std::swap(any_of(all), all.back());
      release(std::move(all.back()));
      all.pop_back();
    } else if (chosen == 6) {
      check(any_of(all), on);
    } else if (chosen == 7 && all.size() > 1) {
      use& to = any_of(all);
      use const& from = any_of(all);
      copy(to, from);
      to.value = from.value;
    } else if (chosen == 8 && kept != nullptr && outputs_.size() < 6) {
      auto made = std::make_shared<output>();
      made->its = claim(on, true);
      kept->push_back(made);
    } else if (chosen == 9 && may_fork_) {
      forked_work(on, all);
    }
  }
  for (use& each : all) release(std::move(each));
}

// Work on another stream, which is joined at the end. Meanwhile the first goes on.
void arena_run::forked_work(std::size_t on, std::vector<use>& all) {
  std::size_t const other = (on + 1 + below(streams_.size() - 1)) % streams_.size();
  order(on, other);
  std::vector<use> theirs;
  for (std::uint64_t i = below(3); i != 0; --i) theirs.push_back(claim(other));
  std::optional<use> read;
  if (!all.empty() && coin()) {
    read = std::move(all.back());
    all.pop_back();
    share(*read, other, planted_ != arena_fault::branch_is_not_ordered);
  }
  if (!theirs.empty() && coin()) {
    release(std::move(theirs.back()));
    theirs.pop_back();
    theirs.push_back(claim(other));
  }
  // Their release is behind the join, or before it; so is what was read.
  if (read && coin()) {
    release(std::move(*read));
    read.reset();
  }
  for (std::uint64_t i = below(3); i != 0; --i) all.push_back(claim(on));
  bool const is_late = coin();
  if (!is_late)
    for (use& each : theirs) release(std::move(each));
  if (!is_late) theirs.clear();
  order(other, on);
  for (use& each : theirs) {
    check(each, on);
    each.held.release(stream_ref(streams_[on].get()));
  }
  if (read) release(std::move(*read));
}

void arena_run::capture(made_graph& place) {
  std::size_t const on = below(streams_.size());
  if (coin(5)) return capture_plainly(place, on);
  made_graph made;
  made.its = escrow::capture(stream_ref(streams_[on].get()), [&](stream_ref) {
    enqueue(on, &made.kept);
    if (coin(12)) throw gives_up();
  });
  outputs_.insert(outputs_.end(), made.kept.begin(), made.kept.end());
  place = std::move(made);
}

void arena_run::capture_plainly(made_graph& place, std::size_t on) {
  cudaGraph_t native = nullptr;
  escrow::check(cudaStreamBeginCapture(streams_[on], cudaStreamCaptureModeThreadLocal),
                "cudaStreamBeginCapture");
  try {
    enqueue(on, nullptr);
  } catch (...) {
    stop_failing();
    static_cast<void>(cudaStreamEndCapture(streams_[on], &native));
    if (native != nullptr) must(cudaGraphDestroy(native));
    throw;
  }
  stop_failing();
  must(cudaStreamEndCapture(streams_[on], &native));
  place = {graph(native), {}};
}

// Their claims take turns; meanwhile there may be eager work.
void arena_run::capture_two(made_graph& first, made_graph& second) {
  std::size_t const one = below(streams_.size());
  std::size_t const two = (one + 1) % streams_.size();
  std::size_t const eager = (one + 2) % streams_.size();
  struct scope {
    bool& is_over;
    ~scope() { is_over = true; }
  } const ends{may_fork_};
  may_fork_ = false;
  capture_scope of_one(stream_ref(streams_[one].get()));
  std::optional<use> held_by_one = claim(one);
  capture_scope of_two(stream_ref(streams_[two].get()));
  std::optional<use> held_by_two = claim(two);
  enqueue(one, nullptr);
  enqueue(two, nullptr);
  if (coin()) {
    release(std::move(*held_by_one));
    held_by_one.reset();
  }
  if (coin()) {
    use its = claim(eager);
    release(std::move(its));
  }
  enqueue(one, nullptr);
  release(std::move(*held_by_two));
  held_by_two.reset();
  if (held_by_one) release(std::move(*held_by_one));
  held_by_one.reset();
  enqueue(two, nullptr);
  made_graph made{of_one.end()};
  second = {of_two.end()};
  first = std::move(made);
}

// It ends without a graph, with leases that outlive it or end before.
void arena_run::leave_capture() {
  std::size_t const on = below(streams_.size());
  std::optional<use> outlives;
  {
    capture_scope const open(stream_ref(streams_[on].get()));
    if (coin()) outlives = claim(on);
    enqueue(on, nullptr);
  }
}

void arena_run::branch(made_graph& place) {
  made_graph made{graph(worker()), {}, std::make_shared<int>()};
  condition const chosen = build(*made.its).make_condition(static_cast<unsigned>(below(2)));
  conditional_node const node = build(*made.its).add(if_else_node(chosen));
  std::size_t const on = below(streams_.size());
  for (body_graph const& body : node.bodies()) {
    escrow::check(cudaStreamBeginCaptureToGraph(streams_[on], body.get(), nullptr, nullptr, 0,
                                                cudaStreamCaptureModeThreadLocal),
                  "cudaStreamBeginCaptureToGraph");
    cudaGraph_t same = nullptr;
    try {
      enqueue(on, nullptr);
    } catch (...) {
      stop_failing();
      static_cast<void>(cudaStreamEndCapture(streams_[on], &same));
      throw;
    }
    stop_failing();
    must(cudaStreamEndCapture(streams_[on], &same));
  }
  place = std::move(made);
}

}  // namespace escrow::test
