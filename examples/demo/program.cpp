// SPDX-License-Identifier: Apache-2.0
// What both programs do: settle the options, run the cases, print the table, write the report.
#include "../program.hpp"

#include <fmt/core.h>

#include <optional>

#include "options.hpp"
#include "report.hpp"
#include "run.hpp"

namespace demo {
namespace {

void print_everything(options const& with, std::vector<contender> const& contenders, run const& all, int lanes) {
  fmt::print(
      "tinylm, prompts of {} bytes, {} recall questions, {} stretches of {} bytes, {} at a time{}; a prefill takes "
      "{:.0f} "
      "ms\n\n",
      with.context, with.cases, with.windows, with.length, with.threads,
      with.layout == "compact" ? "" : ", layout " + with.layout, 1e3 * all.prefill_seconds());
  print_table(all.rows(), lanes);
  fmt::print("\nIn brackets: the 95 % Wilson interval of {} answers, in percent.\n\n", with.cases);
  for (contender const& one : contenders) {
    fmt::print("{:<20} {}\n", one.name, one.spell(with.context / with.shares.front(), with.context));
  }
}

void print_small(options const& with, run const& all, int lanes) {
  bool const several = with.shares.size() > 1;
  std::string const budget = several ? "a share" : grouped(with.context / with.shares.front());
  fmt::print(
      "A small trained decoder reads prompts of {} bytes, which are {} entries in each of its {} lanes (a lane\n"
      "is one KV head of one layer). Each policy may keep {} of them; WG-KV keeps about as many.\n\n",
      grouped(with.context), grouped(with.context), lanes, budget);
  print_small_table(all.rows(), lanes, several);
  fmt::print(
      "\n"
      "Recall counts right answers to {0} questions about one of six facts in the prompt; in brackets is the 95 %\n"
      "Wilson interval. In prompt: the question ends the prompt, so a policy sees it before it decides what to keep.\n"
      "Later: the question comes after the policy has decided. Bits/byte is the model's cross-entropy on text that\n"
      "follows {1} other prompts: lower is better. Entries and decode are measured there; a policy that decides once\n"
      "keeps its budget and the {2} bytes that follow. IntentKV takes the prompt for one turn; it drops a token in\n"
      "all lanes at once, and the dead slot replaces its slot, so that no row moves. Policies with gates, and\n"
      "IntentKV, read weights that were trained for this decoder. Every policy at three budgets:\n"
      "./tools/demo.sh --full\n",
      with.cases, with.windows, with.length);
}

int work(program const& of, options const& with) {
  auto const least = static_cast<std::size_t>(with.context + with.length);
  bytes const text = read_text(with.text.empty() ? with.weights + "/held_out.txt" : with.text, least);
  std::optional<examples::output_file> report;  // created first, so that a bad path is refused before the work
  if (!with.report.empty()) report.emplace(with.report, "demo", "--report");
  std::vector<contender> const contenders = chosen_contenders(of, with);
  trained_parts needed;
  for (contender const& one : contenders) {
    needed.gates = needed.gates || one.needs.gates;
    needed.residual = needed.residual || one.needs.residual;
    needed.profile = needed.profile || one.needs.profile;
  }
  auto const files = read_model(with.weights, needed);
  kv::shape const shape = shape_of(*files);
  run all(with, contenders, text);
  all.measure(files);
  if (of.everything) {
    print_everything(with, contenders, all, shape.layers * shape.kv_heads);
  } else {
    print_small(with, all, shape.layers * shape.kv_heads);
  }
  bool const passed = !with.check || of.check(with, all.rows(), text);
  if (report) {
    write_report(**report, with, shape, all);
    fmt::print("\nWhat each policy kept of the text, as a page for a browser: {}\n", with.report);
    examples::flush_standard_output();
    (*report)->commit();
  }
  return passed ? 0 : 1;
}

}  // namespace

int run_demo(program const& which, int count, char** arguments) {
  options with;
  CLI::App app(which.about, "demo");
  add_to(app, which, with);
  return examples::run_program(app, count, arguments, [&] {
    settle(which, with);
    return work(which, with);
  });
}

}  // namespace demo
