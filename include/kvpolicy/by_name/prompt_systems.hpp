// SPDX-License-Identifier: Apache-2.0
// Published systems that compress a prompt once, with budgets that differ by layer or head, as names for specs.
#pragma once

#include <kvpolicy/by_name/attention_systems.hpp>
#include <kvpolicy/by_name/systems.hpp>
#include <kvpolicy/parts/depth.hpp>
#include <kvpolicy/parts/moments.hpp>
#include <kvpolicy/parts/ranks.hpp>
#include <kvpolicy/parts/table_power.hpp>
#include <kvpolicy/scorers/cake.hpp>
#include <kvpolicy/scorers/cheapest_recipe.hpp>
#include <kvpolicy/scorers/kvcompose.hpp>
#include <kvpolicy/scorers/late_attention.hpp>
#include <kvpolicy/scorers/lookahead_kv.hpp>
#include <kvpolicy/scorers/peak_attention.hpp>
#include <kvpolicy/scorers/voted_attention.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// Lets the allotter of a system share out a budget, unless the spec says how shares differ, or by=fixed. A system
/// whose own fields say it as well is refused there.
template <class System>
void share_unless_said(System const& of, spec_parts& parts) {
  bool const is_said = parts.budget != nullptr && budget_argument(*parts.budget, "by") != nullptr;
  if (parts.limit.by == sharing::fixed && !is_said) return parts.share(of.shares());
  if (of.shares() == decltype(of.shares()){}) return;
  refuse_spec(parts.budget->column, parts.budget->name,
              std::string(System::name) + " says how shares differ, or the budget does");
}

}  // namespace detail

/// DynamicKV (Zhou et al. 2024, arXiv:2412.14838): SnapKV's scores, and as many entries of each layer as it has among
/// the best of all layers. The paper estimates the shares again after some layers; here they come in one step.
struct dynamic_kv {
  int window = 32;
  pooling pool = max_pool{7};
  reduction rows = reduction::sum;
  reduction group = reduction::mean;

  static constexpr auto name = "dynamic_kv";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"window", &dynamic_kv::window}, field{"pool", &dynamic_kv::pool},
                       field{"rows", &dynamic_kv::rows}, field{"group", &dynamic_kv::group});
  }
  void check(char const* call) const { detail::check_scorer_of(*this, call); }
  [[nodiscard]] constexpr snapkv scorer() const { return {window, pool, rows, group}; }
  void join(spec_parts& parts) const { parts.share(hits{}); }

  friend bool operator==(dynamic_kv const&, dynamic_kv const&) = default;
};

/// CriticalKV over AdaKV (Feng et al. 2025, arXiv:2502.03805): lanes of a layer share the budget by SnapKV's scores,
/// and each then chooses as CriticalKV does. If `scores` names external scores, those count, and nothing is forced.
struct critical_ada_kv {
  double first = 0.5;
  float epsilon = 1e-4f;
  int window = 32;
  pooling pool = avg_pool{5};
  label scores{};
  double floor = 0.2;  ///< the part of its own budget that each lane is sure of, at least one entry

  static constexpr auto name = "critical_ada_kv";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"first", &critical_ada_kv::first}, field{"epsilon", &critical_ada_kv::epsilon},
                       field{"window", &critical_ada_kv::window}, field{"pool", &critical_ada_kv::pool},
                       field{"scores", &critical_ada_kv::scores}, field{"floor", &critical_ada_kv::floor});
  }
  void check(char const* call) const {
    expects(first >= 0 && first <= 1, call, "critical_ada_kv.first", first, "a part of the budget, 0 to 1");
    expects(epsilon >= 0, call, "critical_ada_kv.epsilon", epsilon, "it is added to every score, 0 or more");
    expects(floor >= 0 && floor <= 1, call, "critical_ada_kv.floor", floor, "a part of the budget, 0 to 1");
    detail::check_scorer_of(*this, call);
  }
  [[nodiscard]] constexpr critical_kv one_lane() const { return {first, epsilon, window, pool, scores}; }
  [[nodiscard]] constexpr snapkv scorer() const { return one_lane().scorer(); }
  template <class Visit>
  auto with_scorer(Visit const& visit) const {
    return one_lane().with_scorer(visit);
  }
  void join(spec_parts& parts) const {
    parts.add(critical<full>{{}, first, epsilon, floor});
    parts.share(pooled_share{budget_scope::layer, floor, floor > 0 ? 1 : 0});
  }

  friend bool operator==(critical_ada_kv const&, critical_ada_kv const&) = default;
};

/// CompressKV (Lin et al. 2025, arXiv:2508.02401): its scores, one set for all heads of a layer, and shares of layers
/// in proportion to their importance, where the registry has that table. A spec may say other shares.
struct compress_kv {
  int window = 8;
  pooling pool = avg_pool{5};
  label table{{"voters"}};
  rows_of_heads weights{};  ///< that table
  label importance{{"importance"}};
  int floor = 32;
  double cap = 3;

  static constexpr auto name = "compress_kv";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"window", &compress_kv::window}, field{"pool", &compress_kv::pool},
                       field{"voters", &compress_kv::table}, field{"importance", &compress_kv::importance},
                       field{"floor", &compress_kv::floor}, field{"cap", &compress_kv::cap});
  }
  void use_table(rows_of_heads const& named) { weights = named; }
  void check(char const* call) const {
    detail::check_scorer_of(*this, call);
    expects(floor >= 0, call, "compress_kv.floor", floor, "a count cannot be negative");
    expects(cap >= 1, call, "compress_kv.cap", cap, "a layer may keep cap times the average, cap >= 1");
  }
  [[nodiscard]] constexpr voted_attention scorer() const { return {window, pool, table, weights}; }
  void join(spec_parts& parts) const {
    parts.add(reduce_lanes<full>{{}, granularity::layer, reduction::sum});
    if (parts.limit.by != sharing::fixed || importance == label{}) return;
    parts.limit.by = sharing::importance;
    parts.limit.table = importance;
    parts.limit.least = floor;
    parts.limit.cap = cap;
    parts.shares_if_table = importance == compress_kv{}.importance;  // a table that is named must be there
  }

  friend bool operator==(compress_kv const&, compress_kv const&) = default;
};

/// CAKE (Qin et al. 2025, arXiv:2503.12491): its scores, and shares of layers by the entropy and the variance of their
/// attention. A spec may say other shares, such as `by=hits` or `by=fixed`.
struct cake_with_moments {
  int window = 32;
  pooling pool = avg_pool{5};
  float gamma = 200;
  double tau1 = 1;
  double tau2 = 1;
  moment_rounding rounding = moment_rounding::largest;

  static constexpr auto name = "cake";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"window", &cake_with_moments::window}, field{"pool", &cake_with_moments::pool},
                       field{"gamma", &cake_with_moments::gamma}, field{"tau1", &cake_with_moments::tau1},
                       field{"tau2", &cake_with_moments::tau2}, field{"rounding", &cake_with_moments::rounding});
  }
  void check(char const* call) const {
    detail::check_scorer_of(*this, call);
    shares().check((std::string(call) + ": cake").c_str());
  }
  [[nodiscard]] constexpr cake scorer() const { return {window, pool, gamma}; }
  [[nodiscard]] constexpr moments shares() const { return {tau1, tau2, rounding}; }
  void join(spec_parts& parts) const { detail::share_unless_said(*this, parts); }

  friend bool operator==(cake_with_moments const&, cake_with_moments const&) = default;
};

/// KVCompose (Akulov et al. 2025, arXiv:2509.05165): its scores, and shares of layers by its composite entries. A spec
/// may say other shares, such as `by=hits` or `by=fixed`.
struct kvcompose_with_ranks {
  reduction rows = reduction::max;
  reduction group = reduction::mean;
  bool add_mean = true;
  bool values = false;
  bool first_layer = true;

  static constexpr auto name = "kvcompose";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"rows", &kvcompose_with_ranks::rows}, field{"group", &kvcompose_with_ranks::group},
                       field{"add_mean", &kvcompose_with_ranks::add_mean},
                       field{"values", &kvcompose_with_ranks::values},
                       field{"first_layer", &kvcompose_with_ranks::first_layer});
  }
  void check(char const* call) const { detail::check_scorer_of(*this, call); }
  [[nodiscard]] constexpr kvcompose scorer() const { return {rows, group, add_mean, values}; }
  [[nodiscard]] constexpr ranks shares() const { return {.first_layer = first_layer}; }
  void join(spec_parts& parts) const { detail::share_unless_said(*this, parts); }

  friend bool operator==(kvcompose_with_ranks const&, kvcompose_with_ranks const&) = default;
};

/// MPCache's choice of a prompt's entries (Zeng et al. 2025, arXiv:2501.06807): a layer keeps those to which any of the
/// last rows pays at least `threshold` of its attention. There is no budget. What it reads of them in each step is not
/// here.
struct mp_cache_prompt {
  double rows = 0.2;       ///< the part of the entries whose query rows score, and which are kept
  double long_rows = 0.1;  ///< the part in a prompt of more than `longer` entries
  int longer = 24000;
  float threshold = 0.001f;

  static constexpr auto name = "mp_cache_prompt";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"rows", &mp_cache_prompt::rows}, field{"long_rows", &mp_cache_prompt::long_rows},
                       field{"long", &mp_cache_prompt::longer}, field{"threshold", &mp_cache_prompt::threshold});
  }
  void check(char const* call) const {
    detail::check_scorer_of(*this, call);
    expects(threshold - threshold == 0, call, "mp_cache_prompt.threshold", threshold, "attention is compared with it");
  }
  [[nodiscard]] constexpr peak_attention scorer() const { return {rows, long_rows, longer}; }
  void join(spec_parts& parts) const { parts.pick = at_least{threshold, false, true}; }

  friend bool operator==(mp_cache_prompt const&, mp_cache_prompt const&) = default;
};

/// EpiCache (Kim et al. 2025, arXiv:2509.17396): the most attention that any query row of a patched prompt pays to an
/// entry, and shares of layers by a table, which has how much the keys of each layer drift where a prompt is read in
/// blocks: 1 less their similarity, normalised. The lanes of a layer share what it has. The engine cuts after each
/// block of the prompt; which prompt and cache a question belongs to is the engine's, too.
struct epi_cache {
  label table{{"drift"}};
  double power = 1.1;
  double floor = 0.25;

  static constexpr auto name = "epi_cache";
  static constexpr phase when = phase::chunk;
  static constexpr bool prompts_only = false;
  static constexpr auto fields() {
    return make_fields(field{"table", &epi_cache::table}, field{"power", &epi_cache::power},
                       field{"floor", &epi_cache::floor});
  }
  void check(char const* call) const {
    expects(power - power == 0, call, "epi_cache.power", power, "numbers are raised to it");
    expects(floor >= 0 && floor <= 1, call, "epi_cache.floor", floor, "a part of the average, 0 to 1");
  }
  [[nodiscard]] constexpr lookahead_kv scorer() const { return {0, no_pool{}, reduction::max, reduction::max}; }
  void join(spec_parts& parts) const { parts.share(table_power{table, power, floor}); }

  friend bool operator==(epi_cache const&, epi_cache const&) = default;
};

/// FastGen (Ge et al. 2023, arXiv:2310.01801): each lane keeps what the cheapest recipe keeps that has enough of its
/// attention. There is no budget.
struct fastgen {
  double recover = 0.95;  ///< the part of the attention
  double recent = 0.3;    ///< parts of the entries
  double frequent = 0.3;
  by_lane<int const> classes{};  ///< of tokens: the table "token_class"

  static constexpr auto name = "fastgen";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"recover", &fastgen::recover}, field{"recent", &fastgen::recent},
                       field{"frequent", &fastgen::frequent});
  }
  void use_classes(by_lane<int const> const& of) { classes = of; }
  void check(char const* call) const { detail::check_scorer_of(*this, call); }
  [[nodiscard]] constexpr cheapest_recipe scorer() const { return {recover, recent, frequent, classes}; }
  void join(spec_parts& parts) const { parts.pick = at_least{0.5f}; }

  friend bool operator==(fastgen const& a, fastgen const& b) { return a.scorer() == b.scorer(); }
};

/// PyramidInfer (Yang et al. 2024, arXiv:2405.12532): the entries of a layer to which the last part of the prompt
/// attends most, fewer in each layer. It says itself how many stay. The engine that also drops the hidden rows of the
/// entries that went reads the keep set.
struct pyramid_infer {
  double rows = 0.2;   ///< the part of the entries whose query rows score, and which are kept
  float ramp = 1.2f;   ///< what the last row counts
  double first = 0.9;  ///< the part of its entries that the first layer keeps
  double last = 0.3;   ///< and the last layer
  depth_curve curve = depth_curve::cosine;
  int least = 64;
  int sinks = 4;

  static constexpr bool adds_protection = true;
  static constexpr auto name = "pyramid_infer";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"rows", &pyramid_infer::rows}, field{"ramp", &pyramid_infer::ramp},
                       field{"first", &pyramid_infer::first}, field{"last", &pyramid_infer::last},
                       field{"curve", &pyramid_infer::curve}, field{"least", &pyramid_infer::least},
                       field{"sinks", &pyramid_infer::sinks});
  }
  void check(char const* call) const {
    std::string const system = std::string(call) + ": pyramid_infer";
    scorer().check(system.c_str());
    shares().check(system.c_str());
    expects(sinks >= 0, call, "pyramid_infer.sinks", sinks, "a count cannot be negative");
  }
  [[nodiscard]] constexpr late_attention scorer() const { return {rows, ramp}; }
  [[nodiscard]] constexpr depth shares() const { return {first, last, curve, least}; }
  void join(spec_parts& parts) const {
    parts.protect.add(kvpolicy::sinks{sinks});
    parts.limit = drop_ratio{0};
    parts.share(shares());
    parts.has_budget = true;
  }

  friend bool operator==(pyramid_infer const&, pyramid_infer const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
