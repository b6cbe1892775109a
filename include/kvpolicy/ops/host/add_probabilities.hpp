// SPDX-License-Identifier: Apache-2.0
// Host implementation of add_probabilities: row by row, for a stretch of entries at a time.
#pragma once

#include <algorithm>
#include <array>
#include <kvpolicy/ops/add_probabilities.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::add_probabilities_t, host> {
  static void run(host_executor& exec, lanes const& batch, attention_probabilities const& from, reduction group,
                  by_lane<float> const& mass) {
    if (from.rows == 0) return;
    detail::for_each_lane(batch, [&](int i, lane one) {
      int const entries = batch.committed(one);
      expects(entries <= from.entries, "add_probabilities", "probabilities.entries", from.entries,
              [&] { return "lane " + std::to_string(i) + " holds " + std::to_string(entries) + " entries"; });
    });
    int const stretches = (batch.capacity + stretch - 1) / stretch;
    int const all = batch.size() * stretches;
    std::int64_t const bytes_of_entry =
        std::int64_t{from.rows} * (from.heads / batch.heads) * bytes_of(from.element) + 8;
    exec.for_each_range(all, bytes_of_entry * std::min(stretch, batch.capacity), [&](int begin, int end, int) {
      part now = first_of(batch, from, batch.at(begin / stretches), begin % stretches * stretch);
      for (int i = begin; i < end;) {
        part next = now;
        while (++i < end && (next = after(batch, from, next)).count <= 0) continue;
        if (now.count > 0) add(exec, from, now, next.count > 0 ? next : now, group, mass);
        now = next;
      }
    });
  }

 private:
  static constexpr int stretch = 4096;    ///< entries whose sums stay in the first-level cache
  static constexpr int most_at_once = 2;  ///< more rows at a time are too many pages at a time
  using numbers = std::array<float, stretch>;

  /// A stretch of a lane's entries, and the rows that are added to it: head by head, row by row.
  struct part {
    lane one;
    int rows;   ///< of each head
    int group;  ///< heads
    int begin;
    int count;

    [[nodiscard]] int all() const { return rows * group; }
    [[nodiscard]] std::byte const* row(attention_probabilities const& from, int k) const {
      int const head = one.head * group + (rows == 1 ? k : k / rows);
      int const stored = from.stored(one, rows == 1 ? 0 : k % rows);
      return from.at(one, head, stored) + std::int64_t{begin} * bytes_of(from.element);
    }
    [[nodiscard]] float* sums(by_lane<float> const& mass) const { return mass.row(one) + begin; }
  };

  /// The part of a lane that begins at an entry. It has no entries if they are all before it.
  static part first_of(lanes const& batch, attention_probabilities const& from, lane one, int begin) {
    int const count = std::min(stretch, batch.committed(one) - begin);
    int const rows = count > 0 ? from.committed_rows(batch, one) : 0;
    return {one, rows, from.heads / batch.heads, begin, count};
  }
  /// The part after another one.
  static part after(lanes const& batch, attention_probabilities const& from, part one) {
    one.begin += stretch;
    if (one.begin >= batch.capacity) return first_of(batch, from, batch.after(one.one), 0);
    one.count = std::min(stretch, batch.committed(one.one) - one.begin);
    return one;
  }

  /// Adds the rows of a part to its entries' sums, while rows of the same part and of the next one are prefetched.
  static void add(host_executor const& exec, attention_probabilities const& from, part const& now, part const& next,
                  reduction how, by_lane<float> const& mass) {
    auto const& kernels = detail::element_rows_of_isa[exec.simd_level()];
    if (how != reduction::max && now.rows == 1 && now.group <= detail::rows_at_a_time) {
      return add_one_each(kernels.sum_of(from.element), from, now, next, how, mass);
    }
    auto const add_rows = kernels.of(from.element);
    int const count = now.count;
    numbers all, received;
    int const apart = how == reduction::max ? now.group : 1;  // sums of heads are kept apart if the highest counts
    int const summed = now.group / apart * now.rows;          // rows in a sum
    int const width = bytes_of(from.element);
    // The rows of a head lie behind one another, and are read faster so than several at a time.
    int const at_once = now.rows > 1 ? 1 : most_at_once;
    int const distance = std::max(at_once, static_cast<int>(detail::bytes_ahead) / (count * width));
    for (int which = 0; which < apart; ++which) {
      numbers& sums = which > 0 ? received : all;
      std::fill_n(sums.data(), count, 0.0f);
      std::byte const *some[most_at_once], *ahead[most_at_once];
      for (int first = 0; first < summed; first += at_once) {
        int const more = std::min(at_once, summed - first);
        for (int i = 0; i < more; ++i) {
          int const k = which * summed + first + i;
          some[i] = now.row(from, k);
          int const later = k + distance - now.all();
          ahead[i] = later < 0 ? now.row(from, k + distance) : later < next.all() ? next.row(from, later) : some[i];
        }
        add_rows(some, ahead, more, count, sums.data());
      }
      for (int e = 0; e < count && which > 0; ++e) all[at(e)] = higher(all[at(e)], received[at(e)]);
    }
    if (how == reduction::mean) {
      for (int e = 0; e < count; ++e) all[at(e)] /= static_cast<float>(now.group);
    }
    auto const* const sums = reinterpret_cast<std::byte const*>(all.data());
    auto const* const later = reinterpret_cast<std::byte const*>(next.sums(mass));
    kernels.f32(&sums, &later, 1, count, now.sums(mass));
  }

  /// The same for one row of each head, as in a step of a decode loop.
  static void add_one_each(detail::element_rows_kernels::sum_function add_sum, attention_probabilities const& from,
                           part const& now, part const& next, reduction how, by_lane<float> const& mass) {
    std::byte const *rows[detail::rows_at_a_time], *ahead[detail::rows_at_a_time];
    for (int k = 0; k < now.group; ++k) {
      rows[k] = now.row(from, k);
      ahead[k] = next.rows > 0 ? next.row(from, k) : rows[k];
    }
    add_sum(rows, ahead, now.group, now.count, how == reduction::mean ? static_cast<float>(now.group) : 1.0f,
            now.sums(mass));
  }

  static std::size_t at(int e) { return static_cast<std::size_t>(e); }
  static float higher(float a, float b) { return a >= b || a != a ? a : b; }
};

}  // namespace KVPOLICY_NAMESPACE
