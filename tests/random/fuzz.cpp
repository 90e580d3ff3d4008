// Random programs from libFuzzer's bytes: the same decoder, world and model as the test's.
#include <cstdio>
#include <cstdlib>
#include <span>

#include "run.hpp"

// The name and the types are libFuzzer's.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace escrow::test;
  constexpr std::size_t operations_max = 200;
  program drawn = decode({data, size});
  if (drawn.operations.size() > operations_max) drawn.operations.resize(operations_max);
  verdict const seen = run(drawn);
  if (seen.failure.empty()) return 0;
  auto const again = [](program const& tried) { return run(tried); };
  std::fputs(describe(drawn, seen, again).c_str(), stderr);
  std::abort();
}
