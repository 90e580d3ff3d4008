// Programs from a seed: bytes are drawn with the seed's weights, and decoded as any bytes are.
#include <random>
#include <sstream>
#include <utility>

#include "program.hpp"

namespace escrow::test {

namespace {

/// Operations that go together, which a program of single ones would seldom come to. What lies
/// between them is as random as the places.
constexpr std::string_view sequences_text = R"(
  own make_graph add_node add_node instantiate launch;
  own make_graph add_node own add_node instantiate launch exec_set launch destroy_exec;
  own make_graph add_node add_node instantiate destroy_node add_node update exec_set launch disown
      settle;
  own make_graph add_node expose set_node disown instantiate launch destroy_graph;
  own make_graph add_node instantiate set_node hoist instantiate launch let_go settle;
  claim make_graph add_node_of_lease add_node_of_lease release instantiate launch destroy_graph
      destroy_exec poll;
  begin claim_captured release claim_captured fork claim_captured release join claim_captured end
      instantiate launch launch;
  begin fork claim_captured release fork claim_captured release retire end clone instantiate
      instantiate launch launch;
  begin work fork claim_captured release wait_early claim_captured release join claim_captured end
      instantiate launch launch;
  begin fork claim_captured touch wait_early release claim_captured release end instantiate launch
      launch;
  begin retire claim_captured drop_lease end child instantiate launch destroy_graph destroy_exec;
  begin claim_captured release end clone child child instantiate launch;
  begin claim_captured keep release end instantiate launch destroy_graph destroy_exec step poll
      claim;
  claim release claim touch release_on claim release;
  claim launch_lease step release begin claim end;
  begin claim_captured release end begin_into claim_captured release end;
  share use_shared use_shared unshare step poll;
  claim_scratch touch release claim_scratch release_on claim_scratch;
  begin claim_scratch release claim_scratch fork claim_scratch release join claim_scratch end
      instantiate launch launch;
  begin fork fork claim_scratch touch leave_to_graph claim_scratch leave_to_graph claim_scratch
      release end instantiate launch launch destroy_graph destroy_exec poll claim_scratch;
  begin fork fork claim_scratch touch claim_scratch end touch leave_to_graph leave_to_graph
      release_on destroy_graph claim_scratch;
  begin fork fork claim_scratch end instantiate launch destroy_scratch launch destroy_graph settle;
  claim_scratch touch release claim_scratch release trim claim_scratch step trim settle trim;
  begin claim_scratch release claim_scratch end trim release instantiate launch trim destroy_graph
      step trim destroy_exec settle trim;
  claim_scratch make_scratch_claimer claim_on claim_on release release trim claim_on trim;
  claim_scratch release claim_scratch claim_scratch release claim_scratch release claim_scratch
      release claim_scratch poll;
  claim_scratch claim_scratch begin claim_scratch release claim_scratch end release claim_scratch;
  claim touch retire_lease step poll claim touch release claim;
  claim begin retire_lease end instantiate launch destroy_graph destroy_exec poll claim begin
      claim_captured end;
  begin claim_captured end instantiate launch touch retire_lease poll destroy_graph destroy_exec
      poll begin claim_captured release end;
  begin claim_captured retire_lease claim_captured end instantiate launch destroy_graph destroy_exec
      poll claim claim;
  claim_scratch make_graph add_node_of_lease release instantiate launch destroy_graph destroy_exec
      poll claim_scratch;
  own make_graph add_conditional add_body_node instantiate launch destroy_exec poll;
  make_graph add_conditional claim add_body_node_of_lease release own add_conditional_inside
      add_body_node instantiate launch exec_set launch destroy_graph destroy_exec drop_body
      settle;
  make_graph add_conditional capture_into_body capture_into_body instantiate launch hoist launch
      destroy_graph add_body_node drop_body settle;
  own make_graph add_node make_graph add_conditional embed_in_body disown hoist destroy_graph
      drop_body settle;
  own make_graph add_fill own add_copy add_join clone instantiate launch set_node exec_set disown
      launch settle;
  make_event make_graph add_event drop_event make_event make_graph add_event instantiate launch
      instantiate launch exec_set drop_event destroy_graph launch destroy_exec settle;
  own make_graph add_alloc add_node disown instantiate launch make_graph add_free instantiate
      launch launch destroy_node;
  own make_graph add_alloc add_node add_free instantiate launch launch destroy_exec instantiate
      launch;
  claim_scratch make_graph add_fill_of_lease release instantiate launch destroy_graph launch
      destroy_exec settle claim_scratch;
  load_library launch_code make_graph add_node_of_code unload_library instantiate launch
      destroy_graph destroy_exec settle;
  begin claim_captured release end set_add begin claim_captured release end set_add begin retire end
      set_add set_launch set_launch set_launch set_launch drop_set settle;
  begin claim_captured release end instantiate set_add begin claim_captured release end set_add
      launch set_launch set_launch launch set_launch destroy_exec set_launch settle;
  own make_graph add_node add_node_of_lease clone set_add set_add set_launch set_launch drop_set
      launch set_add set_launch settle;
  begin claim_captured release end begin claim_captured release end make_graph child child
      instantiate;
  begin claim_captured release end instantiate bind launch_bound launch_bound destroy_graph flush
      launch_bound destroy_exec poll claim;
  begin claim_captured release end instantiate bind launch_bound instantiate launch flush launch
      launch_bound launch destroy_exec launch_bound unbind launch destroy_exec settle;
  begin claim_captured release end instantiate bind launch_bound set_add set_launch flush set_launch
      launch_bound destroy_exec settle;
  load_library begin launch_code end clone unload_library instantiate upload launch settle;
  begin claim_captured release end hoist instantiate enter launch_in_turn leave begin claim_captured
      release end instantiate launch enter launch_in_turn leave launch let_go settle;
  begin claim_captured release end hoist instantiate instantiate enter launch_in_turn leave enter
      launch_in_turn leave let_go settle;
  begin claim_captured release end clone instantiate hoist instantiate launch launch_hoisted
      launch_hoisted launch let_go settle;
  begin claim_captured release end clone instantiate hoist instantiate launch enter launch_in_turn
      leave hoist launch enter launch_in_turn destroy_graph leave launch let_go let_go;
  begin claim_captured release end instantiate bind launch_bound hoist instantiate enter flush enter
      launch_in_turn launch_bound leave launch_bound enter launch_in_turn leave let_go settle;
  begin claim_captured release end instantiate bind launch_bound hoist instantiate enter
      launch_in_turn flush launch_in_turn leave enter launch_in_turn destroy_exec leave settle;
  begin claim_captured release end instantiate bind launch_bound hoist instantiate enter
      launch_in_turn drop_hoisted launch_bound settle;
  make_claimer claim_on release claim_on release claim work claim_on release flush_claims claim;
  make_claimer claim_on claim_on claim_on release release release claim claim begin claim_captured;
  make_claimer claim_on release begin_on claim_on release claim_on release end claim_on instantiate
      launch release claim_on launch claim_on release;
  make_claimer claim_on claim_on release begin_on release claim_on touch release end claim_on;
  make_claimer claim_on release begin_on claim_captured end_claimer end claim claim;
  make_claimer claim_on release destroy_pool flush_claims make_pool make_claimer claim_on
      destroy_pool release end_claimer;
  make_claimer claim_on end_claimer make_claimer claim_on release release claim claim_on;
  make_claimer claim_on release_on claim_on touch release claim_on drop_lease close_pool
      end_claimer;
  make_scratch_claimer claim_on release claim_on release claim_scratch claim_scratch flush_claims
      claim_scratch end_claimer;)";

/// The same before ':'; then operations that run at the same time, in several forms.
constexpr std::string_view meetings_text = R"(
  : claim close_pool, claim claim close_pool;
  claim release claim: claim claim, claim release, release claim, release release claim,
      release_on claim poll, release close_pool;
  claim: drop_lease destroy_pool, drop_lease destroy_pool poll, launch_lease poll;
  claim: retire_lease poll, retire_lease poll claim;
  claim touch retire_lease step: poll claim, poll claim release, poll destroy_pool, poll begin;
  : claim begin, claim poll;
  own make_graph add_node instantiate launch step step disown destroy_graph destroy_exec step:
      claim step;
  begin claim retire release end instantiate launch step step destroy_graph destroy_exec step:
      claim step, claim step poll, claim claim step, close_pool step poll;
  begin claim release end: claim destroy_graph;
  begin retire end instantiate launch step destroy_graph destroy_exec make_graph: instantiate step;
  begin fork fork claim_scratch claim_scratch end: leave_to_graph destroy_graph, leave_to_graph
      destroy_graph poll, release_on destroy_graph;
  claim_scratch touch claim_scratch step release: release trim, trim release, trim drop_lease step,
      trim release_on poll, trim trim;
  begin claim_scratch release end: destroy_graph trim, trim destroy_graph poll;
  own make_graph add_node instantiate launch step step disown destroy_graph destroy_exec step:
      retire step, instantiate step, drain step, instantiate destroy_graph destroy_exec, poll
      step;
  : retire poll, retire step poll, retire retire poll, drain retire;
  settle: poll retire_now drain;
  retire settle: poll drain;
  : poll poll, keep poll;
  share: use_shared unshare;
  share use_shared: use_shared unshare poll, use_shared use_shared unshare;
  own make_graph add_node instantiate instantiate launch: launch launch, launch destroy_exec,
      launch launch destroy_exec, launch step, launch update, launch destroy_graph poll,
      destroy_exec poll, destroy_exec destroy_graph, update poll, update step poll, exec_set poll,
      set_node poll, hoist poll, instantiate poll step;
  claim make_graph add_node_of_lease instantiate release instantiate: launch launch;
  begin claim release end instantiate instantiate: launch launch, launch launch step, launch
      destroy_exec claim;
  claim make_graph add_node_of_lease instantiate release instantiate: launch launch step,
      destroy_exec destroy_exec claim, destroy_graph claim, claim destroy_exec poll;
  begin claim_captured release end instantiate bind launch_bound instantiate: launch_bound launch,
      launch_bound launch step, launch flush, launch flush step, launch destroy_exec, launch unbind;
  begin claim_captured release end instantiate bind instantiate: launch_bound launch, launch_bound
      launch step;
  begin claim_captured release end instantiate bind: launch_bound instantiate, launch_bound begin,
      launch_bound destroy_graph step;
  hoist: let_go poll;
  begin claim_captured release end clone instantiate hoist instantiate enter launch_in_turn: launch
      leave, launch launch_in_turn leave, launch launch, leave launch step, launch leave enter;
  begin claim_captured release end clone hoist hoist instantiate instantiate enter launch_in_turn:
      enter leave, enter leave step, enter launch, launch_hoisted leave, launch_hoisted leave step;
  begin claim_captured release end instantiate bind launch_bound hoist instantiate: enter
      launch_bound, enter flush, enter flush step, enter unbind step, enter destroy_exec step;
  begin claim_captured release end instantiate bind hoist instantiate launch_bound enter
      launch_in_turn: launch_bound leave, launch_bound launch_in_turn leave, flush leave step;
  make_claimer claim_on: claim_on release, claim_on release claim, release claim, end_claimer
      release, end_claimer release claim, flush_claims release, claim_on drop_lease begin;
  make_claimer claim_on release: claim_on claim, claim_on claim claim, flush_claims claim,
      end_claimer claim, end_claimer destroy_pool, end_claimer close_pool, claim_on close_pool;
  make_claimer claim_on claim_on: release release, release release claim_on, release release
      claim, release claim_on claim;
  make_claimer make_claimer claim_on claim_on release release: claim_on claim_on, claim_on claim_on
      claim, make_claimer claim_on, end_claimer claim_on, end_claimer make_claimer;)";

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
                                load_library, make_claimer,  op::count};
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
