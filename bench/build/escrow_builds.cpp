// Escrow: with a deleter that has never kept anything, with one that has, and without owners.
#include <chrono>
#include <escrow/deleter.hpp>
#include <escrow/nodes.hpp>
#include <memory>
#include <optional>

#include "build_forms.hpp"
#include "escrow_chain.hpp"
#include "status.hpp"

namespace escrow::bench {
namespace {

constexpr std::chrono::seconds settle_wait_max{5};  // it takes milliseconds

class escrow_build : public build_form {
 public:
  void begin() override {
    if (!deleter_) deleter_.emplace();
    graph_.emplace(*deleter_);
  }
  void build(std::span<node_owners const> owners) override { add_escrow_nodes(*graph_, owners); }
  void seal() override { test::must(graph_->get() != nullptr, "the graph has a handle"); }
  void destroy() override { graph_.reset(); }
  void settle() override {
    test::must(deleter_->drain_for(settle_wait_max), "all owners are destroyed");
    test::must(deleter_->stats().in_graphs == 0, "no graph holds an owner");
  }

 protected:
  std::optional<escrow::deleter> deleter_;
  std::optional<graph> graph_;
};

// The first graph that a program builds: room for what is kept has to be made.
class escrow_cold_build final : public escrow_build {
 public:
  void settle() override {
    escrow_build::settle();
    deleter_.reset();
  }
};

class escrow_no_owners_build final : public escrow_build {
 public:
  void build(std::span<node_owners const> owners) override {
    kernel const launched(two_pointers_kernel());
    launch_config const config;
    graph_builder_ref last = *graph_;
    for (node_owners const& each : owners) {
      last = last.add(kernel_node(launched, config, each.first.get(), each.second.get()));
    }
  }
};

}  // namespace

std::unique_ptr<build_form> make_escrow_build() {
  return std::make_unique<escrow_cold_build>();
}

std::unique_ptr<build_form> make_escrow_warm_build() {
  return std::make_unique<escrow_build>();
}

std::unique_ptr<build_form> make_escrow_no_owners_build() {
  return std::make_unique<escrow_no_owners_build>();
}

}  // namespace escrow::bench
