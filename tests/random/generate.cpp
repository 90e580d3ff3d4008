// Programs from a seed: bytes are drawn with the seed's weights, and decoded as anybody's bytes.
#include "generate.hpp"

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "meetings.hpp"

namespace escrow::test {

namespace {

constexpr std::size_t header_bytes = 9;  // seed, slots
// Kind, thread, arguments, failing call; whether it joins the one before, and at which points it
// lets others go on.
constexpr std::size_t operation_bytes = 16;

/// What the seed decides for the whole program.
struct style {
  std::array<unsigned, op_count> weights{};
  unsigned threads = 1;
  unsigned faults_of_256 = 0;  // operations with a failing call
  unsigned joins_of_256 = 0;   // operations that run together with the one before
  unsigned rarity = 0;         // of the points where they let others go on
};

/// A number below `limit`.
unsigned below(std::mt19937_64& random, unsigned limit) {
  return static_cast<unsigned>(random() % limit);
}

/// Operations that go together: what a program of single ones would seldom come to. What lies
/// between them is as random as the places.
std::vector<sequence> const& sequences() {
  static std::vector<sequence> const all{
      {op::own, op::make_graph, op::add_node, op::add_node, op::instantiate, op::launch},
      {op::own, op::make_graph, op::add_node, op::own, op::add_node, op::instantiate, op::launch,
       op::exec_set, op::launch, op::destroy_exec},
      {op::own, op::make_graph, op::add_node, op::add_node, op::instantiate, op::destroy_node,
       op::add_node, op::update, op::exec_set, op::launch, op::disown, op::settle},
      {op::own, op::make_graph, op::add_node, op::expose, op::set_node, op::disown, op::instantiate,
       op::launch, op::destroy_graph},
      {op::own, op::make_graph, op::add_node, op::instantiate, op::set_node, op::hoist,
       op::instantiate, op::launch, op::let_go, op::settle},
      {op::claim, op::make_graph, op::add_node_of_lease, op::add_node_of_lease, op::release,
       op::instantiate, op::launch, op::destroy_graph, op::destroy_exec, op::poll},
      {op::begin, op::claim_captured, op::release, op::claim_captured, op::fork, op::claim_captured,
       op::release, op::join, op::claim_captured, op::end, op::instantiate, op::launch, op::launch},
      {op::begin, op::fork, op::claim_captured, op::release, op::fork, op::claim_captured,
       op::release, op::retire, op::end, op::clone, op::instantiate, op::instantiate, op::launch,
       op::launch},
      {op::begin, op::work, op::fork, op::claim_captured, op::release, op::wait_early,
       op::claim_captured, op::release, op::join, op::claim_captured, op::end, op::instantiate,
       op::launch, op::launch},
      {op::begin, op::fork, op::claim_captured, op::touch, op::wait_early, op::release,
       op::claim_captured, op::release, op::end, op::instantiate, op::launch, op::launch},
      {op::begin, op::retire, op::claim_captured, op::drop_lease, op::end, op::child,
       op::instantiate, op::launch, op::destroy_graph, op::destroy_exec},
      {op::begin, op::claim_captured, op::keep, op::release, op::end, op::instantiate, op::launch,
       op::destroy_graph, op::destroy_exec, op::step, op::poll, op::claim},
      {op::claim, op::release, op::claim, op::touch, op::release_on, op::claim, op::release},
      {op::claim, op::launch_lease, op::step, op::release, op::begin, op::claim, op::end},
      {op::begin, op::claim_captured, op::release, op::end, op::begin_into, op::claim_captured,
       op::release, op::end},
      {op::share, op::use_shared, op::use_shared, op::unshare, op::step, op::poll},
      {op::claim_scratch, op::touch, op::release, op::claim_scratch, op::release_on,
       op::claim_scratch},
      {op::begin, op::claim_scratch, op::release, op::claim_scratch, op::fork, op::claim_scratch,
       op::release, op::join, op::claim_scratch, op::end, op::instantiate, op::launch, op::launch},
      {op::claim_scratch, op::make_graph, op::add_node_of_lease, op::release, op::instantiate,
       op::launch, op::destroy_graph, op::destroy_exec, op::poll, op::claim_scratch},
      {op::own, op::make_graph, op::add_conditional, op::add_body_node, op::instantiate, op::launch,
       op::destroy_exec, op::poll},
      {op::make_graph, op::add_conditional, op::claim, op::add_body_node_of_lease, op::release,
       op::own, op::add_conditional_inside, op::add_body_node, op::instantiate, op::launch,
       op::exec_set, op::launch, op::destroy_graph, op::destroy_exec, op::drop_body, op::settle},
      {op::make_graph, op::add_conditional, op::capture_into_body, op::capture_into_body,
       op::instantiate, op::launch, op::hoist, op::launch, op::destroy_graph, op::add_body_node,
       op::drop_body, op::settle},
      {op::own, op::make_graph, op::add_node, op::make_graph, op::add_conditional,
       op::embed_in_body, op::disown, op::hoist, op::destroy_graph, op::drop_body, op::settle},
      {op::own, op::make_graph, op::add_fill, op::own, op::add_copy, op::add_join, op::clone,
       op::instantiate, op::launch, op::set_node, op::exec_set, op::disown, op::launch, op::settle},
      {op::make_event, op::make_graph, op::add_event, op::drop_event, op::make_event,
       op::make_graph, op::add_event, op::instantiate, op::launch, op::instantiate, op::launch,
       op::exec_set, op::drop_event, op::destroy_graph, op::launch, op::destroy_exec, op::settle},
      {op::own, op::make_graph, op::add_alloc, op::add_node, op::disown, op::instantiate,
       op::launch, op::make_graph, op::add_free, op::instantiate, op::launch, op::launch,
       op::destroy_node},
      {op::own, op::make_graph, op::add_alloc, op::add_node, op::add_free, op::instantiate,
       op::launch, op::launch, op::destroy_exec, op::instantiate, op::launch},
      {op::claim_scratch, op::make_graph, op::add_fill_of_lease, op::release, op::instantiate,
       op::launch, op::destroy_graph, op::launch, op::destroy_exec, op::settle, op::claim_scratch},
      {op::load_library, op::launch_code, op::make_graph, op::add_node_of_code, op::unload_library,
       op::instantiate, op::launch, op::destroy_graph, op::destroy_exec, op::settle},
      {op::load_library, op::begin, op::launch_code, op::end, op::clone, op::unload_library,
       op::instantiate, op::upload, op::launch, op::settle},
  };
  return all;
}

/// Three quarters of the fields of work, more or less.
constexpr std::array field_begins{
    op::claim,         op::retire,          op::begin,    op::make_graph,   op::add_node,
    op::claim_scratch, op::add_conditional, op::add_fill, op::load_library, op::count};

void favour_fields(std::array<unsigned, op_count>& weights, std::mt19937_64& random) {
  for (std::size_t field = 0; field + 1 < field_begins.size(); ++field) {
    unsigned const percent = std::array{20U, 100U, 100U, 250U}[below(random, 4)];
    for (auto i = static_cast<std::size_t>(field_begins[field]);
         i < static_cast<std::size_t>(field_begins[field + 1]); ++i)
      weights[i] = weights[i] * percent / 100;
  }
}

style style_of(std::mt19937_64& random) {
  style chosen;
  for (std::size_t i = 0; i < op_count; ++i) {
    unsigned const weight = spec_of(static_cast<op>(i)).weight * 4;
    // Rare ones stay rare: each ends much of what the rest needs.
    unsigned const luck = below(random, 8);
    chosen.weights[i] = luck == 0 ? 0 : luck == 1 && weight > 8 ? weight * 3 : weight;
  }
  favour_fields(chosen.weights, random);
  if (random() % 16 != 0) chosen.weights[static_cast<std::size_t>(op::fail_device)] = 0;
  if (random() % 8 != 0) chosen.weights[static_cast<std::size_t>(op::stop)] = 0;
  if (random() % 8 != 0) chosen.weights[static_cast<std::size_t>(op::drop_hoisted)] = 0;
  if (random() % 4 != 0) chosen.weights[static_cast<std::size_t>(op::close_scratch)] = 0;
  chosen.threads = random() % 4 == 0 ? 1 + below(random, program::threads_max) : 1;
  chosen.faults_of_256 = random() % 4 == 0 ? 24 : 0;
  return chosen;
}

/// In one program of three operations run together. The choice is beside the others, so that the
/// programs of the other seeds are what they would be without.
void overlap(style& chosen, std::uint64_t seed) {
  if (seed % 3 != 0) return;
  std::mt19937_64 random(~seed);
  chosen.threads = program::threads_max;
  chosen.joins_of_256 = 32U << below(random, 3);
  chosen.rarity = below(random, 4);
}

/// Points at which an operation lets others go on: few, or many.
std::uint64_t draw_passes(std::mt19937_64& random, unsigned rarity) {
  constexpr unsigned early = 24;  // most have no more points
  if (rarity == 0) return std::uint64_t{1} << below(random, early);
  std::uint64_t bits = random();
  for (unsigned i = 1; i < rarity; ++i) bits &= random();
  return bits;
}

/// Bytes of one operation.
void draw(std::vector<std::uint8_t>& bytes, std::uint8_t kind, std::mt19937_64& random,
          style const& chosen, bool joins = false) {
  std::size_t const begin = bytes.size();
  bytes.push_back(kind);
  bytes.push_back(static_cast<std::uint8_t>(below(random, chosen.threads)));
  for (int k = 0; k < 4; ++k) bytes.push_back(static_cast<std::uint8_t>(random()));
  bool const fails = below(random, 256) < chosen.faults_of_256;
  unsigned const of_what = below(random, 3) == 0 ? 16 : 0;  // an allocation, or a call of CUDA
  bytes.push_back(fails ? static_cast<std::uint8_t>(of_what + 1 + below(random, 15))
                        : std::uint8_t{0});
  if (chosen.joins_of_256 == 0) return bytes.resize(begin + operation_bytes);
  joins = (joins || below(random, 256) < chosen.joins_of_256) && begin > header_bytes;
  // On a thread of its own.
  if (joins)
    bytes[begin + 1] =
        static_cast<std::uint8_t>((bytes[begin - operation_bytes + 1] + 1) % program::threads_max);
  bytes.push_back(joins ? 1 : 0);
  std::uint64_t const passes = draw_passes(random, chosen.rarity);
  for (unsigned i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(passes >> (8 * i)));
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
  style chosen = style_of(random);
  overlap(chosen, seed);
  unsigned total = 0;
  for (unsigned const weight : chosen.weights) total += weight;
  std::vector<std::uint8_t> bytes;
  std::size_t const count = 8 + below(random, 80);
  bytes.reserve(header_bytes + count * operation_bytes);
  for (std::size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(seed >> (8 * i)));
  bytes.push_back(static_cast<std::uint8_t>(random()));
  for (std::size_t i = 0; i < count; ++i) {
    if (chosen.joins_of_256 != 0 && below(random, 10) == 0) {
      meeting const& met = meetings()[below(random, static_cast<unsigned>(meetings().size()))];
      for (op const each : met.before) draw(bytes, static_cast<std::uint8_t>(each), random, chosen);
      bool joins = false;
      for (op const each : met.together)
        draw(bytes, static_cast<std::uint8_t>(each), random, chosen, std::exchange(joins, true));
    }
    if (below(random, 24) == 0) {
      for (op const each : sequences()[below(random, static_cast<unsigned>(sequences().size()))]) {
        draw(bytes, static_cast<std::uint8_t>(each), random, chosen);
        if (below(random, 3) == 0) draw(bytes, draw_kind(random, chosen, total), random, chosen);
      }
    }
    draw(bytes, draw_kind(random, chosen, total), random, chosen);
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
      next.arguments[i] =
          static_cast<std::uint8_t>(bytes[2 + i] % places_of(letter_of(spec.arguments[i])));
    auto& failing = (bytes[6] & 16U) == 0 ? next.failing_call : next.failing_allocation;
    if (spec.can_fail) failing = static_cast<std::uint8_t>(bytes[6] % 16);
    next.joins = bytes[7] % 4 == 1;
    for (std::size_t i = 0; i < 8; ++i) next.passes |= std::uint64_t{bytes[8 + i]} << (8 * i);
    decoded.operations.push_back(next);
  }
  return decoded;
}

}  // namespace escrow::test
