// SPDX-License-Identifier: Apache-2.0
// Bounds of channels: kernels/bounds.hpp says what they promise.

template <class Number, int Channels>
struct channels {
  typedef Number numbers __attribute__((vector_size(Channels * sizeof(Number))));
};

/// The bounds of `Vectors` vectors of channels from d on, so that as many cache lines of a row are read together.
template <int Vectors, class Number, int Channels>
KVPOLICY_OP void bound_channels(std::byte const* const* rows, int count, int d, bool overwrite, Number* high,
                                Number* low) {
  using numbers = typename channels<Number, Channels>::numbers;
  constexpr Number magnitude = std::numeric_limits<Number>::max();
  numbers most[static_cast<std::size_t>(Vectors)], least[static_cast<std::size_t>(Vectors)];
  unrolled<Vectors>([&](auto i) KVPOLICY_INLINED {
    most[i] = numbers{} + std::numeric_limits<Number>::min();
    least[i] = numbers{} + magnitude;
    if (overwrite) return;
    load_raw(most[i], high + d + Channels * i);
    load_raw(least[i], low + d + Channels * i);
  });
  for (int r = 0; r < count; ++r) {
    unrolled<Vectors>([&](auto i) KVPOLICY_INLINED {
      numbers value;
      load_raw(value, rows[r] + (d + Channels * i) * static_cast<int>(sizeof(Number)));
      value ^= (value >> (8 * sizeof(Number) - 1)) & magnitude;
      most[i] = value > most[i] ? value : most[i];
      least[i] = value < least[i] ? value : least[i];
    });
  }
  unrolled<Vectors>([&](auto i) KVPOLICY_INLINED {
    store_raw(most[i], high + d + Channels * i);
    store_raw(least[i], low + d + Channels * i);
  });
}

/// The last vectors are moved back to end at `dims`, and compute some channels twice.
template <class Number>
inline void bound(std::byte const* const* rows, int count, int dims, bool overwrite, Number* high, Number* low) {
  constexpr int one = 4 * width / static_cast<int>(sizeof(Number));
  auto const pass = [&]<int Vectors, int Channels>(std::integer_sequence<int, Vectors, Channels>) KVPOLICY_INLINED {
    for (int d = 0; d < dims; d += Vectors * Channels) {
      int const from = d + Vectors * Channels <= dims ? d : dims - Vectors * Channels;
      bound_channels<Vectors, Number, Channels>(rows, count, from, overwrite, high, low);
    }
  };
  if (dims >= 4 * one) return pass(std::integer_sequence<int, 4, one>{});
  if (dims >= one) return pass(std::integer_sequence<int, 1, one>{});
  pass(std::integer_sequence<int, 1, 1>{});
}

inline constexpr bounds_kernels bounds{bound<std::int32_t>, bound<std::int16_t>};
