// SPDX-License-Identifier: Apache-2.0
// lab growth LIMIT_MIB: captured graphs stay alive while eager ones need more scratch each time.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "ggml-alloc.h"
#include "ggml.h"
#include "lab.hpp"

namespace lab {

namespace {

constexpr int width = 4096;
constexpr int rounds = 12;
constexpr int more_columns = 2048;  // in each round

struct computation {
  ggml_context* context = nullptr;
  ggml_backend_buffer_t buffer = nullptr;
  ggml_cgraph* graph = nullptr;
  ggml_tensor* result = nullptr;
};

// Values that depend on the seed alone.
void fill(ggml_tensor* tensor, std::uint32_t seed) {
  std::vector<std::uint8_t> bytes(ggml_nbytes(tensor));
  auto const next = [&seed] { return (seed = seed * 1664525U + 1013904223U) >> 8; };
  if (tensor->type == GGML_TYPE_Q4_0) {  // blocks: a scale of two bytes, then 32 values
    constexpr std::size_t block = 18;
    ggml_fp16_t const scale = ggml_fp32_to_fp16(0.01F);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i % block == 0) std::memcpy(&bytes[i], &scale, sizeof scale);
      if (i % block >= sizeof scale) bytes[i] = static_cast<std::uint8_t>(next());
    }
  } else {  // the first ones again and again
    std::size_t const first = std::min<std::size_t>(bytes.size(), 1 << 22);
    for (std::size_t i = 0; i < first; i += sizeof(float)) {
      float const value = static_cast<float>(next() % 2001) / 1000.0F - 1.0F;
      std::memcpy(&bytes[i], &value, sizeof value);
    }
    for (std::size_t i = first; i < bytes.size(); i += first) {
      std::memcpy(&bytes[i], bytes.data(), std::min(first, bytes.size() - i));
    }
  }
  ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
}

// `depth` products of quantized weights with `columns` columns: each puts its input, quantized,
// into scratch. The result has `rows` rows.
computation products(ggml_backend_t backend, int columns, int depth, int rows) {
  computation made;
  auto const tensors = static_cast<std::size_t>(8 + 4 * depth);
  made.context =
      ggml_init({ggml_tensor_overhead() * tensors + ggml_graph_overhead(), nullptr, true});
  ggml_tensor* const input = ggml_new_tensor_2d(made.context, GGML_TYPE_F32, width, columns);
  std::vector<ggml_tensor*> weights;
  made.result = input;
  for (int i = 0; i < depth; ++i) {
    bool const is_last = i + 1 == depth;
    weights.push_back(
        ggml_new_tensor_2d(made.context, GGML_TYPE_Q4_0, width, is_last ? rows : width));
    made.result = ggml_mul_mat(made.context, weights.back(), made.result);
    if (!is_last) made.result = ggml_rms_norm(made.context, made.result, 1e-5F);
  }
  made.graph = ggml_new_graph(made.context);
  ggml_build_forward_expand(made.graph, made.result);
  made.buffer = ggml_backend_alloc_ctx_tensors(made.context, backend);
  require(made.buffer != nullptr, "there is no memory for tensors");
  std::uint32_t seed = 100;
  for (ggml_tensor* const each : weights) fill(each, ++seed);
  fill(input, 7);
  return made;
}

void compute(ggml_backend_t backend, computation const& what) {
  ggml_status const status = ggml_backend_graph_compute_async(backend, what.graph);
  require(status == GGML_STATUS_SUCCESS, "a graph was not computed");
}

std::uint64_t result_of(computation const& what) {
  std::vector<float> values(static_cast<std::size_t>(ggml_nelements(what.result)));
  std::size_t const bytes = values.size() * sizeof(float);
  ggml_backend_tensor_get(what.result, values.data(), 0, bytes);
  require(std::isfinite(values.front()) && std::isfinite(values.back()), "a result is not finite");
  return hash_of(values.data(), bytes);
}

// Captured after the first run, and launched once.
std::uint64_t capture(ggml_backend_t backend, computation const& what) {
  for (int i = 0; i < 3; ++i) {
    compute(backend, what);
    ggml_backend_synchronize(backend);
  }
  return result_of(what);
}

// Leaves only `limit` MiB of the device; null if there is no limit.
ggml_backend_buffer_t take_all_but(ggml_backend_t backend, double limit) {
  double const spare = free_mib() - limit;
  if (limit <= 0 || spare <= 0) return nullptr;
  auto const bytes = static_cast<std::size_t>(spare * mebibyte);
  ggml_backend_buffer_t const taken = ggml_backend_alloc_buffer(backend, bytes);
  require(taken != nullptr, "the device's memory cannot be taken");
  return taken;
}

void free(std::vector<computation> const& all) {
  for (computation const& each : all) {
    ggml_backend_buffer_free(each.buffer);
    ggml_free(each.context);
  }
}

}  // namespace

int growth(arguments given) {
  require(given.size() == 1, "usage: lab growth LIMIT_MIB");
  ggml_backend_t const backend = ggml_backend_dev_init(device(), nullptr);
  require(backend != nullptr, "there is no backend");
  std::vector<computation> kept;
  for (int i = 2; i < 6; ++i) kept.push_back(products(backend, 512 * i, 3, width));
  std::vector<computation> growing;
  for (int i = 1; i <= rounds; ++i) growing.push_back(products(backend, more_columns * i, 1, 32));
  std::vector<std::uint64_t> expected;
  for (computation const& each : kept) expected.push_back(capture(backend, each));
  std::vector<computation> const first = {products(backend, more_columns, 1, 32)};
  compute(backend, first.front());  // loads the kernels before memory is short
  ggml_backend_synchronize(backend);
  ggml_backend_buffer_t const taken = take_all_but(backend, std::atof(given[0]));

  double const before = static_cast<double>(captures());
  int wrong = 0;
  std::vector<double> milliseconds;
  std::int64_t peak = 0;
  for (computation const& each : growing) {
    double const begin = now();
    compute(backend, each);
    for (computation const& again : kept) compute(backend, again);
    ggml_backend_synchronize(backend);
    milliseconds.push_back(1e3 * (now() - begin));
    peak = std::max(peak, pool().taken);
    result_of(each);
    for (std::size_t i = 0; i < kept.size(); ++i) wrong += result_of(kept[i]) != expected[i];
  }
  line said;
  said.add("library", library()).add("rounds", milliseconds.size()).add("wrong", wrong);
  said.add("recaptures", static_cast<double>(captures()) - before);
  said.add("peak_mib", static_cast<double>(peak) / mebibyte).add("ms", milliseconds);
  said.print();
  ggml_backend_buffer_free(taken);
  for (auto const& each : {kept, growing, first}) free(each);
  ggml_backend_free(backend);
  return 0;
}

}  // namespace lab
