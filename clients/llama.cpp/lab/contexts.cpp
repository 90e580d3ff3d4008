// SPDX-License-Identifier: Apache-2.0
// lab contexts MODEL COUNT FLASH_ATTENTION STEPS: memory and speed of several contexts of one
// model.
#include <cstdlib>
#include <thread>

#include "lab.hpp"

namespace lab {

namespace {

// One thread: a token of each context in turn, without a wait between them.
void run_in_turn(std::vector<session>& all, int steps) {
  for (int i = 0; i < steps; ++i) {
    for (session& each : all) each.step();
    for (session& each : all) each.synchronize();
  }
}

// A thread for each context, at the same time.
void run_at_once(std::vector<session>& all, int steps) {
  std::vector<std::jthread> threads;
  for (session& each : all) threads.emplace_back([&each, steps] { each.generate(steps); });
}

template <class Work>
double seconds(Work const& work) {
  double const begin = now();
  work();
  return now() - begin;
}

int count_other_logits(std::vector<session> const& all) {
  int other = 0;
  for (session const& each : all) other += each.logits() != all.front().logits() ? 1 : 0;
  return other;
}

}  // namespace

int contexts(arguments given) {
  require(given.size() == 4, "usage: lab contexts MODEL COUNT FLASH_ATTENTION STEPS");
  llama_model* const model = session::load(given[0]);
  int const count = std::atoi(given[1]);
  int const steps = std::atoi(given[3]);
  std::vector<session> all;
  for (int i = 0; i < count; ++i) all.emplace_back(model, std::atoi(given[2]) != 0);
  double const free_before = free_mib();
  for (session& each : all) {
    each.restart();
    each.prefill(512);
    each.generate(16);
  }
  int wrong = count_other_logits(all);
  run_in_turn(all, 8);
  double const in_turn = seconds([&] { run_in_turn(all, steps); });
  double const at_once = seconds([&] { run_at_once(all, steps); });
  wrong += count_other_logits(all);
  line said;
  said.add("library", library());
  said.add("in_turn", count * steps / in_turn).add("at_once", count * steps / at_once);
  said.add_hash("logits", all.front().logits());
  said.add("pool_mib", static_cast<double>(pool().taken) / mebibyte);
  said.add("in_graphs_mib", static_cast<double>(pool().in_graphs) / mebibyte);
  said.add("device_mib", free_before - free_mib()).add("captures", static_cast<double>(captures()));
  said.add("wrong", wrong);
  said.print();
  for (session& each : all) each.free();
  llama_model_free(model);
  return 0;
}

}  // namespace lab
