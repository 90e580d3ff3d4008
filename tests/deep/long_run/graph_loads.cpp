// The loads of the long run that make graphs: captured, relaunched, built by hand, changed, and
// destroyed in flight; and pools and deleters that come and go.
#include <optional>

#include "world.hpp"

namespace escrow::test {

namespace {

cudaStreamCaptureMode any_mode(dice& random) {
  static constexpr std::array modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                    cudaStreamCaptureModeRelaxed};
  return modes[random() % modes.size()];
}

// A block that kernels take for integers. Freed by the worker, or whoever has the last share.
std::shared_ptr<int> shared_block(deleter& its) {
  auto block = relaxed([&] { return make_stream_shared_by<device_block>(its, pooled::bytes); });
  int* const data = static_cast<int*>(block->data());
  return {std::move(block), data};
}

graph captured(world& all, site& here, cudaStream_t stream, dice& random) {
  kernel const adds{kernel_address(kernel_id::add)};
  auto const enqueue = [&](stream_ref on) {
    for (int call = 0; call < 2; ++call) {
      auto const held = here.pool.claim(on);
      must(launch_fill(on.get(), held->data(), pooled::length, call));
    }
    auto const scratch = here.scratch.claim(on, 1000);
    must(launch_fill(on.get(), static_cast<int*>(scratch->data()), 16, 1));
    all.worker.retire(on, counted(all.objects));
    auto const shared = make_stream_shared_by<counted>(all.worker, all.objects);
    launch(on, adds, {.deleter = &all.worker}, std::shared_ptr<int>(shared, here.cells.data() + 1),
           1);
    record_stream(shared, on);
  };
  graph result = escrow::capture(stream, enqueue, any_mode(random));
  all.did(deed::capture);
  return result;
}

void launch_often(world& all, graph_exec& exec, unsigned long times, cudaStream_t on) {
  for (unsigned long i = 0; i < times; ++i) {
    all.launches.time([&] { exec.launch(on); });
    all.did(deed::launch);
    if (i % 32 == 31) sync_relaxed(on);
  }
}

}  // namespace

void capture_and_relaunch(world& all, site& here, dice& random) {
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  while (!all.ends()) {
    graph made = captured(all, here, stream, random);
    graph_exec exec(made);
    launch_often(all, exec, 200 + random() % 2000, stream);
    if (random() % 2 == 0) {
      graph const newer = captured(all, here, other, random);
      exec.update(newer);
      launch_often(all, exec, 100, other);
    }
    if (random() % 2 == 0) {
      graph_exec sibling(made.clone());  // takes turns with the first
      launch_often(all, sibling, 10, other);
      sibling.launch(other.get());
      exec.launch(stream.get());
    }
    if (random() % 4 == 0) {
      owned_graph plain(made.detach());
      owned_exec plain_exec = relaxed([&] { return instantiate(plain); });
      sync_relaxed(other);  // in no order with the others
      must(cudaGraphLaunch(plain_exec, stream));
      sync_relaxed(stream);
      relaxed([&] { plain_exec.reset(); });
      all.did(deed::plain);
    }
    exec.launch(stream.get());  // and ends in flight
  }
  sync_relaxed(stream);
  sync_relaxed(other);
}

void build_and_change(world& all, site& here, dice& random) {
  owned_stream const stream = make_stream();
  kernel const fills{kernel_address(kernel_id::fill)};
  kernel const adds{kernel_address(kernel_id::add)};
  std::size_t const n = 16;
  unsigned i = 0;
  while (!all.ends()) {
    graph built(all.worker);
    auto scratch = here.scratch.claim(stream.get(), 256);
    node const zeroed = build(built).add(memset_node(shared_block(all.freer), {.width = 64}));
    node const filled = zeroed.add(kernel_node(fills, {}, shared_block(all.freer), n, 1));
    node const last =
        filled.add(kernel_node(fills, {}, scratch, n, 2))
            .add(kernel_node(adds, {}, here.cells.data() + 2, 1))
            .add(memcpy_node(here.cells.data() + 3, shared_block(all.freer), sizeof(int)))
            .add(host_node([kept = std::make_shared<counted>(all.objects)] {}));
    unsigned long const kind = random() % 4;
    if (kind == 0) {
      conditional_node const maybe = last.add(if_node(build(built).make_condition(1)));
      maybe.body().add(kernel_node(fills, {}, shared_block(all.freer), n, 3));
    }
    if (kind == 1) {
      allocation const memory = last.add(alloc_node(4096));
      memory.add(kernel_node(fills, {}, static_cast<int*>(memory.address()), n, 4))
          .add(free_node(memory.address()));
    }
    if (kind >= 2) {  // others have one exec at a time
      graph parent(all.worker);
      build(parent).add(child_node(built));
      graph_exec(parent.clone()).launch(stream.get());
    }
    graph_exec exec(built);
    launch_often(all, exec, 8, stream);
    set(exec, filled, kernel_node(fills, {}, shared_block(all.freer), n, 5));
    exec.launch(stream.get());
    filled.set(kernel_node(fills, {}, shared_block(all.freer), n, 6));
    if (kind >= 2) exec.update(built);
    all.worker.retire(stream.get(), counted(all.objects));
    exec.launch(stream.get());  // and ends in flight
    all.did(deed::build);
    if (++i % 8 == 0) all.catch_up(all.freer);
  }
  sync_relaxed(stream);
}

void come_and_go(world& all, site& here, dice& random) {
  while (!all.ends()) {
    owned_stream const stream = make_stream();
    deleter its(all.reporting());
    pool_options chosen = site::options(here.device, all);
    chosen.deleter = &its;
    chosen.slots_max = 4;
    pooled_pool pool(chosen, [&all] { return pooled(all.objects); });
    graph const made = escrow::capture(
        stream.get(),
        [&](stream_ref on) {
          auto const held = pool.claim(on);
          must(launch_fill(on.get(), held->data(), pooled::length, 1));
          its.retire(on, counted(all.objects));
        },
        any_mode(random));
    graph_exec exec(made);
    launch_often(all, exec, 4, stream);
    {
      auto const held = pool.claim(stream.get());
      must(launch_fill(stream, held->data(), pooled::length, 2));
    }
    exec.launch(stream.get());
    if (random() % 2 == 0) {
      hoisted taken = hoist(made);
      taken.release_after(stream.get());
    }
    static_cast<void>(pool.close_for(std::chrono::nanoseconds(0)));
    if (random() % 4 == 0) static_cast<void>(its.stop_for(std::chrono::milliseconds(1)));
    all.did(deed::pool);
    sync_relaxed(stream);
  }
}

}  // namespace escrow::test
