// Launches that do not compile, one for each CASE; refused.cmake says what the compiler has to say.
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <memory>
#include <string>

namespace {

[[maybe_unused]] void refused(escrow::stream_ref stream, void (*kernel)(int*, int),
                              escrow::graph_builder_ref const& place) {
  [[maybe_unused]] escrow::launch_config const config;
  [[maybe_unused]] auto const shared = std::make_shared<int>();
  [[maybe_unused]] std::unique_ptr<int> unique;
  [[maybe_unused]] std::shared_ptr<float> other;
  [[maybe_unused]] void* untyped = nullptr;
#if CASE == 0  // compiles
  escrow::launch(stream, kernel, config, shared, 1);
  place.add(escrow::kernel_node(kernel, config, shared, 1));
#elif CASE == 1
  escrow::launch(stream, kernel, config, shared);
#elif CASE == 2
  place.add(escrow::kernel_node(kernel, config, shared, 1, 2));
#elif CASE == 3
  escrow::launch(stream, kernel, config, other, 1);
#elif CASE == 4
  place.add(escrow::kernel_node(kernel, config, untyped, 1));
#elif CASE == 5
  place.add(escrow::kernel_node(kernel, config, unique, 1));
#elif CASE == 6
  escrow::launch(stream, escrow::kernel(kernel), config, std::string());
#endif
}

}  // namespace
