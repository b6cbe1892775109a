// Scores that are made while a lane is searched for the lowest one.
#pragma once

#include <algorithm>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/host/argmin_kernels.hpp>
#include <kvpolicy/ops/host/lowest_avx2.hpp>
#include <kvpolicy/ops/host/lowest_search.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int scores_at_once = 1024;

/// A function of an entry whose values are the elements of a row.
template <class Function>
concept reads_row = requires(Function const& f, lane one) {
  { f.row(one) } -> std::same_as<float const*>;
};

/// A function of entries that has a shorter form for one lane: `in_lane(lane_entries)` returns it.
template <class Function>
concept has_lane_form = requires(Function const& f, lane_entries const& of) { f.in_lane(of); };

/// A lane form with a shorter one, whose values compare as its values do unless they are NaN: `compared()` returns it.
template <class Form>
concept has_compared_form = requires(Form const& form) { form.compared(); };

/// A lane form that reads the row `numbers()`, which is fetched early.
template <class Form>
concept reads_numbers = requires(Form const& form) {
  { form.numbers() } -> std::same_as<float const*>;
};

/// Writes the scores that a function gives to `count` entries from `first` on.
template <class Function>
[[gnu::always_inline]] inline void make_scores(Function const& f, entry const& first, int count, int const* position,
                                               float* __restrict to) {
  constexpr int step = 16;  // a constant number of calls, which compilers turn into vectors
  Function const call = f;
  entry const begin = first;
  int const whole = count / step * step;
  for (int e = 0; e < whole; e += step) {
    int const* const at = position + e;
    float* const made = to + e;
    int const ordinal = begin.ordinal + e;
    for (int i = 0; i < step; ++i) made[i] = call(0.0f, entry{begin.lane, ordinal + i, begin.count, at[i], 0});
  }
  for (int e = whole; e < count; ++e)
    to[e] = call(0.0f, entry{begin.lane, begin.ordinal + e, begin.count, position[e], 0});
}

/// The lowest of the scores that a function gives to `count` entries, compared as they are made.
template <int Width, class Function>
[[gnu::always_inline]] inline int lowest_made(Function const& f, entry const& first, int count, int const* position,
                                              typename lowest_search<Width>::lowest_found& found) {
  using search = lowest_search<Width>;
  alignas(64) float made[std::size_t{search::block}];
  typename search::lowest_columns columns;
  columns.clear();
  entry from = first;
  int e = 0;
  for (; e + search::block <= count; e += search::block) {
    from.ordinal = first.ordinal + e;
    search::fetch(position + e);
    if constexpr (reads_numbers<Function>) search::fetch(f.numbers() + from.ordinal);
    make_scores(f, from, search::block, position + e, made);
    columns.template note<search::vectors>(made, e);
  }
  int const blocks_end = e;
  for (; e + Width <= count; e += Width) {
    from.ordinal = first.ordinal + e;
    search::fetch(position + e, Width);
    if constexpr (reads_numbers<Function>) search::fetch(f.numbers() + from.ordinal, Width);
    make_scores(f, from, Width, position + e, made);
    columns.template note<1>(made, e);
  }
  if (0 < e && e < count) {  // the last vector begins among entries that were noted
    int const last = count - Width;
    from.ordinal = first.ordinal + last;
    search::fetch(position + e, Width);
    if constexpr (reads_numbers<Function>) search::fetch(f.numbers() + first.ordinal + e, Width);
    make_scores(f, from, Width, position + last, made);
    columns.note_last(made, last, e - last);
    e = count;
  }
  found = search::found_in(columns);
  int here = -1;
  if (e > 0) {
    int const of_block =
        found.block + search::block <= blocks_end ? search::block : std::min(Width, count - found.block);
    from.ordinal = first.ordinal + found.block;
    make_scores(f, from, of_block, position + found.block, made);
    here = search::entry_in_block(found, made, of_block);
  }
  from.ordinal = first.ordinal + e;
  make_scores(f, from, count - e, position + e, made);
  return search::entry_of_rest(found, here, made, e, count);
}

#if defined(__x86_64__)
/// The same for AVX2 without its fused multiply-add, so that a function gives the same bits on every processor.
template <class Function>
KVPOLICY_VECTORIZED [[gnu::target("avx2")]] void make_scores_avx2(Function const& f, entry const& first, int count,
                                                                  int const* position, float* __restrict to) {
  make_scores(f, first, count, position, to);
}
/// Scores that a function gives: a source of scores for `avx2_lowest`.
template <class Function>
struct scores_of_function {
  Function const& f;
  entry const& first;
  int const* position;
  float* made;  ///< memory for a chapter

  [[gnu::target("avx2"), gnu::always_inline]] inline float const* of(int e, int count) const {
    entry from = first;
    from.ordinal += e;
    if (count == avx2_block) fetch(from.ordinal, e);
    make_scores(f, from, count == avx2_block ? avx2_block : count, position + e, made + e % avx2_chapter);
    return again(e);
  }
  [[gnu::target("avx2"), gnu::always_inline]] inline float const* again(int e) const { return made + e % avx2_chapter; }
  [[gnu::target("avx2"), gnu::always_inline]] static constexpr int before_aligned() { return 0; }

 private:
  [[gnu::target("avx2"), gnu::always_inline]] inline void fetch(int ordinal, int e) const {
    fetch_avx2_block(position + e);
    if constexpr (reads_numbers<Function>) fetch_avx2_block(f.numbers() + ordinal);
  }
};
template <class Function>
KVPOLICY_VECTORIZED [[gnu::target("avx2")]] int lowest_made_avx2(Function const& f, entry const& first, int count,
                                                                 int const* position) {
  alignas(64) float made[avx2_chapter];
  return avx2_lowest<scores_of_function<Function>>::only({f, first, position, made}, count);
}
#if defined(KVPOLICY_VECTORIZED_512)
template <class Function>
KVPOLICY_VECTORIZED_512 int lowest_made_avx512(Function const& f, entry const& first, int count, int const* position,
                                               lowest_search<16>::lowest_found& found) {
  return lowest_made<16>(f, first, count, position, found);
}
#endif
#endif

/// The elements of a row for the entries whose positions are in a range, and infinity for the others.
struct row_in_range {
  static constexpr float none = std::numeric_limits<float>::infinity();
  float const* row;
  position_range among;

  [[nodiscard]] float const* numbers() const { return row; }
  float operator()(float, entry at) const {
    float const score = row[at.ordinal];  // read in any case, so that compilers make vectors
    bool const is_in = (at.position >= among.low) & (at.position < among.high);
    return is_in ? score : none;
  }
};

/// The scores that a function gives, which are not written to a table.
template <class Function>
struct made_scores {
  Function const& f;
  isa simd_level;
  static constexpr bool has_row = reads_row<Function>;
  static constexpr int at_once = has_row ? std::numeric_limits<int>::max() : scores_at_once;

  /// The scores of `count` entries of a lane, from `begin` on. The buffer has room for them.
  [[nodiscard]] float const* of(int, lane_entries const& all, int begin, int count, float* buffer) const {
    if constexpr (reads_row<Function>) {
      return f.row(all.lane) + begin;
    } else if constexpr (has_lane_form<Function>) {
      make(f.in_lane(all), first_of(all, begin), count, all.position + begin, buffer);
      return buffer;
    } else {
      make(f, first_of(all, begin), count, all.position + begin, buffer);
      return buffer;
    }
  }

  /// The index of the lowest of the scores of these entries whose positions are in a range, or -1 if several may be
  /// the lowest, or one NaN. If the function does not read a row, the range is that of all positions.
  [[nodiscard]] int lowest(lane_entries const& all, int begin, int count, position_range among) const {
    int const* const position = all.position + begin;
    if constexpr (reads_row<Function>) {
      return lowest_by(row_in_range{f.row(all.lane), among}, first_of(all, begin), count, position);
    } else if constexpr (has_lane_form<Function>) {
      return lowest_by(f.in_lane(all), first_of(all, begin), count, position);
    } else {
      return lowest_by(f, first_of(all, begin), count, position);
    }
  }

 private:
  static entry first_of(lane_entries const& all, int begin) { return {all.lane, begin, all.count, 0, 0}; }

  template <class Form>
  int lowest_by(Form const& form, entry const& first, int count, int const* position) const {
    if constexpr (has_compared_form<Form>) return lowest_by(form.compared(), first, count, position);
#if defined(__x86_64__)
#if defined(KVPOLICY_VECTORIZED_512)
    if (simd_level >= isa::avx512) {
      lowest_search<16>::lowest_found found;
      int const index = lowest_made_avx512(form, first, count, position, found);
      return found.many || found.maybe_nan ? -1 : index;
    }
#endif
    if (simd_level >= isa::avx2) return lowest_made_avx2(form, first, count, position);
#endif
    lowest_search<4>::lowest_found found;
    int const index = lowest_made<4>(form, first, count, position, found);
    return found.many || found.maybe_nan ? -1 : index;
  }

  template <class Form>
  void make(Form const& form, entry const& first, int count, int const* position, float* buffer) const {
#if defined(__x86_64__)
    if (simd_level >= isa::avx2) return make_scores_avx2(form, first, count, position, buffer);
#endif
    make_scores(form, first, count, position, buffer);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
