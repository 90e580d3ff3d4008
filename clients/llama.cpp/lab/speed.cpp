// SPDX-License-Identifier: Apache-2.0
// lab speed MODEL FLASH_ATTENTION: a round for each line of standard input, so that several
// programs take turns.
#include <cstdlib>
#include <iostream>

#include "lab.hpp"

namespace lab {

namespace {

constexpr int prompt = 512;
constexpr int answer = 128;
constexpr int short_answer = 32;

// Tokens a second, of `count` tokens by `work` from an empty context.
template <class Work>
double rate(session& in, int count, Work const& work) {
  in.restart();
  in.synchronize();
  double const begin = now();
  work();
  in.synchronize();
  return count / (now() - begin);
}

double prefill_rate(session& in) {
  return rate(in, prompt, [&] { in.prefill(prompt); });
}

double decode_rate(session& in) {
  return rate(in, answer, [&] { in.generate(answer); });
}

// As a server: the shapes change, so that graphs are captured again.
double mixed_rate(session& in) {
  return rate(in, prompt + short_answer, [&] {
    in.prefill(prompt);
    in.generate(short_answer);
  });
}

template <class Rate>
std::vector<double> several(int times, Rate const& measure) {
  std::vector<double> all;
  for (int i = -1; i < times; ++i) {  // the first one warms up
    double const each = measure();
    if (i >= 0) all.push_back(each);
  }
  return all;
}

void measure(session& in) {
  line said;
  said.add("prefill", several(6, [&] { return prefill_rate(in); }));
  said.add_hash("prefill_logits", in.logits());
  said.add("decode", several(3, [&] { return decode_rate(in); }));
  said.add_hash("decode_logits", in.logits());
  said.add("mixed", several(3, [&] { return mixed_rate(in); }));
  said.add_hash("mixed_logits", in.logits());
  said.add("captures", static_cast<double>(captures()));
  said.add("pool_mib", static_cast<double>(pool().taken) / mebibyte);
  said.print();
}

}  // namespace

int speed(arguments given) {
  require(given.size() == 2, "usage: lab speed MODEL FLASH_ATTENTION");
  llama_model* const model = session::load(given[0]);
  session in(model, std::atoi(given[1]) != 0);
  prefill_rate(in);
  decode_rate(in);
  line().add("library", library()).print();
  for (std::string order; std::getline(std::cin, order);) measure(in);
  in.free();
  llama_model_free(model);
  return 0;
}

}  // namespace lab
