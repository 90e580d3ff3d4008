// The ways to run the same tiny kernels, with one temporary, over and over.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "graph_facts.hpp"
#include "work.hpp"

namespace escrow::bench {

// How long a form waits for destructors at its end; they take a millisecond.
inline constexpr std::chrono::seconds end_wait_max{1};

// One form, ready to be launched on the stream it was made for.
class relaunch_form {
 public:
  virtual ~relaunch_form() = default;

  // Enqueues one run of the kernels.
  virtual void launch(cudaStream_t stream) = 0;
  // Copies what launch() needs to the device ahead of it.
  virtual void upload(cudaStream_t) {}
  // Pool slots that the graph holds now.
  [[nodiscard]] virtual std::size_t slots_held() const { return 0; }
  // What the graph consists of; nothing without a graph.
  [[nodiscard]] virtual graph_facts facts() const { return {}; }
  // Destroys what launch() uses, waits a bounded time for destructors, and returns how many have
  // not run. The last call; the stream must be idle.
  [[nodiscard]] virtual std::size_t end() = 0;
};

struct named_form {
  char const* name;
  std::unique_ptr<relaunch_form> (*make)(cudaStream_t stream, shape const& of);
};

// Graphs that hold nothing, or something by Escrow or by a user object: what is compared.
[[nodiscard]] std::span<named_form const> main_forms();
// The bare graph with a plain event record after each launch: the calls that Escrow makes.
[[nodiscard]] named_form bare_recorded();
// Escrow, with a graph that holds as many retired owners as one graph ever will.
[[nodiscard]] named_form escrow_4096_objects();
// Graphs with nodes for the purpose, and kernels that are launched one by one each time.
[[nodiscard]] std::span<named_form const> node_forms();
[[nodiscard]] std::span<named_form const> eager_forms();

// One of main_forms(), or bare_recorded().
[[nodiscard]] named_form form_named(std::string_view name);

}  // namespace escrow::bench
