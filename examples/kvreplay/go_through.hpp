// SPDX-License-Identifier: Apache-2.0
// Runs a replay of every group of layers, writes its results, and prints them.
#pragma once

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "groups.hpp"
#include "page.hpp"
#include "report.hpp"
#include "write.hpp"

namespace kvreplay {

/// Draws a progress bar on a terminal.
inline void show_progress(int done, int of) {
  static int shown = -1;
  int const percent = static_cast<int>(100LL * done / std::max(1, of));
  if (isatty(2) == 0 || percent == shown) return;
  shown = percent;
  fmt::print(stderr, "\r[{:=<{}}{:{}}] {:3}%{}", "", percent / 4, "", 25 - percent / 4, percent,
             done == of ? "\n" : "");
  std::fflush(stderr);
}

/// Replays each group of layers as `make(part, group)` says, writes and prints. The files get their names when
/// everything has succeeded, printing included.
template <class Make>
void go_through(options const& with, trace& of, policy_text const& policy, Make const& make, stopwatch& whole) {
  using replay_of_part = typename decltype(make(of, group_of_layers{}))::element_type;
  std::optional<result_writer> out;
  if (!with.out.empty()) out.emplace(with, of);
  std::optional<page_writer> page;
  if (!with.html.empty()) page.emplace(with, of);
  grouped_replay<replay_of_part> by(with, of, make);
  results& found = by.run(show_progress);
  bool begun = false;
  auto const write = [&](int layer) {
    if (out && !std::exchange(begun, true)) out->begin(found);
    if (out) out->layer(by, layer);
  };
  by.carry_out(write, show_progress);
  stopwatch watch;
  if (out) out->finish(found);
  if (page) page->write(policy, found);
  found.ms.write += watch.lap();
  found.ms.total = whole.lap();
  auto const all = summary(with, of, policy, found);
  with.json ? fmt::print("{}\n", all.dump(1)) : print_summary(all);
  examples::flush_standard_output();
  if (out) out->commit();
  if (page) page->commit();
}

}  // namespace kvreplay
