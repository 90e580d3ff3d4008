// What never_destroyed holds is used after its scope has ended, and its destructor never runs.
#include "escrow/detail/never_destroyed.hpp"

#include <gtest/gtest.h>

#include <string>

namespace escrow {
namespace {

struct watched {
  watched(int& destroyed, std::string text) : count(&destroyed), name(std::move(text)) {}
  watched(watched&&) = delete;
  ~watched() { ++*count; }

  int* count;
  std::string name;
};

TEST(NeverDestroyed, ItsDestructorDoesNotRun) {
  int destroyed = 0;
  {
    never_destroyed<watched> held(destroyed, "short");
    EXPECT_EQ(held->name, "short");
    EXPECT_EQ(&*held, held.operator->());
  }
  EXPECT_EQ(destroyed, 0);
}

struct constant {
  constexpr explicit constant(int given) : number(given) {}
  int number;
};

constinit never_destroyed<constant> at_compile_time(7);

TEST(NeverDestroyed, IsInitializedAtCompileTimeIfWhatItHoldsCanBe) {
  EXPECT_EQ(at_compile_time->number, 7);
}

}  // namespace
}  // namespace escrow
