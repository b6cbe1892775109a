// Blocks of query rows, and the kernels of attention_mass for each instruction set.
//
// A block has 4, 16 or 32 interleaved rows: value (entry e, row r) is at [e * rows + r]. So a key is multiplied by all
// rows of a block at once, softmax runs down the columns, and no step adds across a vector until the last one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/host/block_view.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// Generic code of all kernels: vectors of `Width` floats, and blocks of `Rows` rows.
template <int Width, int Rows>
struct block_bodies {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  static constexpr int columns = Rows / Width;

  /// out[k][p] = scale * key k . rows of column p of `packed`, for `Step` keys, of which the first `there` are stored.
  template <int Step, int Part, int... I>
  [[gnu::always_inline]] static inline void multiply(void const* const* keys, int there, int dims, float const* packed,
                                                     float scale, step_ahead<Step>& next, float* out,
                                                     std::integer_sequence<int, I...>) {
    float const* key[static_cast<std::size_t>(Step)];
    for (int k = 0; k < Step; ++k) key[k] = static_cast<float const*>(keys[k]);
    floats acc[] = {(static_cast<void>(I), floats{})...};
    for (int begin = 0; begin < dims; begin += floats_of_a_line) {
      next.fetch();
      int const end = begin + floats_of_a_line < dims ? begin + floats_of_a_line : dims;
      for (int d = begin; d < end; ++d) {
        floats row[static_cast<std::size_t>(Part)];
        for (int p = 0; p < Part; ++p) get(row[p], packed + static_cast<std::ptrdiff_t>(d) * Rows + p * Width);
        ((acc[I] += key[I / Part][d] * row[I % Part]), ...);
      }
    }
    (store<I / Part, I % Part>(acc[I], there, scale, out), ...);
  }

  /// Multiplies `Step` keys and `Part` columns at once, so that their sums stay in registers.
  template <int Step, int Part>
  [[gnu::always_inline]] static inline void logits(void const* const* keys, int count, int dims, void const* packed,
                                                   float scale, float* out) {
    for (int k = 0; k < count; k += Step) {
      int const there = Step < count - k ? Step : count - k;
      float* const to = out + static_cast<std::ptrdiff_t>(k) * Rows;
      step_ahead<Step> next(keys + k, 4 * dims, to, there * Rows);
      for (int c = 0; c < columns; c += Part) {
        multiply<Step, Part>(keys + k, there, dims, static_cast<float const*>(packed) + c * Width, scale, next,
                             to + c * Width, std::make_integer_sequence<int, Step * Part>{});
      }
    }
  }

  /// Stores one sum if its key is one of the first `there`.
  template <int Key, int Column>
  [[gnu::always_inline]] static inline void store(floats const& sum, int there, float scale, float* out) {
    if (Key < there) put(sum * scale, out + Key * Rows + Column * Width);
  }

  /// Multiplies rows one by one, for blocks of few rows.
  [[gnu::always_inline]] static inline void few(void const* const* keys, int count, int dims, void const* packed,
                                                float scale, float* out) {
    auto const* const rows = static_cast<float const*>(packed);
    for (int k = 0; k < count; ++k) {
      auto const* const key = static_cast<float const*>(keys[k]);
      floats acc[few_rows] = {};
      int d = 0;
      for (; d + Width <= dims; d += Width) {
        floats part;
        get(part, key + d);
        if (d % floats_of_a_line == 0) __builtin_prefetch(static_cast<float const*>(keys[k + keys_ahead]) + d);
        for (int r = 0; r < few_rows; ++r) {
          floats row;
          get(row, rows + r * dims + d);
          acc[r] += part * row;
        }
      }
      for (int r = 0; r < few_rows; ++r) {
        float sum = across(acc[r], false);
        for (int rest = d; rest < dims; ++rest) sum += key[rest] * rows[r * dims + rest];
        out[k * few_rows + r] = sum * scale;
      }
    }
  }

  /// How many entries of the view each row of a column sees.
  [[gnu::always_inline]] static inline void seen_by(block_view const& block, int c, ints& seen) {
    get(seen, block.seen + c * Width);
    seen -= block.first;
  }

  [[gnu::always_inline]] static inline void advance(block_view const& block, float* row_max, float* sum) {
    floats const lowest = __builtin_bit_cast(floats, ints{} - 0x00800000);  // -inf; nvcc 13 crashes on the literal
    for (int c = 0; c < columns; ++c) {
      ints seen;
      floats before;
      floats total;
      seen_by(block, c, seen);
      get(before, row_max + c * Width);
      get(total, sum + c * Width);
      float* const column = block.values + c * Width;
      floats now = before;
      for (int e = 0; e < block.count; ++e) {
        floats value;
        get(value, column + static_cast<std::ptrdiff_t>(e) * Rows);
        value = seen > e ? value : lowest;
        now = value > now ? value : now;
      }
      floats const zero = now == lowest ? floats{} : now;  // no entry seen yet, or only logits of -inf
      floats shrink = before - zero;
      exp_of_negative<Width>(shrink);
      total *= shrink;
      for (int e = 0; e < block.count; ++e) {
        floats value;
        get(value, column + static_cast<std::ptrdiff_t>(e) * Rows);
        value -= zero;
        exp_of_negative<Width>(value);
        put(value, column + static_cast<std::ptrdiff_t>(e) * Rows);
        total += seen > e ? value : floats{};
      }
      put(now, row_max + c * Width);
      put(now, block.scale + c * Width);
      put(total, sum + c * Width);
    }
  }

  [[gnu::always_inline]] static inline void finalize(float* scale, int stretches, int const* all_seen,
                                                     float const* row_max, float const* sum) {
    floats const lowest = __builtin_bit_cast(floats, ints{} - 0x00800000);
    for (int c = 0; c < columns; ++c) {
      ints seen;
      floats last;
      floats total;
      get(seen, all_seen + c * Width);
      get(last, row_max + c * Width);
      get(total, sum + c * Width);
      floats const whole = seen > 0 ? 1.0f / total : floats{};
      for (int s = 0; s < stretches; ++s) {
        float* const at = scale + static_cast<std::ptrdiff_t>(s) * Rows + c * Width;
        floats part;
        get(part, at);
        ints const empty = part == lowest;
        part -= last;
        exp_of_negative<Width>(part);
        put((empty ? floats{} : part) * whole, at);
      }
    }
  }

  [[gnu::always_inline]] static inline void normalise(block_view const& block, float const* lse) {
    for (int c = 0; c < columns; ++c) {
      floats given;
      get(given, lse + c * Width);
      float* const column = block.values + c * Width;
      for (int e = 0; e < block.count; ++e) {
        floats value;
        get(value, column + static_cast<std::ptrdiff_t>(e) * Rows);
        value -= given;
        exp_each<Width>(value);
        put(value, column + static_cast<std::ptrdiff_t>(e) * Rows);
      }
      put(floats{} + 1.0f, block.scale + c * Width);
    }
  }

  /// Loads the probabilities of one entry for one column of rows.
  [[gnu::always_inline]] static inline void load(block_view const& block, int e, int c, floats& value) {
    ints seen;
    floats scale;
    seen_by(block, c, seen);
    get(scale, block.scale + c * Width);
    get(value, block.values + static_cast<std::ptrdiff_t>(e) * Rows + c * Width);
    value = seen > e ? value * scale : floats{};
  }

  [[gnu::always_inline]] static inline void take(floats& into, floats const& value, bool maximum) {
    if (maximum) {
      into = ((into >= value) | (into != into)) ? into : value;  // NaN propagates from either side
    } else {
      into += value;
    }
  }

  [[gnu::always_inline]] static inline void reduce(block_view const& block, bool maximum, bool grow, float* out) {
    for (int e = 0; e < block.count; ++e) {
      floats all;
      load(block, e, 0, all);
      for (int c = 1; c < columns; ++c) {
        floats value;
        load(block, e, c, value);
        take(all, value, maximum);
      }
      float const value = across(all, maximum);
      out[e] = !grow ? value : maximum ? higher(out[e], value) : out[e] + value;
    }
  }

  [[gnu::always_inline]] static inline void gather_head(block_view const& block, bool maximum, bool grow, float* into) {
    for (int e = 0; e < block.count; ++e) {
      for (int c = 0; c < columns; ++c) {
        float* const target = into + static_cast<std::ptrdiff_t>(e) * Rows + c * Width;
        floats value;
        load(block, e, c, value);
        if (grow) {
          floats all;
          get(all, target);
          take(all, value, maximum);
          put(all, target);
        } else {
          put(value, target);
        }
      }
    }
  }

  [[gnu::always_inline]] static inline float higher(float a, float b) { return a >= b || a != a ? a : b; }

  /// Reduces a vector's numbers to their sum or maximum, by halves.
  [[gnu::always_inline]] static inline float across(floats const& of, bool maximum) {
    float part[static_cast<std::size_t>(Width)];
    put(of, part);
    four all;
    get(all, part);
    for (int i = 4; i < Width; i += 4) {
      four next;
      get(next, part + i);
      if (maximum) {
        keep_higher(all, next);
      } else {
        all += next;
      }
    }
    if (!maximum) return (all[0] + all[1]) + (all[2] + all[3]);
    keep_higher(all, four{all[1], all[0], all[3], all[2]});  // in vectors: a branch would often be mispredicted
    keep_higher(all, four{all[2], all[3], all[0], all[1]});
    return all[0];
  }

 private:
  using four = typename vector_of<4>::floats;

  [[gnu::always_inline]] static inline void keep_higher(four& all, four const& next) {
    all = ((all >= next) | (all != all)) ? all : next;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
