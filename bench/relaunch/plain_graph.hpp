// An exec made and launched with plain CUDA calls.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "forms.hpp"
#include "handles.hpp"
#include "status.hpp"

namespace escrow::bench {

// The graph may go once the exec is made.
class plain_graph : public relaunch_form {
 public:
  explicit plain_graph(cudaGraph_t graph)
      : facts_(facts_of(graph)), exec_(test::instantiate(graph)) {}

  void launch(cudaStream_t stream) override { test::must(cudaGraphLaunch(exec_, stream)); }
  void upload(cudaStream_t stream) override { test::must(cudaGraphUpload(exec_, stream)); }
  [[nodiscard]] graph_facts facts() const override { return facts_; }
  [[nodiscard]] std::size_t end() override {
    exec_.reset();
    return 0;
  }

 private:
  graph_facts facts_;
  test::owned_exec exec_;
};

}  // namespace escrow::bench
