// SPDX-License-Identifier: Apache-2.0
// Programs from a seed: bytes are drawn with the seed's weights, and decoded as any bytes are.
#include <random>
#include <sstream>
#include <utility>

#include "program.hpp"
#include "scenes.hpp"

namespace escrow::test {

namespace {

/// Operations that go together: first one by one, then at the same time.
struct scene {
  std::vector<op> before;
  std::vector<op> together;
};

/// The parts of `text` that `separator` ends, or the end of the text.
std::vector<std::string> parts_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::istringstream rest{std::string(text)};
  for (std::string part; std::getline(rest, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<op> read_names(std::string const& text) {
  std::vector<op> read;
  std::istringstream words(text);
  for (std::string word; words >> word;) read.push_back(op_named(word));
  return read;
}

std::vector<scene> read_scenes(std::string_view text) {
  std::vector<scene> read;
  for (std::string const& row : parts_of(text, ';')) {
    std::vector<std::string> const halves = parts_of(row, ':');
    std::vector<op> const before = read_names(halves.at(0));
    if (halves.size() == 1) read.push_back({before, {}});
    for (std::size_t i = 1; i < halves.size(); ++i)
      for (std::string const& each : parts_of(halves[i], ','))
        read.push_back({before, read_names(each)});
  }
  return read;
}

constexpr std::size_t header_bytes = 9;  // seed; the number of slots, and how they are shared
// Kind, thread, arguments, failing call; whether it joins the one before, and at which points it
// lets others go on.
constexpr std::size_t operation_bytes = 16;

/// Draws the bytes of one program.
class drawing {
 public:
  explicit drawing(std::uint64_t seed) : random_(seed) {
    choose_weights();
    threads_ = below(4) == 0 ? 1 + below(program::threads_max) : 1;
    faults_of_256_ = below(4) == 0 ? 24 : 0;
    if (seed % 3 == 0) choose_overlap(seed);
    for (unsigned const weight : weights_) weights_sum_ += weight;
    std::size_t const count = 8 + below(80);
    bytes_.reserve(header_bytes + count * operation_bytes);
    put(seed);
    bytes_.push_back(static_cast<std::uint8_t>(random_()));
    for (std::size_t i = 0; i < count; ++i) draw_next();
  }

  [[nodiscard]] std::vector<std::uint8_t> const& bytes() const { return bytes_; }

 private:
  /// A number below `limit`.
  unsigned below(std::size_t limit) { return static_cast<unsigned>(random_() % limit); }

  void choose_weights() {
    for (std::size_t i = 0; i < op_count; ++i) {
      unsigned const weight = spec_of(static_cast<op>(i)).weight * 4;
      // Rare ones stay rare: each ends much of what the rest needs.
      unsigned const luck = below(8);
      weights_[i] = luck == 0 ? 0 : luck == 1 && weight > 8 ? weight * 3 : weight;
    }
    using enum op;
    // Three quarters of the fields of work, more or less.
    constexpr std::array begins{claim,        retire,        begin,           make_graph,
                                add_node,     claim_scratch, add_conditional, add_fill,
                                load_library, make_claimer,  visit,           op::count};
    for (std::size_t field = 0; field + 1 < begins.size(); ++field) {
      unsigned const percent = std::array{20U, 100U, 100U, 250U}[below(4)];
      for (auto i = static_cast<std::size_t>(begins[field]);
           i < static_cast<std::size_t>(begins[field + 1]); ++i)
        weights_[i] = weights_[i] * percent / 100;
    }
    for (auto const& [kind, programs_per_use] :
         {std::pair{fail_device, 16U}, {stop, 8U}, {drop_hoisted, 8U}, {close_scratch, 4U}})
      if (below(programs_per_use) != 0) weights_[static_cast<std::size_t>(kind)] = 0;
  }

  /// In one program of three operations run together. The choice has random numbers of its own, so
  /// that the programs of the other seeds stay what they are.
  void choose_overlap(std::uint64_t seed) {
    std::mt19937_64 random(~seed);
    threads_ = program::threads_max;
    joins_of_256_ = 32U << random() % 3;
    rarity_ = static_cast<unsigned>(random() % 4);
  }

  /// One operation, perhaps after a scene.
  void draw_next() {
    static std::vector<scene> const meetings = read_scenes(meetings_text);
    static std::vector<scene> const sequences = read_scenes(sequences_text);
    if (joins_of_256_ != 0 && below(10) == 0) {
      scene const& met = meetings[below(meetings.size())];
      for (op const each : met.before) draw(each);
      bool joins = false;
      for (op const each : met.together) draw(each, std::exchange(joins, true));
    }
    if (below(24) == 0) {
      for (op const each : sequences[below(sequences.size())].before) {
        draw(each);
        if (below(3) == 0) draw(draw_kind());
      }
    }
    draw(draw_kind());
  }

  op draw_kind() {
    unsigned at = below(weights_sum_);
    std::size_t kind = 0;
    for (; at >= weights_[kind]; ++kind) at -= weights_[kind];
    return static_cast<op>(kind);
  }

  void draw(op kind, bool joins = false) {
    std::size_t const begin = bytes_.size();
    bytes_.push_back(static_cast<std::uint8_t>(kind));
    bytes_.push_back(static_cast<std::uint8_t>(below(threads_)));
    for (int k = 0; k < 4; ++k) bytes_.push_back(static_cast<std::uint8_t>(random_()));
    bool const fails = below(256) < faults_of_256_;
    unsigned const of_what = below(3) == 0 ? 16 : 0;  // an allocation, or a call of CUDA
    bytes_.push_back(fails ? static_cast<std::uint8_t>(of_what + 1 + below(15)) : std::uint8_t{0});
    if (joins_of_256_ == 0) return bytes_.resize(begin + operation_bytes);
    joins = (joins || below(256) < joins_of_256_) && begin > header_bytes;
    if (joins)  // on a thread of its own
      bytes_[begin + 1] = static_cast<std::uint8_t>((bytes_[begin - operation_bytes + 1] + 1) %
                                                    program::threads_max);
    bytes_.push_back(joins ? 1 : 0);
    put(draw_passes());
  }

  /// Points at which an operation lets others go on: few, or many.
  std::uint64_t draw_passes() {
    constexpr unsigned early = 24;  // most have no more points
    if (rarity_ == 0) return std::uint64_t{1} << below(early);
    std::uint64_t bits = random_();
    for (unsigned i = 1; i < rarity_; ++i) bits &= random_();
    return bits;
  }

  void put(std::uint64_t value) {
    for (unsigned i = 0; i < 8; ++i) bytes_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }

  std::mt19937_64 random_;
  std::array<unsigned, op_count> weights_{};
  unsigned weights_sum_ = 0;
  unsigned threads_ = 1;
  unsigned faults_of_256_ = 0;  // operations with a failing call
  unsigned joins_of_256_ = 0;   // operations that run together with the one before
  unsigned rarity_ = 0;         // of the points where they let others go on
  std::vector<std::uint8_t> bytes_;
};

std::uint64_t number_in(std::span<std::uint8_t const> bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 8; ++i) number |= std::uint64_t{bytes[i]} << (8 * i);
  return number;
}

}  // namespace

program generate(std::uint64_t seed) {
  return decode(drawing(seed).bytes());
}

program decode(std::span<std::uint8_t const> bytes) {
  program decoded;
  decoded.is_exact = false;
  if (bytes.size() < header_bytes) return decoded;
  decoded.seed = number_in(bytes);
  decoded.slots = 1 + bytes[8] % 4;
  decoded.shares = bytes[8] / 4 % 4 == 1;
  decoded.lasts = bytes[8] / 16 % 4 == 1;
  // With few, or more slots, claimers give what they have to others often, or seldom.
  decoded.unrecorded = std::array{16U, 1U, 2U, 16U}[bytes[8] / 64];
  if (bytes[8] / 64 >= 2) decoded.slots *= 2;
  decoded.addresses = decoded.seed % 5 == 2;
  // Room for a block of each size, or for more of the smaller ones.
  if (decoded.seed % 7 == 3) decoded.bytes = 6144;
  decoded.idles = decoded.seed % 7 == 5;
  for (bytes = bytes.subspan(header_bytes); bytes.size() >= operation_bytes;
       bytes = bytes.subspan(operation_bytes)) {
    operation& next = decoded.operations.emplace_back();
    next.kind = static_cast<op>(bytes[0] % op_count);
    next.thread = static_cast<std::uint8_t>(bytes[1] % program::threads_max);
    op_spec const& spec = spec_of(next.kind);
    for (std::size_t i = 0; i < spec.arguments.size(); ++i)
      next.arguments[i] =
          static_cast<std::uint8_t>(bytes[2 + i] % places_of(letter_of(spec.arguments[i])));
    auto& failing = (bytes[6] & 16U) == 0 ? next.failing_call : next.failing_allocation;
    if (spec.can_fail()) failing = static_cast<std::uint8_t>(bytes[6] % 16);
    next.joins = bytes[7] % 4 == 1;
    next.passes = number_in(bytes.subspan(8));
  }
  return decoded;
}

}  // namespace escrow::test
