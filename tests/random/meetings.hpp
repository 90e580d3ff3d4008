// Operations that meet when they run at the same time, and what comes before them.
#pragma once

#include <vector>

#include "program.hpp"

namespace escrow::test {

using sequence = std::vector<op>;

struct meeting {
  sequence before;  // one by one
  sequence together;
};

/// What a program of single operations would seldom come to; the places are as random as ever.
[[nodiscard]] std::vector<meeting> const& meetings();

}  // namespace escrow::test
