// SPDX-License-Identifier: Apache-2.0
// Pools of neighbours: kernels/pool.hpp says what they promise.

constexpr int vectors_of_a_pool = 4;
constexpr int scores_of_a_pool = vectors_of_a_pool * width;

/// True if one of these scores or of the `reach` after them is NaN.
KVPOLICY_OP bool has_nan(float const* first, int reach) {
  bool found = false;
  for (int at = 0; at < reach + scores_of_a_pool; at += scores_of_a_pool) {
    float const* const some = first + (at < reach ? at : reach);
    unrolled<vectors_of_a_pool>([&](auto v) KVPOLICY_INLINED {
      floats const here = load(some + width * v);
      found |= any(either_is_nan(here, here));
    });
  }
  return found;
}

/// The last vectors are moved back to end at `end`, and pool some entries twice. Without NaN, a maximum keeps the first
/// of equals.
template <bool Mean>
inline int pool_inside(pooling const& by, float const* scores, int begin, int end, float* to) {
  if (end - begin < scores_of_a_pool) return begin;
  pooling const how = by;
  for (int next = begin; next < end; next += scores_of_a_pool) {
    int const at = next + scores_of_a_pool <= end ? next : end - scores_of_a_pool;
    float const* const first = scores + at - how.width / 2;
    floats all[vectors_of_a_pool];
    unrolled<vectors_of_a_pool>([&](auto v) KVPOLICY_INLINED { all[v] = load(first + width * v); });
    for (int n = 1; n < how.width; ++n) {
      unrolled<vectors_of_a_pool>([&](auto v) KVPOLICY_INLINED {
        floats const neighbour = load(first + n + width * v);
        all[v] = Mean ? all[v] + neighbour : max_or_second(neighbour, all[v]);
      });
    }
    unrolled<vectors_of_a_pool>([&](auto v) KVPOLICY_INLINED {
      store(Mean ? all[v] / splat(static_cast<float>(how.width)) : all[v], to + at + width * v);
    });
    if constexpr (!Mean) {
      int const there = has_nan(first, how.width - 1) ? scores_of_a_pool : 0;
      for (int e = at; e < at + there; ++e) to[e] = pooled(how, scores, end + how.width / 2, e);
    }
  }
  return end;
}

inline constexpr pool_kernels pool{pool_inside<false>, pool_inside<true>};
