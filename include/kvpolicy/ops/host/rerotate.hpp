// Host implementation of rerotate. An angle is the sum of a coarse and a fine step, so two small tables contain all
// sines.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <kvpolicy/ops/rerotate.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::rerotate_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(cache const& in) {
    auto const dims = static_cast<std::size_t>(in.k.dims);
    return detail::scratch_of<double>((fine_steps + 1) * dims) + detail::scratch_of<double>(dims) +
           3 * detail::scratch_of<float>(dims);
  }

  static void run(host_executor& exec, lanes const& batch, cache const& in, rope const& how) {
    tables const made = make_tables(exec, in, how);
    exec.for_each(batch.size(), [&](int i, int worker) {
      lane const one = batch.at(i);
      detail::scratch_arena arena(exec.scratch(worker));
      (void)arena.take<double>(table_size(in));
      auto const dims = static_cast<std::size_t>(in.k.dims);
      turning now{.by = made,
                  .coarse = arena.take<double>(dims),
                  .row = arena.take<float>(dims),
                  .cosine = arena.take<float>(dims),
                  .sine = arena.take<float>(dims)};
      int const count = *batch.count.row(one);
      for (int e = 0; e < count; ++e) {
        if (int const step = e - batch.position.row(one)[e]; step != 0) turn(in, one, e, step, now);
      }
    });
    for (int i = 0; i < batch.size(); ++i) {  // lanes may share positions, so all keys are rotated first
      lane const one = batch.at(i);
      int const count = *batch.count.row(one);
      for (int e = 0; e < count; ++e) batch.position.row(one)[e] = e;
    }
  }

 private:
  static constexpr int fine_steps = 64;

  /// Tables that are computed once for all workers, in the caller's scratch.
  struct tables {
    int pairs;
    rope_style style;
    double const* frequency;  ///< radians per position of each pair
    double const* fine;       ///< [64][pairs], cosine and sine for 0 .. 63 positions
    std::int64_t first_byte;  ///< of a row, from which on its channels turn
  };
  static std::size_t table_size(cache const& in) {
    return static_cast<std::size_t>(fine_steps + 1) * static_cast<std::size_t>(in.k.dims);
  }
  static tables make_tables(host_executor& exec, cache const& in, rope const& how) {
    int const dims = how.dims != 0 ? how.dims : detail::turned_channels_of(in).count;
    double* const frequency = detail::scratch_arena(exec.scratch(0)).take<double>(table_size(in));
    double* const fine = frequency + in.k.dims;
    for (int pair = 0; pair < dims / 2; ++pair) {
      frequency[pair] = how.frequency ? how.frequency[pair] : std::pow(how.theta, -2.0 * pair / dims);
      for (int step = 0; step < fine_steps; ++step) {
        fine[step * dims + 2 * pair] = std::cos(step * frequency[pair]);
        fine[step * dims + 2 * pair + 1] = std::sin(step * frequency[pair]);
      }
    }
    return {dims / 2, how.style, frequency, fine, detail::turned_channels_of(in).begin * in.k.dim};
  }

  /// The sines and cosines of a worker's most recent rotation. Neighbouring rows mostly rotate by the same angle.
  struct turning {
    tables by;
    double* coarse;  ///< for a multiple of 64 positions, which seldom changes
    float* row;
    float* cosine;
    float* sine;
    int coarse_step = 0;
    int step = 0;
    bool made = false;
  };

  static void make_sines(turning& now, int step) {
    tables const& by = now.by;
    int const coarse = (step >= 0 ? step : step - fine_steps + 1) / fine_steps * fine_steps;
    if (!now.made || coarse != now.coarse_step) {
      for (int pair = 0; pair < by.pairs; ++pair) {
        now.coarse[2 * pair] = std::cos(coarse * by.frequency[pair]);
        now.coarse[2 * pair + 1] = std::sin(coarse * by.frequency[pair]);
      }
    }
    double const* const fine = by.fine + (step - coarse) * 2 * by.pairs;
    for (int pair = 0; pair < by.pairs; ++pair) {
      double const* const big = now.coarse + 2 * pair;
      double const* const small = fine + 2 * pair;
      now.cosine[pair] = static_cast<float>(big[0] * small[0] - big[1] * small[1]);
      now.sine[pair] = static_cast<float>(big[1] * small[0] + big[0] * small[1]);
    }
    now.coarse_step = coarse;
    now.step = step;
    now.made = true;
  }

  static void turn(cache const& in, lane this_lane, int e, int step, turning& now) {
    if (!now.made || step != now.step) make_sines(now, step);
    int const pairs = now.by.pairs;
    bool const halves = now.by.style == rope_style::neox;
    std::byte* const key = in.k.row(this_lane.layer, in.where.at(this_lane, e), this_lane.head) + now.by.first_byte;
    detail::load_row(in.k.element, key, in.k.dim, 2 * pairs, now.row);
    float* const first = now.row;
    float* const second = halves ? now.row + pairs : now.row + 1;
    int const stride = halves ? 1 : 2;
    for (int pair = 0; pair < pairs; ++pair) {
      float const x = first[stride * pair], y = second[stride * pair];
      first[stride * pair] = x * now.cosine[pair] - y * now.sine[pair];
      second[stride * pair] = y * now.cosine[pair] + x * now.sine[pair];
    }
    detail::store_row(in.k.element, now.row, in.k.dim, 2 * pairs, key);
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
