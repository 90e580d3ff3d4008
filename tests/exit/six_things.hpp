// The six things that a program ends, with a launch in flight, to be ended in any order.
#pragma once

#include <array>
#include <escrow/graph.hpp>
#include <memory>
#include <optional>
#include <variant>

#include "../pool/pool_fixture.hpp"
#include "owners.hpp"

namespace escrow::test {

enum class thing { lease, pool, deleter, graph, exec, stream };

inline constexpr std::array all_things{thing::lease, thing::pool, thing::deleter,
                                       thing::graph, thing::exec, thing::stream};

[[nodiscard]] constexpr char const* name_of(thing each) {
  constexpr std::array names{"lease", "pool", "deleter", "graph", "exec", "stream"};
  return names[static_cast<std::size_t>(each)];
}

/// How the exec of the six is made.
enum class exec_kind { bare, plain };

/// All six, alive: a graph that waits for `gate`, holds a slot of the pool and an owner; its exec,
/// in flight on the stream; and, behind that, work on a lease of the same pool and an owner that
/// was retired eagerly. What the kernels read wrong is counted in `mismatches`. All that is handed
/// in must outlive the work.
class six_things {
 public:
  six_things(exec_kind kind, pinned_ints& gate, pinned_ints& mismatches, cudaStream_t other)
      : other_(other), stream_(make_stream()), deleter_(std::make_unique<deleter>()) {
    pool_options chosen;
    chosen.slots_max = 4;
    chosen.deleter = deleter_.get();
    // Counted before cudaFree, which would wait for work that still uses the resource.
    pool_ = std::make_unique<block_pool>(
        chosen, [counts = counts_] { return block{*counts}; }, block_pool::recycle_function{},
        [ended = ended_](block&) { ended->fetch_add(1, std::memory_order_relaxed); });
    capture_graph(gate, mismatches);
    if (kind == exec_kind::bare) {
      exec_.emplace<graph_exec>(*graph_).launch(stream_.get());
    } else {
      auto& made = exec_.emplace<owned_exec>(instantiate(graph_->get()));
      must(cudaGraphLaunch(made, stream_));
    }
    lease_.emplace(pool_->claim(stream_.get()));
    fill(*lease_, stream_, 2);
    check(*lease_, stream_, 2, mismatches);
    deleter_->retire(stream_ref(stream_.get()), probe(retired_));
  }

  /// Ends one of them, as its contract allows: a lease whose stream is about to go is released on
  /// another, which was ordered behind that.
  void end(thing which) {
    switch (which) {
      case thing::lease:
        if (stream_.get() == nullptr) lease_->release(other_);
        return lease_.reset();
      case thing::pool:
        return pool_.reset();
      case thing::deleter:
        return deleter_.reset();
      case thing::graph:
        return graph_.reset();
      case thing::exec:
        end_exec();
        return;
      case thing::stream:
        if (lease_) follow();
        return stream_.reset();
    }
  }

  /// How many of the resources and owners are gone: two slots and two owners in all.
  [[nodiscard]] int gone() const {
    return ended_->load(std::memory_order_relaxed) + captured_->times() + retired_->times();
  }
  [[nodiscard]] bool are_all_gone_once() const {
    return counts_->alive() == 0 && counts_->destroyed.load(std::memory_order_acquire) == 2 &&
           gone() == 4 && captured_->times() == 1 && retired_->times() == 1;
  }
  [[nodiscard]] bool is_one_gone_twice() const {
    return counts_->alive() < 0 || captured_->times() > 1 || retired_->times() > 1;
  }

 private:
  void capture_graph(pinned_ints& gate, pinned_ints& mismatches) {
    graph_.emplace(escrow::capture(stream_.get(), [&](stream_ref on) {
      must(launch_wait_flag(on.get(), gate.data()));
      block_lease held = pool_->claim(on);
      fill(held, on.get(), 1);
      check(held, on.get(), 1, mismatches);
      deleter_->retire(on, probe(captured_));
    }));
  }
  void end_exec() {
    std::optional<graph_lifetime_lock> turn;  // the graph may end on another thread meanwhile
    if (std::holds_alternative<owned_exec>(exec_)) turn.emplace();
    exec_.emplace<std::monostate>();
  }
  void follow() {
    owned_event const reached = make_event();
    must(cudaEventRecord(reached, stream_));
    must(cudaStreamWaitEvent(other_, reached));
  }

  cudaStream_t other_;
  // Shared, so that a resource that is destroyed too late, or twice, still finds them.
  std::shared_ptr<tally> counts_ = std::make_shared<tally>();
  std::shared_ptr<std::atomic<int>> ended_ = std::make_shared<std::atomic<int>>(0);
  fate_ptr captured_ = make_fate();
  fate_ptr retired_ = make_fate();

  owned_stream stream_;
  std::unique_ptr<deleter> deleter_;
  std::unique_ptr<block_pool> pool_;
  std::optional<graph> graph_;
  std::variant<std::monostate, graph_exec, owned_exec> exec_;
  std::optional<block_lease> lease_;
};

}  // namespace escrow::test
