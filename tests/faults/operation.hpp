// What is made to fail: an operation of the library in a world of its own, and what it promises.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <escrow/sim.hpp>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace escrow::test {

/// What is left on purpose, once all has ended: nothing tells when the GPU is done with it. Of
/// events and streams, as many at most.
using leftovers = sim::counts;

/// All that an operation needs. Made and prepared while nothing fails.
class stage {
 public:
  stage() = default;
  stage(stage const&) = delete;
  stage& operator=(stage const&) = delete;
  virtual ~stage() = default;

  /// What can be seen of it from outside, as text. Called while nothing fails.
  [[nodiscard]] virtual std::string seen() = 0;
  /// How many errors a handler was told of.
  [[nodiscard]] virtual std::size_t reports() const { return 0; }
  /// Expects what must hold whatever failed (nothing freed early, no slot in two hands...), ends
  /// all, in one of the world's ways, and expects that everything has come back.
  [[nodiscard]] virtual leftovers end(int way) = 0;
  /// Ends all after the device was lost: nothing hangs, nothing ends twice.
  [[nodiscard]] virtual leftovers end_after_loss() = 0;
};

/// One public function in one of its ways.
struct operation {
  std::string name;
  /// The public functions that it is a test of, as public_functions.py finds them.
  std::vector<std::string> functions;
  std::function<std::unique_ptr<stage>()> prepare;
  std::function<void(stage&)> act;
  /// The guarantee is strong: what throws has changed nothing and can be done again; what does not
  /// throw has done what it does when nothing fails. But for failures of these calls ("*": of all)
  /// the header says something else, which is quoted.
  std::map<std::string, std::string> stated = {};
  /// What is then seen, among other things, if anything has changed.
  std::string stated_shows = "";
  /// Failures of these calls are answered in another way that serves as well: why.
  std::map<std::string, std::string> served_otherwise = {};
  /// CUDA refuses a call also if nothing fails, and the library mends that; if it cannot, it throws
  /// this error.
  cudaError_t refused_first = cudaSuccess;
  /// It throws a usage_error also if nothing fails.
  bool is_refused = false;
  /// In how many ways its world can end.
  int ways_to_end = 1;
};

inline void PrintTo(operation const& it, std::ostream* out) {
  *out << it.name;
}

/// The operation's name as GoogleTest takes it.
[[nodiscard]] inline std::string identifier_of(operation const& it) {
  std::string name;
  bool begins = true;
  for (char const each : it.name) {
    bool const is_part = std::isalnum(static_cast<unsigned char>(each)) != 0;
    if (is_part) name += begins ? static_cast<char>(std::toupper(each)) : each;
    begins = !is_part;
  }
  return name;
}

/// Names the public functions that an operation runs; public_functions.py reads the source for it.
[[nodiscard]] inline std::vector<std::string> runs(std::initializer_list<char const*> names) {
  return {names.begin(), names.end()};
}

/// Operations in worlds of one kind.
template <class Stage>
class operations_in {
 public:
  using step = std::function<void(Stage&)>;

  /// Adds one, and returns it, to be told more.
  operation& add(std::string name, std::vector<std::string> functions, step prepare, step act) {
    operation added;
    added.name = std::move(name);
    added.functions = std::move(functions);
    added.prepare = [prepare = std::move(prepare)] {
      auto made = std::make_unique<Stage>();
      prepare(*made);
      return made;
    };
    added.act = [act = std::move(act)](stage& in) { act(static_cast<Stage&>(in)); };
    all_.push_back(std::move(added));
    return all_.back();
  }
  /// Those of another device come last: once a process has used two, nobody can tell what goes on
  /// after a fault, and the others' ends would be less certain.
  [[nodiscard]] std::vector<operation> all() const {
    std::vector<operation> result = all_;
    std::stable_partition(result.begin(), result.end(), [](operation const& each) {
      return each.name.find("another device") == std::string::npos;
    });
    return result;
  }

 private:
  std::vector<operation> all_;
};

}  // namespace escrow::test
