// Signals: what an engine can tell a policy. A scorer names the ones it needs; the bag carries the ones there are.
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

/// Rows of a plane found through a locator.
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

/// One float a query row: [sequence, layer, query head, stored row], strides in elements, rows next to each other.
struct row_floats {
  float const* data = nullptr;
  std::int64_t sequence = 0;
  std::int64_t layer = 0;
  std::int64_t head = 0;  ///< between query heads
  [[nodiscard]] KVPOLICY_HD float at(lane this_lane, int query_head, int stored_row) const {
    return data[this_lane.sequence * sequence + this_lane.layer * layer + query_head * head + stored_row];
  }
};

/// One number for each new entry of a lane, of any element type; byte strides.
struct entry_numbers {
  std::byte const* base = nullptr;
  codec element = codec::f32;
  std::int64_t sequence = 0;
  std::int64_t layer = 0;
  std::int64_t head = 0;
  std::int64_t entry = 0;
  int entries = 0;              ///< new entries of each lane
  by_lane<int const> counts{};  ///< where lanes have differing numbers of them; null: `entries`

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

/// Query rows, post-RoPE, with the position of each. Row r of a lane is row (first + r) mod `rows` when a cursor is
/// there.
struct query_view {
  std::byte const* base = nullptr;
  codec element = codec::f32;
  int dims = 0;
  std::int64_t sequence = 0;  ///< byte strides
  std::int64_t layer = 0;
  std::int64_t head = 0;  ///< between query heads
  std::int64_t row = 0;
  int heads = 0;                  ///< query heads in all
  int rows = 0;                   ///< rows a lane, at most
  by_lane<int const> position{};  ///< a row a lane: position of each stored query row; null, in a direct call of a
                                  ///< verb: they see every entry
  by_lane<int const> cursor{};    ///< {first, valid} of a ring; null data: rows 0 .. rows - 1 are all valid
  row_floats lse{};  ///< log-sum-exp of each row's scaled logits over the keys that it sees, where attention has it;
                     ///< null data: computed from the keys

  [[nodiscard]] KVPOLICY_HD int valid(lane this_lane) const {
    return cursor.data != nullptr ? cursor.row(this_lane)[1] : rows;
  }
  /// Where logical row r is stored.
  [[nodiscard]] KVPOLICY_HD int stored(lane this_lane, int r) const {
    return cursor.data != nullptr ? (cursor.row(this_lane)[0] + r) % rows : r;
  }
  [[nodiscard]] KVPOLICY_HD std::byte const* at(lane this_lane, int query_head, int stored_row) const {
    return base + this_lane.sequence * sequence + this_lane.layer * layer + query_head * head + stored_row * row;
  }

  /// True if any row of a lane sees any of its committed entries.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    int const entries = among.committed(this_lane);
    int r = valid(this_lane) - 1;
    if (r < 0 || position.data == nullptr || entries <= 0) return r >= 0;
    int const* const at = among.position.row(this_lane);
    while (r >= 0 && position.row(this_lane)[stored(this_lane, r)] > at[entries - 1])
      --r;  // of an entry that is not there
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

/// Signal: the query rows of this forward, one for each new entry.
struct queries : query_view {
  static constexpr auto name = "queries";
};

/// Signal: the last rows of the sequence; a recorder keeps them where a forward brings fewer than a window.
struct recent_queries : query_view {
  static constexpr auto name = "recent_queries";
};

/// Signal: query rows of a turn, and which of them are its actionable span: the rows of the latest message that can
/// affect what comes next. An engine that has no more than the span's rows gives those, and none of a span of which no
/// entry is left.
struct turn_queries : query_view {
  static constexpr auto name = "turn_queries";
  int const* span_begin = nullptr;  ///< a row number a sequence: logical rows [begin, end) are the span. Begin = end,
  int const* span_end = nullptr;    ///< or null: it could not be told, and the last few rows stand for it

  /// The span's rows in a lane; `tail`: so many of the last rows where it could not be told.
  [[nodiscard]] KVPOLICY_HD ordinal_range span(lane this_lane, int tail) const {
    int const there = valid(this_lane);
    if (span_begin == nullptr || span_end == nullptr ||
        span_begin[this_lane.sequence] >= span_end[this_lane.sequence]) {
      return {there > tail ? there - tail : 0, there};
    }
    int const begin = span_begin[this_lane.sequence];
    int const end = span_end[this_lane.sequence];
    return {begin > 0 ? begin : 0, end < there ? end : there};  // one that is not within the rows is refused
  }
  /// The position of a logical row.
  [[nodiscard]] KVPOLICY_HD int position_of(lane this_lane, int r) const {
    return position.row(this_lane)[stored(this_lane, r)];
  }
};

/// Signal: attention that each entry has received over its life, one float an entry of a lane.
struct attention_mass {
  static constexpr auto name = "attention_mass";
  by_lane<float const> mass{};
  /// True if any entry of a lane has received some.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    return detail::any_recorded(mass.row(this_lane), among.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, mass); }
};

/// The signals that a scorer or a recorder reads.
template <class... Signals>
struct needs {};

/// A need that any one of several signals fulfils.
template <class... Signals>
struct any_signal_of {
  static constexpr auto name = "any_of";
};

namespace detail {

template <class Bag, class Signal>
struct provided;

/// What is asked of a signal.
template <class Signal>
using signal_hooks =
    hooks<Signal, optional_hook<hook::signal_check,
                                form_of_call<hook::signal_check, Signal, anything, char const*, shape const&>()>>;

}  // namespace detail

/// The bag: lanes, and the signals that the engine has.
///
///     kv::signals in{cache.lanes, kv::keys_of(cache), my_queries};
template <class... Given>
class signals {
 public:
  explicit constexpr signals(kvpolicy::lanes const& among, Given... given) : lanes(among), given_(given...) {}
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

  /// True if every one is given; known when compiled, and asked as of signals that are known at run time only.
  template <class... Needed>
  [[nodiscard]] static constexpr bool has_all(needs<Needed...>) {
    return (detail::provided<signals, Needed>::value && ...);
  }

  /// The same of other lanes, and further signals.
  template <class... More>
  [[nodiscard]] constexpr signals<Given..., More...> with(kvpolicy::lanes const& among, More const&... more) const {
    return std::apply([&](Given const&... each) { return signals<Given..., More...>(among, each..., more...); },
                      given_);
  }

  /// Refuses signals that do not fit the model: each type that has a `check` looks at itself.
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

/// True if the bag can answer for the signal.
template <class Bag, class Signal>
inline constexpr bool provides = detail::provided<Bag, Signal>::value;

/// The name of this struct is the error that a user reads when a composition lacks a signal.
template <class Reader, class Signal, class Bag>
struct signal_needed_by {
  static constexpr bool is_provided = provides<Bag, Signal>;
};

namespace detail {

template <class Bag, class... Needed>
consteval bool has_all(needs<Needed...>) {
  return (provides<Bag, Needed> && ...);
}

/// One readable error a missing signal, on g++, clang and nvcc alike.
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
