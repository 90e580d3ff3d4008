// SPDX-License-Identifier: Apache-2.0
// Explorations: execution after execution, until one fails or there is no other way.
#include "checker.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "engine.hpp"

namespace escrow::model {

namespace {

std::uint64_t number_from(char const* variable, std::uint64_t otherwise) {
  char const* const given = std::getenv(variable);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

double seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// libstdc++ counts references without atomics until a process has had a second thread.
void have_had_threads() {
  static bool const had = (std::thread([] {}).join(), true);
  static_cast<void>(had);
}

}  // namespace

void world::call(void const* where, std::size_t size, std::string const& name) {
  in_checker const mine;
  engine::the().call(where, size, name);
}

void world::thread(std::string const& name, std::function<void()> body) {
  in_checker const mine;
  engine::the().add_thread(name, std::move(body));
}

void world::at_end(std::function<void()> check) {
  in_checker const mine;
  engine::the().at_end(std::move(check));
}

report engine::explore(options const& how, program const& explored) {
  have_had_threads();
  how_ = how;
  result_ = {};
  states_.clear();
  orders_.clear();
  // One seed, to see a failure again.
  std::uint64_t const only_seed = number_from("ESCROW_MODEL_SEED", 0);
  std::uint64_t seed = only_seed != 0 ? only_seed : how.seed;
  std::uint64_t const last_seed = only_seed != 0 ? only_seed : how.seed + how.random - 1;
  double const begin = seconds();
  set_up(explored);
  how.random != 0 ? way_.begin_random(seed) : way_.begin_all();
  while (true) {
    ++result_.executions;
    if (!run_once()) {
      result_.seed = seed;
      describe_failure(how);
      break;
    }
    if (how.random != 0) {
      if (++seed > last_seed) break;
      way_.begin_random(seed);
    } else if (!way_.next_way()) {
      result_.is_complete = true;
      break;
    } else if (result_.executions == how.executions_max) {
      break;
    }
  }
  result_.states = states_.size();
  result_.seconds = seconds() - begin;
  return std::move(result_);
}

report explore(options const& how, program const& explored) {
  return engine::the().explore(how, explored);
}

void require(bool holds, char const* what) {
  if (holds) return;
  engine& all = engine::the();
  if (!is_in_model()) return all.fail(what);
  in_checker const mine;
  all.fail(what);
  all.end_execution();
}

void forget(std::uint64_t all_that_counts) {
  if (!is_in_model()) return;
  model_thread& self = engine::the().self();
  self.history = mixed(4, all_that_counts);
  self.spin_site = nullptr;
}

void note(std::string const& outcome) {
  engine::the().result().outcomes.insert(outcome);
}

bool is_deep() {
  return number_from("ESCROW_DEEP", 0) != 0;
}

void print(options const& how, report const& result) {
  std::string const extent = how.random != 0        ? "at random"
                             : result.is_complete   ? "all there are"
                             : result.error.empty() ? "NOT ALL"
                                                    : "until it failed";
  std::printf("  %-44s %10llu executions %10llu states %12llu steps %8.2f s  %s%s%s\n",
              how.name.c_str(), static_cast<unsigned long long>(result.executions),
              static_cast<unsigned long long>(result.states),
              static_cast<unsigned long long>(result.steps), result.seconds, extent.c_str(),
              result.error.empty() ? "" : ": ", result.error.substr(0, 90).c_str());
  static_cast<void>(std::fflush(stdout));
}

}  // namespace escrow::model
