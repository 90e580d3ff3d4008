// SPDX-License-Identifier: Apache-2.0
// Which work comes before which, and what the host knows to be done: by numbers, whatever runs
// when.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace escrow::sim::model {

// Names work: of the stream with this id, in the order of the calls that enqueue it. The nodes of a
// launch are one work.
struct moment {
  std::uint64_t stream = 0;
  std::uint64_t number = 0;  // 0: nothing
};

// The last work of each stream that is done or comes before some other.
using past = std::map<std::uint64_t, std::uint64_t>;

// Where work stands: behind earlier work of its stream, and behind what is past on others. Copied
// often: works of one stream share what is past while they wait for nothing else.
struct position {
  moment own;
  std::shared_ptr<past const> others;  // null: none

  [[nodiscard]] bool is_behind(moment const& other) const {
    if (other.stream == own.stream) return other.number <= own.number;
    if (others == nullptr) return false;
    auto const found = others->find(other.stream);
    return found != others->end() && other.number <= found->second;
  }
};

// What the host knows to be done of each stream that is there. Of a stream that is gone: all.
class host_knowledge {
 public:
  void add_stream(std::uint64_t id) { done_.emplace(id, 0); }
  void forget_stream(std::uint64_t id) { done_.erase(id); }
  // The host has learned that the work is done, and so is all before it.
  void learn(position const& done);
  [[nodiscard]] bool has(moment const& other) const {
    auto const found = done_.find(other.stream);
    return found == done_.end() || other.number <= found->second;
  }

 private:
  void learn(moment const& done);

  past done_;
};

// What comes next on the stream of `place` comes behind the other work, too. What the host knows to
// be done is left out.
void come_behind(position& place, position const& other, host_knowledge const& known);

}  // namespace escrow::sim::model
