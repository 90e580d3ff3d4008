// Programs from a seed: bytes are drawn with the seed's weights, and decoded as anybody's bytes.
#include "generate.hpp"

#include <array>
#include <random>
#include <vector>

namespace escrow::test {

namespace {

constexpr std::size_t header_bytes = 9;     // seed, slots
constexpr std::size_t operation_bytes = 7;  // kind, thread, arguments, failing call

/// What the seed decides for the whole program.
struct style {
  std::array<unsigned, op_count> weights{};
  unsigned threads = 1;
  unsigned faults_of_256 = 0;  // operations with a failing call
};

/// A number below `limit`.
unsigned below(std::mt19937_64& random, unsigned limit) {
  return static_cast<unsigned>(random() % limit);
}

style style_of(std::mt19937_64& random) {
  style chosen;
  for (std::size_t i = 0; i < op_count; ++i) {
    unsigned const weight = spec_of(static_cast<op>(i)).weight * 4;
    // Rare ones stay rare: each ends much of what the rest needs.
    unsigned const luck = below(random, 8);
    chosen.weights[i] = luck == 0 ? 0 : luck == 1 && weight > 8 ? weight * 3 : weight;
  }
  if (random() % 16 != 0) chosen.weights[static_cast<std::size_t>(op::fail_device)] = 0;
  if (random() % 8 != 0) chosen.weights[static_cast<std::size_t>(op::stop)] = 0;
  if (random() % 8 != 0) chosen.weights[static_cast<std::size_t>(op::drop_hoisted)] = 0;
  chosen.threads = random() % 4 == 0 ? 1 + below(random, program::threads_max) : 1;
  chosen.faults_of_256 = random() % 4 == 0 ? 24 : 0;
  return chosen;
}

std::uint8_t draw_kind(std::mt19937_64& random, style const& chosen, unsigned total) {
  unsigned at = below(random, total);
  for (std::size_t i = 0; i < op_count; ++i) {
    if (at < chosen.weights[i]) return static_cast<std::uint8_t>(i);
    at -= chosen.weights[i];
  }
  return 0;
}

}  // namespace

program generate(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  style const chosen = style_of(random);
  unsigned total = 0;
  for (unsigned const weight : chosen.weights) total += weight;
  std::vector<std::uint8_t> bytes;
  std::size_t const count = 8 + random() % 56;
  bytes.reserve(header_bytes + count * operation_bytes);
  for (std::size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(seed >> (8 * i)));
  bytes.push_back(static_cast<std::uint8_t>(random()));
  for (std::size_t i = 0; i < count; ++i) {
    bytes.push_back(draw_kind(random, chosen, total));
    bytes.push_back(static_cast<std::uint8_t>(random() % chosen.threads));
    for (int k = 0; k < 4; ++k) bytes.push_back(static_cast<std::uint8_t>(random()));
    bool const fails = random() % 256 < chosen.faults_of_256;
    bytes.push_back(fails ? static_cast<std::uint8_t>(1 + random() % 12) : std::uint8_t{0});
  }
  return decode(bytes);
}

program decode(std::span<std::uint8_t const> bytes) {
  program decoded;
  decoded.is_exact = false;
  if (bytes.size() < header_bytes) return decoded;
  decoded.seed = 0;
  for (std::size_t i = 0; i < 8; ++i) decoded.seed |= std::uint64_t{bytes[i]} << (8 * i);
  decoded.slots = 1 + bytes[8] % 4;
  for (bytes = bytes.subspan(header_bytes); bytes.size() >= operation_bytes;
       bytes = bytes.subspan(operation_bytes)) {
    operation next;
    next.kind = static_cast<op>(bytes[0] % op_count);
    next.thread = static_cast<std::uint8_t>(bytes[1] % program::threads_max);
    op_spec const& spec = spec_of(next.kind);
    for (std::size_t i = 0; i < spec.arguments.size(); ++i)
      next.arguments[i] = static_cast<std::uint8_t>(bytes[2 + i] % places_of(letter_of(spec.arguments[i])));
    if (spec.can_fail) next.failing_call = static_cast<std::uint8_t>(bytes[6] % 16);
    decoded.operations.push_back(next);
  }
  return decoded;
}

}  // namespace escrow::test
