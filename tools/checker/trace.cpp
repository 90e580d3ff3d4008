// SPDX-License-Identifier: Apache-2.0
// Names for people: of functions, of memory, and of what an execution did.
#include <cxxabi.h>
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "engine.hpp"
#include "trace.hpp"

namespace escrow::model {

namespace {

// Without parameters, template arguments and the type returned.
std::string shortened(std::string_view full) {
  std::string kept;
  int depth = 0;
  for (char const each : full) {
    if (each == '<') ++depth;
    if (depth == 0 && each == '(' && !kept.empty()) break;
    if (depth == 0) kept += each;
    if (each == '>') --depth;
  }
  std::size_t const space = kept.rfind(' ');
  if (space != std::string::npos) kept.erase(0, space + 1);
  // Inline namespaces have a version as their name.
  static std::regex const namespaces("^(escrow::)?(v[0-9_]+::)?(boost::lockfree::)?(detail::)?");
  kept = std::regex_replace(kept, namespaces, "", std::regex_constants::format_first_only);
  return kept.empty() ? std::string(full) : kept;
}

std::string resolved(void const* caller) {
  Dl_info found{};
  if (::dladdr(caller, &found) == 0 || found.dli_sname == nullptr) return "a local function";
  int status = 0;
  char* const full = abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status);
  std::string const name = status == 0 ? shortened(full) : std::string(found.dli_sname);
  std::free(full);
  return name;
}

}  // namespace

std::string const& function_at(void const* caller) {
  static auto& names = *new std::unordered_map<void const*, std::string>;
  auto const found = names.find(caller);
  return found != names.end() ? found->second
                              : names.emplace(caller, resolved(caller)).first->second;
}

char const* name_of(std::memory_order order) noexcept {
  constexpr std::array<char const*, 6> names{"relaxed", "acquire", "acquire",
                                             "release", "acq_rel", "seq_cst"};
  return names[static_cast<std::size_t>(order)];
}

std::string engine::name_at(std::uintptr_t where) const {
  // What was named later is a part of what was named before.
  for (auto each = names_.rbegin(); each != names_.rend(); ++each) {
    if (where - each->where >= each->size) continue;
    std::string name = each->name;
    if (where != each->where) name.append("+").append(std::to_string(where - each->where));
    return name;
  }
  return heap_.has(reinterpret_cast<void const*>(where)) ? "the heap" : "a static";
}

void const* engine::place_of(void const* caller) {
  auto const& calls = self().calls;
  for (std::size_t depth = calls.size(); depth > 0 && function_at(caller).starts_with("std::");) {
    caller = calls[--depth];
  }
  return caller;
}

std::memory_order engine::order_at(void const* caller, location const& where, char const* operation,
                                   std::memory_order order) {
  if (!how_.lists_sites && !how_.planted) return order;
  caller = place_of(caller);
  std::uint64_t const key = mixed(reinterpret_cast<std::uintptr_t>(caller),
                                  mixed(where.where, static_cast<std::uint64_t>(order)));
  if (auto const known = orders_.find(key); known != orders_.end()) return known->second;
  site const here{function_at(caller), name_at(where.where), operation, order};
  if (how_.lists_sites) result_.sites.insert(here);
  bool const is_planted = how_.planted && !(here < how_.planted->at) && !(how_.planted->at < here);
  return orders_.emplace(key, is_planted ? how_.planted->to : order).first->second;
}

void engine::trace(void const* caller, std::string const& operation, std::uintptr_t where,
                   std::string const& how) {
  if (!is_traced_) return;
  std::array<char, 200> line{};
  static_cast<void>(std::snprintf(line.data(), line.size(), "  %4zu %-12s %-17s %-18s %-40s %s\n",
                                  steps_, self().name.c_str(), operation.c_str(),
                                  name_at(where).c_str(), how.c_str(),
                                  function_at(place_of(caller)).c_str()));
  trace_ += line.data();
}

void engine::fail(std::string const& what) {
  if (result_.error.empty()) result_.error = what;
}

std::string engine::describe_waiting() {
  std::string text;
  for (std::size_t i = 0; i < count_; ++i) {
    model_thread const& each = *threads_[i];
    constexpr std::array<char const*, 8> what{
        "can go on", "wants a lock", "sleeps", "sleeps until a time",
        "spins",     "rests",        "joins",  "has ended"};
    text += " " + each.name + " " + what[static_cast<std::size_t>(each.now)];
    if (each.object != 0) text += " at " + name_at(each.object);
    text += ";";
  }
  return text;
}

// The same way once more, this time written down.
void engine::describe_failure(options const& how) {
  std::string const error = result_.error;
  trace_.clear();
  is_traced_ = true;
  way_.begin_again();
  static_cast<void>(run_once());
  is_traced_ = false;
  if (result_.error != error) result_.error = error + " (and then: " + result_.error + ")";
  result_.trace = "   step thread       operation         where\n" + trace_ + "  " + result_.error;
  if (how.random != 0) {
    result_.trace += "\n  to repeat: ESCROW_MODEL_SEED=" + std::to_string(result_.seed) +
                     " and this program with --gtest_filter=<this test>";
  }
}

}  // namespace escrow::model
