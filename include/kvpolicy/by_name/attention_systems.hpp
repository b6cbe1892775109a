// SPDX-License-Identifier: Apache-2.0
// Published systems that keep or drop blocks, or go by accumulated attention, as names for specs of several parts.
#pragma once

#include <kvpolicy/by_name/systems.hpp>
#include <kvpolicy/scorers/external.hpp>
#include <kvpolicy/scorers/kvzip.hpp>
#include <kvpolicy/scorers/received_attention.hpp>
#include <kvpolicy/scorers/window_attention.hpp>

namespace KVPOLICY_NAMESPACE {

/// ChunkKV (Liu et al. 2025, arXiv:2502.00299): all heads of a layer keep the same chunks of a prompt, those of which
/// SnapKV's scores have the highest mean. If `scores` names external scores, those count, and nothing is forced.
struct chunk_kv {
  int chunk = 20;
  int window = 32;
  pooling pool = avg_pool{5};
  label scores{};

  static constexpr auto name = "chunk_kv";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"chunk", &chunk_kv::chunk}, field{"window", &chunk_kv::window},
                       field{"pool", &chunk_kv::pool}, field{"scores", &chunk_kv::scores});
  }
  void check(char const* call) const {
    expects(chunk >= 1, call, "chunk_kv.chunk", chunk, "a chunk has at least one entry");
    detail::check_scorer_of(*this, call);
  }
  [[nodiscard]] constexpr snapkv scorer() const { return {window, pool, reduction::mean, reduction::mean}; }
  template <class Visit>
  auto with_scorer(Visit const& visit) const {
    return scores != label{} ? visit(external{scores}) : visit(scorer());
  }
  void join(spec_parts& parts) const {
    parts.add(reduce_lanes<full>{{}, granularity::layer, reduction::sum});
    parts.add(blocks<full>{{}, chunk, reduction::mean});
  }

  friend bool operator==(chunk_kv const&, chunk_kv const&) = default;
};

/// CriticalKV (Feng et al. 2025, arXiv:2502.03805): a part of the budget goes to the entries with the highest scores of
/// SnapKV, and the rest to those with the highest score times the norm of the projected value. If `scores` names
/// external scores, those count, and nothing is forced.
struct critical_kv {
  double first = 0.5;
  float epsilon = 1e-4f;
  int window = 32;
  pooling pool = avg_pool{5};
  label scores{};

  static constexpr auto name = "critical_kv";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"first", &critical_kv::first}, field{"epsilon", &critical_kv::epsilon},
                       field{"window", &critical_kv::window}, field{"pool", &critical_kv::pool},
                       field{"scores", &critical_kv::scores});
  }
  void check(char const* call) const {
    expects(first >= 0 && first <= 1, call, "critical_kv.first", first, "a part of the budget, 0 to 1");
    expects(epsilon >= 0, call, "critical_kv.epsilon", epsilon, "it is added to every score, 0 or more");
    detail::check_scorer_of(*this, call);
  }
  [[nodiscard]] constexpr snapkv scorer() const { return {window, pool, reduction::mean, reduction::mean}; }
  template <class Visit>
  auto with_scorer(Visit const& visit) const {
    return scores != label{} ? visit(external{scores}) : visit(scorer());
  }
  void join(spec_parts& parts) const { parts.add(critical<full>{{}, first, epsilon}); }

  friend bool operator==(critical_kv const&, critical_kv const&) = default;
};

/// Neural Garbage Collection (2026): each `every` positions a part of a layer's full blocks goes, those to which the
/// last query rows pay the least attention on average. The block of the newest entry stays, and there is no budget.
/// The paper draws the blocks at random while it trains; here, as in inference, the lowest ones go.
struct neural_gc {
  int block = 32;
  int window = 5;  ///< query rows
  int every = 256;
  double drop = 0.5;

  static constexpr bool adds_protection = true;
  static constexpr auto name = "neural_gc";
  static constexpr auto fields() {
    return make_fields(field{"block", &neural_gc::block}, field{"window", &neural_gc::window},
                       field{"every", &neural_gc::every}, field{"drop", &neural_gc::drop});
  }
  void check(char const* call) const {
    expects(block >= 1, call, "neural_gc.block", block, "a block has at least one entry");
    expects(every >= 1, call, "neural_gc.every", every, "an interval is 1 or more");
    expects(drop >= 0 && drop <= 1, call, "neural_gc.drop", drop, "a part is dropped, 0 to 1");
    detail::check_scorer_of(*this, call);
  }
  [[nodiscard]] constexpr window_attention scorer() const { return {window, reduction::mean}; }
  void join(spec_parts& parts) const {
    parts.add(reduce_lanes<full>{{}, granularity::layer, reduction::mean});
    parts.add(blocks<full>{{}, block, reduction::mean});
    parts.protect.add(recent{1});
    parts.pick = lowest{drop};
    if (parts.trigger_column == 0) parts.trigger = kvpolicy::every{every};
  }

  friend bool operator==(neural_gc const&, neural_gc const&) = default;
};

/// The accumulated attention of the library keys_values: what each row gives to an entry is added up, weighted by the
/// norm of the entry's value if `values`, and divided by the entry's age if `by_age`. The newest `grace` entries are
/// kept.
struct keys_values {
  int grace = 0;
  bool values = false;
  bool by_age = false;
  reduction group = reduction::sum;

  static constexpr bool adds_protection = true;
  static constexpr auto name = "keys_values";
  static constexpr auto fields() {
    return make_fields(field{"grace", &keys_values::grace}, field{"values", &keys_values::values},
                       field{"by_age", &keys_values::by_age}, field{"group", &keys_values::group});
  }
  void check(char const* call) const {
    expects(grace >= 0, call, "keys_values.grace", grace, "a count cannot be negative");
    detail::check_scorer_of(*this, call);
  }
  [[nodiscard]] constexpr received_attention scorer() const { return {by_age, group}; }
  template <class Visit>
  auto with_scorer(Visit const& visit) const {
    return values ? visit(received_by_value{by_age, group}) : visit(scorer());
  }
  void join(spec_parts& parts) const { parts.protect.add(recent{grace}); }

  friend bool operator==(keys_values const&, keys_values const&) = default;
};

/// KVzip (Kim et al. 2025, arXiv:2505.23416), or with `plus` KVzip+, which also goes by the norms of projected values.
struct kvzip_by_name {
  int sinks = 4;
  bool plus = false;

  static constexpr auto name = "kvzip";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"sinks", &kvzip_by_name::sinks}, field{"plus", &kvzip_by_name::plus});
  }
  void check(char const* call) const { scorer().check(call); }
  [[nodiscard]] constexpr kvzip scorer() const { return {sinks}; }
  template <class Visit>
  auto with_scorer(Visit const& visit) const {
    return plus ? visit(kvzip_plus{sinks}) : visit(scorer());
  }
  void join(spec_parts&) const {}

  friend bool operator==(kvzip_by_name const&, kvzip_by_name const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
