// State: the columns that recorders keep over steps. The engine owns it; appliers move it with the entries.
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

/// What a column has one of.
enum class per { lane_entry, lane_page, window_row, lane, session };

/// What an applier does to a column when entries move: permute it along, recompute it, or leave it.
///
/// To recompute a column of per::lane is to say how much of it is still true: it is one int, the number of entries,
/// from the lane's first on, that its recorder's other columns speak of. Whatever moves or removes entries lowers it to
/// the first ordinal that changed (`lower_known`), a roll-back through the recorder's `forget`; `observe` goes on from
/// there.
enum class on_move { permute, recompute, stay };

/// One thing that a recorder keeps: `bytes` for each of its units, `units` in a lane (0: one for every entry).
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

/// A column's memory: a row of bytes for every lane.
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

/// Entries of a lane from ordinal `first` on are other ones than they were: see on_move::recompute.
inline void lower_known(std::span<recorded_column const> columns, lane this_lane, int first) {
  for (recorded_column const& one : columns) {
    if (one.about.one != per::lane || one.about.rule != on_move::recompute) continue;
    int& known = *reinterpret_cast<int*>(one.rows.row(this_lane));
    known = std::min(known, first);
  }
}

}  // namespace detail

/// A recorder keeps a signal across steps. It says what it needs, what signal it provides, which columns it keeps
/// (`columns(model, bound)`), and how they answer for the signal (`view(state)`); `observe(exec, in, state) const`
/// writes them. Optional: `forget(exec, lanes, state, sequence, position)`, when a sequence is rolled back to a
/// position; `from_birth = true`, where what it keeps is known when an entry is written: a window keeps it for the
/// pages to come.
template <class R>
concept recorder = std::regular<R> && requires(R const& r, shape const& model, recorded_columns const& recorded) {
  typename R::needs;
  typename R::provides;
  { r.columns(model, 1).size() } -> std::convertible_to<std::size_t>;
  { r.view(recorded) } -> std::same_as<typename R::provides>;
};

namespace detail {

/// `forget`, once the executor is known.
template <class R, class Executor>
using forgetting_hooks =
    hooks<R, optional_hook<hook::recorder_forget, form_of_call<hook::recorder_forget, R, anything, Executor&,
                                                               lanes const&, recorded_columns const&, int, int>()>>;

}  // namespace detail

/// The recorders of a scorer, as a tuple: what its `recorders()` returns, or nothing.
template <class Scorer>
[[nodiscard]] constexpr auto recorders_of(Scorer const& score) {
  if constexpr (requires { score.recorders(); }) {
    return score.recorders();
  } else {
    return std::tuple<>{};
  }
}

/// Every column of a policy's recorders, for one batch, in an executor's memory. Fixed size: nothing allocates later.
template <class Executor>
class state {
 public:
  /// `slack`: entries by which rows of per::lane_entry are longer than the bound, so that they can `slide`.
  state(Executor& exec, shape const& model, kvpolicy::lanes const& batch, int slack = 0)
      : model_(model), lanes_(batch), slack_(slack), exec_(&exec) {}

  state(state&&) = default;
  state& operator=(state&&) = default;
  state(state const&) = delete;  // memory is made once; `copy_from` forks a sequence into memory that is there
  state& operator=(state const&) = delete;

  /// Adds a recorder's columns, zeroed. In the order of the policy's tuple of recorders.
  template <recorder Recorder>
  void add(Recorder const& keeps) {
    static_cast<void>(detail::forgetting_hooks<Recorder, Executor>::check());
    if constexpr (requires(Executor& exec, recorded_columns const& recorded) {
                    keeps.forget(exec, lanes_, recorded, 0, 0);
                  }) {
      std::size_t const first = columns_.size();
      forgetting_.push_back(
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

  /// Takes over what another state holds: a fork, or the way back to a snapshot. Allocates nothing.
  ///
  /// - throws: `invalid_argument` if the other was made for another policy, shape or batch. Then nothing was changed.
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

  /// The oldest `entries` of every lane are gone: what was recorded of entry i + entries is of entry i. Nothing moves;
  /// below 0 the way back. The caller sees to it that 0 <= slid() <= slack().
  void slide(int entries) {
    for (recorded_column& each : columns_) {
      if (each.about.one == per::lane_entry) each.rows.data += std::int64_t{entries} * each.about.bytes;
    }
    slid_ += entries;
  }
  [[nodiscard]] int slid() const { return slid_; }
  [[nodiscard]] int slack() const { return slack_; }

  /// A sequence is rolled back to `position`: recorders that keep rows by position drop theirs.
  void forget(Executor& exec, kvpolicy::lanes const& batch, int sequence, int position) const {
    for (auto const& each : forgetting_) each(exec, *this, batch, sequence, position);
  }

  /// Bytes of what outlives a request: the columns of `per::session`, of one sequence.
  [[nodiscard]] std::size_t session_bytes() const {
    std::size_t bytes = 0;
    for (recorded_column const& each : columns_) bytes += session_bytes_of(each);
    return bytes;
  }
  /// Copies what outlives a request out of a sequence, column by column, lane by lane: `session_bytes()` bytes.
  void save_session(Executor& exec, int sequence, std::byte* to) const {
    check_sequence("save_session", sequence);
    for (recorded_column const& each : columns_) {
      std::size_t const bytes = session_bytes_of(each);
      if (bytes > 0) exec.copy(to, each.rows.row({sequence, lanes_.layer_begin, 0}), bytes);
      to += bytes;
    }
  }
  /// The way back, into any sequence of a state of the same policy and shape.
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
  std::vector<std::function<void(Executor&, state const&, kvpolicy::lanes const&, int, int)>> forgetting_;
};

}  // namespace KVPOLICY_NAMESPACE
