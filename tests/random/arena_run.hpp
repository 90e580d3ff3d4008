// SPDX-License-Identifier: Apache-2.0
// One program with an arena that runs: places for graphs, execs and outputs, and what steps do.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <escrow/sim.hpp>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "arena_program.hpp"
#include "handles.hpp"

namespace escrow::test {

// What is thrown on purpose.
struct gives_up {};

/// Memory of a pool by its lease, or of a stream_allocator by its address.
class memory {
 public:
  explicit memory(lease<device_block>&& of_pool) : lease_(std::move(of_pool)) {}
  memory(stream_allocator& of, stream_ref on, void* address, std::size_t bytes)
      : of_(&of), on_(on.get()), address_(address), bytes_(bytes) {}
  memory(memory&& other) noexcept
      : lease_(std::exchange(other.lease_, std::nullopt)),
        of_(other.of_),
        on_(other.on_),
        address_(std::exchange(other.address_, nullptr)),
        bytes_(other.bytes_) {}
  memory& operator=(memory&& other) noexcept {
    std::swap(lease_, other.lease_);
    std::swap(of_, other.of_);
    std::swap(on_, other.on_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~memory() {
    if (address_ != nullptr) of_->deallocate_or_report(stream_ref(on_), address_);
  }

  [[nodiscard]] int* data() const {
    return static_cast<int*>(lease_ ? (*lease_)->data() : address_);
  }
  [[nodiscard]] std::size_t count() const {
    return (lease_ ? (*lease_)->size() : bytes_) / sizeof(int);
  }
  void record_stream(stream_ref stream) {
    lease_ ? lease_->record_stream(stream) : of_->record_stream(stream, address_);
  }
  void release(stream_ref stream) {
    if (lease_) return lease_->release(stream);
    of_->deallocate(stream, address_);
    address_ = nullptr;
  }

 private:
  std::optional<lease<device_block>> lease_ = {};
  stream_allocator* of_ = nullptr;
  cudaStream_t on_ = nullptr;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

struct use {
  memory held;
  std::size_t stream = 0;
  int value = 0;
};

// What stays after its capture.
struct output {
  std::optional<use> its;
  std::optional<std::size_t> written_on;  // the stream of the last launch
};
// What a graph or an exec was captured with.
using outputs = std::vector<std::shared_ptr<output>>;

struct made_graph {
  std::optional<graph> its = {};
  outputs kept = {};
  // Of a graph with conditional nodes, which has one exec, and no copies: expires with that.
  std::shared_ptr<int> branches = {};
  [[nodiscard]] bool has_exec() const { return branches.use_count() > 1; }
};
struct made_exec {
  std::optional<graph_exec> its = {};
  outputs kept = {};
  std::shared_ptr<int> branches = {};
};
struct taken {
  std::optional<hoisted> its;
  owned_exec exec;
  owned_graph source;
  outputs kept = {};
};

class arena_run {
 public:
  arena_run(arena_program const& drawn, arena_counts& counts, arena_fault planted)
      : counts_(counts),
        planted_(planted),
        before_(start(drawn.seed)),
        group_(std::in_place,
               sharing_options{.label = "arena", .streams_outlive_group = drawn.seed % 2 == 1}) {
    random_.seed(drawn.seed);
    for (owned_stream& each : streams_) each = make_stream();
    must(cudaMallocHost(reinterpret_cast<void**>(&mismatches_), sizeof(int)));
    *mismatches_ = 0;
  }
  arena_run(arena_run&&) = delete;
  ~arena_run() { must(cudaFreeHost(mismatches_)); }

  std::string run(arena_program const& drawn) {
    for (arena_step const& each : drawn.steps) {
      perform(each);
      if (*mismatches_ != 0)
        return "memory was overwritten, seen at " + std::string(name_of(each.what));
      if (!failure_.empty()) return failure_;
    }
    finish();
    return failure_;
  }

 private:
  static deleter& worker() {
    static deleter& only =
        *new deleter({.own_worker = false, .on_error = [](std::exception const&) {}});
    return only;
  }
  static sim::counts start(std::uint64_t seed) {
    [[maybe_unused]] static bool const is_first = [] {
      sim::reset({.stepped = true});
      static_cast<void>(worker());
      return true;
    }();
    sim::reseed(seed);
    return sim::alive();
  }

  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool coin(std::uint64_t one_of = 2) { return below(one_of) == 0; }
  template <class Places>
  auto& any_of(Places& places) {
    return places[below(places.size())];
  }

  /// One that is not empty, if there is any.
  template <class Places>
  auto& any_made(Places& places) {
    std::size_t const first = below(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      auto& each = places[(first + i) % places.size()];
      if (each.its) return each;
    }
    return places[first];
  }

  [[nodiscard]] pool_options options() const {
    return {.slots_max = 16,
            .device = 0,
            .capture_wait_max = {},
            .label = "scratch",
            .deleter = &worker(),
            .group = group_};
  }
  void stop_failing() {
    any_failed_ = any_failed_ || (is_failing_ && sim::faults_pending() == 0);
    is_failing_ = false;
    sim::clear_faults();
  }
  void perform(arena_step const& next);
  void act(arena_step const& next);

  // Kernels.
  void fill(use const& its);
  void check(use const& its, std::size_t on);
  void copy(use& to, use const& from);
  template <class... Values>
  void launch_kernel(void* kernel, std::size_t stream, Values... values);

  // Work.
  [[nodiscard]] use claim(std::size_t on, bool is_kept = false);
  void release(use its);
  void order(std::size_t earlier, std::size_t later);
  void share(use& its, std::size_t other, bool is_told);
  void enqueue(std::size_t on, outputs* kept);
  void forked_work(std::size_t on, std::vector<use>& all);

  // Acts.
  void capture(made_graph& place);
  void capture_plainly(made_graph& place, std::size_t on);
  void capture_two(made_graph& first, made_graph& second);
  void leave_capture();
  void branch(made_graph& place);
  void join(made_graph const& first, made_graph const& second);
  void launch(made_exec& place, std::size_t times);
  void written(outputs const& kept, std::size_t on);
  void take(taken& place, made_graph& from);
  void launch_taken(taken& place);
  void release_taken(taken& place, cudaStream_t behind);
  void read_output();
  void park();
  void finish();
  void settle();

  arena_counts& counts_;
  arena_fault const planted_;
  sim::counts const before_;
  std::uint64_t const leaked_before_ = worker().stats().leaked;
  std::mt19937_64 random_;
  std::array<owned_stream, 3> streams_;
  int* mismatches_ = nullptr;
  int values_ = 0;
  bool may_fork_ = true;  // else the other streams are captured, too
  std::string failure_;
  bool is_failing_ = false;  // a call of this step is to fail
  bool any_failed_ = false;
  std::optional<sharing_group> group_;
  std::optional<scratch_pool> pool_{std::in_place, options()};
  std::optional<stream_allocator> allocator_{std::in_place, options()};
  std::array<made_graph, 3> graphs_;
  std::array<made_exec, 3> execs_;
  std::array<taken, 2> taken_;
  outputs outputs_;
};

}  // namespace escrow::test
