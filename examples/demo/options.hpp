// The demo's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <kvpolicy/core/error.hpp>
#include <string>
#include <vector>

#include "../program.hpp"
#include "chosen.hpp"
#include "tasks.hpp"

namespace demo {

struct options {
  bool quick = false;
  bool check = false;
  bool far = false;
  std::string report;  ///< the HTML file to write; empty: none
  std::string text;
  std::string weights = TINYLM_WEIGHTS_DIR;
  std::vector<std::string> policies;
  std::vector<std::string> specs;  ///< policies that the user wrote
  std::string layout = "compact";
  tinylm::layout lay = tinylm::layout::compact;
  std::vector<int> shares{16, 8, 4};  ///< a budget is the context over one of these
  int context = 1024;
  int cases = -1;
  int windows = -1;
  int length = 64;  ///< bytes of a continuation
  int threads = 2;
  std::uint64_t seed = 7;
};

inline void add_to(CLI::App& app, options& to) {
  app.add_flag("--quick", to.quick, "fewer cases: under a minute on two cores");
  app.add_flag("--check", to.check,
               "measure the model and the separation of policies against their bounds; exit 1 if one fails");
  app.add_flag("--far", to.far, "ask only for facts at least three quarters of the context away");
  examples::add_output_option(app, "--report", to.report, "write what was measured and kept into this HTML file");
  app.add_option("--text", to.text, "take prompts from this file instead of the held-out text");
  app.add_option("--weights", to.weights, "folder with weights.safetensors, the gates and held_out.txt");
  app.add_option("--policies", to.policies, "only these, separated by commas")->delimiter(',');
  app.add_option("--policy", to.specs,
                 "a policy of your own, as \"snapkv(window=16, pool=max:15) | sinks(4) | budget(64)\"; repeatable");
  app.add_option("--layout", to.layout, "compact, list_rewrite, dead_slot, mask or overwrite");
  app.add_option("--shares", to.shares, "budgets: the context divided by each of these")->delimiter(',');
  app.add_option("--context", to.context, "bytes of a prompt");
  app.add_option("--cases", to.cases, "recall questions");
  app.add_option("--windows", to.windows, "stretches of text");
  app.add_option("--length", to.length, "bytes that continue a stretch");
  app.add_option("--threads", to.threads, "threads of the model and of the policies");
  app.add_option("--seed", to.seed, "which cases");
}

/// The paths of all files in a folder of weights.
[[nodiscard]] inline std::vector<std::string> files_of_weights(std::string const& folder) {
  return {folder + "/weights.safetensors", folder + "/write_gate.safetensors", folder + "/retention_gate.safetensors",
          folder + "/held_out.txt"};
}

/// Sets the defaults that depend on other options, and makes all checks that need no work.
inline void settle(options& with) {
  if (with.cases < 0) with.cases = with.quick ? 12 : 80;
  if (with.windows < 0) with.windows = with.quick ? 3 : 20;
  kv::expects(with.context >= 256 && with.context <= 4096, "demo", "--context", with.context,
              "a prompt has 256 to 4096 bytes");
  kv::expects(with.length >= 1 && with.length <= 1024, "demo", "--length", with.length,
              "a continuation has 1 to 1024 bytes");
  kv::expects(with.threads >= 1 && with.threads <= 256, "demo", "--threads", with.threads, "1 to 256 threads");
  examples::expect_no_input("demo", "--report", with.report, files_of_weights(with.weights));
  examples::expect_no_input("demo", "--report", with.report, {with.text});
  for (int const share : with.shares) {
    kv::expects(share >= 1, "demo", "--shares", share, "a context is divided by at least 1");
    kv::expects(with.context / share > 16, "demo", "--shares", share, [&] {
      return "a budget of " + std::to_string(with.context / share) + " does not hold the window of 16";
    });
  }
  bool const known_layout = kv::detail::read_value(with.layout, with.lay);
  kv::expects(known_layout, "demo", "--layout", with.layout,
              "there are compact, list_rewrite, dead_slot, mask and overwrite");
  for (std::string const& spec : with.specs) (void)written(spec, "");
  bool const full = with.policies.empty() || !with.specs.empty() ||
                    std::count(with.policies.begin(), with.policies.end(), "full") > 0;
  kv::expects(!with.check || (full && with.cases > 0), "demo", "--check", "without full or without cases",
              "its bounds are shares of the full cache's recall");
  auto const known = all_contenders();
  for (std::string const& name : with.policies) {
    bool const there = std::any_of(known.begin(), known.end(), [&](contender const& one) { return one.name == name; });
    kv::expects(there, "demo", "--policies", name, [&] {
      std::string names;
      for (contender const& one : known) names += (names.empty() ? "" : ", ") + one.name;
      return "there are " + names;
    });
  }
}

/// Reads a whole file. An error names it.
inline bytes read_text(std::string const& path, std::size_t least) {
  std::ifstream file(path, std::ios::binary);
  kv::expects(file.good(), "demo", "--text", path, "it cannot be read");
  bytes const all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  kv::expects(all.size() >= least, "demo", "--text", path, [&] {
    return "it has " + std::to_string(all.size()) + " bytes and a prompt with its continuation " +
           std::to_string(least);
  });
  return all;
}

}  // namespace demo
