// SPDX-License-Identifier: Apache-2.0
// GoogleTest's main for every test: a child's case first, which is this program again with an
// argument that names it; a skip where no GPU can be used; then the tests.
#include "child.hpp"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kernels.hpp"

extern char** environ;

namespace escrow::test {
namespace {

constexpr std::string_view flag = "--child=";
constexpr std::chrono::seconds child_limit{60};

// Never destroyed: a case may still run while the process exits.
std::map<std::string, child_case::body, std::less<>>& all_cases() {
  static auto& result = *new std::map<std::string, child_case::body, std::less<>>;
  return result;
}

void require(bool ok, char const* what) {
  if (!ok) {
    throw std::runtime_error{std::string{"run_child: "} + what};
  }
}

// Starts the program with both outputs on `write_end`.
pid_t spawn(std::string argument, int write_end) {
  std::string program = "/proc/self/exe";
  std::array<char*, 3> arguments{program.data(), argument.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, write_end, STDERR_FILENO);
  pid_t child = -1;
  int const error =
      posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  require(error == 0, "posix_spawn failed");
  return child;
}

// Reads until the child closes its end or the time is over; false in the latter case.
bool read_all(int read_end, std::string& output) {
  auto const end = std::chrono::steady_clock::now() + child_limit;
  std::array<char, 4096> buffer;
  for (;;) {
    auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd descriptor{read_end, POLLIN, 0};
    if (left.count() <= 0 || poll(&descriptor, 1, static_cast<int>(left.count())) <= 0)
      return false;
    ssize_t const size = read(read_end, buffer.data(), buffer.size());
    if (size <= 0) return size == 0;
    output.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

/// Runs the case that the command line asks for and sets `status`; false if it asks for none.
bool run_as_child(int argc, char** argv, int& status) {
  if (argc != 2 || !std::string_view{argv[1]}.starts_with(flag)) return false;
  auto const found = all_cases().find(std::string_view{argv[1]}.substr(flag.size()));
  if (found == all_cases().end()) {
    std::fprintf(stderr, "no such case: %s\n", argv[1]);
    status = 2;
    return true;
  }
  try {
    status = found->second();
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  return true;
}

/// A program of several files' tests runs those of the file whose name it was started by: those of
/// lease_test.cpp as lease_test_sim. All, if there is no such file, or if tests are named; a filter
/// of only what not to run leaves the file.
void choose_file(std::string_view program) {
  program.remove_prefix(program.rfind('/') + 1);
  std::string const file = '/' + std::string(program.substr(0, program.rfind('_'))) + ".cpp";
  std::string chosen;
  auto const& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    auto const& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      auto const& test = *suite.GetTestInfo(j);
      if (std::string_view(test.file()).ends_with(file))
        chosen += std::string(suite.name()) + '.' + test.name() + ':';
    }
  }
  std::string& filter = testing::GTEST_FLAG(filter);
  if (chosen.empty()) return;
  if (filter == "*") filter = chosen;
  if (filter.starts_with('-')) filter = chosen + filter;
}

constexpr int skip_status = 77;  // what CTest takes for "skipped"

bool is_device_usable() {
  int count = 0;
  cudaError_t const error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return true;
  std::printf("skipped: no usable GPU (%s)\n", cudaGetErrorName(error));
  return false;
}

}  // namespace

child_case::child_case(std::string const& name, body run) {
  all_cases().emplace(name, std::move(run));
}

child_result run_child(std::string const& name) {
  std::array<int, 2> ends{};
  require(pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2 failed");
  pid_t const child = spawn(std::string{flag} + name, ends[1]);
  close(ends[1]);
  child_result result;
  if (!read_all(ends[0], result.output)) {
    result.output += "\n[killed: it did not end within its time]\n";
    kill(child, SIGKILL);
  }
  close(ends[0]);
  int wait_status = 0;
  require(waitpid(child, &wait_status, 0) == child, "waitpid failed");
  result.exited = WIFEXITED(wait_status);
  result.status = result.exited ? WEXITSTATUS(wait_status) : -1;
  return result;
}

}  // namespace escrow::test

int main(int argc, char** argv) {
  // Loading a kernel at its first launch may wait for the device, where a test's other kernel waits
  // for the test. Set before anything touches CUDA; children inherit it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int status = 0;
  if (escrow::test::run_as_child(argc, argv, status)) return status;
  testing::InitGoogleTest(&argc, argv);
  if (!escrow::test::is_simulated() && !escrow::test::is_device_usable())
    return escrow::test::skip_status;
  escrow::test::choose_file(argv[0]);
  return RUN_ALL_TESTS();
}
