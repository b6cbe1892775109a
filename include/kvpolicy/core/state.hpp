// SPDX-License-Identifier: Apache-2.0
// State: the columns in which recorders keep signals across steps. The engine owns it, and appliers move its columns
// with the entries.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/columns.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/epochs.hpp>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/recorder.hpp>
#include <kvpolicy/core/row_counts.hpp>
#include <kvpolicy/core/slot_history.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// All columns of a policy's recorders and of appliers in an executor's memory, with a row for each slot. `batch` is
/// the lanes of all slots. Calls may be about some of them: see `only`. Nothing is allocated after construction and
/// `add`, until `grow`.
///
/// The calls `reset`, `fork`, `move`, `save` and `load` start, copy and end the requests of slots.
template <class Executor>
class state {
 public:
  /// `slack` is the number of entries by which rows of `column_extent::lane_entry` are longer than the bound, so that
  /// they can `slide`.
  state(Executor& exec, shape const& model, kvpolicy::lanes const& batch, int slack = 0)
      : model_(model),
        lanes_(batch),
        slack_(slack),
        exec_(&exec),
        history_(batch.sequences, batch.layer_begin, batch.layer_end, batch.heads),
        epochs_(exec, batch) {
    expects(batch.slots == nullptr, "state", "lanes", "some slots", "a state has the columns of all slots");
  }

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
            keeps.forget(exec, batch, from.columns_from(first, batch), sequence, position);
          });
    }
    for (column const& about : keeps.columns(model_, lanes_.capacity)) add(about);
    recorder_columns_ = columns_.size();
  }

  /// Adds a column that an applier keeps for itself, filled with zeros. Those of appliers come after all recorders.
  void add(column const& about) {
    std::size_t const units = static_cast<std::size_t>(about.units != 0 ? about.units : lanes_.capacity + slack_);
    std::int64_t const row = bytes_of_row(about, units);
    memory_.emplace_back(*exec_, static_cast<std::size_t>(row) * static_cast<std::size_t>(lanes_.size()));
    by_lane<std::byte> const rows{memory_.back().data() - row * lanes_.layer_begin * lanes_.heads,
                                  row * lanes_.heads * lanes_.layers(), row * lanes_.heads, row};
    columns_.push_back({about, rows});
    listed_ = columns_;
    listed_of_other_ = columns_;
  }

  /// Copies all columns of another state, to fork a batch or to restore a snapshot. Allocates nothing.
  ///
  /// - throws: `invalid_argument` if the other state was made for another policy, shape or batch. Then nothing was
  ///   changed.
  void copy_from(state const& other) {
    bool same = lanes().sequences == other.lanes().sequences && model_ == other.model_ &&
                columns_.size() == other.columns_.size() && lanes_.capacity == other.lanes_.capacity;
    for (std::size_t i = 0; same && i < memory_.size(); ++i) same = memory_[i].size() == other.memory_[i].size();
    expects(same, "state::copy_from", "other", "another kind of state",
            "both are made for one policy, shape and batch");
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      exec_->copy(memory_[i].data(), other.memory_[i].data(), memory_[i].size());
    }
    slide(other.slid_ - slid_);
    history_ = other.history_;
    epochs_.renew(*exec_);  // plans that were decided with the columns from before are stale
  }

  /// Shifts the rows of `column_extent::lane_entry` by `entries`, after the oldest `entries` of every lane have left:
  /// the element of entry i + entries becomes that of entry i. Only pointers change. A negative number shifts back. The
  /// caller ensures that 0 <= slid() <= slack() holds afterwards.
  void slide(int entries) {
    for (recorded_column& each : columns_) {
      if (each.about.extent == column_extent::lane_entry) each.rows.data += std::int64_t{entries} * each.about.bytes;
    }
    slid_ += entries;
  }
  [[nodiscard]] int slid() const { return slid_; }
  [[nodiscard]] int slack() const { return slack_; }

  /// Calls `forget` of every recorder that has it, because a sequence is rolled back to `position`.
  void forget(Executor& exec, kvpolicy::lanes const& batch, int sequence, int position) const {
    for (auto const& each : forget_calls_) each(exec, *this, batch, sequence, position);
  }

  /// The bytes of one slot in columns of `column_extent::session`, which outlive a request.
  [[nodiscard]] std::size_t session_bytes() const {
    std::size_t bytes = 0;
    for (recorded_column const& each : columns()) bytes += session_bytes_of(each);
    return bytes;
  }
  /// Copies a slot's columns of `column_extent::session` to `to`, column by column and lane by lane: `session_bytes()`
  /// bytes.
  void save_session(Executor& exec, int slot, std::byte* to) const {
    check_slot("save_session", slot);
    for (recorded_column const& each : columns_) {
      std::size_t const bytes = session_bytes_of(each);
      if (bytes > 0) exec.copy(to, each.rows.row({slot, lanes_.layer_begin, 0}), bytes);
      to += bytes;
    }
  }
  /// Copies what `save_session` wrote into a slot of a state of the same policy and shape.
  void load_session(Executor& exec, int slot, std::byte const* from) {
    check_slot("load_session", slot);
    for (recorded_column const& each : columns_) {
      std::size_t const bytes = session_bytes_of(each);
      if (bytes > 0) exec.copy(each.rows.row({slot, lanes_.layer_begin, 0}), from, bytes);
      from += bytes;
    }
  }

  /// Sets a slot's columns to zero in some layers: all of them, or those of one kind.
  void clear(Executor& exec, int slot, int layer_begin, int layer_end, std::optional<column_extent> kind = {}) {
    static constexpr std::array<std::byte, 65536> zeros{};
    for (recorded_column const& each : columns_) {
      if (kind && each.about.extent != *kind) continue;
      auto const bytes = static_cast<std::size_t>(each.rows.layer) * static_cast<std::size_t>(layer_end - layer_begin);
      int const slid =
          each.about.extent == column_extent::lane_entry ? slid_ : 0;  // whole rows begin where nothing has slid
      std::byte* const to = each.rows.row({slot, layer_begin, 0}) - std::int64_t{slid} * each.about.bytes;
      for (std::size_t at = 0; at < bytes; at += zeros.size()) {
        exec.copy(to + at, zeros.data(), std::min(zeros.size(), bytes - at));
      }
    }
  }

  [[nodiscard]] shape const& model() const { return model_; }
  /// The lanes of all slots.
  ///
  /// - throws: `invalid_argument` if the state was moved from.
  [[nodiscard]] kvpolicy::lanes const& lanes() const {
    expects(bool(owned_), "state", "this", "moved from", "its columns are in the state that it was moved to");
    return lanes_;
  }
  /// The columns, with a row for each slot.
  [[nodiscard]] std::vector<recorded_column> const& columns() const {
    static_cast<void>(lanes());  // throws
    return columns_;
  }
  /// How many of them are those of the recorders. Those of appliers follow.
  [[nodiscard]] std::size_t recorder_columns() const { return recorder_columns_; }
  /// The columns, with rows for the lanes of a batch. The span is valid until the next call of this function.
  [[nodiscard]] std::span<recorded_column const> columns(kvpolicy::lanes const& batch) {
    return list(columns_, batch, listed_);
  }
  /// The same of another state of the same policy, which other threads may read.
  [[nodiscard]] std::span<recorded_column const> columns_of(state const& other, kvpolicy::lanes const& batch) {
    return list(other.columns_, batch, listed_of_other_);
  }
  /// The columns of one recorder, from index `first` on, for the lanes of a batch; by default with a row for each slot.
  [[nodiscard]] recorded_columns columns_from(std::size_t first, kvpolicy::lanes const& batch = {}) const {
    return {model_, columns_.data() + first, batch.slots};
  }

  /// Memory for the rows of a forward that count.
  [[nodiscard]] detail::row_counts<Executor>& counted() { return counted_; }
  [[nodiscard]] detail::row_counts<Executor> const& counted() const { return counted_; }

  /// The epoch of each slot and layer: see `ops::raise_epochs`. `slots` is the list of the batch.
  [[nodiscard]] by_lane<std::uint64_t> epochs(int const* slots) const { return epochs_.of(slots); }

  /// What the host remembers of each slot.
  [[nodiscard]] detail::slot_history& history() { return history_; }
  [[nodiscard]] detail::slot_history const& history() const { return history_; }

 private:
  [[nodiscard]] static std::span<recorded_column const> list(std::vector<recorded_column> const& from,
                                                             kvpolicy::lanes const& batch,
                                                             std::vector<recorded_column>& to) {
    to = from;
    for (recorded_column& each : to) each.rows.slots = batch.slots;
    return to;
  }
  /// Rows of `column_extent::lane_entry` begin with a cache line each, if their elements divide one.
  [[nodiscard]] static std::int64_t bytes_of_row(column const& about, std::size_t units) {
    constexpr std::size_t line = 64;
    std::size_t const bytes = units * static_cast<std::size_t>(about.bytes);
    bool const pads = about.extent == column_extent::lane_entry && line % static_cast<std::size_t>(about.bytes) == 0;
    return static_cast<std::int64_t>(pads ? (bytes + line - 1) / line * line : bytes);
  }
  [[nodiscard]] static std::size_t session_bytes_of(recorded_column const& each) {
    return each.about.extent == column_extent::session ? static_cast<std::size_t>(each.rows.sequence) : 0;
  }
  void check_slot(char const* call, int slot) const {
    expects(slot >= 0 && slot < lanes().sequences, call, "sequence", slot,
            [&] { return "the state has " + std::to_string(lanes_.sequences) + " sequences"; });
  }

  shape model_;
  kvpolicy::lanes lanes_;
  int slack_ = 0;
  int slid_ = 0;
  Executor* exec_;
  std::vector<typename Executor::template buffer<std::byte>> memory_;
  std::vector<recorded_column> columns_;
  std::size_t recorder_columns_ = 0;
  std::vector<recorded_column> listed_;  ///< the columns for the batch of the current call
  std::vector<recorded_column> listed_of_other_;
  detail::slot_history history_;
  detail::epochs<Executor> epochs_;
  detail::still_owned owned_;
  detail::row_counts<Executor> counted_;
  std::vector<std::function<void(Executor&, state const&, kvpolicy::lanes const&, int, int)>> forget_calls_;
};

}  // namespace KVPOLICY_NAMESPACE
