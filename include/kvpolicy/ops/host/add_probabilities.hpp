// Host implementation of add_probabilities: row by row, for a stretch of entries at a time.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <array>
#include <kvpolicy/ops/add_probabilities.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/rows.hpp>
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
      add(from, one, rows, from.heads / batch.heads, begin, count, group, mass.row(one) + begin);
    });
  }

 private:
  static constexpr int stretch = 4096;  ///< entries whose sums stay in the first-level cache
  using numbers = std::array<float, stretch>;

  static void add(attention_probabilities const& from, lane one, int rows, int group, int begin, int count,
                  reduction how, float* mass) {
    numbers all, received;
    for (int h = 0; h < group; ++h) {
      bool const apart = h > 0 && how == reduction::max;
      numbers& sums = apart ? received : all;
      if (h == 0 || apart) std::fill_n(sums.data(), count, 0.0f);
      for (int r = 0; r < rows; ++r) {
        std::byte const* const row = from.at(one, one.head * group + h, from.stored(one, r));
        add_row(from.element, row + std::int64_t{begin} * bytes_of(from.element), count, sums.data());
      }
      for (int e = 0; e < count && apart; ++e) all[at(e)] = higher(all[at(e)], received[at(e)]);
    }
    if (how == reduction::mean) {
      for (int e = 0; e < count; ++e) all[at(e)] /= static_cast<float>(group);
    }
    sum(all.data(), count, mass);
  }

  static void add_row(codec element, std::byte const* row, int count, float* to) {
    if (element == codec::f32) return sum(row, count, to);
    if (element == codec::bf16) return sum_bf16(row, count, to);
    numbers floats;
    detail::load_row(element, row, bytes_of(element), count, floats.data());
    sum(floats.data(), count, to);
  }

  /// to[e] += from[e], of floats at any address.
  static void sum(void const* from, int count, float* to) {
    constexpr int width = 8;
    auto const* const bytes = static_cast<std::byte const*>(from);
    int e = 0;
    for (; e + width <= count; e += width) {
      detail::vector_of<width>::floats a, b;
      detail::get(a, to + e);
      detail::get(b, bytes + std::ptrdiff_t{e} * 4);
      a += b;
      detail::put(a, to + e);
    }
    for (; e < count; ++e) to[e] += load(codec::f32, bytes + std::ptrdiff_t{e} * 4);
  }

  /// to[e] += from[e], of bf16 elements: the upper halves of floats. It is faster than to widen a stretch first.
  static void sum_bf16(std::byte const* from, int count, float* to) {
    using vectors = detail::vector_of<8>;
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      vectors::floats a;
      vectors::halves b;
      detail::get(a, to + e);
      detail::get(b, from + std::ptrdiff_t{e} * 2);
      vectors::words const widened = __builtin_convertvector(b, vectors::words) << 16;
      a += __builtin_bit_cast(vectors::floats, widened);
      detail::put(a, to + e);
    }
    for (; e < count; ++e) to[e] += load(codec::bf16, from + std::ptrdiff_t{e} * 2);
  }

  static std::size_t at(int e) { return static_cast<std::size_t>(e); }
  static float higher(float a, float b) { return a >= b || a != a ? a : b; }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
