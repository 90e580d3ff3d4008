// Random programs on the stepped simulator, checked against the reference model after each step.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "generate.hpp"
#include "run.hpp"
#include "sanitizers.hpp"

namespace escrow::test {
namespace {

std::uint64_t number_from(char const* variable, std::uint64_t otherwise) {
  char const* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(RandomPrograms, KeepAliveWhatIsUsedAndDestroyTheRestOnce) {
  std::uint64_t const first = number_from("ESCROW_SEED", 1);
  std::uint64_t const count = number_from("ESCROW_PROGRAMS", 20'000);
  run_counts met;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    program const drawn = generate(seed);
    verdict const seen = run(drawn);
    met.add(seen.counts);
    ASSERT_TRUE(seen.failure.empty()) << describe(drawn, seen, planted::none);
  }
  std::printf("seeds %llu to %llu\n%s", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1), to_text(met).c_str());
}

}  // namespace
}  // namespace escrow::test
