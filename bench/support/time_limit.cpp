// Keeping an eye on the clock.
#include "time_limit.hpp"

#include <stdexcept>
#include <string>

#include "times.hpp"

namespace escrow::bench {
namespace {

clock::time_point begin;  // written before any benchmark runs
int limit_s = 0;          // none

}  // namespace

void start_time_limit(int seconds) {
  begin = clock::now();
  limit_s = seconds;
}

void require_time() {
  if (limit_s == 0 || seconds_since(begin) < limit_s) return;
  throw std::runtime_error(std::string(out_of_time) + ": the program's " + std::to_string(limit_s) +
                           " s are over");
}

}  // namespace escrow::bench
