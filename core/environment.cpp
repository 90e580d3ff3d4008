// SPDX-License-Identifier: Apache-2.0
// The variables that Escrow reads.
#include "escrow/internal/environment.hpp"

#include <array>
#include <cstdlib>
#include <string_view>

// There if the simulated runtime is linked in the runtime's place.
extern "C" [[gnu::weak, gnu::visibility("hidden")]] char const escrow_simulated_runtime;
extern "C" [[gnu::weak, gnu::visibility("hidden")]] unsigned long long
escrow_simulated_steps() noexcept;
extern "C" [[gnu::weak, gnu::visibility("hidden")]] unsigned long long
escrow_simulated_eager_work() noexcept;
extern "C" [[gnu::weak, gnu::visibility("hidden")]] void escrow_simulated_destroys(
    cudaEvent_t ready) noexcept;
extern "C" [[gnu::weak, gnu::visibility("hidden")]] void escrow_simulated_reclaims(
    int begins) noexcept;
extern "C" [[gnu::weak, gnu::visibility("hidden")]] void escrow_simulated_lease(
    int what, void const* memory, unsigned long long bytes, cudaStream_t stream) noexcept;
extern "C" [[gnu::weak, gnu::visibility("hidden")]] void escrow_simulated_last_invalidation(
    char* text, unsigned long long bytes) noexcept;

namespace escrow::inline v0_2::environment {

namespace {

std::string_view value_of(char const* name) noexcept {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): beside nothing of Escrow's that sets it.
  char const* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

thread_local std::uint64_t not_counted = 0;

}  // namespace

audits asked_audits() noexcept {
  static audits const asked = [] {
    std::string_view const value = value_of("ESCROW_AUDIT");
    if (value.empty()) return audits::by_default;
    return value == "0" ? audits::off : audits::on;
  }();
  return asked;
}

bool asks_guards() noexcept {
  static bool const asks = is_simulated() && value_of("ESCROW_MEMORY") == "apart";
  return asks;
}

bool is_reuse_late() noexcept {
  static bool const is_late = value_of("ESCROW_REUSE") == "late";
  return is_late;
}

bool is_memory_reused_late() noexcept {
  // What is apart and free has closed pages: the later it is claimed, the more they tell.
  static bool const is_late =
      is_reuse_late() || (value_of("ESCROW_REUSE").empty() && asks_guards());
  return is_late;
}

bool asks_runtime_calls() noexcept {
  static bool const asks = [] {
    std::string_view const value = value_of("ESCROW_RUNTIME_CALLS");
    return !value.empty() && value != "0";
  }();
  return asks;
}

bool is_simulated() noexcept {
  return &escrow_simulated_runtime != nullptr;
}

std::uint64_t simulated_steps() noexcept {
  return &escrow_simulated_steps != nullptr ? escrow_simulated_steps() : 0;
}

void simulated_destroys(cudaEvent_t ready) noexcept {
  if (&escrow_simulated_destroys != nullptr) escrow_simulated_destroys(ready);
}

void simulated_reclaims(bool begins) noexcept {
  if (&escrow_simulated_reclaims != nullptr) escrow_simulated_reclaims(begins ? 1 : 0);
}

void simulated_lease(lease_event what, void const* memory, std::size_t bytes,
                     cudaStream_t stream) noexcept {
  if (&escrow_simulated_lease != nullptr)
    escrow_simulated_lease(static_cast<int>(what), memory, bytes, stream);
}

std::string last_invalidation() {
  if (&escrow_simulated_last_invalidation == nullptr)
    return "on the simulated runtime errors name that call";
  std::array<char, 256> text{};
  escrow_simulated_last_invalidation(text.data(), text.size());
  return std::string("the last such call was ") + text.data();
}

std::uint64_t eager_work() noexcept {
  if (&escrow_simulated_eager_work == nullptr) return 0;
  return escrow_simulated_eager_work() - not_counted;
}

uncounted_work::~uncounted_work() {
  not_counted += eager_work() - before_;
}

}  // namespace escrow::inline v0_2::environment
