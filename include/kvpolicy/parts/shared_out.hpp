// SPDX-License-Identifier: Apache-2.0
// A budget that an allotter shares out, and allotters that go by what lanes would keep if they shared it.
#pragma once

#include <kvpolicy/ops/map_lanes.hpp>
#include <kvpolicy/parts/allot.hpp>
#include <kvpolicy/parts/largest_remainder.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// As many entries of each layer as it has among the best of all layers: DynamicKV (Zhou et al. 2024,
/// arXiv:2412.14838) in one step. The best entries of all lanes are those that `per_sequence` would keep.
///
///     share of a layer = mean over its lanes of the entries that they would keep
///
/// Entries that the scorer forces count in each lane. Those that the policy protects besides compete here as others do.
/// All lanes of a layer have the same share, and the total of the layers is exact, by largest remainder.
struct hits {
  static constexpr auto name = "hits";
  static constexpr auto fields() { return make_fields(); }
  [[nodiscard]] static constexpr bool compares_layers() { return true; }

  /// The share of a lane's layer.
  struct of_layer {
    kept_of_lanes kept;
    lanes batch;

    KVPOLICY_HD int operator()(lane_entries const& of) const {
      int const first = batch.layer_begin;
      auto const sum = [&](int l) {
        std::int64_t all = 0;
        for (int h = 0; h < batch.heads; ++h) all += kept(lane{of.lane.sequence, first + l, h});
        return all;
      };
      std::int64_t total = 0;
      for (int l = 0; l < batch.layers(); ++l) total += sum(l);
      auto const share = [&](int l) { return static_cast<double>(sum(l)) / batch.heads; };
      return detail::by_largest_remainder(of.lane.layer - first, batch.layers(), total / batch.heads, share);
    }
  };
  /// - cost: a pick of all lanes, and O(layers * heads) for each lane.
  template <class Executor>
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const {
    lanes const& batch = of.scores.lanes;
    ops::map_lanes(exec, batch, of_layer{of.kept(budget_scope::sequence, {}, forced_by::scorer), batch}, shares);
  }
  friend bool operator==(hits const&, hits const&) = default;
};

/// The entries of each lane that it would keep if the lanes of `scope` shared the budget, and each were sure of the
/// part `floor` of its own (AdaKV, Feng et al. 2024, arXiv:2407.11550). The lane may then choose other ones: with the
/// stage `critical` this is CriticalKV over AdaKV.
struct pooled_share {
  budget_scope scope = budget_scope::layer;
  double floor = 0.2;
  int floor_tokens = 0;  ///< entries that each lane is sure of if they are more

  static constexpr auto name = "pool";
  static constexpr auto fields() {
    return make_fields(field{"scope", &pooled_share::scope}, field{"floor", &pooled_share::floor},
                       field{"floor_tokens", &pooled_share::floor_tokens});
  }
  void check(char const* call) const { detail::check_floor(call, floor, floor_tokens); }
  [[nodiscard]] constexpr bool compares_layers() const { return scope == budget_scope::sequence; }

  /// - cost: a pick of the lanes of each scope.
  template <class Executor>
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const {
    ops::map_lanes(exec, of.scores.lanes, of.kept(scope, {floor, floor_tokens}, forced_by::policy), shares);
  }
  friend bool operator==(pooled_share const&, pooled_share const&) = default;
};

namespace detail {

/// `tokens` entries for each lane on average, which the lanes of a scope share.
struct pooled_tokens {
  int tokens;
  budget_scope shared_by;
  sure_part least;
  KVPOLICY_HD constexpr int operator()(lane, int) const { return tokens; }
  [[nodiscard]] KVPOLICY_HD constexpr budget_scope scope() const { return shared_by; }
  [[nodiscard]] KVPOLICY_HD constexpr int floor(int share) const { return least.of(share); }
  friend bool operator==(pooled_tokens const&, pooled_tokens const&) = default;
};

/// ", by=moments, tau1=1.6, tau2=0.4"
template <described Allotter>
std::string print_allotter(Allotter const& by) {
  std::string const text = to_string(by);
  auto const open = text.find('(');
  if (open == std::string::npos) return ", by=" + text;
  std::string const fields = text.substr(open + 1, text.size() - open - 2);
  return ", by=" + text.substr(0, open) + (fields.empty() ? "" : ", " + fields);
}

}  // namespace detail

/// `tokens` entries for each lane on average; the allotter `by` says how the lanes' shares differ.
///
///     kv::eviction{.score = kv::snapkv{}, .budget = kv::shared_out{.tokens = 512, .by = kv::hits{}}}
template <allotter By>
struct shared_out {
  int tokens = 1024;
  By by{};
  by_lane<int const> shares{};  ///< those that a decision has allotted
  static constexpr auto name = "budget";
  void check(char const* call) const {
    detail::check_tokens(call, tokens);
    if constexpr (requires { by.check(call); }) by.check(call);
  }

  /// The share of a lane in a decision, else the average.
  KVPOLICY_HD constexpr int operator()(lane of, int) const { return shares.data != nullptr ? *shares.row(of) : tokens; }
  [[nodiscard]] KVPOLICY_HD constexpr int average_of(lane, int) const { return tokens; }
  [[nodiscard]] static constexpr bool is_allotted() { return true; }
  [[nodiscard]] static constexpr bool reads_scores() { return true; }
  [[nodiscard]] static constexpr int lane_numbers() {
    if constexpr (requires { By::lane_numbers; }) return By::lane_numbers;
    return 0;
  }
  [[nodiscard]] constexpr int spare_rows(lanes const& batch) const {
    if constexpr (requires { by.spare_rows(batch); }) return by.spare_rows(batch);
    return 0;
  }
  [[nodiscard]] static constexpr bool differs_by_layer() { return true; }
  [[nodiscard]] constexpr bool compares_layers() const { return detail::compares_layers(by); }
  [[nodiscard]] KVPOLICY_HD static constexpr budget_scope scope() { return detail::scope_of_shares<By>(); }
  [[nodiscard]] constexpr average_share average(lanes const& batch) const { return {tokens, {}, false, false, batch}; }
  [[nodiscard]] constexpr detail::pooled_tokens pooled(budget_scope scope, sure_part least) const {
    return {tokens, scope, least};
  }
  template <class Executor>
  void share_out(Executor& exec, auto const&, allotting<Executor>& of, by_lane<int> const& to) const {
    by.allot(exec, of, to);
  }
  [[nodiscard]] constexpr shared_out with_shares(by_lane<int> const& to) const {
    return {tokens, by, {to.data, to.sequence, to.layer, to.head, to.slots}};
  }
  friend bool operator==(shared_out const& a, shared_out const& b) { return a.tokens == b.tokens && a.by == b.by; }
};

template <class By>
[[nodiscard]] std::string print(shared_out<By> const& limit) {
  return "budget(" + to_string(limit.tokens) + detail::print_allotter(limit.by) + ")";
}

}  // namespace KVPOLICY_NAMESPACE
