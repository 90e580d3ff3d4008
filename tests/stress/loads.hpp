// SPDX-License-Identifier: Apache-2.0
// Everything that a program does with the library, as loads that run beside each other: the long
// run measures them, and no capture may be harmed by them.
#pragma once

#include <algorithm>
#include <escrow/nodes.hpp>
#include <mutex>

#include "deep.hpp"
#include "stress_world.hpp"

namespace escrow::test {

/// Kinds of operations that are counted.
enum class deed { claim, retire, share, scratch, capture, launch, build, pool, plain, count };
inline constexpr std::array deed_names{"claims",       "retirements", "shares",
                                       "scratch",      "captures",    "launches",
                                       "graphs built", "pools",       "plain execs"};
inline constexpr std::size_t deeds = static_cast<std::size_t>(deed::count);

/// What all loads go through, on all devices.
struct load_arena {
  void did(deed what) {
    done[static_cast<std::size_t>(what)].fetch_add(1, std::memory_order_relaxed);
    if (leaks) leaked = new std::array<char, 100>;
  }
  [[nodiscard]] std::uint64_t count_of(deed what) const {
    return done[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
  }
  /// So that nobody is ever far ahead of a deleter.
  void catch_up(deleter& behind) {
    if (!behind.drain_for(std::chrono::seconds(30))) fail("a drain took more than 30 s");
  }
  /// The first failure ends the run.
  void fail(std::string what) {
    std::lock_guard const lock(mutex_);
    if (failure_.empty()) failure_ = std::move(what);
    counts.stop.store(true, std::memory_order_relaxed);
  }
  [[nodiscard]] std::string failed() {
    std::lock_guard const lock(mutex_);
    return failure_;
  }
  [[nodiscard]] deleter_options reporting() {
    deleter_options chosen;
    chosen.on_error = [this](std::exception const& error) { fail(error.what()); };
    return chosen;
  }
  [[nodiscard]] owner new_owner() { return {counts, none}; }

  bool leaks = false;              // 100 bytes at each operation
  bool may_exhaust = false;        // whether others hold so many slots that a claim may fail
  std::uint64_t relaunches = 200;  // up to ten times as many of one exec
  std::atomic<std::array<char, 100>*> leaked{nullptr};
  std::array<std::atomic<std::uint64_t>, deeds> done{};
  latency claims;
  latency launches;
  latency retirements;

 private:
  std::mutex mutex_;  // guards failure_
  std::string failure_;

 public:
  pinned_ints cells{4};
  work const none{cells, 3};
  arena counts{worker, cells};
  deleter worker{reporting()};
  deleter freer{reporting()};  // what ends with cudaFree, which waits for the device
};

/// What the pools have: device memory, counted.
struct pooled {
  static constexpr std::size_t bytes = 4096;
  explicit pooled(load_arena& all) : memory(bytes), one(all.new_owner()) {}
  [[nodiscard]] int* data() const { return static_cast<int*>(memory.data()); }

  device_block memory;
  owner one;
};
using pooled_pool = resource_pool<pooled>;

/// What the loads of one device share. Made and destroyed while nobody captures.
struct site {
  site(int its_device, load_arena& all)
      : device(its_device),
        pool(options(its_device, all), [&all] { return pooled(all); }),
        scratch(options(its_device, all)) {}

  static pool_options options(int device, load_arena& all) {
    return {.slots_max = 64,
            .device = device,
            .host_wait_max = std::chrono::milliseconds(all.may_exhaust ? 1 : 20'000),
            .label = "loads",
            .deleter = &all.worker};
  }

  int device;
  pinned_ints cells{4};
  pooled_pool pool;
  scratch_pool scratch;
};

/// One thread with one kind of load, of which it does round after round.
class loader : public actor {
 public:
  using load = void (loader::*)();

  loader(load_arena& all, site& here, std::uint64_t number, load its)
      : actor(all.counts, number, 32), all_(all), here_(here), load_(its) {
    sync_interval_ = 64;
  }
  /// Until the arena stops. A failure stops it.
  void run_on_device() {
    try {
      must(cudaSetDevice(here_.device));
      run();
    } catch (std::exception const& error) {
      all_.fail(error.what());
    }
  }

  void claim_and_release() {
    cudaStream_t const on = any_stream();
    auto held = all_.claims.time([&] { return here_.pool.try_claim(on); });
    if (held) {
      fill_with(on, (*held)->memory, static_cast<int>(rounds_));
      if (pick(8) == 0) held->record_stream(any_stream());
    }
    held.reset();
    all_.did(deed::claim);
  }

  void retire_eagerly() {
    cudaStream_t const on = any_stream();
    must(launch_tiny(on));
    owner last = all_.new_owner();
    all_.retirements.time([&] { all_.worker.retire(on, std::move(last)); });
    if (pick(16) == 0) all_.worker.retire(all_.new_owner());
    if (pick(64) == 0) all_.freer.retire(on, relaxed([] { return device_block(1024); }));
    all_.did(deed::retire);
    if (rounds_ % 256 == 0) all_.catch_up(all_.worker);
  }

  void share_with_streams() {
    auto const shared = make_stream_shared_by<owner>(all_.worker, all_.new_owner());
    for (owned_stream const& each : streams_) {
      if (coin()) continue;
      must(launch_tiny(each));
      record_stream(shared, each.get());
    }
    std::shared_ptr<int> const cell(shared, here_.cells.data());
    escrow::launch(streams_[0].get(), adds_, {.deleter = &all_.worker}, cell, 1);
    all_.did(deed::share);
    if (rounds_ % 64 == 0) all_.catch_up(all_.worker);
  }

  void use_scratch() {
    cudaStream_t const on = any_stream();
    std::size_t const bytes = std::size_t{1} << (6 + pick(12));
    fill_with(on, *here_.scratch.claim(on, bytes + pick(bytes)), static_cast<int>(rounds_));
    all_.did(deed::scratch);
  }

  /// What a library may do, also in a capture.
  void enqueue(stream_ref on) {
    for (int call = 0; call < 2; ++call) {
      fill_with(on.get(), here_.pool.claim(on)->memory, call);
      all_.did(deed::claim);
    }
    fill_with(on.get(), *here_.scratch.claim(on, std::size_t{1000} << pick(3)), 1);
    all_.worker.retire(on, all_.new_owner());
    if (pick(8) == 0) all_.freer.retire(on, relaxed([] { return device_block(256); }));
    auto const shared = make_stream_shared_by<owner>(all_.worker, all_.new_owner());
    std::shared_ptr<int> const cell(shared, here_.cells.data() + 1);
    escrow::launch(on, adds_, {.deleter = &all_.worker}, cell, 1);
    record_stream(shared, on);
  }

  void capture_and_relaunch() {
    cudaStream_t const stream = streams_[0];
    cudaStream_t const other = streams_[1];
    graph made = captured(stream);
    graph_exec exec(made);
    launch_often(exec, all_.relaunches * (1 + pick(10)), stream);
    if (coin()) {
      graph const newer = captured(other);
      exec.update(newer);
      launch_often(exec, all_.relaunches / 2, other);
    }
    if (coin()) {
      graph_exec sibling(made.clone());  // takes turns with the first
      launch_often(sibling, 10, other);
      sibling.launch(other);
      exec.launch(stream);
    }
    if (pick(4) == 0) {
      owned_graph const plain(made.detach());
      owned_exec plain_exec = relaxed([&] { return instantiate(plain); });
      sync_streams();  // nothing orders it after the others
      must(cudaGraphLaunch(plain_exec, stream));
      sync_streams();
      relaxed([&] { plain_exec.reset(); });
      all_.did(deed::plain);
    }
    exec.launch(stream);  // and ends in flight
  }

  void build_and_change() {
    cudaStream_t const stream = streams_[0];
    std::size_t const n = 16;
    graph built(all_.worker);
    auto scratch = here_.scratch.claim(stream, 256);
    node const zeroed = build(built).add(memset_node(shared_block(), {.width = 64}));
    node const filled = zeroed.add(kernel_node(fills_, {}, shared_block(), n, 1));
    node const last = filled.add(kernel_node(fills_, {}, scratch, n, 2))
                          .add(kernel_node(adds_, {}, here_.cells.data() + 2, 1))
                          .add(memcpy_node(here_.cells.data() + 3, shared_block(), sizeof(int)))
                          .add(host_node([kept = std::make_shared<owner>(all_.new_owner())] {}));
    std::uint64_t const kind = pick(4);
    if (kind == 0) {
      conditional_node const maybe = last.add(if_node(build(built).make_condition(1)));
      maybe.body().add(kernel_node(fills_, {}, shared_block(), n, 3));
    }
    if (kind == 1) {
      allocation const memory = last.add(alloc_node(4096));
      memory.add(kernel_node(fills_, {}, static_cast<int*>(memory.address()), n, 4))
          .add(free_node(memory.address()));
    }
    if (kind >= 2) {  // others have one exec at a time
      graph parent(all_.worker);
      build(parent).add(child_node(built));
      graph_exec(parent.clone()).launch(stream);
    }
    graph_exec exec(built);
    launch_often(exec, 8, stream);
    set(exec, filled, kernel_node(fills_, {}, shared_block(), n, 5));
    exec.launch(stream);
    filled.set(kernel_node(fills_, {}, shared_block(), n, 6));
    if (kind >= 2) exec.update(built);
    all_.worker.retire(stream, all_.new_owner());
    exec.launch(stream);                        // and ends in flight
    if (kind != 1 && coin()) filled.destroy();  // CUDA removes no node beside memory nodes
    all_.did(deed::build);
    if (rounds_ % 8 == 0) all_.catch_up(all_.freer);
  }

  void come_and_go() {
    cudaStream_t const stream = streams_[0];
    deleter its(all_.reporting());
    pool_options chosen = site::options(here_.device, all_);
    chosen.deleter = &its;
    chosen.slots_max = 4;
    pooled_pool pool(chosen, [this] { return pooled(all_); });
    auto const enqueue = [&](stream_ref on) {
      fill_with(on.get(), pool.claim(on)->memory, 1);
      static_cast<void>(here_.pool.try_claim(on));
      its.retire(on, all_.new_owner());
    };
    graph const made = escrow::capture(stream, enqueue, any_mode());
    graph_exec exec(made);
    launch_often(exec, 4, stream);
    fill_with(stream, pool.claim(stream)->memory, 2);
    exec.launch(stream);
    if (coin()) hoist(made).release_after(stream);
    static_cast<void>(pool.close_for(std::chrono::nanoseconds(0)));
    if (pick(4) == 0) static_cast<void>(its.stop_for(std::chrono::milliseconds(1)));
    all_.did(deed::pool);
    sync_streams();
  }
  [[nodiscard]] cudaStream_t stream() const { return streams_[0]; }

 private:
  void step() override {
    try {
      (this->*load_)();
    } catch (pool_exhausted const&) {
      if (!all_.may_exhaust) throw;
    }
    ++rounds_;
  }

  void fill_with(cudaStream_t on, device_block const& memory, int value) {
    must(launch_fill(on, static_cast<int*>(memory.data()), 16, value));
  }
  /// A block that kernels take for integers. Freed by the worker, or by whoever has the last share.
  [[nodiscard]] std::shared_ptr<int> shared_block() {
    auto block =
        relaxed([this] { return make_stream_shared_by<device_block>(all_.freer, pooled::bytes); });
    int* const data = static_cast<int*>(block->data());
    return {std::move(block), data};
  }
  [[nodiscard]] graph captured(cudaStream_t stream) {
    graph result = escrow::capture(
        stream, [this](stream_ref on) { enqueue(on); }, any_mode());
    all_.did(deed::capture);
    return result;
  }
  void launch_often(graph_exec& exec, std::uint64_t times, cudaStream_t on) {
    for (std::uint64_t i = 0; i < times; ++i) {
      all_.launches.time([&] { exec.launch(on); });
      all_.did(deed::launch);
      if (i % 32 == 31) sync_streams();
    }
  }

  load_arena& all_;
  site& here_;
  load load_;
  unsigned rounds_ = 0;
  kernel const fills_{kernel_address(kernel_id::fill)};
  kernel const adds_{kernel_address(kernel_id::add)};
};

inline constexpr std::array<std::pair<char const*, loader::load>, 7> all_loads{{
    {"claim_and_release", &loader::claim_and_release},
    {"retire_eagerly", &loader::retire_eagerly},
    {"share_with_streams", &loader::share_with_streams},
    {"use_scratch", &loader::use_scratch},
    {"capture_and_relaunch", &loader::capture_and_relaunch},
    {"build_and_change", &loader::build_and_change},
    {"come_and_go", &loader::come_and_go},
}};

}  // namespace escrow::test
