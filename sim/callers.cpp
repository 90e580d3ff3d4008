// SPDX-License-Identifier: Apache-2.0
// Prints the functions that a reader of a message knows: his own, and those that he called.
#include "callers.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace escrow::sim::model {
namespace {

thread_local bool is_at_work = false;
thread_local callers const* enqueued_by = nullptr;

// Empty if the dynamic linker does not know it.
std::string function_at(void* frame) {
  Dl_info found{};
  if (::dladdr(frame, &found) == 0 || found.dli_sname == nullptr) return {};
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> const name(
      abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status), &std::free);
  return name != nullptr ? name.get() : found.dli_sname;
}

// "a::f" of "void a::f<int>(int) const": what is between angle brackets is left out.
std::string name_in(std::string_view function) {
  constexpr std::string_view deduced = "decltype(auto) ";
  if (function.starts_with(deduced)) function.remove_prefix(deduced.size());
  std::string name;
  int depth = 0;
  for (char const c : function) {
    if (c == '<') ++depth;
    if (depth == 0 && c == '(' && !name.empty()) break;
    if (depth == 0) name += c;
    if (depth == 0 && c == ' ') name.clear();  // behind what it returns
    if (c == '>') --depth;
  }
  return name;
}

// Of Escrow's functions the name alone, without those inside; others as they are. Empty for what is
// of no use to the reader.
std::string shown(std::string const& function) {
  std::string name = name_in(function);
  for (char const* const each : {"_start", "clone", "clone3"})
    if (name == each) return {};
  for (char const* const each : {"_Z", "std::", "escrow::sim::model::", "__libc_start"})
    if (name.starts_with(each)) return {};
  if (!name.starts_with("escrow::")) return function;
  if (name.find("::detail::") != std::string::npos) return {};
  auto const version = name.find("::v");  // the inline namespace of a release
  if (version != std::string::npos) name.erase(version, name.find("::", version + 1) - version);
  return name;
}

void print(callers const& all, char const* first) {
  std::string last;
  for (std::size_t i = 0; i < all.count; ++i) {
    std::string const text = shown(function_at(all.frames[i]));
    if (text.empty() || text == last) continue;
    std::fprintf(stderr, "  %s %s\n", first, text.c_str());
    first = "called by";
    last = text;
  }
}

}  // namespace

callers callers_here() {
  callers found;
  int const count = ::backtrace(found.frames.data(), static_cast<int>(found.frames.size()));
  found.count = static_cast<std::size_t>(count);
  return found;
}

work_of_callers::work_of_callers(callers const* by) noexcept
    : was_at_work_(std::exchange(is_at_work, true)), outer_(std::exchange(enqueued_by, by)) {}

work_of_callers::~work_of_callers() {
  is_at_work = was_at_work_;
  enqueued_by = outer_;
}

void print_callers() {
  print(callers_here(), "called by");
  if (enqueued_by != nullptr) {
    print(*enqueued_by, "enqueued by");
  } else if (is_at_work) {
    std::fputs("  ESCROW_AUDIT=1 tells who enqueued it\n", stderr);
  }
}

}  // namespace escrow::sim::model
