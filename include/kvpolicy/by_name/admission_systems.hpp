// SPDX-License-Identifier: Apache-2.0
// Published systems that are a name for an admission: a scorer, its window and its threshold.
#pragma once

#include <cmath>
#include <concepts>
#include <kvpolicy/admission/admission.hpp>
#include <kvpolicy/by_name/any_protection.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/scorers/carried.hpp>
#include <kvpolicy/scorers/expected_margin.hpp>
#include <kvpolicy/scorers/write_gate.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// A system of an admission is a value with the fields of its parts. `admission()` returns the admission that it is a
/// name for, which typed calls take, too.
///
///     kv::decide(exec, kv::kvzap{.threshold = -3}.admission(), in, state, plan);
template <class S>
concept system_of_admission = std::regular<S> && requires(S const& s) {
  { s.admission() } -> admission_policy;
};

namespace detail {

/// Checks what such a system keeps whatever it scores.
template <class System>
void check_ends_of(System const& of, char const* call) {
  std::string const name = System::name;
  expects(of.window >= 1, call, name + ".window", of.window, "the newest token is always seen");
  expects(of.sinks >= 0, call, name + ".sinks", of.sinks, "a count cannot be negative");
}
/// Without sinks it has no part that protects.
template <class System>
[[nodiscard]] any_protection protected_by(System const& of) {
  return of.sinks > 0 ? any_protection(sinks{of.sinks}) : any_protection{};
}

/// Checks the fields of a system that admits what reaches a threshold when it leaves the window.
template <class System>
void check_threshold_of(System const& of, char const* call) {
  std::string const name = System::name;
  check_ends_of(of, call);
  expects(std::isfinite(of.threshold), call, name + ".threshold", of.threshold, "scores are compared with it");
}

/// The admission by a scorer with the fields of such a system.
template <class Score, class System>
admission<Score, any_protection> admission_by_threshold(Score const& score, System const& of) {
  return {score, protected_by(of), of.window, at_least{of.threshold, of.strict, true}};
}

}  // namespace detail

/// KVzap (2026), and DMS where there are no sinks: a trained model predicts a number of each entry when it is appended,
/// and an entry stays if its number reaches the threshold when it leaves the window.
struct kvzap {
  label of{{"kvzap"}};
  int window = 128;
  int sinks = 0;
  float threshold = -4;
  bool strict = false;

  static constexpr auto name = "kvzap";
  static constexpr auto fields() {
    return make_fields(field{"name", &kvzap::of}, field{"window", &kvzap::window}, field{"sinks", &kvzap::sinks},
                       field{"threshold", &kvzap::threshold}, field{"strict", &kvzap::strict});
  }
  void check(char const* call) const { detail::check_threshold_of(*this, call); }
  [[nodiscard]] auto admission() const { return detail::admission_by_threshold(carried{of}, *this); }

  friend bool operator==(kvzap const&, kvzap const&) = default;
};

/// AdaEA: an entry stays if the expected logit of one of the lane's query heads is above that head's threshold when it
/// leaves the window. Queries are those of a profile, after RoPE, and thresholds are a table of the model.
struct ada_ea {
  int window = 256;
  int sinks = 4;
  bool covariance = true;
  label table{{"thresholds"}};
  rows_of_heads thresholds{};  ///< that table

  static constexpr auto name = "ada_ea";
  static constexpr auto fields() {
    return make_fields(field{"window", &ada_ea::window}, field{"sinks", &ada_ea::sinks},
                       field{"covariance", &ada_ea::covariance}, field{"thresholds", &ada_ea::table});
  }
  /// Takes the table that `table` names, when a spec is read.
  void use_table(rows_of_heads const& named) { thresholds = named; }

  void check(char const* call) const { detail::check_ends_of(*this, call); }
  [[nodiscard]] kvpolicy::admission<expected_margin, any_protection> admission() const {
    return {{covariance, thresholds, table}, detail::protected_by(*this), window, at_least{0, true, true}};
  }

  friend bool operator==(ada_ea const&, ada_ea const&) = default;
};

/// Attention-Gate (2024): a trained gate decides before the attention which entries are there.
struct attention_gate {
  float threshold = 0.5f;
  int window = 1;
  int sinks = 0;
  bool strict = true;

  static constexpr auto name = "attention_gate";
  static constexpr auto fields() {
    return make_fields(field{"threshold", &attention_gate::threshold}, field{"window", &attention_gate::window},
                       field{"sinks", &attention_gate::sinks}, field{"strict", &attention_gate::strict});
  }
  void check(char const* call) const { detail::check_threshold_of(*this, call); }
  [[nodiscard]] auto admission() const { return detail::admission_by_threshold(write_gate{}, *this); }

  friend bool operator==(attention_gate const&, attention_gate const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
