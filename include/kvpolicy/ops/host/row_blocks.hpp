// Sums and maxima across a vector.
#pragma once

#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

template <int Width, int Rows>
struct block_bodies {
  using floats = typename vector_of<Width>::floats;

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
