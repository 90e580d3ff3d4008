// What a launch costs, of a bare graph and of another form that does the same work, in turns.
#pragma once

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "forms.hpp"
#include "settings.hpp"

namespace escrow::bench {

struct sizes {
  int instances;  // pairs of execs in one repetition
  int row;        // launches in a row
  int steady;     // launches in a long burst
  int bursts;     // short ones for each pair

  // As many on a GPU, and few else.
  [[nodiscard]] sizes chosen(settings const& how) const {
    return {.instances = how.choose(instances, 1, 1),
            .row = how.choose(row, 16, 2),
            .steady = how.choose(steady, 16, 2),
            .bursts = how.choose(bursts, 1, 1)};
  }
};

// The same work, done by a bare graph and by the form in question.
struct times {
  double bare = 0;
  double form = 0;
  [[nodiscard]] double share() const { return form / bare; }
};

// Both, on their way to `stream`.
struct pair_of_forms {
  pair_of_forms(cudaStream_t on, std::unique_ptr<relaunch_form> bare_one,
                std::unique_ptr<relaunch_form> other);

  // The last call; returns how many destructors have not run.
  [[nodiscard]] std::size_t end();

  cudaStream_t stream;
  std::unique_ptr<relaunch_form> bare;
  std::unique_ptr<relaunch_form> form;
};

// What the pairs of one repetition took.
class relaunch_times {
 public:
  explicit relaunch_times(sizes const& size) : size_(size) {}

  // Returns the seconds that a launch of the form took in a row.
  double add(pair_of_forms& pair);
  void report(benchmark::State& state) const;

 private:
  sizes size_;
  std::vector<times> rows_;
  std::vector<times> steady_;
  std::vector<times> bursts_;
};

}  // namespace escrow::bench
