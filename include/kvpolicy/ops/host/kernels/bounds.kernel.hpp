// Bounds of channels: kernels/bounds.hpp says what they promise.

template <class Number, int Channels>
struct channels {
  typedef Number numbers __attribute__((vector_size(Channels * sizeof(Number))));
};

/// The bounds of the channels from d on.
template <class Number, int Channels>
[[gnu::always_inline]] inline void bound_channels(std::byte const* const* rows, int count, int d, bool overwrite,
                                                  Number* high, Number* low) {
  using numbers = typename channels<Number, Channels>::numbers;
  constexpr Number magnitude = std::numeric_limits<Number>::max();
  numbers most = numbers{} + std::numeric_limits<Number>::min(), least = numbers{} + magnitude;
  if (!overwrite) {
    get(most, high + d);
    get(least, low + d);
  }
  for (int r = 0; r < count; ++r) {
    numbers value;
    get(value, rows[r] + d * static_cast<int>(sizeof(Number)));
    value ^= (value >> (8 * sizeof(Number) - 1)) & magnitude;
    most = value > most ? value : most;
    least = value < least ? value : least;
  }
  put(most, high + d);
  put(least, low + d);
}

/// The last vector may take some channels again.
template <class Number>
inline void bound(std::byte const* const* rows, int count, int dims, bool overwrite, Number* high, Number* low) {
  constexpr int some = 4 * width / static_cast<int>(sizeof(Number));
  if (dims < some) {
    for (int d = 0; d < dims; ++d) bound_channels<Number, 1>(rows, count, d, overwrite, high, low);
  }
  for (int d = 0; dims >= some && d < dims; d += some) {
    bound_channels<Number, some>(rows, count, d + some <= dims ? d : dims - some, overwrite, high, low);
  }
}

inline constexpr bound_kernels bounds{bound<std::int32_t>, bound<std::int16_t>};
