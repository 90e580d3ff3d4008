// Random programs from libFuzzer's bytes: the same decoder, world and model as the test's.
#include <cstdio>
#include <cstdlib>
#include <span>

#include "generate.hpp"
#include "run.hpp"

// The name and the types are libFuzzer's.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  constexpr std::size_t operations_max = 200;
  escrow::test::program drawn = escrow::test::decode({data, size});
  if (drawn.operations.size() > operations_max) drawn.operations.resize(operations_max);
  escrow::test::verdict const seen = escrow::test::run(drawn);
  if (seen.failure.empty()) return 0;
  std::fputs(escrow::test::describe(drawn, seen, escrow::test::planted::none).c_str(), stderr);
  std::abort();
}
