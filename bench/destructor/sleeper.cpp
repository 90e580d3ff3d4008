// Reads a thread's state from /proc.
#include "sleeper.hpp"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "times.hpp"

namespace escrow::bench {
namespace {

std::string first_line(std::string const& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A thread's name is set by itself, a little after it was made.
std::string folder_of(std::string const& thread_name) {
  auto const begin = clock::now();
  while (seconds_since(begin) < 5) {
    for (auto const& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      if (first_line(entry.path() / "comm") == thread_name) return entry.path();
    }
  }
  throw std::runtime_error("no thread is named " + thread_name);
}

}  // namespace

sleeper::sleeper(std::string const& thread_name) : folder_(folder_of(thread_name)) {}

bool sleeper::is_asleep() const {
  // "id (name) S ...": the state is behind the last parenthesis.
  std::string const line = first_line(folder_ + "/stat");
  std::size_t const end = line.rfind(')');
  if (end == std::string::npos || end + 2 >= line.size()) {
    throw std::runtime_error("cannot read " + folder_ + "/stat");
  }
  return line[end + 2] == 'S';
}

bool sleeper::wait(std::chrono::nanoseconds bound) const {
  auto const deadline = clock::now() + bound;
  while (!is_asleep()) {
    if (clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::size_t sleeper::sleeps() const {
  std::ifstream file(folder_ + "/status");
  std::string const wanted = "voluntary_ctxt_switches:";
  for (std::string word; file >> word;) {
    std::size_t count = 0;
    if (word == wanted && file >> count) return count;
  }
  return 0;
}

}  // namespace escrow::bench
