// The loads of the long run that enqueue on plain streams.
#include "world.hpp"

namespace escrow::test {

namespace {

using some_streams = std::array<owned_stream, 3>;

some_streams make_streams() {
  return {make_stream(), make_stream(), make_stream()};
}

}  // namespace

void claim_and_release(world& all, site& here, dice& random) {
  some_streams const streams = make_streams();
  for (unsigned i = 0; !all.ends(); ++i) {
    cudaStream_t const on = streams[random() % 3];
    auto held = all.claims.time([&] { return here.pool.try_claim(on); });
    if (held) {
      must(launch_fill(on, (*held)->data(), pooled::length, static_cast<int>(i)));
      if (random() % 8 == 0) held->record_stream(streams[random() % 3].get());
    }
    held.reset();
    all.did(deed::claim);
    if (i % 64 == 0) sync_relaxed(on);
  }
}

void retire_eagerly(world& all, site& /*here*/, dice& random) {
  some_streams const streams = make_streams();
  for (unsigned i = 0; !all.ends(); ++i) {
    cudaStream_t const on = streams[random() % 3];
    must(launch_tiny(on));
    counted owner(all.objects);
    all.retirements.time([&] { all.worker.retire(on, std::move(owner)); });
    if (random() % 16 == 0) all.worker.retire(counted(all.objects));
    if (random() % 64 == 0) all.freer.retire(on, relaxed([] { return device_block(1024); }));
    all.did(deed::retire);
    if (i % 256 == 0) all.catch_up(all.worker);
  }
}

void share_with_streams(world& all, site& here, dice& random) {
  some_streams const streams = make_streams();
  kernel const adds{kernel_address(kernel_id::add)};
  for (unsigned i = 0; !all.ends(); ++i) {
    auto const shared = make_stream_shared_by<counted>(all.worker, all.objects);
    for (owned_stream const& each : streams) {
      if (random() % 2 != 0) continue;
      must(launch_tiny(each));
      record_stream(shared, each.get());
    }
    std::shared_ptr<int> const cell(shared, here.cells.data());
    launch(streams[0].get(), adds, {.deleter = &all.worker}, cell, 1);
    all.did(deed::share);
    if (i % 64 == 0) all.catch_up(all.worker);
  }
}

void use_scratch(world& all, site& here, dice& random) {
  some_streams const streams = make_streams();
  for (unsigned i = 0; !all.ends(); ++i) {
    cudaStream_t const on = streams[random() % 3];
    std::size_t const bytes = std::size_t{1} << (6 + random() % 12);
    auto const held = here.scratch.claim(on, bytes + random() % bytes);
    must(launch_fill(on, static_cast<int*>(held->data()), 16, static_cast<int>(i)));
    all.did(deed::scratch);
    if (i % 64 == 0) sync_relaxed(on);
  }
}

}  // namespace escrow::test
