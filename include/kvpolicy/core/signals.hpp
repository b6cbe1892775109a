// Signals: the inputs that an engine can give to a policy. A scorer names those that it needs.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/hook_checks.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signal_rows.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace KVPOLICY_NAMESPACE {

/// Rows of a plane that are found through a locator.
struct row_view {
  plane rows{};
  locator where{};
  [[nodiscard]] KVPOLICY_HD std::byte const* row(lane this_lane, int ordinal) const {
    return rows.row(this_lane.layer, where.at(this_lane, ordinal), this_lane.head);
  }
};

/// Signal: the post-RoPE keys of every entry.
struct keys : row_view {
  static constexpr auto name = "keys";
  void check(char const* call, shape const& model) const {
    expects(rows.base != nullptr || rows.bases.data != nullptr, call, "keys", "null",
            "a signal is the engine's memory");
    detail::check_readable(call, "keys", rows.element);
    expects(rows.dims == model.head_dim, call, "keys.dims", rows.dims,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
  }
};

/// Signal: the values of every entry.
struct values : row_view {
  static constexpr auto name = "values";
  void check(char const* call, shape const&) const {
    expects(rows.base != nullptr || rows.bases.data != nullptr, call, "values", "null",
            "a signal is the engine's memory");
    detail::check_readable(call, "values", rows.element);
  }
};

/// A cache's keys as a signal.
[[nodiscard]] constexpr keys keys_of(cache const& from) { return {{from.k, from.where}}; }
/// A cache's values as a signal.
[[nodiscard]] constexpr values values_of(cache const& from) { return {{from.v, from.where}}; }

/// One float for each query row: [sequence, layer, query head, stored row]. Strides are in elements, rows are
/// contiguous.
struct row_floats {
  float const* data = nullptr;
  std::int64_t sequence = 0;
  std::int64_t layer = 0;
  std::int64_t head = 0;  ///< between query heads
  [[nodiscard]] KVPOLICY_HD float at(lane this_lane, int query_head, int stored_row) const {
    return data[this_lane.sequence * sequence + this_lane.layer * layer + query_head * head + stored_row];
  }
};

/// One number for each new entry of a lane, of any element type. Strides are in bytes.
struct entry_numbers {
  std::byte const* base = nullptr;
  codec element = codec::f32;
  std::int64_t sequence = 0;
  std::int64_t layer = 0;
  std::int64_t head = 0;
  std::int64_t entry = 0;
  int entries = 0;              ///< new entries of each lane
  by_lane<int const> counts{};  ///< the number of new entries of each lane, if they differ; null: `entries`

  [[nodiscard]] KVPOLICY_HD int count(lane this_lane) const {
    return counts.data != nullptr ? *counts.row(this_lane) : entries;
  }
  [[nodiscard]] KVPOLICY_HD std::byte const* at(lane this_lane, int i) const {
    return base + this_lane.sequence * sequence + this_lane.layer * layer + this_lane.head * head + i * entry;
  }
  void check(char const* call, shape const&) const {
    expects(base != nullptr || (entries == 0 && counts.data == nullptr), call, "entry numbers", "null",
            "a signal is the engine's memory");
    expects(element != codec::opaque, call, "entry numbers", "opaque", "only their engine can read them");
  }
};

/// Query rows, post-RoPE, with the position of each. With a `cursor` the rows are a ring: logical row r of a lane is
/// stored in row (first + r) mod `rows`.
struct query_view {
  std::byte const* base = nullptr;
  codec element = codec::f32;
  int dims = 0;
  std::int64_t sequence = 0;  ///< byte strides
  std::int64_t layer = 0;
  std::int64_t head = 0;  ///< between query heads
  std::int64_t row = 0;
  int heads = 0;                  ///< number of query heads
  int rows = 0;                   ///< maximum number of rows of a lane
  by_lane<int const> position{};  ///< for each lane the position of each stored query row; null is allowed only in a
                                  ///< direct call of a verb and means that every row sees every entry
  by_lane<int const> cursor{};    ///< {first, valid} of a ring; null data: rows 0 .. rows - 1 are all valid
  row_floats lse{};               ///< log-sum-exp of each row's scaled logits over the keys that it sees, if the
                                  ///< engine's attention has it; null data: it is computed from the keys

  /// The number of valid rows of a lane.
  [[nodiscard]] KVPOLICY_HD int valid(lane this_lane) const {
    return cursor.data != nullptr ? cursor.row(this_lane)[1] : rows;
  }
  /// The stored row of logical row r.
  [[nodiscard]] KVPOLICY_HD int stored(lane this_lane, int r) const {
    return cursor.data != nullptr ? (cursor.row(this_lane)[0] + r) % rows : r;
  }
  [[nodiscard]] KVPOLICY_HD std::byte const* at(lane this_lane, int query_head, int stored_row) const {
    return base + this_lane.sequence * sequence + this_lane.layer * layer + query_head * head + stored_row * row;
  }

  /// True if any row of a lane sees any of its committed entries. Rows at positions after the last entry do not count.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& batch, lane this_lane) const {
    int const entries = batch.committed(this_lane);
    int r = valid(this_lane) - 1;
    if (r < 0 || position.data == nullptr || entries <= 0) return r >= 0;
    int const* const at = batch.position.row(this_lane);
    while (r >= 0 && position.row(this_lane)[stored(this_lane, r)] > at[entries - 1]) --r;
    return r >= 0 && position.row(this_lane)[stored(this_lane, r)] >= at[0];
  }

  void check(char const* call, shape const& model) const {
    expects(rows >= 0, call, "queries.rows", rows, "a count cannot be negative");
    expects(base != nullptr || rows == 0, call, "queries", "null", "a signal is the engine's memory");
    detail::check_readable(call, "queries", element);
    expects(position.data != nullptr || rows == 0, call, "queries.position", "null", "every row says its position");
    expects(dims == model.head_dim, call, "queries.dims", dims,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
    expects(heads == model.query_heads, call, "queries.heads", heads,
            [&] { return "the model has " + std::to_string(model.query_heads) + " query heads"; });
  }
};

/// Signal: the query rows of the current forward, one for each new entry.
struct queries : query_view {
  static constexpr auto name = "queries";
};

/// Signal: the last query rows of the sequence, which `query_ring` records unless the engine gives them.
struct recent_queries : query_view {
  static constexpr auto name = "recent_queries";
};

/// Signal: the query rows of a turn, and which of them are its actionable span: the rows of the latest message that can
/// affect the answer. An engine that has only the span's rows gives those, and gives no rows if no entry of the span is
/// left in the cache.
struct turn_queries : query_view {
  static constexpr auto name = "turn_queries";
  int const* span_begin = nullptr;  ///< for each sequence: logical rows [begin, end) are the span. If either pointer is
  int const* span_end = nullptr;    ///< null or begin >= end, the span is unknown, and the last rows are used instead
  /// The span's logical rows in a lane. If the span is unknown, these are the last `tail` rows.
  [[nodiscard]] KVPOLICY_HD ordinal_range span(lane this_lane, int tail) const {
    int const all = valid(this_lane);
    if (span_begin == nullptr || span_end == nullptr ||
        span_begin[this_lane.sequence] >= span_end[this_lane.sequence]) {
      return {all > tail ? all - tail : 0, all};
    }
    int const begin = span_begin[this_lane.sequence];
    int const end = span_end[this_lane.sequence];
    return {begin > 0 ? begin : 0, end < all ? end : all};  // a span that is not within the rows is refused elsewhere
  }
  /// The position of a logical row.
  [[nodiscard]] KVPOLICY_HD int position_of(lane this_lane, int r) const {
    return position.row(this_lane)[stored(this_lane, r)];
  }
};

/// Signal: the attention that each entry has received since it was appended, one float for each entry of a lane.
struct attention_mass {
  static constexpr auto name = "attention_mass";
  by_lane<float const> mass{};
  /// True if any entry of a lane has received attention.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& batch, lane this_lane) const {
    return detail::any_recorded(mass.row(this_lane), batch.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, mass); }
};

/// The signals that a scorer or a recorder reads.
template <class... Signals>
struct needs {};

/// A need that any one of several signals satisfies.
template <class... Signals>
struct any_signal_of {
  static constexpr auto name = "any_of";
};

namespace detail {

template <class Bag, class Signal>
struct provided;

/// The hooks of a signal.
template <class Signal>
using signal_hooks =
    hooks<Signal, optional_hook<hook::signal_check,
                                form_of_call<hook::signal_check, Signal, anything, char const*, shape const&>()>>;

}  // namespace detail

/// The signals that an engine gives to a call, and the lanes that they are about.
///
///     kv::signals in{cache.lanes, kv::keys_of(cache), my_queries};
template <class... Given>
class signals {
 public:
  explicit constexpr signals(kvpolicy::lanes const& batch, Given... given) : lanes(batch), given_(given...) {}
  static_assert((detail::signal_hooks<Given>::check() && ...));

  kvpolicy::lanes lanes;

  template <class Signal>
  [[nodiscard]] constexpr Signal const& get() const {
    static_assert(detail::signal_read<Signal, signals>::is_provided,
                  "kvpolicy: this recorder reads a signal that its `needs` does not list, and that is not given");
    if constexpr (provides<Signal>) {
      return std::get<Signal>(given_);
    } else {
      return detail::refused<Signal const&>();
    }
  }

  template <class Signal>
  static constexpr bool provides = (std::is_same_v<Signal, Given> || ...);

  /// True if every one of these signals is given. Here it is known at compile time; `any_signals`, whose signals are
  /// known only at run time, has a member of the same form.
  template <class... Needed>
  [[nodiscard]] static constexpr bool has_all(needs<Needed...>) {
    return (detail::provided<signals, Needed>::value && ...);
  }

  /// These signals and `more`, about other lanes.
  template <class... More>
  [[nodiscard]] constexpr signals<Given..., More...> with(kvpolicy::lanes const& batch, More const&... more) const {
    return std::apply([&](Given const&... each) { return signals<Given..., More...>(batch, each..., more...); },
                      given_);
  }

  /// Throws if a signal does not fit the model: calls the `check` of every signal that has one.
  void check(char const* call, shape const& model) const {
    std::apply([&](auto const&... each) { (check_one(each, call, model), ...); }, given_);
  }

 private:
  template <class Signal>
  static void check_one(Signal const& one, char const* call, shape const& model) {
    if constexpr (requires { one.check(call, model); }) one.check(call, model);
  }

  std::tuple<Given...> given_;
};

namespace detail {

template <class Bag, class Signal>
struct provided : std::bool_constant<Bag::template provides<Signal>> {};
template <class Bag, class... Signals>
struct provided<Bag, any_signal_of<Signals...>> : std::bool_constant<(provided<Bag, Signals>::value || ...)> {};

}  // namespace detail

/// True if `Bag` provides the signal.
template <class Bag, class Signal>
inline constexpr bool provides = detail::provided<Bag, Signal>::value;

/// The compiler names this struct in the error that a user reads when a composition lacks a signal.
template <class Reader, class Signal, class Bag>
struct signal_needed_by {
  static constexpr bool is_provided = provides<Bag, Signal>;
};

namespace detail {

template <class Bag, class... Needed>
consteval bool has_all(needs<Needed...>) {
  return (provides<Bag, Needed> && ...);
}

/// Gives one readable error for each missing signal, with g++, clang and nvcc alike.
template <class Reader, class Bag, class... Needed>
consteval bool signals_complete(needs<Needed...>) {
  (
      [] {
        static_assert(
            signal_needed_by<Reader, Needed, Bag>::is_provided,
            "kvpolicy: this scorer or recorder needs a signal that the given kvpolicy::signals do not provide");
      }(),
      ...);
  return (provides<Bag, Needed> && ...);
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
