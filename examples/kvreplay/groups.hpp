// SPDX-License-Identifier: Apache-2.0
// Groups of layers in a trace. Each group is replayed as a model of its own, and the results are merged.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <utility>

#include "options.hpp"
#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// The layers of one group, and whether the policy applies to them.
struct group_of_layers {
  std::vector<int> layers;
  bool without_policy = false;
};

/// The groups that the tensor `layer_group` makes, and which of them `--no-policy` names. Without the tensor all layers
/// are one group.
[[nodiscard]] inline std::vector<group_of_layers> groups_of(options const& with, trace const& of) {
  std::vector<int> const& group = of.layer_group;
  int const last = group.empty() ? 0 : *std::max_element(group.begin(), group.end());
  if (last >= of.shape().layers) refuse("layer_group", std::to_string(last), "there are not so many layers");
  std::vector<group_of_layers> made(size(last) + 1);
  for (int layer = 0; layer < of.shape().layers; ++layer) {
    made[group.empty() ? 0 : size(group[size(layer)])].layers.push_back(layer);
  }
  for (std::size_t g = 0; g < made.size(); ++g) {
    if (made[g].layers.empty()) {
      refuse("layer_group", std::to_string(last), "no layer is in group " + std::to_string(g));
    }
  }
  for (std::string const& text : with.no_policy) {
    int const g = count_of("--no-policy", text, 0);
    kv::expects(!group.empty(), "kvreplay", "--no-policy", text, "the trace has no tensor layer_group");
    kv::expects(g <= last, "kvreplay", "--no-policy", text,
                [&] { return "the groups of the trace are 0 to " + std::to_string(last); });
    made[size(g)].without_policy = true;
  }
  return made;
}

/// Replays each group of layers by a `By` of its own, and merges the results in the order of the model's layers. A
/// trace of one group is replayed as it is.
template <class By>
class grouped_replay {
 public:
  /// `make(part, group)` makes the replay of a group, whose layers are the trace `part`.
  template <class Make>
  grouped_replay(options const& with, trace& of, Make const& make)
      : model_(of.shape()), entries_(of.entries()), place_(size(model_.layers)) {
    for (group_of_layers& group : groups_of(with, of)) {
      for (std::size_t i = 0; i < group.layers.size(); ++i) place_[size(group.layers[i])] = {parts_.size(), i};
      bool const whole = std::ssize(group.layers) == model_.layers;
      trace& layers = whole ? of : traces_.emplace_back(with.trace, group.layers);
      parts_.push_back({make(layers, group), std::move(group.layers)});
    }
  }

  template <class Step>
  results& run(Step const& step) {
    for (std::size_t g = 0; g < parts_.size(); ++g) parts_[g].found = &parts_[g].by->run(of_all(step, g));
    if (one()) return *parts_.front().found;
    merge_decisions();
    merge_statistics();
    return merged_;
  }

  /// Brings each layer into the layout and calls `visit(layer)`, group by group.
  template <class Visit, class Step>
  void carry_out(Visit const& visit, Step const& step) {
    for (std::size_t g = 0; g < parts_.size(); ++g) {
      auto const& layers = parts_[g].layers;
      parts_[g].by->carry_out([&](int layer) { visit(layers[size(layer)]); }, of_all(step, g));
    }
    if (!one()) merge_statistics();
  }

  [[nodiscard]] std::span<std::byte const> rows_left(bool keys, kv::lane this_lane) const {
    auto const [g, layer] = place_[size(this_lane.layer)];
    return parts_[g].by->rows_left(keys, {0, static_cast<int>(layer), this_lane.head});
  }

 private:
  struct part {
    std::unique_ptr<By> by;
    std::vector<int> layers;
    results* found = nullptr;
  };

  [[nodiscard]] bool one() const { return parts_.size() == 1; }

  /// Reports the progress of one group as a part of that of all.
  template <class Step>
  [[nodiscard]] auto of_all(Step const& step, std::size_t g) const {
    return [&step, g = static_cast<int>(g), groups = static_cast<int>(parts_.size())](int done, int of) {
      step(g * of + done, groups * of);
    };
  }

  /// The model's segment of a group's segment.
  [[nodiscard]] std::size_t segment_of(std::size_t g, std::size_t s) const {
    if (merged_.decides == kv::granularity::sequence) return g;
    std::size_t const heads = merged_.decides == kv::granularity::lane ? size(model_.kv_heads) : 1;
    return size(parts_[g].layers[s / heads]) * heads + s % heads;
  }

  /// Merges lists that every group has, for one or more times all of its segments.
  template <class Member>
  [[nodiscard]] ragged merged_lists(Member const& of) const {
    std::size_t const times = (of(*parts_.front().found).offsets.size() - 1) / size(parts_.front().found->segments);
    std::vector<std::vector<std::int64_t>> lists(times * size(merged_.segments));
    for (std::size_t g = 0; g < parts_.size(); ++g) {
      ragged const& from = of(*parts_[g].found);
      auto const segments = size(parts_[g].found->segments);
      for (std::size_t i = 0; i < times * segments; ++i) {
        lists[i / segments * size(merged_.segments) + segment_of(g, i % segments)].assign(
            from.ordinals.begin() + from.offsets[i], from.ordinals.begin() + from.offsets[i + 1]);
      }
    }
    ragged made;
    for (std::vector<std::int64_t> const& list : lists) {
      made.ordinals.insert(made.ordinals.end(), list.begin(), list.end());
      made.offsets.push_back(std::ssize(made.ordinals));
    }
    return made;
  }

  /// The model's rows of a group's rows: of its segments, or of its layers.
  [[nodiscard]] std::vector<std::size_t> segments_of(std::size_t g) const {
    std::vector<std::size_t> made(size(parts_[g].found->segments));
    for (std::size_t s = 0; s < made.size(); ++s) made[s] = segment_of(g, s);
    return made;
  }
  [[nodiscard]] std::vector<std::size_t> layers_of(std::size_t g) const {
    return {parts_[g].layers.begin(), parts_[g].layers.end()};
  }

  /// Merges a table of numbers, one row after another. The rows of a group without the table are `missing`.
  template <class Number, class RowsOf>
  void merge_table(std::vector<Number> results::* table, std::int64_t rows, Number missing, RowsOf const& rows_of) {
    std::size_t width = 0;
    for (std::size_t g = 0; g < parts_.size(); ++g) {
      width = std::max(width, (parts_[g].found->*table).size() / rows_of(g).size());
    }
    (merged_.*table).assign(size(rows) * width, missing);
    for (std::size_t g = 0; g < parts_.size(); ++g) {
      auto from = (parts_[g].found->*table).begin();
      if (from == (parts_[g].found->*table).end()) continue;
      for (std::size_t const row : rows_of(g)) {
        std::copy_n(from, width, (merged_.*table).begin() + static_cast<std::ptrdiff_t>(row * width));
        from += static_cast<std::ptrdiff_t>(width);
      }
    }
  }

  /// Merges what the decisions were.
  void merge_decisions() {
    results const& first = *parts_.front().found;
    merged_.decides = first.decides;
    merged_.group.resize(size(model_.layers));
    for (std::size_t g = 0; g < parts_.size(); ++g) {
      merged_.segments += parts_[g].found->segments;
      for (int const layer : parts_[g].layers) merged_.group[size(layer)] = static_cast<int>(g);
    }
    merged_.keep = merged_lists([](results const& of) -> ragged const& { return of.keep; });
    merged_.turns = merged_lists([](results const& of) -> ragged const& { return of.turns; });
    if (first.local) merged_.local = merged_lists([](results const& of) -> ragged const& { return *of.local; });
    if (first.pages) merged_.pages = merged_lists([](results const& of) -> ragged const& { return *of.pages; });
    auto const by_segment = [&](std::size_t g) { return segments_of(g); };
    auto const by_layer = [&](std::size_t g) { return layers_of(g); };
    merge_table(&results::scores, merged_.segments, -std::numeric_limits<float>::infinity(), by_segment);
    merge_table(&results::shares, merged_.segments, std::int64_t{entries_}, by_segment);
    merge_table(&results::recipe, merged_.segments, std::int64_t{0}, by_segment);
    merge_table(&results::memory, model_.layers, 0.0f, by_layer);
    merge_events();
    for (part const& one : parts_) {
      for (std::string const& each : one.found->warnings) {
        auto const known = std::find(merged_.warnings.begin(), merged_.warnings.end(), each);
        if (known == merged_.warnings.end()) merged_.warnings.push_back(each);
      }
    }
  }

  /// Merges the events (step, segment, ordinal), in this order.
  void merge_events() {
    std::vector<std::array<std::int64_t, 3>> all;
    for (std::size_t g = 0; g < parts_.size(); ++g) {
      std::vector<std::int64_t> const& from = parts_[g].found->events;
      for (std::size_t i = 0; i < from.size(); i += 3) {
        all.push_back({from[i], static_cast<std::int64_t>(segment_of(g, size(from[i + 1]))), from[i + 2]});
      }
    }
    std::sort(all.begin(), all.end());
    for (auto const& each : all) merged_.events.insert(merged_.events.end(), each.begin(), each.end());
  }

  /// Merges what `carry_out` adds to as well.
  void merge_statistics() {
    merged_.stats = {};
    merged_.report = {};
    merged_.ms = {};
    for (part const& one : parts_) {
      results const& found = *one.found;
      merged_.stats.logical_kept += found.stats.logical_kept;
      merged_.stats.physical_freed += found.stats.physical_freed;
      merged_.stats.attended_length += found.stats.attended_length;
      merged_.report.nan_scores += found.report.nan_scores;
      merged_.report.forced_over_budget += found.report.forced_over_budget;
      merged_.ms.decide += found.ms.decide;
      merged_.ms.apply += found.ms.apply;
      merged_.ms.attend += found.ms.attend;
      merged_.ms.write += found.ms.write;
    }
    merge_promoted();
    merge_table(&results::output, model_.layers, 0.0f, [&](std::size_t g) { return layers_of(g); });
  }

  void merge_promoted() {
    if (!parts_.front().found->promoted) return;
    kv::promotion_stats& all = merged_.promoted.emplace();
    for (part const& one : parts_) {
      all.promoted += one.found->promoted->promoted;
      all.over_cap += one.found->promoted->over_cap;
      all.pages += one.found->promoted->pages;
    }
  }

  kv::shape model_{};
  int entries_;
  std::list<trace> traces_;  ///< of each group, if there are several
  std::vector<part> parts_;
  std::vector<std::pair<std::size_t, std::size_t>> place_;  ///< each layer's group, and its number in it
  results merged_;
};

}  // namespace kvreplay
