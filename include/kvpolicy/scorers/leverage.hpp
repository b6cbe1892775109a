// SPDX-License-Identifier: Apache-2.0
// Leverage keeps the keys that lie in directions which few keys of the prompt have.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/leverage.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// How the leverages of keys are made: by the sketch that is given, or by one of so many columns that is drawn. `call`
/// and `name` are said in errors.
struct sketched_keys {
  int sketch;
  std::uint64_t seed;
  double jitter;
  rows_of_heads const& given;

  void check(char const* call, char const* name) const {
    auto const member = [name](char const* which) { return [=] { return std::string(name) + which; }; };
    constexpr int most = 65536;
    expects(sketch >= 0 && sketch <= most, call, member(".sketch"), sketch,
            "a sketch has 0 to 65536 columns; 0: keys stay as they are");
    expects(jitter > 0 && jitter - jitter == 0, call, member(".jitter"), jitter, "a finite number above 0");
  }
  void check(char const* call, char const* name, shape const& model) const {
    check(call, name);
    expects(
        given.dims % model.head_dim == 0, call, [&] { return std::string(name) + ".given.dims"; }, given.dims,
        [&] { return "a sketch has columns of " + std::to_string(model.head_dim) + " numbers"; });
  }
  [[nodiscard]] leverage_options options(int dims) const {
    bool const is_given = given.rows.data != nullptr;
    return {.sketch = {is_given ? given.dims / dims : sketch, seed, given.rows}, .jitter = jitter, .less_mean = true};
  }
};

/// The z-scores of a layer, of whose deviation the divisor is the number of scores less one. Scores of -inf stay.
inline constexpr normalised_blocks whole_layer{.of_layer = true, .less = 1};

}  // namespace detail

/// Scores each entry by the leverage of its key before RoPE (Chari and Van Durme 2025, arXiv:2507.08143, as kvpress has
/// it), among all keys of the prompt.
///
///     l_j = x_j (X^T X + jitter I)^-1 x_j^T     X: the lane's keys, less their mean, times a sketch
///     s_j = (l_j - mean) / deviation            of all lanes and entries of the layer
///
/// The sketch has D rows and `sketch` columns. The registry's table "sketch" is one, or the member `given`; otherwise
/// it is drawn. If G = X^T X + jitter I has no Cholesky factor, the jitter becomes ten times as much, at most five
/// times.
struct leverage {
  int sketch = 48;  ///< columns of the sketch that is drawn; 0: keys stay as they are
  std::uint64_t seed = 42;
  double jitter = 0.01;
  rows_of_heads given{};  ///< D * columns numbers for each KV head, in memory that the executor can read; it wins

  static constexpr auto name = "leverage";
  static constexpr auto fields() {
    return make_fields(field{"sketch", &leverage::sketch}, field{"seed", &leverage::seed},
                       field{"jitter", &leverage::jitter});
  }
  using needs = kvpolicy::needs<pre_rope_keys>;
  using verbs = kvpolicy::verbs<ops::leverage_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool any_order = true;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  /// Takes the table "sketch", when a spec is read.
  void use_sketch(rows_of_heads const& named) { given = named; }

  void check(char const* call) const { keys_as().check(call, name); }
  void check(char const* call, shape const& model) const { keys_as().check(call, name, model); }
  /// Ranks have other heads of a layer.
  [[nodiscard]] static constexpr bool safe_across_ranks() { return false; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    pre_rope_keys const& keys = in.template get<pre_rope_keys>();
    ops::leverage(exec, keys, keys_as().options(keys.rows.channels), everything{}, out);
    ops::normalise(exec, normalising::z, out, detail::whole_layer);
  }

  friend bool operator==(leverage const&, leverage const&) = default;

 private:
  [[nodiscard]] detail::sketched_keys keys_as() const { return {sketch, seed, jitter, given}; }
};

}  // namespace KVPOLICY_NAMESPACE
