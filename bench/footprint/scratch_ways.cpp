// Scratch by Escrow, shared and not, and by an arena.
#include "scratch_ways.hpp"

#include <unordered_map>

#include "graphs.hpp"

namespace escrow::bench {
namespace {

template <bool is_shared>
scratch_way make_slots(std::size_t) {
  struct slots {
    escrow::deleter deleter;
    scratch_pool pool{{
        .slots_max = 1024,
        .label = "footprint",
        .deleter = &deleter,
        .group = is_shared ? std::optional(sharing_group({.label = "footprint"})) : std::nullopt,
    }};
    std::unordered_map<void*, lease<device_block>> out;
  };
  auto const its = std::make_shared<slots>();
  auto const claim = [=](cudaStream_t stream, std::size_t bytes) {
    lease<device_block> claimed = its->pool.claim(stream, bytes);
    void* const scratch = claimed->data();
    its->out.emplace(scratch, std::move(claimed));
    return scratch;
  };
  return {.claim = claim,
          .release = [=](cudaStream_t, void* scratch) { its->out.erase(scratch); },
          .device_bytes = [=] { return its->pool.bytes(); },
          .is_escrows = true};
}

scratch_way make_arena(std::size_t bytes) {
  auto const memory = std::make_shared<device_block>(bytes);
  return {.claim = [=](cudaStream_t, std::size_t) { return memory->data(); },
          .release = [](cudaStream_t, void*) {},
          .device_bytes = [=] { return memory->size(); }};
}

way_arm const ways[]{
    {"shared", &make_slots<true>}, {"private", &make_slots<false>},      {"arena", &make_arena},
    {"arena_again", &make_arena},  {"memory_nodes", &make_memory_nodes},
};

}  // namespace

launch_call scratch_way::exec_of(cudaStream_t stream, std::function<void()> const& enqueue) const {
  if (is_escrows) {
    auto const exec =
        std::make_shared<graph_exec>(capture(stream_ref(stream), [&](stream_ref) { enqueue(); }));
    test::must(exec->is_bare(), "the exec is bare");
    return [=](cudaStream_t on) { exec->launch(on); };
  }
  auto const exec =
      std::make_shared<test::owned_exec>(test::instantiate(captured(stream, enqueue)));
  return [=](cudaStream_t on) { test::must(cudaGraphLaunch(*exec, on)); };
}

way_arm way_named(std::string_view name) {
  return arm_named(name, ways);
}

}  // namespace escrow::bench
