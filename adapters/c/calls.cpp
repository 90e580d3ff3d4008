// SPDX-License-Identifier: Apache-2.0
// Errors of the C API, the worker, and what the functions share.
#include "calls.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string_view>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/version.hpp"
#include "without_place.hpp"

namespace escrow::inline v0_2 {

namespace {

static_assert(ESCROW_C_VERSION ==
              10000 * ESCROW_VERSION_MAJOR + 100 * ESCROW_VERSION_MINOR + ESCROW_VERSION_PATCH);

// Memory of its own: an error of the heap is kept, too.
struct last_error {
  std::array<char, 2048> text{};
  cudaError_t cuda_error = cudaSuccess;
  bool took_object = false;
};
thread_local last_error last;

// Where the next call is.
struct next_caller {
  char const* file = nullptr;
  std::uint_least32_t line = 0;
};
thread_local next_caller next;

void keep(char const* function, source_location where, c_failure failure,
          char const* text) noexcept {
  std::array<char, 2048>& to = last.text;
  std::size_t used = 0;
  auto const append = [&](std::string_view part) {
    used += part.copy(to.data() + used, to.size() - 1 - used);
  };
  if (where.line() != 0) {
    std::array<char, 16> line{};
    static_cast<void>(std::snprintf(line.data(), line.size(), ":%u: ", where.line()));
    append(where.file_name());
    append(line.data());
  }
  if (!std::string_view(text).starts_with(function)) {
    append(function);
    append(": ");
  }
  append(text);
  to[used] = '\0';
  last.cuda_error = failure.cuda_error;
  last.took_object = false;
}

}  // namespace

c_failure failure_of(std::exception const& error) noexcept {
  if (auto const* const failed = dynamic_cast<cuda_error const*>(&error)) {
    return {ESCROW_CUDA_ERROR, failed->status()};
  }
  if (dynamic_cast<usage_error const*>(&error) != nullptr) return {ESCROW_USAGE_ERROR};
  if (dynamic_cast<pool_exhausted const*>(&error) != nullptr) return {ESCROW_EXHAUSTED};
  if (dynamic_cast<group_busy const*>(&error) != nullptr) return {ESCROW_GROUP_BUSY};
  if (dynamic_cast<std::bad_alloc const*>(&error) != nullptr) return {ESCROW_OUT_OF_HOST_MEMORY};
  return {};
}

source_location take_caller(char const* function) noexcept {
  if (next.file == nullptr) return {};
  auto const [file, line] = std::exchange(next, {});
  return source_location::current(file, function, line);
}

escrow_status keep_failure(char const* function, source_location where) noexcept {
  try {
    throw;
  } catch (std::exception const& error) {
    c_failure const failure = failure_of(error);
    keep(function, where, failure, without_place(error));
    return failure.status;
  } catch (...) {
    keep(function, where, {}, "an exception of an unknown type");
    return ESCROW_UNKNOWN_ERROR;
  }
}

void print_last_error() noexcept {
  static_cast<void>(std::fprintf(stderr, "escrow: %s\n", last.text.data()));
}

void note_taken() noexcept {
  last.took_object = true;
}

void c_call::refuse_capturing(cudaStream_t stream) const {
  if (usable_capture_of(function, stream).is_none()) return;
  refuse("stream", "is being captured", "call it after the capture, or with another stream");
}

escrow_options c_call::options(escrow_options const* given) const {
  escrow_options known{};
  if (given == nullptr) return known;
  if (given->size < sizeof known.size || given->size > sizeof known ||
      given->size % alignof(escrow_options) != 0) {
    refuse("options->size", "is not the size of a known version",
           "set it to sizeof(escrow_options), with a header that is no newer than the library");
  }
  std::memcpy(&known, given, given->size);
  return known;
}

std::vector<cudaGraph_t> c_call::bodies(cudaGraph_t const* given, std::size_t count) const {
  if (count == 0) return {};
  return {&need(given, "bodies"), given + count};
}

void c_call::copy_text(std::string const& from, char* text, std::size_t capacity,
                       std::size_t* length) const {
  std::size_t& total = need(length, "length");
  if (capacity != 0) {
    char* const to = &need(text, "text");
    to[from.copy(to, capacity - 1)] = '\0';
  }
  total = from.size();
}

pool_options pool_options_of(c_call by, int device, escrow_options const& given) {
  pool_options result;
  result.device = device;
  if (given.slots_max != 0) result.slots_max = given.slots_max;
  result.host_wait_max = time_of(given.host_wait_max_ns);
  if (given.capture_wait_max_ns != 0) result.capture_wait_max = time_of(given.capture_wait_max_ns);
  if (given.label != nullptr) result.label = given.label;
  if (given.group != nullptr) result.group = by.need(given.group, "options->group").held;
  result.track_leases = given.track_leases != 0;
  result.streams_outlive_pool = given.streams_outlive_pool != 0;
  if (given.reclaim_wait_max_ns != 0) result.reclaim_wait_max = time_of(given.reclaim_wait_max_ns);
  result.host_ordered = given.host_ordered != 0;
  result.held_until_closed = given.held_until_closed != 0;
  return result;
}

}  // namespace escrow::inline v0_2

using namespace escrow;

int escrow_version() {
  return ESCROW_C_VERSION;
}

char const* escrow_last_error() {
  return last.text.data();
}

cudaError_t escrow_last_cuda_error() {
  return last.cuda_error;
}

bool escrow_last_error_took_object() {
  return last.took_object;
}

void escrow_set_caller(char const* file, int line) {
  next = {line > 0 ? file : nullptr, static_cast<std::uint_least32_t>(line)};
}
