// SPDX-License-Identifier: Apache-2.0
// The whole demo: every policy at three budgets, policies that a user writes, layouts and checks. ./tools/demo.sh
// --full runs it.
#include "checks.hpp"
#include "options.hpp"

int main(int count, char** arguments) {
  demo::program which{.about = "kvpolicy's demo: what each policy keeps, costs and loses on a small decoder",
                      .contenders = {demo::full_cache()},
                      .shares = {16, 8, 4},
                      .usual = {.questions = 80, .stretches = 20},
                      .quick = {.questions = 12, .stretches = 3},
                      .everything = true,
                      .written = demo::written,
                      .written_layout = demo::written_layout,
                      .check = demo::checks_pass};
  for (auto const& list : {demo::published_evictions(), demo::more_evictions(), demo::gated(), demo::compositions()}) {
    which.contenders.insert(which.contenders.end(), list.begin(), list.end());
  }
  return demo::run_demo(which, count, arguments);
}
