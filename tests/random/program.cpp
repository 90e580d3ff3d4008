// The text form of programs, and the table of operations.
#include "program.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <stdexcept>

namespace escrow::test {

namespace {

constexpr std::array<op_spec, op_count> specs{{
    {"step", "k", 14, false},
    {"work", "s", 8, false},
    {"poll", "", 10, true},
    {"settle", "", 2, false},
    {"drain", "", 1, false},
    {"stop", "", 1, false},
    {"fail_device", "w", 1, false},
    {"claim", "Lps", 14, true},
    {"claim_captured", "Lpc", 6, true},
    {"touch", "ls", 6, true},
    {"release", "l", 5, true},
    {"release_on", "ls", 4, true},
    {"drop_lease", "l", 3, true},
    {"close_pool", "p", 1, true},
    {"destroy_pool", "p", 1, true},
    {"make_pool", "P", 1, true},
    {"retire", "s", 6, true},
    {"retire_now", "", 1, true},
    {"retire_after", "i", 2, true},
    {"retire_graph", "g", 2, true},
    {"own", "O", 6, false},
    {"disown", "o", 3, false},
    {"keep", "sow", 4, true},
    {"launch_lease", "ls", 3, true},
    {"share", "X", 3, true},
    {"use_shared", "xs", 5, true},
    {"unshare", "x", 2, false},
    {"begin", "im", 5, false},
    {"begin_into", "ig", 2, false},
    {"fork", "ci", 6, false},
    {"join", "cc", 5, false},
    {"wait_early", "scw", 6, false},
    {"end", "rGw", 10, false},
    {"invalidate", "c", 1, false},
    {"destroy_stream", "s", 1, false},
    {"make_graph", "G", 5, true},
    {"expose", "g", 2, true},
    {"clone", "Ggw", 4, true},
    {"child", "ggw", 4, true},
    {"destroy_graph", "g", 4, false},
    {"instantiate", "Egw", 9, true},
    {"launch", "eiw", 14, true},
    {"update", "euw", 6, true},
    {"destroy_exec", "e", 6, false},
    {"hoist", "Hgw", 3, true},
    {"let_go", "hiw", 4, true},
    {"drop_hoisted", "h", 1, false},
    {"add_node", "Ngow", 10, true},
    {"add_node_of_lease", "Ngl", 5, true},
    {"set_node", "now", 5, true},
    {"set_node_of_lease", "nl", 3, true},
    {"destroy_node", "n", 3, true},
    {"exec_set", "eqo", 6, true},
    {"exec_set_of_lease", "eql", 3, true},
    {"claim_scratch", "Lzs", 10, true},
    {"close_scratch", "", 1, true},
    {"destroy_scratch", "", 1, true},
    {"add_conditional", "Bgw", 6, true},
    {"add_conditional_inside", "Bbw", 2, true},
    {"add_body_node", "Nbow", 7, true},
    {"add_body_node_of_lease", "Nbl", 4, true},
    {"embed_in_body", "bg", 2, true},
    {"capture_into_body", "ibw", 3, true},
    {"drop_body", "b", 3, false},
    {"add_fill", "Ngow", 4, true},
    {"add_fill_of_lease", "Ngl", 3, true},
    {"add_copy", "Ngoo", 4, true},
    {"add_join", "Ng", 2, true},
    {"add_edge", "nn", 2, true},
    {"make_event", "V", 3, true},
    {"drop_event", "v", 2, false},
    {"add_event", "Ngvw", 5, true},
    {"add_alloc", "Agz", 2, true},
    {"add_free", "ag", 2, true},
    {"look", "g", 1, true},
    {"load_library", "Y", 3, true},
    {"unload_library", "y", 2, false},
    {"launch_code", "sy", 4, true},
    {"add_node_of_code", "Ngy", 4, true},
    {"set_node_of_code", "ny", 2, true},
    {"exec_set_of_code", "eqy", 2, true},
    {"upload", "ei", 2, true},
    {"capture_call", "iGw", 2, true},
    {"move", "ge", 1, false},
    {"try_claim", "Lps", 3, true},
}};
static_assert(!specs.back().name.empty());

[[noreturn]] void refuse(std::string const& line, char const* why) {
  throw std::runtime_error("not a program: " + line + ": " + why);
}

unsigned number_in(std::string_view word, std::string const& line) {
  unsigned value = 0;
  auto const result = std::from_chars(word.data(), word.data() + word.size(), value);
  if (result.ec != std::errc{} || result.ptr != word.data() + word.size() || value > 255)
    refuse(line, "a number");
  return value;
}

/// What may follow the arguments: "!3", the call that fails, or "?3", the allocation; "&", together
/// with the operation before; "@1f", the points at which it lets others go on.
void read_mark(operation& read, std::string_view word, std::string const& line) {
  if (word == "&") {
    read.joins = true;
  } else if (word[0] == '!') {
    read.failing_call = static_cast<std::uint8_t>(number_in(word.substr(1), line));
  } else if (word[0] == '?') {
    read.failing_allocation = static_cast<std::uint8_t>(number_in(word.substr(1), line));
  } else if (word[0] == '@') {
    constexpr int hexadecimal = 16;
    auto const result =
        std::from_chars(word.data() + 1, word.data() + word.size(), read.passes, hexadecimal);
    if (result.ec != std::errc{} || result.ptr != word.data() + word.size())
      refuse(line, "points, as bits");
  } else {
    refuse(line, "a mark");
  }
}

operation read_operation(std::string const& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  if (word.size() < 2 || word[0] != 't') refuse(line, "a thread");
  operation read;
  read.thread = static_cast<std::uint8_t>(number_in(std::string_view(word).substr(1), line) %
                                          program::threads_max);
  words >> word;
  auto const found =
      std::ranges::find_if(specs, [&](op_spec const& each) { return each.name == word; });
  if (found == specs.end()) refuse(line, "an operation");
  read.kind = static_cast<op>(found - specs.begin());
  for (std::size_t i = 0; i < found->arguments.size(); ++i) {
    if (!(words >> word) || word[0] != letter_of(found->arguments[i])) refuse(line, "an argument");
    read.arguments[i] = static_cast<std::uint8_t>(
        number_in(std::string_view(word).substr(1), line) % places_of(word[0]));
  }
  while (words >> word) read_mark(read, word, line);
  return read;
}

}  // namespace

op_spec const& spec_of(op kind) {
  return specs.at(static_cast<std::size_t>(kind));
}

std::string to_text(operation const& written) {
  op_spec const& spec = spec_of(written.kind);
  std::ostringstream text;
  text << 't' << unsigned{written.thread} << ' ' << spec.name;
  for (std::size_t i = 0; i < spec.arguments.size(); ++i)
    text << ' ' << letter_of(spec.arguments[i]) << unsigned{written.arguments[i]};
  if (written.failing_call != 0) text << " !" << unsigned{written.failing_call};
  if (written.failing_allocation != 0) text << " ?" << unsigned{written.failing_allocation};
  if (written.joins) text << " &";
  if (written.passes != 0) text << " @" << std::hex << written.passes;
  return text.str();
}

std::string to_text(program const& written) {
  std::ostringstream text;
  text << "seed " << written.seed << "\nslots " << written.slots << '\n';
  for (operation const& each : written.operations) text << to_text(each) << '\n';
  return text.str();
}

program read_program(std::string_view text) {
  program read;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    std::istringstream words(line);
    std::string first;
    if (!(words >> first)) continue;
    if (first == "seed") {
      if (!(words >> read.seed)) refuse(line, "a seed");
    } else if (first == "slots") {
      if (!(words >> read.slots) || read.slots == 0) refuse(line, "a number of slots");
    } else {
      read.operations.push_back(read_operation(line));
    }
  }
  return read;
}

}  // namespace escrow::test
