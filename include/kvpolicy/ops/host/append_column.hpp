// Host implementation of append_column.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <kvpolicy/ops/append_column.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::append_column_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, lanes const& batch, entry_numbers const& new_numbers,
                  by_lane<float> const& column) {
    for (int i = 0; i < batch.size(); ++i) {
      lane const one = batch.at(i);
      expects(new_numbers.count(one) >= 0, "observe", "entries", new_numbers.count(one), "a count cannot be negative");
      int const counted = new_numbers.counted(one, new_numbers.count(one));
      expects(counted <= batch.committed(one), "observe", "entries", counted, [&] {
        return "lane " + std::to_string(i) + " holds " + std::to_string(batch.committed(one)) + " entries";
      });
    }
    // Heads whose numbers are neighbours are done together, a stretch of entries at a time: their cache lines are
    // shared.
    int const together = new_numbers.head == bytes_of(new_numbers.element) ? batch.heads : 1;
    exec.for_each(batch.size() / together, [&](int i, int) {
      int most = 0;
      for (int h = 0; h < together; ++h) most = std::max(most, new_numbers.count(batch.at(i * together + h)));
      for (int begin = 0; begin < most && together > 1 && new_numbers.position.data == nullptr; begin += stretch) {
        for (int h = 0; h < together; ++h)
          append(batch, new_numbers, column, batch.at(i * together + h), begin, stretch);
      }
      for (int h = 0; h < together && (together == 1 || new_numbers.position.data != nullptr); ++h)
        append(batch, new_numbers, column, batch.at(i * together + h), 0, most);
    });
  }

 private:
  static constexpr int stretch = 1024;

  /// Appends numbers [begin, begin + some) of a lane.
  static void append(lanes const& batch, entry_numbers const& from, by_lane<float> const& column, lane one, int begin,
                     int some) {
    int const count = from.count(one);
    float* const to = column.row(one) + batch.committed(one) - from.counted(one, count);
    int const end = std::min(count, begin + some);
    if (begin >= end) return;
    if (from.position.data != nullptr) {
      int next = 0;
      for (int e = 0; e < count; ++e) {
        if (from.counts_at(one, e)) to[next++] = detail::told_number{}(load(from.element, from.at(one, e)));
      }
    } else if (from.element == codec::f32) {
      convert<codec::f32>(from.at(one, 0), from.entry, begin, end, to);
    } else if (from.element == codec::bf16) {
      convert<codec::bf16>(from.at(one, 0), from.entry, begin, end, to);
    } else if (from.element == codec::f16) {
      convert<codec::f16>(from.at(one, 0), from.entry, begin, end, to);
    } else {
      for (int e = begin; e < end; ++e) to[e] = detail::told_number{}(load(from.element, from.at(one, e)));
    }
  }

  /// There is a loop for contiguous numbers, so that compilers can vectorise it.
  template <codec Element>
  static void convert(std::byte const* from, std::int64_t step, int begin, int end, float* to) {
    constexpr std::int64_t width = bytes_of(Element);
    if (step == width) {
      for (std::int64_t e = begin; e < end; ++e) to[e] = detail::told_number{}(load(Element, from + e * width));
    } else {
      for (std::int64_t e = begin; e < end; ++e) to[e] = detail::told_number{}(load(Element, from + e * step));
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
