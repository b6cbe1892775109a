// Host implementation of add_probabilities: row by row, for a stretch of entries at a time.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <array>
#include <kvpolicy/ops/add_probabilities.hpp>
#include <kvpolicy/ops/host/element_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::add_probabilities_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, lanes const& batch, attention_probabilities const& from, reduction group,
                  by_lane<float> const& mass) {
    if (from.rows == 0) return;
    for (int i = 0; i < batch.size(); ++i) {
      int const entries = batch.committed(batch.at(i));
      expects(entries <= from.entries, "add_probabilities", "probabilities.entries", from.entries,
              [&] { return "lane " + std::to_string(i) + " holds " + std::to_string(entries) + " entries"; });
    }
    int const stretches = (batch.bound + stretch - 1) / stretch;
    exec.for_each(batch.size() * stretches, [&](int i, int) {
      lane const one = batch.at(i / stretches);
      int const begin = i % stretches * stretch;
      int const count = std::min(stretch, batch.committed(one) - begin);
      if (count <= 0) return;
      int const rows = from.committed_rows(batch, one);
      add(exec.simd_level(), from, one, rows, from.heads / batch.heads, begin, count, group, mass.row(one) + begin);
    });
  }

 private:
  static constexpr int stretch = 4096;  ///< entries whose sums stay in the first-level cache
  using numbers = std::array<float, stretch>;

  static void add(isa simd_level, attention_probabilities const& from, lane one, int rows, int group, int begin,
                  int count, reduction how, float* mass) {
    auto const add_rows = detail::element_rows_for(simd_level).of(from.element);
    numbers all, received;
    int const apart = how == reduction::max ? group : 1;  // sums of heads are kept apart if the highest counts
    int const summed = group / apart * rows;              // rows in a sum: head by head, row by row
    // The rows of a head lie behind one another. Those of 16 bits are read faster so than several at a time.
    int const at_once = rows > 1 && bytes_of(from.element) == 2 ? 1 : detail::rows_at_a_time;
    for (int part = 0; part < apart; ++part) {
      numbers& sums = part > 0 ? received : all;
      std::fill_n(sums.data(), count, 0.0f);
      std::byte const* some[detail::rows_at_a_time];
      for (int first = 0; first < summed; first += at_once) {
        int const more = std::min(at_once, summed - first);
        for (int i = 0; i < more; ++i) {
          int const head = one.head * group + part + (first + i) / rows;
          some[i] =
              from.at(one, head, from.stored(one, (first + i) % rows)) + std::int64_t{begin} * bytes_of(from.element);
        }
        add_rows(some, more, count, sums.data());
      }
      for (int e = 0; e < count && part > 0; ++e) all[at(e)] = higher(all[at(e)], received[at(e)]);
    }
    if (how == reduction::mean) {
      for (int e = 0; e < count; ++e) all[at(e)] /= static_cast<float>(group);
    }
    auto const* const sums = reinterpret_cast<std::byte const*>(all.data());
    detail::element_rows_for(simd_level).f32(&sums, 1, count, mass);
  }

  static std::size_t at(int e) { return static_cast<std::size_t>(e); }
  static float higher(float a, float b) { return a >= b || a != a ? a : b; }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
