// SPDX-License-Identifier: Apache-2.0
// What the lab's programs share: a model's context, counters, and one line of JSON.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace lab {

using arguments = std::span<char const* const>;
int speed(arguments given);
int contexts(arguments given);
int growth(arguments given);

// Ends the program, which says why, if `is_so` is false.
void require(bool is_so, char const* what);

inline double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

constexpr double mebibyte = 1 << 20;

// The GPU, or the CPU where there is none, to try the programs.
ggml_backend_dev_t device();
double free_mib();

// The file of the ggml-cuda that was loaded; "none".
std::string library();

// Of the device, for scratch: by ggml's own pool with virtual memory, or by Escrow.
struct pool_bytes {
  std::int64_t taken = 0;      // also what is kept for later
  std::int64_t in_graphs = 0;  // of Escrow, what graphs hold or share
};
pool_bytes pool();
std::int64_t captures();  // that ggml has begun

std::uint64_t hash_of(void const* data, std::size_t bytes);

// A line of JSON, printed at its end.
class line {
 public:
  line& add(char const* name, double value);
  line& add(char const* name, std::string const& value);
  line& add(char const* name, std::vector<double> const& values);
  line& add_hash(char const* name, std::uint64_t value);
  void print();

 private:
  void name_it(char const* name);
  std::string text_;
};

// A context of a model, and a sequence of tokens that is always the same.
class session {
 public:
  static llama_model* load(char const* path);
  session(llama_model* model, bool has_flash_attention);

  void restart();
  void prefill(int count);
  void step();
  void generate(int count);
  void synchronize() const;
  // Of the last token.
  [[nodiscard]] std::uint64_t logits() const;
  void free();

 private:
  llama_token next();

  llama_context* context_ = nullptr;
  int words_ = 0;
  std::uint32_t seed_ = 1;
};

}  // namespace lab
