// State: the columns in which recorders keep signals across steps. The engine owns it, and appliers move its columns
// with the entries.
#pragma once

#include <algorithm>
#include <concepts>
#include <functional>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/hook_checks.hpp>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The objects that a column has elements for: every entry of a lane, every page of a lane, every row of a query
/// window, every lane, or, for data that outlives a request (see `save_session`), every session.
enum class per { lane_entry, lane_page, window_row, lane, session };

/// The rule for a column when entries move: `permute` it with the entries, `recompute` it, or let it `stay` as it is.
///
/// A column of `per::lane` with the rule `recompute` is one int: the number of entries, from the lane's first one on,
/// for which the other columns of its recorder are up to date. Every call that moves or removes entries lowers it to
/// the first ordinal that changed (`lower_known`); a roll-back does so through the recorder's `forget`. The next
/// `observe` continues from there.
enum class on_move { permute, recompute, stay };

/// The description of a column. Each lane has `units` elements of `bytes` bytes; `units` = 0 means one for every entry.
struct column {
  char const* name = "";
  per one = per::lane_entry;
  on_move rule = on_move::permute;
  int bytes = 4;
  int units = 0;

  friend bool operator==(column const& a, column const& b) {
    return std::string_view(a.name) == b.name && a.one == b.one && a.rule == b.rule && a.bytes == b.bytes &&
           a.units == b.units;
  }
};

/// A column and its memory: one row of bytes for every lane.
struct recorded_column {
  column about{};
  by_lane<std::byte> rows{};
};

/// The columns of one recorder inside a state.
struct recorded_columns {
  shape model{};
  recorded_column const* first = nullptr;
  [[nodiscard]] recorded_column const& operator[](int i) const { return first[i]; }

  /// The i-th column as a table of T.
  template <class T>
  [[nodiscard]] by_lane<T> table(int i) const {
    by_lane<std::byte> const& rows = first[i].rows;
    auto const size = static_cast<std::int64_t>(sizeof(T));
    return {reinterpret_cast<T*>(rows.data), rows.sequence / size, rows.layer / size, rows.head / size};
  }
};

namespace detail {

/// Notes that the entries of a lane have changed from ordinal `first` on: see `on_move`.
inline void lower_known(std::span<recorded_column const> columns, lane this_lane, int first) {
  for (recorded_column const& one : columns) {
    if (one.about.one != per::lane || one.about.rule != on_move::recompute) continue;
    int& known = *reinterpret_cast<int*>(one.rows.row(this_lane));
    known = std::min(known, first);
  }
}

}  // namespace detail

/// A recorder keeps a signal across steps. Its members are:
///
/// - `needs`: the signals that it reads; `provides`: the signal that it provides.
/// - `columns(model, bound)`: the columns that it keeps. `view(columns)` returns the signal that they hold.
/// - `observe(exec, in, columns) const` writes the columns.
/// - optional: `forget(exec, lanes, columns, sequence, position)`, called when a sequence is rolled back to a position.
/// - optional: `from_birth = true` if its values are known when an entry is appended. The window of an admission then
///   records them, so that they move into the pages with an admitted entry.
template <class R>
concept recorder = std::regular<R> && requires(R const& r, shape const& model, recorded_columns const& recorded) {
  typename R::needs;
  typename R::provides;
  { r.columns(model, 1).size() } -> std::convertible_to<std::size_t>;
  { r.view(recorded) } -> std::same_as<typename R::provides>;
};

namespace detail {

/// Checks the form of `forget`, once the executor is known.
template <class R, class Executor>
using forgetting_hooks =
    hooks<R, optional_hook<hook::recorder_forget, form_of_call<hook::recorder_forget, R, anything, Executor&,
                                                               lanes const&, recorded_columns const&, int, int>()>>;

}  // namespace detail

/// The recorders of a scorer: the tuple that its `recorders()` returns, or an empty one.
template <class Scorer>
[[nodiscard]] constexpr auto recorders_of(Scorer const& score) {
  if constexpr (requires { score.recorders(); }) {
    return score.recorders();
  } else {
    return std::tuple<>{};
  }
}

/// All columns of a policy's recorders, for one batch, in an executor's memory. The size is fixed: nothing is allocated
/// after construction and `add`.
template <class Executor>
class state {
 public:
  /// `slack` is the number of entries by which rows of `per::lane_entry` are longer than the bound, so that they can
  /// `slide`.
  state(Executor& exec, shape const& model, kvpolicy::lanes const& batch, int slack = 0)
      : model_(model), lanes_(batch), slack_(slack), exec_(&exec) {}

  state(state&&) = default;
  state& operator=(state&&) = default;
  state(state const&) = delete;  // memory is allocated once; `copy_from` copies into existing memory
  state& operator=(state const&) = delete;

  /// Adds a recorder's columns, filled with zeros. Recorders must be added in the order of the policy's tuple.
  template <recorder Recorder>
  void add(Recorder const& keeps) {
    static_cast<void>(detail::forgetting_hooks<Recorder, Executor>::check());
    if constexpr (requires(Executor& exec, recorded_columns const& recorded) {
                    keeps.forget(exec, lanes_, recorded, 0, 0);
                  }) {
      std::size_t const first = columns_.size();
      forget_calls_.push_back(
          [keeps, first](Executor& exec, state const& from, kvpolicy::lanes const& batch, int sequence, int position) {
            keeps.forget(exec, batch, from.columns_from(first), sequence, position);
          });
    }
    for (column const& about : keeps.columns(model_, lanes_.bound)) {
      std::size_t const units = static_cast<std::size_t>(about.units != 0 ? about.units : lanes_.bound + slack_);
      auto const row = static_cast<std::int64_t>(units * static_cast<std::size_t>(about.bytes));
      memory_.emplace_back(*exec_, static_cast<std::size_t>(row) * static_cast<std::size_t>(lanes_.size()));
      by_lane<std::byte> const rows{memory_.back().data() - row * lanes_.layer_begin * lanes_.heads,
                                    row * lanes_.heads * lanes_.layers(), row * lanes_.heads, row};
      columns_.push_back({about, rows});
    }
  }

  /// Copies all columns of another state, to fork a batch or to restore a snapshot. Allocates nothing.
  ///
  /// - throws: `invalid_argument` if the other state was made for another policy, shape or batch. Then nothing was
  ///   changed.
  void copy_from(state const& other) {
    bool same =
        model_ == other.model_ && columns_.size() == other.columns_.size() && lanes_.bound == other.lanes_.bound;
    for (std::size_t i = 0; same && i < memory_.size(); ++i) same = memory_[i].size() == other.memory_[i].size();
    expects(same, "state::copy_from", "other", "another kind of state",
            "both are made for one policy, shape and batch");
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      exec_->copy(memory_[i].data(), other.memory_[i].data(), memory_[i].size());
    }
    slide(other.slid_ - slid_);
  }

  /// Shifts the rows of `per::lane_entry` by `entries`, after the oldest `entries` of every lane have left: the element
  /// of entry i + entries becomes that of entry i. Only pointers change. A negative number shifts back. The caller
  /// ensures that 0 <= slid() <= slack() holds afterwards.
  void slide(int entries) {
    for (recorded_column& each : columns_) {
      if (each.about.one == per::lane_entry) each.rows.data += std::int64_t{entries} * each.about.bytes;
    }
    slid_ += entries;
  }
  [[nodiscard]] int slid() const { return slid_; }
  [[nodiscard]] int slack() const { return slack_; }

  /// Calls `forget` of every recorder that has it, because a sequence is rolled back to `position`.
  void forget(Executor& exec, kvpolicy::lanes const& batch, int sequence, int position) const {
    for (auto const& each : forget_calls_) each(exec, *this, batch, sequence, position);
  }

  /// The bytes of one sequence in columns of `per::session`, which outlive a request.
  [[nodiscard]] std::size_t session_bytes() const {
    std::size_t bytes = 0;
    for (recorded_column const& each : columns_) bytes += session_bytes_of(each);
    return bytes;
  }
  /// Copies a sequence's columns of `per::session` to `to`, column by column and lane by lane: `session_bytes()` bytes.
  void save_session(Executor& exec, int sequence, std::byte* to) const {
    check_sequence("save_session", sequence);
    for (recorded_column const& each : columns_) {
      std::size_t const bytes = session_bytes_of(each);
      if (bytes > 0) exec.copy(to, each.rows.row({sequence, lanes_.layer_begin, 0}), bytes);
      to += bytes;
    }
  }
  /// Copies what `save_session` wrote into a sequence of a state of the same policy and shape.
  void load_session(Executor& exec, int sequence, std::byte const* from) {
    check_sequence("load_session", sequence);
    for (recorded_column const& each : columns_) {
      std::size_t const bytes = session_bytes_of(each);
      if (bytes > 0) exec.copy(each.rows.row({sequence, lanes_.layer_begin, 0}), from, bytes);
      from += bytes;
    }
  }

  [[nodiscard]] shape const& model() const { return model_; }
  [[nodiscard]] kvpolicy::lanes const& lanes() const { return lanes_; }
  [[nodiscard]] std::vector<recorded_column> const& columns() const { return columns_; }
  [[nodiscard]] recorded_columns columns_from(std::size_t first) const { return {model_, columns_.data() + first}; }

 private:
  [[nodiscard]] static std::size_t session_bytes_of(recorded_column const& each) {
    return each.about.one == per::session ? static_cast<std::size_t>(each.rows.sequence) : 0;
  }
  void check_sequence(char const* call, int sequence) const {
    expects(sequence >= 0 && sequence < lanes_.sequences, call, "sequence", sequence,
            [&] { return "the batch has " + std::to_string(lanes_.sequences) + " sequences"; });
  }

  shape model_;
  kvpolicy::lanes lanes_;
  int slack_ = 0;
  int slid_ = 0;
  Executor* exec_;
  std::vector<typename Executor::template buffer<std::byte>> memory_;
  std::vector<recorded_column> columns_;
  std::vector<std::function<void(Executor&, state const&, kvpolicy::lanes const&, int, int)>> forget_calls_;
};

}  // namespace KVPOLICY_NAMESPACE
