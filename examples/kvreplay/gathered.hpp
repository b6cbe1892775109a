// SPDX-License-Identifier: Apache-2.0
// The entries that a policy leaves if no row has moved. They are gathered from the trace layer by layer.
#pragma once

#include <optional>
#include <span>

#include "attend.hpp"

namespace kvreplay {

/// A list of the trace's entries for each lane, and the rows of these entries.
class gathered {
 public:
  gathered(options const& with, trace const& of, results& to)
      : trace_(of),
        found_(to),
        writes_(!with.out.empty() && with.lay == layout::compact),
        rows_(2 * size(of.shape().kv_heads)),
        threads_(with.threads) {
    if (with.attend) attention_.emplace(with, of, *this);
  }
  gathered(gathered const&) = delete;
  gathered& operator=(gathered const&) = delete;

  /// Sets the ascending ordinals of each lane's entries.
  void hold(std::vector<std::vector<int>> lists) { lists_ = std::move(lists); }

  [[nodiscard]] int count(kv::lane this_lane) const { return static_cast<int>(list(this_lane).size()); }
  [[nodiscard]] std::byte const* row(bool keys, kv::lane this_lane, int e) const {
    array const& from = of(keys);
    return from.data + this_lane.layer * from.stride(0) + this_lane.head * from.stride(1) +
           list(this_lane)[size(e)] * from.stride(2);
  }
  [[nodiscard]] kv::codec element(bool keys) const { return of(keys).element; }

  /// The adjacent rows of one lane of the layer that `carry_out` has reached.
  [[nodiscard]] std::span<std::byte const> rows_left(bool keys, kv::lane this_lane) const {
    return rows_[size(lane_of(keys, this_lane.head))];
  }

  /// Gathers each layer, computes its attention, and calls `visit(layer)`.
  template <class Visit, class Step>
  void carry_out(Visit const& visit, Step const& step) {
    kv::shape const& model = trace_.shape();
    std::int64_t const row = std::int64_t{model.query_heads} * trace_.value_dim();
    if (attention_) found_.output.assign(size(model.layers * row), 0.0f);
    for (int layer = 0; layer < model.layers; ++layer) {
      stopwatch watch;
      if (writes_) threads_.for_each(2 * model.kv_heads, [&](int i, int) { gather(layer, i); });
      found_.ms.apply += watch.lap();
      if (attention_) attention_->layer(layer, found_.output.data() + layer * row);
      found_.ms.attend += watch.lap();
      visit(layer);
      found_.ms.write += watch.lap();
      if (writes_) step(layer + 1, model.layers);
    }
  }

 private:
  /// An index into the rows of a layer: the keys of all heads, then the values.
  [[nodiscard]] int lane_of(bool keys, int head) const { return keys ? head : trace_.shape().kv_heads + head; }
  void gather(int layer, int i) {
    bool const keys = i < trace_.shape().kv_heads;
    if (!of(keys)) return;
    kv::lane const this_lane{0, layer, i % trace_.shape().kv_heads};
    std::int64_t const width = of(keys).stride(2);
    std::vector<std::byte>& to = rows_[size(i)];
    to.resize(size(count(this_lane) * width));
    for (int e = 0; e < count(this_lane); ++e) std::memcpy(to.data() + e * width, row(keys, this_lane, e), size(width));
  }

  [[nodiscard]] array const& of(bool keys) const { return keys ? trace_.keys : trace_.values; }
  [[nodiscard]] std::vector<int> const& list(kv::lane this_lane) const {
    return lists_[size(this_lane.layer * trace_.shape().kv_heads + this_lane.head)];
  }

  trace const& trace_;
  results& found_;
  bool writes_;
  std::vector<std::vector<int>> lists_;
  std::vector<std::vector<std::byte>> rows_;  ///< the rows of one layer
  kv::host_executor threads_;
  std::optional<attention<gathered>> attention_;
};

}  // namespace kvreplay
