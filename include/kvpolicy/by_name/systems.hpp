// SPDX-License-Identifier: Apache-2.0
// Published systems that are a name for a spec of several parts.
#pragma once

#include <kvpolicy/by_name/spec_parts.hpp>
#include <kvpolicy/scorers/carried.hpp>
#include <kvpolicy/scorers/expected_attention.hpp>
#include <kvpolicy/scorers/external.hpp>
#include <kvpolicy/scorers/lazy_layers.hpp>
#include <kvpolicy/scorers/not_stale.hpp>
#include <kvpolicy/scorers/snapkv.hpp>

namespace KVPOLICY_NAMESPACE {

/// A system is a value with the fields of its parts. `scorer()` returns its scorer, and `join(parts)` adds its other
/// parts to those of a spec. If the scorer may be of another type, `with_scorer(visit)` calls visit with it.
template <class S>
concept system_of_parts = std::regular<S> && requires(S const& s, spec_parts& parts) {
  { s.scorer() } -> scorer;
  s.join(parts);
};

namespace detail {
/// Checks the scorer of a system. Its error names the system first, whose fields those of the scorer are.
template <class System>
void check_scorer_of(System const& of, char const* call) {
  of.scorer().check((std::string(call) + ": " + System::name).c_str());
}
}  // namespace detail

/// PyramidKV (Cai et al. 2024, arXiv:2406.02069): SnapKV's scores, and budgets that fall from layer to layer.
struct pyramid_kv {
  int window = 32;
  pooling pool = max_pool{7};
  reduction rows = reduction::sum;
  reduction group = reduction::mean;
  double beta = 20;
  ramp_rule rule = ramp_rule::exact;

  static constexpr auto name = "pyramid_kv";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"window", &pyramid_kv::window}, field{"pool", &pyramid_kv::pool},
                       field{"rows", &pyramid_kv::rows}, field{"group", &pyramid_kv::group},
                       field{"beta", &pyramid_kv::beta}, field{"rule", &pyramid_kv::rule});
  }
  void check(char const* call) const {
    detail::check_scorer_of(*this, call);
    expects(beta >= 1, call, "pyramid_kv.beta", beta, "the last layer's share is 1 / beta of the average, beta >= 1");
  }
  [[nodiscard]] constexpr snapkv scorer() const { return {window, pool, rows, group}; }
  void join(spec_parts& parts) const {
    parts.limit.by = sharing::ramp;
    parts.limit.shares.beta = beta;
    parts.limit.shares.rule = rule;
  }

  friend bool operator==(pyramid_kv const&, pyramid_kv const&) = default;
};

/// NACL (Chen et al. 2024, arXiv:2408.03675): the entries that receive the most attention from the window get their
/// places first, and a part of the places is filled at random.
struct nacl {
  int window = 32;
  double random = 0.25;
  reduction group = reduction::mean;
  std::uint64_t seed = 42;

  static constexpr auto name = "nacl";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"window", &nacl::window}, field{"random", &nacl::random}, field{"group", &nacl::group},
                       field{"seed", &nacl::seed});
  }
  void check(char const* call) const {
    detail::check_scorer_of(*this, call);
    expects(random >= 0 && random <= 1, call, "nacl.random", random, "a part of the free places, 0 to 1");
  }
  [[nodiscard]] constexpr snapkv scorer() const { return {window, no_pool{}, reduction::sum, group}; }
  void join(spec_parts& parts) const { parts.add(put_first<full>{{}, 0, 1 - random, rest_order::random, seed}); }

  friend bool operator==(nacl const&, nacl const&) = default;
};

/// SirLLM (Yao et al. 2024, arXiv:2405.12528): the most surprising tokens get their places first, the newest ones fill
/// the rest, and surprise decays from turn to turn. The engine gives each token's surprise, and all lanes keep the same
/// tokens.
struct sir_llm {
  label of{{"surprise"}};
  int sinks = 4;
  int entropy = 1000;
  float decay = 1;

  static constexpr bool adds_protection = true;
  static constexpr auto name = "sir_llm";
  static constexpr phase when = phase::turn;
  static constexpr auto fields() {
    return make_fields(field{"name", &sir_llm::of}, field{"sinks", &sir_llm::sinks},
                       field{"entropy", &sir_llm::entropy}, field{"decay", &sir_llm::decay});
  }
  void check(char const* call) const {
    expects(sinks >= 0, call, "sir_llm.sinks", sinks, "a count cannot be negative");
    expects(entropy >= 0, call, "sir_llm.entropy", entropy, "a count cannot be negative");
    detail::check_scorer_of(*this, call);
  }
  [[nodiscard]] constexpr carried scorer() const { return {of, decay}; }
  void join(spec_parts& parts) const {
    parts.protect.add(kvpolicy::sinks{sinks});
    parts.add(put_first<full>{{}, entropy, 0, rest_order::recency, 42});
    parts.add(reduce_lanes<full>{{}, granularity::sequence, reduction::max});
  }

  friend bool operator==(sir_llm const&, sir_llm const&) = default;
};

/// LU-KV (2026): shares by a profile of the model, one for each lane, and Expected Attention's scores, or external ones
/// that `scores` names. The first and the last entries are kept.
struct lu_kv {
  label table{{"lu_kv"}};
  int sinks = 4;          ///< the first positions, which are kept; also Expected Attention's
  int window = 1;         ///< the last entries, which are kept
  float epsilon = 0.02f;  ///< of Expected Attention
  label scores{};

  static constexpr bool adds_protection = true;
  static constexpr auto name = "lu_kv";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"table", &lu_kv::table}, field{"sinks", &lu_kv::sinks}, field{"window", &lu_kv::window},
                       field{"epsilon", &lu_kv::epsilon}, field{"scores", &lu_kv::scores});
  }
  void check(char const* call) const {
    expects(sinks >= 0, call, "lu_kv.sinks", sinks, "a count cannot be negative");
    expects(window >= 0, call, "lu_kv.window", window, "a count cannot be negative");
    expects(scores == label{} || epsilon == 0.02f, call, "lu_kv.epsilon", epsilon,
            "it is of expected_attention, and scores are given");
    detail::check_scorer_of(*this, call);
  }
  [[nodiscard]] constexpr expected_attention scorer() const { return {.sinks = sinks, .epsilon = epsilon}; }
  template <class Visit>
  auto with_scorer(Visit const& visit) const {
    return scores != label{} ? visit(external{scores}) : visit(scorer());
  }
  void join(spec_parts& parts) const {
    parts.protect.add(safe{sinks, window});
    parts.limit.by = sharing::table;
    parts.limit.table = table;
  }

  friend bool operator==(lu_kv const&, lu_kv const&) = default;
};

/// Locret (Huang et al. 2024, arXiv:2410.01805), for a prompt that arrives in chunks: a trained head predicts when an
/// entry is appended how long it will be of use, and after each chunk but the last one the entries that arrived last
/// are kept.
/// The policy is that of the chunks before the last one. After the last one decide by `carried` alone, and then append
/// the local tokens, of which the paper has 100, without a decision, as `kvreplay --policy locret` does.
struct locret {
  label of{{"locret"}};
  int stabilizers = 2500;

  static constexpr bool adds_protection = true;
  static constexpr auto name = "locret";
  static constexpr phase when = phase::chunk;
  static constexpr auto fields() {
    return make_fields(field{"name", &locret::of}, field{"stabilizers", &locret::stabilizers});
  }
  void check(char const* call) const {
    expects(stabilizers >= 0, call, "locret.stabilizers", stabilizers, "a count cannot be negative");
  }
  [[nodiscard]] constexpr carried scorer() const { return {of, 1}; }
  void join(spec_parts& parts) const { parts.protect.add(recent{stabilizers}); }

  friend bool operator==(locret const&, locret const&) = default;
};

/// SideQuest (Kariyappa and Suh, 2026): the model names the outputs of tools that are stale, and their entries go.
/// Nothing else does, so there is no budget.
struct side_quest {
  static constexpr auto name = "side_quest";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() { return make_fields(); }
  [[nodiscard]] constexpr not_stale scorer() const { return {}; }
  void join(spec_parts& parts) const { parts.pick = at_least{0.5f}; }

  friend bool operator==(side_quest const&, side_quest const&) = default;
};

/// SimLayerKV (Zhang et al. 2024, arXiv:2410.13846): a layer whose last rows attend to the first and the last entries
/// keeps these, and any other layer keeps everything. There is no budget.
struct simlayer_kv {
  float threshold = 1;  ///< of attention; at 1 every layer keeps everything
  int initial = 4;
  int recent = 1024;
  int last = 1;  ///< query rows

  static constexpr auto name = "simlayer_kv";
  static constexpr bool prompts_only = true;
  static constexpr auto fields() {
    return make_fields(field{"threshold", &simlayer_kv::threshold}, field{"initial", &simlayer_kv::initial},
                       field{"recent", &simlayer_kv::recent}, field{"last", &simlayer_kv::last});
  }
  void check(char const* call) const { detail::check_scorer_of(*this, call); }
  [[nodiscard]] constexpr lazy_layers scorer() const { return {threshold, initial, recent, last}; }
  void join(spec_parts& parts) const { parts.pick = at_least{0.5f}; }

  friend bool operator==(simlayer_kv const&, simlayer_kv const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
