// SPDX-License-Identifier: Apache-2.0
// The command lines: what is offered, and what is refused before any work.
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>
#include <kvpolicy/core/contract/error.hpp>

#include "../program.hpp"

namespace demo {
namespace {

/// Adds the options of the whole table. The small program knows them too, so that it can say which command has them.
void add_options_of_everything(CLI::App& app, program const& of, options& to) {
  auto const refused = [everything = of.everything](std::string const& option) {
    return [=](std::string const& value) {
      kv::expects(everything, "demo", option, value,
                  [&] { return "this program has seven policies and one table: ./tools/demo.sh --full " + option; });
    };
  };
  std::string const group = of.everything ? "Options" : "";  // CLI11 hides an empty group
  app.add_flag("--full", to.full, "run the whole table")
      ->group("")
      ->each([everything = of.everything](std::string const&) {
        kv::expects(everything, "demo", "--full", "given",
                    "this program has seven policies and one table: ./tools/demo.sh --full");
      });
  app.add_flag("--check", to.check,
               "measure the model and the separation of policies against their bounds; exit 1 if one fails")
      ->group(group)
      ->each([=](std::string const&) { refused("--check")("given"); });
  app.add_option("--policy", to.specs,
                 "a policy of your own, as \"snapkv(window=16, pool=max:15) | sinks(4) | budget(64)\"; repeatable")
      ->group(group)
      ->each(refused("--policy"));
  app.add_option("--plugin", to.plugins, "a shared library with parts of your own for --policy; repeatable")
      ->group(group)
      ->each(refused("--plugin"));
  app.add_option("--layout", to.layout, "compact, list_rewrite, dead_slot, mask, overwrite or a plugin's")
      ->group(group)
      ->each(refused("--layout"));
}

/// The paths of all files in a folder of weights.
std::vector<std::string> files_of_weights(std::string const& folder) {
  return {folder + "/weights.safetensors", folder + "/write_gate.safetensors", folder + "/retention_gate.safetensors",
          folder + "/held_out.txt"};
}

void check_budgets(options const& with) {
  for (int const share : with.shares) {
    kv::expects(share >= 1, "demo", "--shares", share, "a context is divided by at least 1");
    kv::expects(with.context / share > 16, "demo", "--shares", share, [&] {
      return "a budget of " + std::to_string(with.context / share) + " does not hold the window of 16";
    });
  }
}

void check_names(program const& of, options const& with) {
  for (std::string const& name : with.policies) {
    bool const there =
        std::any_of(of.contenders.begin(), of.contenders.end(), [&](contender const& one) { return one.name == name; });
    kv::expects(there, "demo", "--policies", name, [&] {
      std::string names;
      for (contender const& one : of.contenders) names += (names.empty() ? "" : ", ") + one.name;
      return "there are " + names + (of.everything ? "" : "; ./tools/demo.sh --full has more");
    });
  }
}

}  // namespace

void add_to(CLI::App& app, program const& of, options& to) {
  std::string const few = std::to_string(of.quick.questions) + " questions and " + std::to_string(of.quick.stretches);
  app.add_flag("--quick", to.quick, "fewer cases: " + few + " stretches of text");
  app.add_flag("--far", to.far, "ask only for facts at least three quarters of the context away");
  examples::add_output_option(app, "--report", to.report, "write what was measured and kept into this HTML file");
  app.add_option("--docs", to.docs, "where the page's link to the documentation leads");
  app.add_option("--text", to.text, "take prompts from this file instead of the held-out text");
  app.add_option("--weights", to.weights, "folder with weights.safetensors, the gates and held_out.txt");
  app.add_option("--policies", to.policies, "only these, separated by commas")->delimiter(',');
  app.add_option("--shares", to.shares, "budgets: the context divided by each of these")->delimiter(',');
  app.add_option("--context", to.context, "bytes of a prompt");
  app.add_option("--cases", to.cases, "recall questions; " + std::to_string(of.usual.questions) + " if not given");
  app.add_option("--windows", to.windows, "stretches of text; " + std::to_string(of.usual.stretches) + " if not given");
  app.add_option("--length", to.length, "bytes that continue a stretch");
  app.add_option("--threads", to.threads, "prompts that run side by side, each on a thread of its own");
  app.add_option("--progress", to.progress,
                 "seconds between two lines of progress, where standard error is no terminal");
  app.add_option("--seed", to.seed, "which cases");
  add_options_of_everything(app, of, to);
  if (!of.everything) {
    app.footer("Every policy at three budgets, policies of your own, layouts and checks: ./tools/demo.sh --full");
  }
}

void settle(program const& of, options& with) {
  case_counts const counts = with.quick ? of.quick : of.usual;
  if (with.cases < 0) with.cases = counts.questions;
  if (with.windows < 0) with.windows = counts.stretches;
  if (with.shares.empty()) with.shares = of.shares;
  kv::expects(with.context >= 256 && with.context <= 4096, "demo", "--context", with.context,
              "a prompt has 256 to 4096 bytes");
  kv::expects(with.length >= 1 && with.length <= 1024, "demo", "--length", with.length,
              "a continuation has 1 to 1024 bytes");
  kv::expects(with.threads >= 1 && with.threads <= 256, "demo", "--threads", with.threads, "1 to 256 threads");
  kv::expects(with.progress >= 0, "demo", "--progress", with.progress, "a time is at least 0");
  examples::expect_no_input("demo", "--report", with.report, files_of_weights(with.weights));
  examples::expect_no_input("demo", "--report", with.report, {with.text});
  examples::expect_no_input("demo", "--report", with.report, with.plugins);
  check_budgets(with);
  if (!is_layout(with.layout) && of.written_layout) with.own = of.written_layout(with);
  kv::expects(is_layout(with.layout) || with.own.there(), "demo", "--layout", with.layout,
              "there are compact, list_rewrite, dead_slot, mask and overwrite");
  for (std::string const& spec : with.specs) (void)of.written(with, spec, "");
  bool const full = with.policies.empty() || !with.specs.empty() ||
                    std::count(with.policies.begin(), with.policies.end(), "full") > 0;
  kv::expects(!with.check || (full && with.cases > 0), "demo", "--check", "without full or without cases",
              "its bounds are shares of the full cache's recall");
  check_names(of, with);
}

std::vector<contender> chosen_contenders(program const& of, options const& with) {
  std::vector<contender> chosen;
  for (contender const& one : of.contenders) {
    bool const named = std::count(with.policies.begin(), with.policies.end(), one.name) > 0;
    bool const reference = !with.specs.empty() && one.name == "full";
    if (named || reference || (with.policies.empty() && with.specs.empty())) chosen.push_back(one);
  }
  for (std::size_t i = 0; i < with.specs.size(); ++i) {
    chosen.push_back(of.written(with, with.specs[i], i == 0 ? "yours" : "yours " + std::to_string(i + 1)));
  }
  return chosen;
}

bytes read_text(std::string const& path, std::size_t least) {
  std::ifstream file(path, std::ios::binary);
  kv::expects(file.good(), "demo", "--text", path, "it cannot be read");
  bytes all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  kv::expects(all.size() >= least, "demo", "--text", path, [&] {
    return "it has " + std::to_string(all.size()) + " bytes and a prompt with its continuation " +
           std::to_string(least);
  });
  return all;
}

}  // namespace demo
