// Scratch by Escrow, shared and not, and by an arena.
#include "scratch_ways.hpp"

#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <unordered_map>
#include <utility>

#include "graphs.hpp"

namespace escrow::bench {
namespace {

class escrow_way final : public scratch_way {
 public:
  explicit escrow_way(std::optional<sharing_group> group)
      : pool_({.slots_max = 1024,
               .label = "footprint",
               .deleter = &deleter_,
               .group = std::move(group)}) {}

  [[nodiscard]] void* claim(cudaStream_t stream, std::size_t bytes) override {
    lease<device_block> claimed = pool_.claim(stream, bytes);
    void* const scratch = claimed->data();
    out_.emplace(scratch, std::move(claimed));
    return scratch;
  }
  void release(cudaStream_t, void* scratch) override { out_.erase(scratch); }

  [[nodiscard]] launch_call exec_of(cudaStream_t stream,
                                    std::function<void()> const& enqueue) override {
    auto const exec =
        std::make_shared<graph_exec>(capture(stream_ref(stream), [&](stream_ref) { enqueue(); }));
    test::must(exec->is_bare(), "the exec is bare");
    return [=](cudaStream_t on) { exec->launch(on); };
  }

  [[nodiscard]] std::size_t device_bytes() const override { return pool_.bytes(); }

 private:
  escrow::deleter deleter_;
  scratch_pool pool_;
  std::unordered_map<void*, lease<device_block>> out_;
};

class arena final : public scratch_way {
 public:
  explicit arena(std::size_t bytes) : memory_(bytes) {}

  [[nodiscard]] void* claim(cudaStream_t, std::size_t) override { return memory_.data(); }
  void release(cudaStream_t, void*) override {}
  [[nodiscard]] std::size_t device_bytes() const override { return memory_.size(); }

 private:
  device_block memory_;
};

template <bool is_shared>
std::unique_ptr<scratch_way> make_slots(std::size_t) {
  if (is_shared) return std::make_unique<escrow_way>(sharing_group({.label = "footprint"}));
  return std::make_unique<escrow_way>(std::nullopt);
}

std::unique_ptr<scratch_way> make_arena(std::size_t bytes) {
  return std::make_unique<arena>(bytes);
}

constexpr way_arm ways[]{
    {"shared", &make_slots<true>},
    {"private", &make_slots<false>},
    {"arena", &make_arena},
    {"arena_again", &make_arena},
    {"memory_nodes", &make_memory_nodes, false},
};

}  // namespace

relaunch_form in_turn(std::vector<launch_call> calls, std::vector<std::size_t> order) {
  if (order.empty()) {
    while (order.size() < calls.size()) order.push_back(order.size());
  }
  relaunch_form form;
  form.launch = [calls = std::move(calls), order = std::move(order),
                 next = std::size_t{0}](cudaStream_t on) mutable {
    calls[order[next]](on);
    if (++next == order.size()) next = 0;
  };
  return form;
}

launch_call scratch_way::exec_of(cudaStream_t stream, std::function<void()> const& enqueue) {
  auto const exec =
      std::make_shared<test::owned_exec>(test::instantiate(captured(stream, enqueue)));
  return [=](cudaStream_t on) { test::must(cudaGraphLaunch(*exec, on)); };
}

way_arm way_named(std::string_view name) {
  return arm_named(name, ways);
}

}  // namespace escrow::bench
