// The loads, one round of each.
#include "loads.hpp"

#include <optional>

namespace escrow::test {

void loader::claim_and_release() {
  cudaStream_t const on = any_stream();
  auto held = all_.claims.time([&] { return here_.pool.try_claim(on); });
  if (held) {
    fill_with(on, (*held)->memory, static_cast<int>(rounds_));
    if (pick(8) == 0) held->record_stream(any_stream());
  }
  held.reset();
  all_.did(deed::claim);
}

void loader::retire_eagerly() {
  cudaStream_t const on = any_stream();
  must(launch_tiny(on));
  owner last = all_.new_owner();
  all_.retirements.time([&] { all_.worker.retire(on, std::move(last)); });
  if (pick(16) == 0) all_.worker.retire(all_.new_owner());
  if (pick(64) == 0) all_.freer.retire(on, relaxed([] { return device_block(1024); }));
  all_.did(deed::retire);
  if (rounds_ % 256 == 0) all_.catch_up(all_.worker);
}

void loader::share_with_streams() {
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

void loader::use_scratch() {
  cudaStream_t const on = any_stream();
  std::size_t const bytes = std::size_t{1} << (6 + pick(12));
  fill_with(on, *here_.scratch.claim(on, bytes + pick(bytes)), static_cast<int>(rounds_));
  all_.did(deed::scratch);
}

void loader::enqueue(stream_ref on) {
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

void loader::capture_and_relaunch() {
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

void loader::build_and_change() {
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

void loader::come_and_go() {
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

}  // namespace escrow::test
