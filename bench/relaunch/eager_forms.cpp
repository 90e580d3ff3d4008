// The same kernels without a graph, with a temporary from a pool or one that a host function frees.
#include <array>
#include <atomic>
#include <cstddef>
#include <escrow/pool.hpp>
#include <memory>

#include "forms.hpp"
#include "status.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

class eager_pool final : public relaunch_form {
 public:
  explicit eager_pool(shape const& of)
      : kernels_(of), pool_({.label = "eager", .deleter = &deleter_}, [] {
          return device_block(std::size_t{1} << 20);
        }) {}

  void launch(cudaStream_t stream) override {
    auto const temporary = pool_.claim(stream);
    kernels_.enqueue(stream);
  }
  [[nodiscard]] std::size_t end() override {
    static_cast<void>(deleter_.drain_for(end_wait_max));
    return deleter_.stats().in_graphs;
  }

 private:
  work kernels_;
  escrow::deleter deleter_;
  resource_pool<device_block> pool_;
};

// What a host function deletes: counts those that are alive.
struct owned_object {
  explicit owned_object(std::atomic<std::size_t>& all) : alive(all) {
    alive.fetch_add(1, std::memory_order_relaxed);
  }
  owned_object(owned_object&&) = delete;
  // Release: pairs with the acquire in end().
  ~owned_object() { alive.fetch_sub(1, std::memory_order_release); }

  std::atomic<std::size_t>& alive;
};

void CUDART_CB delete_object(void* object) {
  delete static_cast<owned_object*>(object);
}

class eager_host_function final : public relaunch_form {
 public:
  explicit eager_host_function(shape const& of) : kernels_(of) {}

  void launch(cudaStream_t stream) override {
    auto object = std::make_unique<owned_object>(alive_);
    kernels_.enqueue(stream);
    test::must(cudaLaunchHostFunc(stream, &delete_object, object.get()));
    static_cast<void>(object.release());
  }
  [[nodiscard]] std::size_t end() override {
    // Acquire: pairs with the release in ~owned_object().
    static_cast<void>(test::wait_until(
        [this] { return alive_.load(std::memory_order_acquire) == 0; }, end_wait_max));
    return alive_.load(std::memory_order_acquire);
  }

 private:
  work kernels_;
  std::atomic<std::size_t> alive_{0};
};

template <class Form>
std::unique_ptr<relaunch_form> make(cudaStream_t, shape const& of) {
  return std::make_unique<Form>(of);
}

}  // namespace

std::span<named_form const> eager_forms() {
  static constexpr std::array forms{
      named_form{"eager_pool", &make<eager_pool>},
      named_form{"eager_host_function", &make<eager_host_function>},
  };
  return forms;
}

}  // namespace escrow::bench
