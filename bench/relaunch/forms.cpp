#include "forms.hpp"

#include "graphs.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

// What: enqueues a shape on a stream, with streams of its own for all branches but the first.
// Lifetime: must outlive a capture that it enqueues in, for the sake of these streams.
class work {
 public:
  explicit work(shape const& of) : kernels_(of.kernels) {
    for (int i = 1; i < of.branches; ++i) side_streams_.push_back(test::make_stream());
  }

  void enqueue(cudaStream_t stream) {
    if (!side_streams_.empty()) test::must(cudaEventRecord(fork_, stream));
    for (auto const& side : side_streams_) {
      test::must(cudaStreamWaitEvent(side, fork_, 0));
      enqueue_row(side, kernels_);
    }
    enqueue_row(stream, kernels_);
    for (auto const& side : side_streams_) {
      test::must(cudaEventRecord(join_, side));
      test::must(cudaStreamWaitEvent(stream, join_, 0));
    }
  }

 private:
  int kernels_;
  test::owned_event fork_ = test::make_event(), join_ = test::make_event();
  std::vector<test::owned_stream> side_streams_;
};

test::owned_graph captured_shape(cudaStream_t stream, shape const& of) {
  work kernels(of);
  return captured(stream, [&] { kernels.enqueue(stream); });
}

relaunch_form make_bare(cudaStream_t stream, shape const& of) {
  return form_of(captured_shape(stream, of));
}

void CUDART_CB drop_share(void* share) {
  delete static_cast<std::shared_ptr<int>*>(share);
}

relaunch_form make_user_object(cudaStream_t stream, shape const& of) {
  auto const graph = captured_shape(stream, of);
  auto const kept = std::make_shared<int>(0);
  auto share = std::make_unique<std::shared_ptr<int>>(kept);
  cudaUserObject_t object = nullptr;
  test::must(
      cudaUserObjectCreate(&object, share.get(), &drop_share, 1, cudaUserObjectNoDestructorSync));
  static_cast<void>(share.release());
  test::must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  return form_of(graph, [watched = std::weak_ptr(kept)] {
    test::must(test::wait_until([&] { return watched.expired(); }), "the share was dropped");
  });
}

// The capture claims its temporary from the pool, and retires `owners` owners.
graph pooled_shape(pooled_blocks& from, cudaStream_t stream, shape const& of, int owners = 0) {
  work kernels(of);
  return capture(stream_ref(stream), [&](stream_ref capturing) {
    auto const temporary = from.pool.claim(capturing);
    for (int i = 0; i < owners; ++i) from.deleter.retire(capturing, std::make_unique<int>(i));
    kernels.enqueue(stream);
  });
}

template <int owners>
relaunch_form make_escrow(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  return form_of(pooled_shape(*around, stream, of, owners), [=] { settle(around->deleter); });
}

relaunch_form make_lazy(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  graph_exec exec(pooled_shape(*around, stream, of));
  exec.upload(stream);
  auto const launcher = std::make_shared<stream_launcher>(std::move(exec), stream);
  return {.settle = [=] { settle(around->deleter); },
          .launch = [=](cudaStream_t) { launcher->launch(); }};
}

constexpr arm<form_setup> forms[]{
    {"bare", &make_bare},
    {"bare_again", &make_bare},
    {"escrow", &make_escrow<0>},
    {"lazy", &make_lazy},
    {"escrow_4096_objects", &make_escrow<4096>},
    {"user_object", &make_user_object},
};

}  // namespace

arm<form_setup> form_named(std::string_view name) {
  return arm_named(name, forms);
}

}  // namespace escrow::bench
