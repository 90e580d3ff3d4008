// The graphs that are compared: bare, held by Escrow, and with a user object in place.
#include <algorithm>
#include <array>
#include <atomic>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <optional>
#include <utility>

#include "forms.hpp"
#include "plain_graph.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t temporary_bytes = std::size_t{1} << 20;

std::unique_ptr<relaunch_form> make_bare(cudaStream_t stream, shape const& of) {
  return std::make_unique<plain_graph>(captured(stream, of));
}

class recorded_graph final : public plain_graph {
 public:
  using plain_graph::plain_graph;

  void launch(cudaStream_t stream) override {
    plain_graph::launch(stream);
    test::must(cudaEventRecord(event_, stream));
  }

 private:
  test::owned_event event_ = test::make_event();
};

std::unique_ptr<relaunch_form> make_bare_recorded(cudaStream_t stream, shape const& of) {
  return std::make_unique<recorded_graph>(captured(stream, of));
}

// The graph holds a CUDA user object, whose destructor counts.
class user_object_graph final : public plain_graph {
 public:
  explicit user_object_graph(cudaGraph_t graph, std::shared_ptr<std::atomic<bool>> ran)
      : plain_graph(graph), ran_(std::move(ran)) {}

  [[nodiscard]] std::size_t end() override {
    static_cast<void>(plain_graph::end());
    // Acquire: pairs with the destructor's release.
    auto const has_run = [this] { return ran_->load(std::memory_order_acquire); };
    return test::wait_until(has_run, end_wait_max) ? 0 : 1;
  }

 private:
  std::shared_ptr<std::atomic<bool>> ran_;
};

using shared_flag = std::shared_ptr<std::atomic<bool>>;

void CUDART_CB raise_and_delete(void* flag) {
  auto* const shared = static_cast<shared_flag*>(flag);
  (*shared)->store(true, std::memory_order_release);
  delete shared;
}

std::unique_ptr<relaunch_form> make_user_object(cudaStream_t stream, shape const& of) {
  test::owned_graph const graph = captured(stream, of);
  auto ran = std::make_shared<std::atomic<bool>>(false);
  cudaUserObject_t object = nullptr;
  test::must(cudaUserObjectCreate(&object, new shared_flag(ran), &raise_and_delete, 1,
                                  cudaUserObjectNoDestructorSync));
  test::must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  return std::make_unique<user_object_graph>(graph, std::move(ran));
}

// What a pooled graph needs to outlive it.
struct pooled {
  escrow::deleter deleter;
  resource_pool<device_block> pool{{.label = "relaunch", .deleter = &deleter},
                                   [] { return device_block(temporary_bytes); }};

  // The capture claims its temporary from the pool, and retires `owners` owners.
  [[nodiscard]] graph captured_on(cudaStream_t stream, shape const& of, int owners = 0) {
    work kernels(of);
    return capture(stream, [&](stream_ref capturing) {
      auto const temporary = pool.claim(capturing);
      for (int i = 0; i < owners; ++i) deleter.retire(capturing, std::make_unique<int>(i));
      kernels.enqueue(capturing.get());
    });
  }

  // Waits until nothing is owed; returns how much still is.
  [[nodiscard]] std::size_t end() {
    static_cast<void>(
        test::wait_until([this] { return deleter.stats().in_graphs == 0; }, end_wait_max));
    static_cast<void>(deleter.drain_for(end_wait_max));
    return deleter.stats().in_graphs;
  }
};

class escrow_graph final : public relaunch_form {
 public:
  escrow_graph(cudaStream_t stream, shape const& of, int owners) {
    graph const source = from_.captured_on(stream, of, owners);
    facts_ = facts_of(source.get());
    exec_.emplace(source);
    test::must(exec_->is_bare(), "the exec is bare");
  }

  void launch(cudaStream_t stream) override { exec_->launch(stream); }
  void upload(cudaStream_t stream) override { exec_->upload(stream); }
  [[nodiscard]] std::size_t slots_held() const override { return from_.pool.stats().in_graphs; }
  [[nodiscard]] graph_facts facts() const override { return facts_; }
  [[nodiscard]] std::size_t end() override {
    exec_.reset();
    return from_.end();
  }

 private:
  pooled from_;
  graph_facts facts_;
  std::optional<graph_exec> exec_;
};

std::unique_ptr<relaunch_form> make_escrow(cudaStream_t stream, shape const& of) {
  return std::make_unique<escrow_graph>(stream, of, 0);
}

std::unique_ptr<relaunch_form> make_escrow_4096_objects(cudaStream_t stream, shape const& of) {
  return std::make_unique<escrow_graph>(stream, of, 4096);
}

// The same graph in the hands of somebody who instantiates and launches it with plain CUDA calls:
// the user object is in the exec.
class escrow_user_object_graph final : public relaunch_form {
 public:
  escrow_user_object_graph(cudaStream_t stream, shape const& of) {
    graph const source = from_.captured_on(stream, of);
    exec_.emplace(source.get());
  }

  void launch(cudaStream_t stream) override { exec_->launch(stream); }
  void upload(cudaStream_t stream) override { exec_->upload(stream); }
  [[nodiscard]] std::size_t slots_held() const override { return from_.pool.stats().in_graphs; }
  [[nodiscard]] graph_facts facts() const override { return exec_->facts(); }
  [[nodiscard]] std::size_t end() override {
    static_cast<void>(exec_->end());
    return from_.end();
  }

 private:
  pooled from_;
  std::optional<plain_graph> exec_;
};

std::unique_ptr<relaunch_form> make_escrow_user_object(cudaStream_t stream, shape const& of) {
  return std::make_unique<escrow_user_object_graph>(stream, of);
}

}  // namespace

std::span<named_form const> main_forms() {
  static constexpr std::array forms{
      named_form{"bare", &make_bare},
      named_form{"bare_again", &make_bare},
      named_form{"escrow", &make_escrow},
      named_form{"escrow_user_object", &make_escrow_user_object},
      named_form{"user_object", &make_user_object},
  };
  return forms;
}

named_form bare_recorded() {
  return {"bare_recorded", &make_bare_recorded};
}

named_form escrow_4096_objects() {
  return {"escrow_4096_objects", &make_escrow_4096_objects};
}

named_form form_named(std::string_view name) {
  if (name == bare_recorded().name) return bare_recorded();
  auto const all = main_forms();
  auto const found =
      std::ranges::find_if(all, [name](named_form const& each) { return each.name == name; });
  test::must(found != all.end(), "there is a form of this name");
  return *found;
}

}  // namespace escrow::bench
