// SPDX-License-Identifier: Apache-2.0
// Budgets: how many entries are kept, forced ones included, and which lanes share that number.
#pragma once

#include <concepts>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/core/lanes.hpp>

namespace KVPOLICY_NAMESPACE {

/// A budget is a regular function object `int(lane, int count)`: the number of entries that a lane with `count` entries
/// may keep.
///
/// Optional members:
///
/// - `scope()`: which lanes pool their budgets. The pool then keeps the sum of its lanes' budgets.
/// - `floor(budget)`: the number of entries that each lane of a pool is guaranteed, given the lane's own budget.
/// - `in_entries(shape, entry_bytes)`: the budget in entries, given the size of one entry of one lane. A budget in
///   bytes has it.
/// - `dropped_part()`: the part of the entries that it drops, if that is what it says; below 0 if not. Of entries in
///   blocks it is then the part of the blocks.
/// - `allot(exec, in, scores, shares)`: writes the number of entries that each lane may keep to `shares`, a
///   `by_lane<int>`. A budget that depends on what is there has it; `in` are the signals of the decision. The decision
///   then does not call the budget for a number. Scores are written already, unless the scorer ranks candidates.
/// - `compares_layers()`: true if a lane's share depends on lanes of other layers, so that all layers decide at once.
template <class B>
concept budget = std::regular<B> && requires(B const& b, lane this_lane, int count) {
  { b(this_lane, count) } -> std::same_as<int>;
};

namespace detail {

struct a_budget {
  template <class Result>
  static constexpr bool accepts = budget<std::remove_cvref_t<Result>>;
};

/// The hooks of a budget. `check()` gives the one compile error for a budget that does not fit.
template <class B>
using budget_hooks = part_hooks<
    B, law<hook::budget_is_number, !std::is_arithmetic_v<B>>,
    required_hook<hook::budget_call,
                  budget<B> ? hook_form::fits : form_of_call<hook::budget_call, B, exactly<int>, lane, int>()>,
    optional_hook<hook::budget_scope_of, form_of_call<hook::budget_scope_of, B, exactly<budget_scope>>()>,
    optional_hook<hook::budget_floor, form_of_call<hook::budget_floor, B, exactly<int>, int>()>,
    optional_hook<hook::budget_in_entries,
                  form_of_call<hook::budget_in_entries, B, a_budget, shape const&, std::int64_t>()>,
    optional_hook<hook::budget_allot, form_of_function<hook::budget_allot, B>()>,
    optional_hook<hook::budget_check, form_of_call<hook::budget_check, B, anything, char const*>()>>;

template <class Budget>
KVPOLICY_HD constexpr budget_scope scope_of(Budget const& limit) {
  if constexpr (requires { limit.scope(); }) {
    return limit.scope();
  } else {
    return budget_scope::lane;
  }
}

template <class Budget>
KVPOLICY_HD constexpr int floor_of(Budget const& limit, int share) {
  if constexpr (requires { limit.floor(share); }) {
    return limit.floor(share);
  } else {
    return 0;
  }
}

template <class Budget>
constexpr auto in_entries(Budget const& limit, shape const& model, std::int64_t entry_bytes) {
  if constexpr (requires { limit.in_entries(model, entry_bytes); }) {
    return limit.in_entries(model, entry_bytes);
  } else {
    return limit;
  }
}

KVPOLICY_HD constexpr int part_of(double fraction, int tokens) { return floor_of_part(fraction, tokens); }
/// int(fraction * tokens), as in published code: a product of doubles, truncated (29 % of 100 are 28).
KVPOLICY_HD constexpr int cut_part_of(double fraction, int tokens) { return static_cast<int>(fraction * tokens); }

inline void check_tokens(char const* call, int tokens) {
  expects(tokens >= 0, call, "budget.tokens", tokens, "a count cannot be negative");
}

inline void check_floor(char const* call, double part, int tokens) {
  expects(part >= 0 && part <= 1, call, "budget.floor", part, "a floor is a part of the budget, 0 to 1");
  expects(tokens >= 0, call, "budget.floor_tokens", tokens, "a count cannot be negative");
}

KVPOLICY_HD constexpr int greater_floor(int part, int tokens) { return part > tokens ? part : tokens; }

}  // namespace detail

/// `tokens` entries for each lane. Lanes that decide together keep the same `tokens` tokens.
struct per_lane {
  int tokens = 1024;
  static constexpr auto name = "budget";
  static constexpr auto fields() { return make_fields(field{"", &per_lane::tokens}); }
  void check(char const* call) const { detail::check_tokens(call, tokens); }
  KVPOLICY_HD constexpr int operator()(lane, int) const { return tokens; }
  friend bool operator==(per_lane const&, per_lane const&) = default;
};

namespace detail {
/// `tokens`, or where there are more entries: those behind the last whole block, and as many blocks as fit beside them,
/// at least one. A lane of less than a block and its tail keeps all.
[[nodiscard]] KVPOLICY_HD constexpr int whole_blocks_of(int tokens, int block, int count) {
  if (count <= tokens) return tokens;
  int const tail = count % block;
  int const fitting = tokens > tail ? (tokens - tail) / block : 0;
  int const kept = fitting > 1 ? fitting : 1;
  return kept < count / block ? tail + kept * block : count;
}
}  // namespace detail

/// At most `tokens` entries for each lane, so that a lane loses whole blocks: of `count` entries those behind the last
/// whole block count, and as many blocks as fit, at least one. It is for engines that give back whole blocks, and for
/// caches whose lanes hold equally many entries.
struct whole_blocks {
  int tokens = 1024;
  int block = 16;  ///< entries of a block
  static constexpr auto name = "budget";
  static constexpr auto fields() {
    return make_fields(field{"", &whole_blocks::tokens}, field{"block", &whole_blocks::block});
  }
  void check(char const* call) const {
    detail::check_tokens(call, tokens);
    expects(block > 0, call, "budget.block", block, "a block has at least one entry");
  }
  KVPOLICY_HD constexpr int operator()(lane, int count) const { return detail::whole_blocks_of(tokens, block, count); }
  friend bool operator==(whole_blocks const&, whole_blocks const&) = default;
};

/// `tokens` entries for each lane of a layer on average: the lanes pool their budgets, and the entries with the highest
/// scores of all these lanes are kept. Each lane is guaranteed its int(floor_part * tokens) best entries (AdaKV, Feng
/// et al. 2024, arXiv:2407.11550, with its safeguard). Ties go to the lower (head, ordinal). The total is exact.
struct per_layer {
  int tokens = 1024;
  double floor_part = 0.2;
  int floor_tokens = 0;  ///< entries that each lane is guaranteed if they are more
  static constexpr auto name = "budget";
  void check(char const* call) const {
    detail::check_tokens(call, tokens);
    detail::check_floor(call, floor_part, floor_tokens);
  }
  KVPOLICY_HD constexpr int operator()(lane, int) const { return tokens; }
  KVPOLICY_HD static constexpr budget_scope scope() { return budget_scope::layer; }
  KVPOLICY_HD constexpr int floor(int share) const {
    return detail::greater_floor(detail::cut_part_of(floor_part, share), floor_tokens);
  }
  friend bool operator==(per_layer const&, per_layer const&) = default;
};

/// `tokens` entries for each lane of a sequence on average, pooled over all layers and heads as `per_layer` pools the
/// heads of a layer. Ties go to the lower (layer, head, ordinal).
struct per_sequence {
  int tokens = 1024;
  double floor_part = 0;
  int floor_tokens = 0;  ///< entries that each lane is guaranteed if they are more (DBTrimKV's `min_tokens_per_head`)
  static constexpr auto name = "budget";
  void check(char const* call) const {
    detail::check_tokens(call, tokens);
    detail::check_floor(call, floor_part, floor_tokens);
  }
  KVPOLICY_HD constexpr int operator()(lane, int) const { return tokens; }
  KVPOLICY_HD static constexpr budget_scope scope() { return budget_scope::sequence; }
  KVPOLICY_HD constexpr int floor(int share) const {
    return detail::greater_floor(detail::cut_part_of(floor_part, share), floor_tokens);
  }
  friend bool operator==(per_sequence const&, per_sequence const&) = default;
};

/// How the number of kept entries is computed from a ratio of dropped ones.
///
/// - `at_least_one`: the floor of the real number `count * (1 - ratio)`, but at least one entry unless the ratio is 1.
/// - `exact`: that floor alone, so that short lanes may keep no entry.
/// - `kvpress`: as kvpress 0.5.5: a product of doubles, truncated (of 100 entries with ratio 0.9 it keeps 9), and at
///   least one entry unless the ratio is 1. If lanes share the budget and its floor is above 0, each lane is guaranteed
///   at least one entry, as in kvpress's AdaKV.
/// - `kvpress_0_5_4`: as kvpress 0.5.4 and all releases before it: truncated only, so that short lanes may keep no
///   entry.
enum class rounding { at_least_one, exact, kvpress, kvpress_0_5_4 };

[[nodiscard]] constexpr std::array<char const*, 4> names(rounding) {
  return {"at_least_one", "exact", "kvpress", "kvpress_0_5_4"};
}

namespace detail {

/// The number of entries that a lane of `count` entries keeps if the part `drop` of them is dropped.
KVPOLICY_HD constexpr int kept_of_ratio(double drop, rounding round, int count) {
  bool const is_cut = round == rounding::kvpress || round == rounding::kvpress_0_5_4;
  bool const may_be_none = round == rounding::exact || round == rounding::kvpress_0_5_4;
  int const kept = is_cut ? cut_part_of(1 - drop, count) : part_of(1 - drop, count);
  return !may_be_none && kept == 0 && count > 0 && drop < 1 ? 1 : kept;
}

/// The number of entries that a lane of a pool is guaranteed, given the lane's own budget `share`.
KVPOLICY_HD constexpr int floor_of_share(double floor, rounding round, int share) {
  int const part = cut_part_of(floor, share);
  return round == rounding::kvpress && part == 0 && floor > 0 && share > 0 ? 1 : part;
}

}  // namespace detail

/// Drops the part `drop` of each lane. A policy that decides at the end of a prompt (the phases `prefill` and `layer`)
/// drops it of the entries that the lane holds. Decisions of any other policy would multiply, so there it is of the
/// tokens that the sequence has had so far, as of `seen`, unless `held` says otherwise.
struct drop_ratio {
  double drop = 0.5;
  rounding round = rounding::at_least_one;
  bool held = false;  ///< true: it is of the entries that a lane holds, at every decision again
  static constexpr auto name = "budget";
  void check(char const* call) const {
    expects(drop >= 0 && drop <= 1, call, "budget.ratio", drop, "a part is dropped, 0 to 1");
  }
  KVPOLICY_HD constexpr int operator()(lane, int count) const { return detail::kept_of_ratio(drop, round, count); }
  [[nodiscard]] KVPOLICY_HD constexpr double dropped_part() const { return drop; }
  friend bool operator==(drop_ratio const&, drop_ratio const&) = default;
};

/// Drops the floor(drop * count) entries with the lowest scores of each lane, when the trigger fires for all lanes of a
/// sequence together (`over_budget` fires at every decision). With `over_total` as the trigger this is WG-KV's eviction
/// of admitted tokens (arXiv:2512.17452, K.1).
struct lowest_part {
  double drop = 0.1;
  static constexpr auto name = "lowest";
  static constexpr auto fields() { return make_fields(field{"", &lowest_part::drop}); }
  void check(char const* call) const {
    expects(drop >= 0 && drop <= 1, call, "lowest.drop", drop, "a part is dropped, 0 to 1");
  }
  KVPOLICY_HD constexpr int operator()(lane, int count) const { return count - detail::part_of(drop, count); }
  KVPOLICY_HD static constexpr budget_scope scope() { return budget_scope::sequence; }
  KVPOLICY_HD static constexpr int floor(int share) {
    return share;
  }  // each lane keeps its own budget, unless forced entries need more
  friend bool operator==(lowest_part const&, lowest_part const&) = default;
};

/// `limit` bytes of keys and values for all lanes of a sequence, divided equally. A decision converts it with
/// `in_entries`; called directly it counts each byte as an entry.
struct in_bytes {
  std::int64_t limit = 1 << 20;
  static constexpr auto name = "budget";
  void check(char const* call) const { expects(limit >= 0, call, "budget.bytes", limit, "a count cannot be negative"); }
  KVPOLICY_HD constexpr int operator()(lane, int) const {
    return static_cast<int>(limit < 0x7FFFFFFF ? limit : 0x7FFFFFFF);
  }
  [[nodiscard]] constexpr per_lane in_entries(shape const& model, std::int64_t entry_bytes) const {
    std::int64_t const share = limit / (entry_bytes * model.layers * model.kv_heads);
    return {static_cast<int>(share < 0x7FFFFFFF ? share : 0x7FFFFFFF)};
  }
  friend bool operator==(in_bytes const&, in_bytes const&) = default;
};

/// No limit: nothing is ever dropped.
struct unlimited {
  static constexpr auto name = "unlimited";
  static constexpr auto fields() { return make_fields(); }
  KVPOLICY_HD constexpr int operator()(lane, int) const { return 0x7FFFFFFF; }
  friend bool operator==(unlimited const&, unlimited const&) = default;
};

namespace detail {
inline std::string print_floor(double part, int tokens) {
  std::string const text = part != 0 ? ", floor=" + to_string(part) : std::string();
  return tokens != 0 ? text + ", floor_tokens=" + to_string(tokens) : text;
}
}  // namespace detail

[[nodiscard]] inline std::string print(per_layer const& limit) {
  return "budget(" + to_string(limit.tokens) + ", scope=layer" +
         detail::print_floor(limit.floor_part, limit.floor_tokens) + ")";
}
[[nodiscard]] inline std::string print(per_sequence const& limit) {
  return "budget(" + to_string(limit.tokens) + ", scope=global" +
         detail::print_floor(limit.floor_part, limit.floor_tokens) + ")";
}
[[nodiscard]] inline std::string print(drop_ratio const& limit) {
  return "budget(ratio=" + to_string(limit.drop) +
         (limit.round == rounding{} ? "" : ", rounding=" + to_string(limit.round)) +
         (limit.held ? ", held=true)" : ")");
}
[[nodiscard]] inline std::string print(in_bytes const& limit) { return "budget(bytes=" + to_string(limit.limit) + ")"; }

}  // namespace KVPOLICY_NAMESPACE
