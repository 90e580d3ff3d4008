// SPDX-License-Identifier: Apache-2.0
// With ESCROW_AUDIT=1 owners are told that execs keep as the process ends: a session in whose
// containers its own execs are.
#include <escrow/deleter/shared_object.hpp>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>

#include "audit_world.hpp"

namespace escrow::test {
namespace {

[[maybe_unused]] int const is_asked = ::setenv("ESCROW_AUDIT", "1", 1);  // before main()

struct session {
  std::map<int, graph_exec> execs;
};

class ExecsLeft : public audit_world {
 protected:
  ExecsLeft() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[nodiscard]] graph keeping(std::shared_ptr<void const> const& owner) {
    return captured([&](cudaStream_t on) {
      must(launch_add(on, count.data(), 1));
      retain(on, owner);
    });
  }
  void run(graph_exec& exec) {
    exec.launch(one);
    sync(one);
  }

  device_ints count;
};

TEST_F(ExecsLeft, WithTheirOwnersAreTold) {
  auto const in_a_process = [this] {
    {
      auto const its = std::make_shared<session>();
      run(its->execs.try_emplace(1, keeping(its)).first->second);
    }
    std::exit(0);
  };
  EXPECT_EXIT(in_a_process(), testing::ExitedWithCode(0),
              "escrow: as the process ends, owners .1. are kept by execs that were not destroyed");
}

TEST_F(ExecsLeft, AreNotToldIfTheyEndWithTheProcess) {
  auto const in_a_process = [this] {
    static std::optional<graph_exec> exec;
    exec.emplace(keeping(std::make_shared<int>(0)));
    run(*exec);
    std::fputs("quiet", stderr);
    std::exit(0);
  };
  EXPECT_EXIT(in_a_process(), testing::ExitedWithCode(0), "^quiet$");
}

}  // namespace
}  // namespace escrow::test
