// A pool, a graph, its exec, a lease and owners, of a device that one of their kernels is about to
// break.
#pragma once

#include <escrow/graph.hpp>
#include <optional>

#include "../pool/pool_fixture.hpp"
#include "owners.hpp"

namespace escrow::test {

inline constexpr auto fault = cudaErrorIllegalAddress;

/// Which launch meets the illegal address.
enum class faulty { bare_exec, plain_exec, eager };

/// The kernel is captured, unless it is the eager one, together with work on a slot of the pool and
/// with an owner. Two more owners were retired eagerly, one of them behind the launch.
class faulting_world {
 public:
  explicit faulting_world(faulty which)
      : which_(which), source(captured()), bare(source), plain(instantiate(source.get())) {}

  /// Launches, and notices the fault.
  void break_device() {
    fill(*held, stream, 2);
    own.retire(stream_ref(stream.get()), probe(before));
    may_notice([&] { launch(); });
    may_notice([&] { own.retire(stream_ref(stream.get()), probe(behind)); });
    must_be(cudaStreamSynchronize(stream), fault);
  }

  /// Ends all that holds anything, but the pool and the deleter.
  void end_holders() {
    held.reset();
    bare.reset();
    plain.reset();
    source = graph();
  }

  [[nodiscard]] bool all_owners_went_once() const {
    return in_graph->times() == 1 && before->times() == 1 && behind->times() == 1;
  }

  faulty which_;
  owned_stream stream = make_stream();
  owned_stream other = make_stream();
  std::shared_ptr<tally> counts = std::make_shared<tally>();  // the pool's, too
  fate_ptr in_graph = make_fate();
  fate_ptr before = make_fate();
  fate_ptr behind = make_fate();
  std::shared_ptr<error_log> errors = std::make_shared<error_log>();
  deleter own{
      {.on_error = [log = errors](std::exception const& error) { log->add(error.what()); }}};
  std::optional<block_pool> pool{std::in_place, options(), [its = counts] { return block{*its}; }};
  std::optional<block_lease> held{pool->claim(stream.get())};
  graph source;
  std::optional<graph_exec> bare;
  owned_exec plain;

 private:
  void launch() {
    switch (which_) {
      case faulty::bare_exec:
        return bare->launch(stream.get());
      case faulty::plain_exec:
        return escrow::check(cudaGraphLaunch(plain, stream), "cudaGraphLaunch");
      case faulty::eager:
        return escrow::check(launch_illegal_address(stream), "cudaLaunchKernel");
    }
  }
  // The fault may be noticed as early as this.
  template <class Call>
  static void may_notice(Call&& call) {
    try {
      std::forward<Call>(call)();
    } catch (cuda_error const& error) {
      must_be(error.status(), fault);
    }
  }
  [[nodiscard]] pool_options options() {
    pool_options chosen;
    chosen.slots_max = 4;
    chosen.label = "blocks";
    chosen.deleter = &own;
    return chosen;
  }
  [[nodiscard]] graph captured() {
    return escrow::capture(stream.get(), [&](stream_ref on) {
      block_lease claimed = pool->claim(on);
      fill(claimed, on.get(), 1);
      if (which_ == faulty::eager) {
        must(launch_tiny(on.get()));
      } else {
        must(launch_illegal_address(on.get()));
      }
      own.retire(on, probe(in_graph));
    });
  }
};

/// Throws unless `call` throws the fault, naming a call.
template <class Call>
void must_throw_the_fault(char const* what, Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (cuda_error const& error) {
    must_be(error.status(), fault);
    must(std::string_view{error.api()}.starts_with("cuda"), "the error names the call");
    must(std::string_view{error.what()}.find(error.api()) != std::string_view::npos,
         "the text names the call");
    return;
  }
  throw std::runtime_error{std::string{what} + " did not throw"};
}

}  // namespace escrow::test
