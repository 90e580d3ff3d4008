// Plain CUDA calls: without owners, and with CUDA's own way to keep them.
#include <array>
#include <memory>

#include "build_forms.hpp"
#include "status.hpp"
#include "two_pointers.hpp"

namespace escrow::bench {
namespace {

cudaGraphNode_t add_plain_node(cudaGraph_t graph, cudaGraphNode_t after, node_owners const& of) {
  int* first = of.first.get();
  int* second = of.second.get();
  std::array<void*, 2> values{&first, &second};
  cudaKernelNodeParams params{};
  params.func = two_pointers_kernel();
  params.gridDim = params.blockDim = dim3(1, 1, 1);
  params.kernelParams = values.data();
  cudaGraphNode_t made = nullptr;
  std::size_t const dependencies = after == nullptr ? 0 : 1;
  test::must(cudaGraphAddKernelNode(&made, graph, &after, dependencies, &params));
  return made;
}

class plain_build : public build_form {
 public:
  void begin() override { graph_ = test::make_graph(); }
  void build(std::span<node_owners const> owners) override { add_plain_nodes(graph_, owners); }
  void destroy() override { graph_.reset(); }

 protected:
  [[nodiscard]] cudaGraph_t native() const noexcept { return graph_; }

 private:
  test::owned_graph graph_;
};

void CUDART_CB drop_share(void* share) {
  delete static_cast<std::shared_ptr<int>*>(share);
}

// The pattern of CUDA's manual: the graph owns the object that owns the share.
void keep(cudaGraph_t graph, std::shared_ptr<int> const& owner) {
  cudaUserObject_t object = nullptr;
  auto share = std::make_unique<std::shared_ptr<int>>(owner);
  test::must(
      cudaUserObjectCreate(&object, share.get(), &drop_share, 1, cudaUserObjectNoDestructorSync));
  static_cast<void>(share.release());
  test::must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
}

class user_objects_build final : public plain_build {
 public:
  void build(std::span<node_owners const> owners) override {
    cudaGraphNode_t last = nullptr;
    for (node_owners const& each : owners) {
      keep(native(), each.first);
      keep(native(), each.second);
      last = add_plain_node(native(), last, each);
    }
  }
};

std::unique_ptr<build_form> make_plain_build() {
  return std::make_unique<plain_build>();
}

std::unique_ptr<build_form> make_user_objects_build() {
  return std::make_unique<user_objects_build>();
}

}  // namespace

void add_plain_nodes(cudaGraph_t graph, std::span<node_owners const> owners) {
  cudaGraphNode_t last = nullptr;
  for (node_owners const& each : owners) last = add_plain_node(graph, last, each);
}

named_build bare_build() {
  return {"bare", &make_plain_build, 0};
}

std::span<named_build const> other_builds() {
  static constexpr std::array forms{
      named_build{"bare_again", &make_plain_build, 4},
      named_build{"escrow", &make_escrow_build, 6},
      named_build{"escrow_warm", &make_escrow_warm_build, 4},
      named_build{"escrow_no_owners", &make_escrow_no_owners_build, 4},
      named_build{"user_objects", &make_user_objects_build, 1},
  };
  return forms;
}

}  // namespace escrow::bench
