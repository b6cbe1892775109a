// SPDX-License-Identifier: Apache-2.0
// The command lines of the two programs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "contender.hpp"

namespace CLI {
class App;
}

namespace demo {

struct options {
  bool full = false;  ///< the whole table, which demo_full prints anyway
  bool quick = false;
  bool check = false;
  bool far = false;
  std::string report;                 ///< the HTML file to write; empty: none
  std::string docs = "docs/demo.md";  ///< where the page's link to the documentation leads
  std::string text;
  std::string weights = TINYLM_WEIGHTS_DIR;
  std::vector<std::string> policies;
  std::vector<std::string> specs;    ///< policies that the user wrote
  std::vector<std::string> plugins;  ///< files with parts of the user's own
  std::string layout = "compact";
  kv::any_applier own{};  ///< the layout, if a plugin adds it
  std::vector<int> shares;
  int context = 1024;
  int cases = -1;
  int windows = -1;
  int length = 64;  ///< bytes of a continuation
  int threads = 2;
  double progress = 4;  ///< seconds between two lines of progress
  std::uint64_t seed = 7;
};

struct row;

/// A number of cases: of recall questions, and of stretches of text.
struct case_counts {
  int questions;
  int stretches;
};

/// One of the two programs, which share everything but their policies and their table.
struct program {
  std::string about;
  std::vector<contender> contenders;
  std::vector<int> shares;  ///< budgets, as divisors of the context
  case_counts usual;
  case_counts quick;
  bool everything;  ///< it has the whole table, policies by spec, layouts and `--check`
  /// Makes a contender of a user's spec. Empty: the program takes none.
  std::function<contender(options const& with, std::string const& spec, std::string name)> written{};
  /// The applier of `--layout`, if a plugin adds it. Empty: the program takes no plugins.
  std::function<kv::any_applier(options const& with)> written_layout{};
  /// Prints a line for each bound of `--check`, and returns whether all are met.
  std::function<bool(options const&, std::vector<row> const&, bytes const& text)> check{};
};

void add_to(CLI::App& app, program const& of, options& to);

/// Sets the defaults that depend on other options, and makes all checks that need no work.
/// - throws: `invalid_argument`, which names the option.
void settle(program const& of, options& with);

/// The policies of the given names, or all if there are neither names nor specs. The policies of the user's specs
/// follow; with specs the full cache is always included.
[[nodiscard]] std::vector<contender> chosen_contenders(program const& of, options const& with);

/// Reads a whole file of at least `least` bytes. An error names it.
[[nodiscard]] bytes read_text(std::string const& path, std::size_t least);

/// Runs a program. The exit status is 2 if an argument was refused, and 1 if something failed or a bound was missed.
[[nodiscard]] int run_demo(program const& which, int count, char** arguments);

}  // namespace demo
