// SPDX-License-Identifier: Apache-2.0
// `save` and `load` copy a slot to bytes and back, to swap a request out or to hand it to another process.
#pragma once

#include <cstring>
#include <kvpolicy/lifecycle/saved_layout.hpp>
#include <kvpolicy/lifecycle/slot.hpp>
#include <kvpolicy/ops/copy_rows.hpp>
#include <optional>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// Writes the numbers of a saved slot, which come before its recorded columns. Returns where they end.
template <executor Executor>
std::byte* write_numbers(Executor& exec, cache const& all, state<Executor> const& state, int slot,
                         saved_layout const& made, std::byte* to) {
  auto const put = [&](void const* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    to += bytes;
  };
  put(&made.header, sizeof made.header);
  for (int layer = all.lanes.layer_begin; layer < all.lanes.layer_end; ++layer) {
    int const newest = state.history().newest(slot, layer);
    put(&newest, sizeof newest);
  }
  put(made.counts.data(), made.counts.size() * sizeof(int));
  if ((made.header.used & slot_is_turned) != 0) {
    std::span<turn_ends const> const turns = state.history().turns(slot);
    put(turns.data(), turns.size_bytes());
  }
  for_each_own_row(all.lanes.position, all.lanes, slot, [&](lane one) {
    std::size_t const bytes = static_cast<std::size_t>(count_of(made, all, one)) * sizeof(int);
    exec.copy(to, reinterpret_cast<std::byte const*>(all.lanes.position.row(one)), bytes);
    to += bytes;
  });
  return to;
}

/// Calls visit(row, bytes) for every lane of every recorded column of a slot, in the order in which they are saved.
template <executor Executor, class Visit>
void visit_columns(cache const& all, state<Executor> const& state, int slot, saved_layout const& made,
                   Visit const& visit) {
  for (recorded_column const& each : state.columns()) {
    for (int layer = all.lanes.layer_begin; layer < all.lanes.layer_end; ++layer) {
      for (int head = 0; head < all.lanes.heads; ++head) {
        lane const one{slot, layer, head};
        visit(each.rows.row(one), bytes_of_lane(each, count_of(made, all, one)));
      }
    }
  }
}

/// The rows of a saved slot in memory of the executor: the saved bytes themselves if it can reach them, else `staging`
/// or memory of its own.
template <executor Executor>
class staged_rows {
 public:
  staged_rows(Executor& exec, cache const& all, saved_layout const& made, std::byte* bytes, std::byte* staging)
      : size_(bytes_of_rows(made)),
        memory_(exec, reaches || staging != nullptr ? 0 : size_),
        at_(reaches              ? bytes
            : staging != nullptr ? staging
                                 : memory_.data()),
        rows_(exec, all, made, at_) {}

  static constexpr bool reaches = reads_on_host<typename Executor::backend>;
  [[nodiscard]] static std::size_t bytes_of_rows(saved_layout const& of) { return of.all() - of.numbers - of.columns; }

  [[nodiscard]] cache const& view() const { return rows_.view(); }
  void fetch(Executor& exec, std::byte* to) const {
    if (!reaches) exec.copy(to, at_, size_);
  }
  void store(Executor& exec, std::byte const* from) const {
    if (!reaches) exec.copy(at_, from, size_);
  }

 private:
  std::size_t size_;
  typename Executor::template buffer<std::byte> memory_;
  std::byte* at_;
  saved_rows<Executor> rows_;
};

/// What was read of a saved slot, and checked.
struct checked_slot {
  saved_layout layout;
  std::int32_t used = 0;
  std::int32_t drafts = 0;
  std::vector<int> newest;
  std::vector<turn_ends> turned;
  std::byte const* positions = nullptr;
  std::byte const* columns = nullptr;
  std::byte const* rows = nullptr;
};

template <executor Executor>
[[nodiscard]] checked_slot read_slot(char const* call, cache const& all, state<Executor> const& state,
                                     std::span<std::byte const> from, rows what) {
  saved_reader reader(call, from);
  checked_slot made;
  saved_header const found = reader.template take<saved_header>();
  made.layout.header = header_of(all, state, what == rows::copy);
  check_header(call, found, made.layout.header, from.size());
  made.used = made.layout.header.used = found.used;
  made.drafts = found.drafts;
  made.newest = reader.template take_many<int>(static_cast<std::size_t>(all.lanes.layers()));
  made.layout.counts = reader.template take_many<int>(static_cast<std::size_t>(all.lanes.layers() * all.lanes.heads));
  if ((made.used & slot_is_turned) != 0) {
    made.turned = reader.template take_many<turn_ends>(made.layout.counts.size());
  }
  for (int const count : made.layout.counts) {
    expects(count >= 0 && count <= all.lanes.capacity, call, "lanes.capacity", all.lanes.capacity,
            [&] { return "a lane of the saved slot holds " + std::to_string(count) + " entries"; });
    expects(made.drafts >= 0 && made.drafts <= count, call, "drafts", made.drafts,
            "a lane's drafts are among its entries");
  }
  expects(made.drafts == 0 || all.lanes.in_flight != nullptr, call, "lanes.in_flight", "null",
          [&] { return "the saved slot has " + std::to_string(made.drafts) + " drafts"; });
  lay_out(call, all, state, what == rows::copy, made.layout);
  expects(made.layout.all() == from.size() && made.layout.header.by_token == found.by_token, call, "bytes", from.size(),
          [&] { return "counts and columns of the saved slot make " + std::to_string(made.layout.all()); });
  std::size_t const before_rows = made.layout.numbers + made.layout.columns;
  expects(sum_of(found, from.first(before_rows)) == found.sum, call, "bytes", "damaged",
          "the sum of the saved numbers is another one");
  made.columns = from.data() + made.layout.numbers;
  made.positions = reader.take(made.layout.numbers - reader.at());
  made.rows = made.columns + made.layout.columns;
  return made;
}

/// A `save` that has checked and allocated everything: `run` cannot fail.
template <executor Executor>
class slot_save {
 public:
  slot_save(Executor& exec, cache const& all, state<Executor> const& of, int slot, std::span<std::byte> to, rows what,
            std::byte* staging = nullptr)
      : all_(all), state_(&of), slot_(slot), made_(layout_to_save("save", exec, all, of, slot, what)) {
    refuse_out_of_order<typename Executor::backend>("save", all.lanes.sequences_only(slot, slot + 1), "save");
    expects(to.size() >= made_.all(), "save", "to", to.size(),
            [&] { return "saved_bytes says " + std::to_string(made_.all()); });
    to_ = to.first(made_.all());
    if (all.lanes.in_flight != nullptr) made_.header.drafts = fetched(exec, all.lanes.in_flight + slot, 1).front();
    if (what != rows::copy) return;
    source_.emplace(exec, all, slot);
    target_.emplace(exec, all, made_, to_.data() + made_.numbers + made_.columns, staging);
  }

  /// Returns the number of bytes that were written.
  std::size_t run(Executor& exec) const {
    std::byte* at = write_numbers(exec, all_, *state_, slot_, made_, to_.data());
    visit_columns(all_, *state_, slot_, made_, [&](std::byte const* row, std::size_t bytes) {
      exec.copy(at, row, bytes);
      at += bytes;
    });
    wait_for(exec);
    saved_header header = made_.header;
    header.sum = sum_of(header, to_.first(made_.numbers + made_.columns));
    std::memcpy(to_.data(), &header, sizeof header);
    if (source_) {
      ops::copy_rows(exec, source_->view(), target_->view());
      target_->fetch(exec, at);
      wait_for(exec);
    }
    return made_.all();
  }

 private:
  cache all_;
  state<Executor> const* state_;
  int slot_;
  saved_layout made_;
  std::span<std::byte> to_{};
  std::optional<listed_slots<Executor>> source_{};
  std::optional<staged_rows<Executor>> target_{};
};

/// A `load` that has checked and allocated everything but whether the slot is free: `run` cannot fail.
template <executor Executor>
class slot_load {
 public:
  slot_load(char const* call, Executor& exec, cache const& all, state<Executor>& to, int slot,
            std::span<std::byte const> from, rows what, std::byte* staging = nullptr)
      : all_(all), state_(&to), slot_(slot) {
    check_slots_of(call, all, to);
    check_copied(call, all, what);
    check_slot(call, "slot", all, slot);
    found_ = read_slot(call, all, to, from, what);
    if (what != rows::copy) return;
    target_.emplace(exec, all, slot);
    // The rows are only read; a plane has writable rows.
    source_.emplace(exec, all, found_.layout, const_cast<std::byte*>(found_.rows), staging);
  }

  [[nodiscard]] std::vector<int> const& counts() const { return found_.layout.counts; }

  void run(Executor& exec) const {
    lanes const& batch = all_.lanes;
    auto const copy = [&](void* to, void const* from, std::size_t bytes) {
      exec.copy(static_cast<std::byte*>(to), static_cast<std::byte const*>(from), bytes);
    };
    if (source_) {
      source_->store(exec, found_.rows);
      ops::copy_rows(exec, source_->view(), target_->view());
    }
    std::byte const* at = found_.columns;
    visit_columns(all_, *state_, slot_, found_.layout, [&](std::byte* row, std::size_t bytes) {
      copy(row, at, bytes);
      at += bytes;
    });
    at = found_.positions;
    for_each_own_row(batch.position, batch, slot_, [&](lane one) {
      std::size_t const bytes = static_cast<std::size_t>(count_of(found_.layout, all_, one)) * sizeof(int);
      copy(batch.position.row(one), at, bytes);
      at += bytes;
    });
    for_each_own_row(batch.count, batch, slot_, [&](lane one) {
      int const count = count_of(found_.layout, all_, one);
      copy(batch.count.row(one), &count, sizeof count);
    });
    lane_order const ascending{};
    if (batch.order.data != nullptr) {
      for_each_own_row(batch.order, batch, slot_,
                       [&](lane one) { copy(batch.order.row(one), &ascending, sizeof ascending); });
    }
    if (batch.in_flight != nullptr) copy(batch.in_flight + slot_, &found_.drafts, sizeof found_.drafts);
    wait_for(exec);  // the caller may free the bytes now
    state_->history().restore(slot_, (found_.used & slot_is_used) != 0, found_.newest, found_.turned);
    raise_epochs(exec, *state_, batch.sequences_only(slot_, slot_ + 1));
  }

 private:
  cache all_;
  state<Executor>* state_;
  int slot_;
  checked_slot found_{};
  std::optional<listed_slots<Executor>> target_{};
  std::optional<staged_rows<Executor>> source_{};
};

}  // namespace detail

/// The number of bytes that `save` writes for a slot. It depends on how many entries its lanes hold.
///
/// - throws: `invalid_argument` if the slot is out of range, or the state is of another cache.
template <executor Executor>
[[nodiscard]] std::size_t saved_bytes(Executor& exec, cache const& all, state<Executor> const& state, int slot,
                                      rows what = rows::copy) {
  return detail::layout_to_save("saved_bytes", exec, all, state, slot, what).all();
}

/// Copies a slot to bytes: counts, positions, drafts, recorded columns, the memory of the session included, and, with
/// `rows::copy`, the rows of K and V. `load` brings it back, into any slot, in this or another process on a machine of
/// the same byte order. The slot stays as it is: `reset` it to give it to another request.
///
/// - in: `to` has at least `saved_bytes` bytes, in memory of the host.
/// - returns: the number of bytes written.
/// - cost: reads each row and each number once. A device executor gathers the rows in device memory first, which is
///   allocated for the call.
/// - stream: the bytes are there when the call returns.
/// - throws: `invalid_argument` if the slot is out of range, `to` is too small, its entries are out of order
///   (`restore_order` sorts them), or the state is of another cache; `bad_alloc`. Nothing was written then.
template <executor Executor>
std::size_t save(Executor& exec, cache const& all, state<Executor> const& state, int slot, std::span<std::byte> to,
                 rows what = rows::copy) {
  detail::sole_use const in_use("save", exec);
  return detail::slot_save<Executor>(exec, all, state, slot, to, what).run(exec);
}

/// Copies what `save` wrote into a slot. The request goes on as if it had never left: every later decision is the same,
/// bit for bit.
///
/// - in: the engine has places for as many entries as were saved: it fills in the rows of the slot's block tables
///   before.
/// - cost: as `save`.
/// - throws: `invalid_argument` if the bytes are truncated, or of another version, policy, model or byte order, if a
///   lane would hold more entries than its bound, or if a request uses the slot; `bad_alloc`. Then nothing was changed.
template <executor Executor>
void load(Executor& exec, cache& all, state<Executor>& state, int slot, std::span<std::byte const> from,
          rows what = rows::copy) {
  detail::sole_use const in_use("load", exec);
  detail::slot_load<Executor> const loaded("load", exec, all, state, slot, from, what);
  detail::check_free("load", "slot", exec, all, state, slot);
  loaded.run(exec);
}

}  // namespace KVPOLICY_NAMESPACE
