// SPDX-License-Identifier: Apache-2.0
// lab speed|contexts|growth ...: measures a llama.cpp with whichever ggml-cuda is loaded.
#include "lab.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace lab {

void require(bool is_so, char const* what) {
  if (is_so) return;
  std::printf("{\"failed\": \"%s\"}\n", what);
  std::fflush(stdout);
  std::exit(1);
}

ggml_backend_dev_t device() {
  ggml_backend_dev_t const gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
  return gpu != nullptr ? gpu : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

double free_mib() {
  std::size_t free = 0;
  std::size_t total = 0;
  ggml_backend_dev_memory(device(), &free, &total);
  return static_cast<double>(free) / mebibyte;
}

std::string library() {
  void* const at = dlsym(RTLD_DEFAULT, "ggml_backend_cuda_reg");
  Dl_info info{};
  return at != nullptr && dladdr(at, &info) != 0 ? info.dli_fname : "none";
}

std::uint64_t hash_of(void const* data, std::size_t bytes) {
  std::uint64_t hash = 1469598103934665603U;
  auto const* const at = static_cast<unsigned char const*>(data);
  for (std::size_t i = 0; i < bytes; i += sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + i, std::min(sizeof word, bytes - i));
    hash = (hash ^ word) * 1099511628211U;
    hash ^= hash >> 32;
  }
  return hash;
}

void line::name_it(char const* name) {
  text_ += text_.empty() ? "{" : ", ";
  text_ += '"';
  text_ += name;
  text_ += "\": ";
}

line& line::add(char const* name, double value) {
  name_it(name);
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  text_ += text;
  return *this;
}

line& line::add(char const* name, std::string const& value) {
  name_it(name);
  text_ += '"' + value + '"';
  return *this;
}

line& line::add(char const* name, std::vector<double> const& values) {
  name_it(name);
  char const* before = "[";
  for (double const each : values) {
    char text[32];
    std::snprintf(text, sizeof text, "%s%.10g", before, each);
    text_ += text;
    before = ", ";
  }
  text_ += values.empty() ? "[]" : "]";
  return *this;
}

line& line::add_hash(char const* name, std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return add(name, std::string(text));
}

void line::print() {
  std::printf("%s}\n", text_.c_str());
  std::fflush(stdout);
  text_.clear();
}

llama_model* session::load(char const* path) {
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 99;
  llama_model* const model = llama_model_load_from_file(path, params);
  require(model != nullptr, "the model cannot be loaded");
  return model;
}

session::session(llama_model* model, bool has_flash_attention) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 1024;
  params.n_batch = 2048;
  params.n_ubatch = 512;
  params.flash_attn_type =
      has_flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.no_perf = true;
  context_ = llama_init_from_model(model, params);
  require(context_ != nullptr, "there is no context");
  words_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
}

void session::restart() {
  llama_memory_clear(llama_get_memory(context_), true);
  seed_ = 1;
}

void session::prefill(int count) {
  std::vector<llama_token> tokens(static_cast<std::size_t>(count));
  for (llama_token& each : tokens) each = next();
  int const status = llama_decode(context_, llama_batch_get_one(tokens.data(), count));
  require(status == 0, "llama_decode failed");
}

void session::step() {
  llama_token token = next();
  require(llama_decode(context_, llama_batch_get_one(&token, 1)) == 0, "llama_decode failed");
}

void session::generate(int count) {
  for (int i = 0; i < count; ++i) {
    step();
    synchronize();
  }
}

void session::synchronize() const {
  llama_synchronize(context_);
}

std::uint64_t session::logits() const {
  float const* const values = llama_get_logits_ith(context_, -1);
  require(values != nullptr && std::isfinite(values[0]), "the logits are not finite");
  return hash_of(values, sizeof(float) * static_cast<std::size_t>(words_));
}

void session::free() {
  llama_free(context_);
  context_ = nullptr;
}

llama_token session::next() {
  seed_ = seed_ * 1664525U + 1013904223U;
  return static_cast<llama_token>((seed_ >> 8) % static_cast<unsigned>(words_));
}

namespace {

void log_errors(ggml_log_level level, char const* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

int run(std::string const& what, arguments given) {
  if (what == "speed") return speed(given);
  if (what == "contexts") return contexts(given);
  if (what == "growth") return growth(given);
  require(false, "usage: lab speed|contexts|growth ...");
  return 2;
}

}  // namespace
}  // namespace lab

int main(int argc, char** argv) {
  llama_log_set(lab::log_errors, nullptr);
  ggml_log_set(lab::log_errors, nullptr);
  lab::require(argc >= 2, "usage: lab speed|contexts|growth ...");
  llama_backend_init();
  int const status =
      lab::run(argv[1], lab::arguments(argv + 2, static_cast<std::size_t>(argc - 2)));
  llama_backend_free();
  return status;
}
