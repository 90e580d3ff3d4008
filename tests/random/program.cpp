// SPDX-License-Identifier: Apache-2.0
// The text forms of programs and of what was counted.
#include "program.hpp"

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace escrow::test {

namespace {

constexpr std::array specs = [] {
  constexpr unsigned fails = op_spec::fails;
  constexpr unsigned together = op_spec::together;
  constexpr unsigned looks = op_spec::looks;
  constexpr unsigned builds = op_spec::builds;
#define ESCROW_SPEC(name, arguments, weight, traits) op_spec{#name, arguments, weight, traits},
  return std::array<op_spec, op_count>{ESCROW_RANDOM_OPERATIONS(ESCROW_SPEC)};
}();

[[noreturn]] void refuse(std::string const& line, char const* why) {
  throw std::runtime_error("not a program: " + line + ": " + why);
}

}  // namespace

op_spec const& spec_of(op kind) {
  return specs.at(static_cast<std::size_t>(kind));
}

op op_named(std::string_view name) {
  auto const found = std::ranges::find(specs, name, &op_spec::name);
  if (found == specs.end()) refuse(std::string(name), "an operation");
  return static_cast<op>(found - specs.begin());
}

namespace {

/// The number behind the first letter of the word.
std::uint64_t number_in(std::string_view word, std::string const& line, std::uint64_t max = 255,
                        int base = 10) {
  std::uint64_t value = 0;
  char const* const end = word.data() + word.size();
  auto const result = std::from_chars(word.data() + 1, end, value, base);
  if (result.ec != std::errc{} || result.ptr != end || value > max) refuse(line, "a number");
  return value;
}

/// What may follow the arguments: "!3", the call that fails, or "?3", the allocation; "&", together
/// with the operation before; "@1f", the points at which it lets others go on.
void read_mark(operation& read, std::string_view word, std::string const& line) {
  if (word == "&") {
    read.joins = true;
  } else if (word[0] == '!') {
    read.failing_call = static_cast<std::uint8_t>(number_in(word, line));
  } else if (word[0] == '?') {
    read.failing_allocation = static_cast<std::uint8_t>(number_in(word, line));
  } else if (word[0] == '@') {
    read.passes = number_in(word, line, ~std::uint64_t{0}, 16);
  } else {
    refuse(line, "a mark");
  }
}

operation read_operation(std::string const& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  operation read;
  if (word.size() == 2 && word[0] == 't') {
    read.thread = static_cast<std::uint8_t>(number_in(word, line) % program::threads_max);
    words >> word;
  }
  read.kind = op_named(word);
  std::string_view const asked = spec_of(read.kind).arguments;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!(words >> word) || word[0] != letter_of(asked[i])) refuse(line, "an argument");
    read.arguments[i] = static_cast<std::uint8_t>(number_in(word, line) % places_of(word[0]));
  }
  while (words >> word) read_mark(read, word, line);
  return read;
}

/// What a program has besides operations, in the order of its text: numbers, and flags, which are
/// written by their name alone.
struct option {
  std::string_view name;
  std::uint64_t program::*number = nullptr;
  bool program::*flag = nullptr;
};
constexpr std::array options{option{.name = "seed", .number = &program::seed},
                             option{.name = "slots", .number = &program::slots},
                             option{.name = "unrecorded", .number = &program::unrecorded},
                             option{.name = "bytes", .number = &program::bytes},
                             option{.name = "shares", .flag = &program::shares},
                             option{.name = "lasts", .flag = &program::lasts},
                             option{.name = "addresses", .flag = &program::addresses},
                             option{.name = "idles", .flag = &program::idles}};

/// False if the line is an operation.
bool read_options(program& read, std::string const& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    auto const found = std::ranges::find(options, word, &option::name);
    if (found == options.end()) return false;
    if (found->flag != nullptr) {
      read.*(found->flag) = true;
    } else if (!(words >> read.*(found->number)) || read.slots == 0) {
      refuse(line, "a number");
    }
  }
  return true;
}

}  // namespace

std::string to_text(operation const& written) {
  op_spec const& spec = spec_of(written.kind);
  std::ostringstream text;
  if (written.thread != 0) text << 't' << unsigned{written.thread} << ' ';
  text << spec.name;
  for (std::size_t i = 0; i < spec.arguments.size(); ++i)
    text << ' ' << letter_of(spec.arguments[i]) << unsigned{written.arguments[i]};
  if (written.failing_call != 0) text << " !" << unsigned{written.failing_call};
  if (written.failing_allocation != 0) text << " ?" << unsigned{written.failing_allocation};
  if (written.joins) text << " &";
  if (written.passes != 0) text << " @" << std::hex << written.passes;
  return text.str();
}

std::string to_text(program const& written) {
  program const usual;
  std::ostringstream text;
  for (option const& each : options) {
    if (each.flag != nullptr) {
      if (written.*(each.flag)) text << ' ' << each.name;
    } else if (bool const is_first = each.number == &program::seed;
               is_first || written.*(each.number) != usual.*(each.number)) {
      text << (is_first ? "" : " ") << each.name << ' ' << written.*(each.number);
    }
  }
  text << '\n';
  for (operation const& each : written.operations) text << to_text(each) << '\n';
  return text.str();
}

program read_program(std::string_view text) {
  program read;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line.substr(0, line.find('#')));
    for (std::string part; std::getline(parts, part, ';');)
      if (!read_options(read, part)) read.operations.push_back(read_operation(part));
  }
  return read;
}

std::string name_of(situation met) {
  std::string_view name = situation_list;
  for (auto i = static_cast<std::size_t>(met); i != 0; --i) name.remove_prefix(name.find(' ') + 1);
  std::string words(name.substr(0, name.find(',')));
  std::ranges::replace(words, '_', ' ');
  return words;
}

void run_counts::add(run_counts const& other) {
  programs += other.programs;
  steps += other.steps;
  kernels += other.kernels;
  things += other.things;
  for (std::size_t i = 0; i < op_count; ++i) {
    for (std::size_t k = 0; k < operations[i].size(); ++k)
      operations[i][k] += other.operations[i][k];
  }
  for (std::size_t i = 0; i < situation_count; ++i) situations[i] += other.situations[i];
  groups += other.groups;
}

std::string to_text(run_counts const& counted) {
  std::ostringstream text;
  text << counted.programs << " programs, " << counted.steps << " single steps, " << counted.kernels
       << " kernels run, " << counted.things << " things, " << counted.groups
       << " groups of operations that ran together\n"
       << std::left << std::setw(20) << "operation" << std::right;
  for (char const* const each : {"done", "refused", "exhausted", "failed", "skipped"})
    text << std::setw(10) << each;
  text << '\n';
  for (std::size_t i = 0; i < op_count; ++i) {
    text << std::left << std::setw(20) << spec_of(static_cast<op>(i)).name << std::right;
    for (std::uint64_t const each : counted.operations[i]) text << std::setw(10) << each;
    text << '\n';
  }
  for (std::size_t i = 0; i < situation_count; ++i)
    text << std::setw(10) << counted.situations[i] << "  " << name_of(static_cast<situation>(i))
         << '\n';
  return text.str();
}

}  // namespace escrow::test
