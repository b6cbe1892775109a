// SPDX-License-Identifier: Apache-2.0
// Replays a selection over a trace: chooses the pages that the last query row reads. Nothing is dropped.
#pragma once

#include <limits>

#include "gathered.hpp"
#include "page_signals.hpp"

namespace kvreplay {

/// How many tokens the command line lets a lane read.
[[nodiscard]] inline kv::any_budget tokens_read(options const& with) {
  kv::expects(with.budget.empty() || with.ratio.empty(), "kvreplay", "--ratio", with.ratio, "there is a --budget");
  kv::expects(!with.budget.empty() || !with.ratio.empty(), "kvreplay", "--budget", "missing",
              "it says how many tokens a lane reads");
  if (with.ratio.empty()) return kv::per_lane{count_of("--budget", with.budget, 0)};
  kv::drop_ratio part{.round = kv::rounding::exact};
  kv::expects(kv::detail::read_value(with.ratio, part.drop), "kvreplay", "--ratio", with.ratio, "it is a number");
  kv::expects(with.rounding.empty() || kv::detail::read_value(with.rounding, part.round), "kvreplay", "--rounding",
              with.rounding, "there are at_least_one, exact, kvpress and kvpress_0_5_4");
  part.check("kvreplay");
  return part;
}

/// Replays a selection: first call `run`, then `carry_out`, as for an eviction.
class selection_replay {
 public:
  selection_replay(options const& with, trace& of, any_selection const& policy)
      : with_(with),
        trace_(of),
        policy_(policy),
        signals_(with, of, policy.score),
        exec_(examples::make_executor(with.threads)),
        entries_(of.entries()),
        left_(with, of, found_) {
    found_.segments = of.shape().layers * of.shape().kv_heads;
    found_.pages.emplace();
  }

  /// Makes all decisions, for a few layers at a time, so that only their bounds are in memory: layers that read the
  /// same pages are together. It calls `step(done, of)` to report progress.
  template <class Step>
  results& run(Step const& step) {
    int const layers = trace_.shape().layers;
    int const heads = trace_.shape().kv_heads;
    int const at_once = std::clamp((4 * with_.threads + heads - 1) / heads, 1, layers);
    kv::layer_runs const runs{policy_.dense_layers, policy_.inherit};
    for (int begin = 0, end = 0; begin < layers; begin = end) {
      int const last = std::min(layers, begin + at_once) - 1;
      end = last < runs.dense ? last + 1 : runs.end_of(last, layers);
      choose(begin, end);
      step(end, layers);
    }
    found_.keep.add(lists_);
    auto const read = std::ssize(found_.keep.ordinals);
    found_.stats = {std::int64_t{found_.segments} * entries_, 0, read};
    left_.hold(std::move(lists_));
    return found_;
  }

  template <class Visit, class Step>
  void carry_out(Visit const& visit, Step const& step) {
    left_.carry_out(visit, step);
  }
  [[nodiscard]] std::span<std::byte const> rows_left(bool keys, kv::lane this_lane) const {
    return left_.rows_left(keys, this_lane);
  }

 private:
  /// The layers [begin, end) of the trace as a cache in which every lane holds every entry. Its values are never read.
  [[nodiscard]] kv::cache view(int begin, int end) {
    array const& keys = trace_.keys;
    std::int64_t const entries = entries_;
    std::int64_t const heads = trace_.shape().kv_heads;
    kv::cache made{.shape = trace_.shape(),
                   .lanes = {.layer_begin = begin,
                             .layer_end = end,
                             .heads = trace_.shape().kv_heads,
                             .capacity = entries_,
                             .count = {&entries_, 0, 0, 0},
                             .position = {trace_.positions.data(), 0, 0, 0}},
                   .where = kv::identity_map(entries_)};
    made.k = made.v = {.element = kv::codec::opaque,
                       .channels = 1,
                       .layer_stride = entries * heads,
                       .unit_stride = entries * heads * trace_.shape().layers,
                       .token_stride = 1,
                       .head_stride = entries,
                       .channel_stride = 1,
                       .bases = {&nothing_}};
    if (!keys) return made;
    made.k = {.base = keys.data,
              .element = keys.element,
              .channels = trace_.shape().head_dim,
              .layer_stride = keys.stride(0),
              .unit_stride = keys.stride(0) * trace_.shape().layers,
              .token_stride = keys.stride(2),
              .head_stride = keys.stride(1),
              .channel_stride = kv::bytes_of(keys.element)};
    return made;
  }

  void choose(int begin, int end) {
    kv::cache const in = view(begin, end);
    kv::state<executor> state = kv::make_state(exec_, policy_, in);
    kv::selection_plan<executor> plan = kv::make_plan(exec_, policy_, in);
    kv::any_signals const given = signals_.in(in);
    stopwatch watch;
    kv::observe(exec_, policy_, given, state);
    kv::select_pages(exec_, policy_, given, state, plan);
    examples::settle(exec_);
    found_.report.nan_scores += plan.report().nan_scores;
    for (int s = 0; s < in.lanes.size(); ++s) note(plan, s, begin * in.lanes.heads + s);
    found_.ms.decide += watch.lap();
  }

  /// Records the pages of one lane, their entries, and the scores of the pages that competed, which excludes the last.
  void note(kv::selection_plan<executor> const& plan, int s, int segment) {
    std::span<int const> const chosen = plan.keep().listed(s);
    int const pages = plan.keep().entry_count[s];
    std::vector<int>& entry = lists_.emplace_back();
    for (int const page : chosen) {
      int const last =
          static_cast<int>(std::min<std::int64_t>(entries_, (std::int64_t{page} + 1) * policy_.score.page));
      for (int e = page * policy_.score.page; e < last; ++e) entry.push_back(e);
    }
    found_.pages->ordinals.insert(found_.pages->ordinals.end(), chosen.begin(), chosen.end());
    found_.pages->offsets.push_back(std::ssize(found_.pages->ordinals));
    if (std::ssize(chosen) == pages) return;
    auto const wide = std::int64_t{found_.segments} * pages;
    if (found_.scores.empty()) found_.scores.assign(size(wide), -std::numeric_limits<float>::infinity());
    for (int p = 0; p + 1 < pages; ++p) found_.scores[size(std::int64_t{segment} * pages + p)] = plan.score(s, p);
  }

  options const& with_;
  trace& trace_;
  any_selection policy_;
  page_signals signals_;
  executor exec_;
  int entries_;
  std::byte nothing_byte_{};
  std::byte* nothing_ = &nothing_byte_;
  results found_;
  gathered left_;
  std::vector<std::vector<int>> lists_;
};

}  // namespace kvreplay
