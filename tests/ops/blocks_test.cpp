// SPDX-License-Identifier: Apache-2.0
// The kernels behind attention_mass, through attention_mass: every head size, every number of rows, every instruction
// set, on both sides of every vector, block and tile.

#include "support/masses.hpp"

namespace {

using namespace kvpolicy_test;

constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();
constexpr kv::reduction both[] = {kv::reduction::sum, kv::reduction::max};

/// One lane and its query rows, and what the reference says of them.
class one_lane {
 public:
  one_lane(mock_options const& shape, kv::codec queries, int count, content what = content::smooth)
      : cache(shape), rows(cache, queries, count, count) {
    cache.put({}, up_to(shape.bound));
    fill(rows, cache, what);
    for (int r = 0; r < count; ++r) rows.set_position(0, r, shape.bound - count + r);
  }

  /// Gives every row its log-sum-exp over the entries that it sees.
  void give_lse() {
    reference::lane_attention const lane = reference_lane(cache, rows, {});
    REQUIRE(rows.rows() == std::ssize(lane.query_positions));
    kvpolicy_test::give_lse(cache, rows, [&](kv::lane) { return lane; });
  }

  [[nodiscard]] std::vector<float> mass(kv::attention_mass_options const& how, kv::isa simd_level, bool lse = false) {
    kv::host_executor exec(1, simd_level);
    owned_scores out(cache.lanes());
    kv::query_view view = rows.view();
    if (!lse) view.lse = {};
    write_masses(exec, cache.model(), kv::keys_of(cache.view()), view, how, out.view());
    return {out.row(0, 0).data(), out.row(0, 0).data() + cache.committed({})};
  }

  [[nodiscard]] reference::row expected(kv::attention_mass_options const& how) {
    return reference::attention_mass(reference_lane(cache, rows, {}), in_double(how));
  }

  /// With every instruction set, and with the softmax's sums given and not.
  void check(kv::attention_mass_options const& how) {
    reference::row const wanted = expected(how);
    for (bool const given : {false, true}) {
      if (given) give_lse();
      for (kv::isa const simd_level : every_isa) {
        INFO("given ", given, ", simd_level ", static_cast<int>(simd_level));
        CHECK(compare(mass(how, simd_level, given), wanted));
      }
    }
  }

  /// With every instruction set, and the same keys in another memory.
  void check_with(kv::keys const& elsewhere) {
    reference::row const wanted = expected({});
    int const bound = cache.options().bound;
    for (kv::isa const simd_level : every_isa) {
      kv::host_executor exec(1, simd_level);
      owned_scores out(cache.lanes());
      write_masses(exec, cache.model(), elsewhere, rows.view(), {}, out.view());
      CHECK(compare(out.row(0, bound), wanted));
    }
  }

  mock_cache cache;
  mock_queries rows;
};

mock_options shape_of(int dims, int group, int bound, kv::codec element) {
  return {.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = dims},
          .bound = bound,
          .element = element,
          .seed = static_cast<std::uint64_t>(dims)};
}

}  // namespace

TEST_SUITE("ops/host/kernels/logits") {
  TEST_CASE("every head size up to 68, and those of models, of every element type") {
    std::vector<int> sizes;
    for (int dims = 1; dims <= 68; ++dims) sizes.push_back(dims);
    sizes.insert(sizes.end(), {80, 95, 96, 97, 127, 128, 129, 192});
    std::vector<int> const rows{1, 3, 4, 5, 16, 17, 2};
    for (int const dims : sizes) {
      for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
        INFO("dims ", dims, ", element ", kv::name_of(element));
        mock_options shape = shape_of(dims, 1, 25, element);
        shape.skew = dims % 3 == 0 ? 2 : 0;
        int const some = rows[as_size(dims + static_cast<int>(element)) % rows.size()];
        one_lane lane(shape, dims % 2 == 0 ? kv::codec::bf16 : kv::codec::f32, some);
        lane.check({});
      }
    }
  }

  TEST_CASE("every number of rows up to 34, of keys and rows that bf16 holds and of others") {
    for (int rows = 1; rows <= 34; ++rows) {
      for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
        INFO("rows ", rows, ", element ", kv::name_of(element));
        // `few` are floats that bf16 holds exactly: with keys of bf16 they may be multiplied in pairs.
        content const what = rows % 2 == 0 ? content::few : content::smooth;
        one_lane lane(shape_of(18, 1, 34, element), kv::codec::f32, rows, what);
        lane.check({.rows = both[rows / 2 % 2]});
      }
    }
  }

  TEST_CASE("channels that lie apart are gathered, whatever multiplies them") {
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (int const dims : {1, 6, 32, 33}) {
        for (int const rows : {2, 17}) {
          INFO("element ", kv::name_of(element), ", dims ", dims, ", rows ", rows);
          int const bound = 30;
          one_lane lane(shape_of(dims, 1, bound, element), kv::codec::bf16, rows);
          auto const width = as_size(kv::bytes_of(element));
          std::vector<std::byte> memory(as_size(dims * bound) * width);
          for (int d = 0; d < dims; ++d) {
            for (int e = 0; e < bound; ++e) {
              std::memcpy(memory.data() + as_size(d * bound + e) * width, lane.cache.element(of::keys, {}, e, d),
                          width);
            }
          }
          std::int64_t const step = kv::bytes_of(element);
          kv::keys const apart{
              {{memory.data(), element, dims, 0, 0, step, 0, bound * step}, kv::identity_map(bound, 1)}};
          lane.check_with(apart);
        }
      }
    }
  }

  TEST_CASE("float keys one after another, at equal distances, and anywhere") {
    enum class lie { together, apart, anywhere };
    for (int const dims : {1, 3, 4, 30, 80, 128}) {
      for (int const rows : {5, 16, 17, 32}) {
        for (lie const how : {lie::together, lie::apart, lie::anywhere}) {
          INFO("dims ", dims, ", rows ", rows, ", how ", static_cast<int>(how));
          int const bound = 49;
          int const places = 3 * bound;
          one_lane lane(shape_of(dims, 1, bound, kv::codec::f32), kv::codec::f32, rows);
          std::vector<int> slot;
          for (int e = 0; e < bound; ++e) slot.push_back(how == lie::anywhere ? e * 50 % places : e);
          std::int64_t const step = 4 * (how == lie::apart ? 3 * dims : dims);
          std::vector<std::byte> memory(as_size(places * step));
          for (int e = 0; e < bound; ++e) {
            for (int d = 0; d < dims; ++d) {
              std::memcpy(memory.data() + slot[as_size(e)] * step + 4 * d, lane.cache.element(of::keys, {}, e, d), 4);
            }
          }
          kv::keys const laid{
              {{memory.data(), kv::codec::f32, dims, 0, step, 0, 0, 4}, kv::slot_map({slot.data()}, places)}};
          lane.check_with(laid);
        }
      }
    }
  }

  TEST_CASE("more rows than are packed at once, and tiles of keys that are not full") {
    for (int const bound : {33, 47, 48, 49, 73}) {
      for (kv::reduction const how : both) {
        CAPTURE(bound);
        one_lane lane(shape_of(20, 8, bound, kv::codec::bf16), kv::codec::bf16, 33);
        lane.check({.rows = how, .group = how});
      }
    }
  }

  TEST_CASE("a row that is not a bf16 number is not multiplied as one, whichever it is") {
    for (int which = 0; which < 6; ++which) {
      one_lane lane(shape_of(6, 2, 9, kv::codec::bf16), kv::codec::f32, 3, content::few);
      reference::row odd = lane.rows.row(0, 0, which / 3, which % 3);
      odd[as_size(which)] = 1 + 0x1p-8;  // one bit more than bf16 has
      lane.rows.write(0, 0, which / 3, which % 3, odd);
      lane.check({});
    }
  }

  TEST_CASE("the highest of the rows is found, whichever it is") {
    for (int const rows : {4, 16, 32}) {
      for (int r = 0; r < rows; ++r) {
        one_lane lane(shape_of(2, 1, 40, kv::codec::f32), kv::codec::f32, rows, content::few);
        for (int other = 0; other < rows; ++other) lane.rows.write(0, 0, 0, other, {0, 0});
        lane.rows.write(0, 0, 0, r, {1, 2});
        lane.check({.rows = kv::reduction::max});
        lane.check({.rows = kv::reduction::sum});
      }
    }
  }

  TEST_CASE("a NaN in any row reaches the sum and the maximum of what that row sees, and nothing else") {
    for (int const rows : {4, 16, 32}) {
      for (int r = 0; r < rows; ++r) {
        one_lane lane(shape_of(3, 1, 40, kv::codec::f32), kv::codec::f32, rows);
        lane.rows.write(0, 0, 0, r, {1, quiet_nan, 2});
        lane.check({.rows = kv::reduction::max});
        lane.check({.rows = kv::reduction::sum});
      }
    }
  }

  TEST_CASE("a NaN or an infinity in a key reaches the rows that see it, and none of those that fill a block up") {
    for (int const rows : {1, 4, 5, 17}) {
      for (double const bad : {quiet_nan, reference::infinity, -reference::infinity}) {
        for (int const where : {0, 23, 24, 38, 39}) {
          for (kv::codec const element : {kv::codec::f32, kv::codec::bf16}) {
            INFO("rows ", rows, ", bad ", bad, ", where ", where);
            one_lane lane(shape_of(4, 1, 40, element), element, rows);
            lane.cache.write(of::keys, {}, where, {1, bad, 1, 1});
            reference::row const wanted = lane.expected({});
            for (kv::isa const simd_level : every_isa) CHECK(compare(lane.mass({}, simd_level), wanted));
          }
        }
      }
    }
  }

  TEST_CASE("an infinite key of 16 bits meets rows that 16 bits hold, and rows that they do not") {
    for (double const bad : {reference::infinity, -reference::infinity}) {
      for (kv::codec const element : {kv::codec::bf16, kv::codec::f16}) {
        for (int const rows : {1, 4, 17}) {
          INFO("bad ", bad, ", element ", kv::name_of(element), ", rows ", rows);
          int const dims = rows == 1 ? 8 : 16;  // f16 has kernels of its own for multiples of 16
          one_lane lane(shape_of(dims, 1, 40, element), kv::codec::f32, rows);
          reference::row key(as_size(dims), 1);
          key[1] = bad;
          lane.cache.write(of::keys, {}, 20, key);
          // Of the first nothing is left when it is rounded, of the others something of either sign.
          for (double const first : {1.0, 1.0 + 1e-3, -1.0 - 1e-3}) {
            reference::row query{0.3, first, 0.7, 0.1, 0.2, 0.3, 0.4, 0.5};
            query.resize(as_size(dims), 0.25);
            for (int r = 0; r < rows; ++r) lane.rows.write(0, 0, 0, r, query);
            reference::row const wanted = lane.expected({});
            for (kv::isa const simd_level : every_isa) CHECK(compare(lane.mass({}, simd_level), wanted));
          }
        }
      }
    }
  }

  TEST_CASE("heads are gathered before the softmax and after it, in blocks that are not full") {
    for (int const rows : {3, 16, 17, 33}) {
      for (auto const order : {kv::reduction_order::rows_then_group, kv::reduction_order::group_then_rows,
                               kv::reduction_order::group_on_logits}) {
        for (kv::reduction const how : {kv::reduction::sum, kv::reduction::mean, kv::reduction::max}) {
          INFO("rows ", rows, ", order ", static_cast<int>(order));
          one_lane lane(shape_of(8, 3, 40, kv::codec::f16), kv::codec::f32, rows);
          lane.check({.rows = how == kv::reduction::max ? kv::reduction::sum : kv::reduction::max,
                      .group = how,
                      .order = order});
        }
      }
    }
  }
}

TEST_SUITE("ops/host/attention_mass") {
  TEST_CASE("softmax over several stretches of entries is one softmax, with ends on both sides of a stretch's") {
    for (int const bound : {479, 480, 481, 960, 961, 1000}) {
      for (int const rows : {2, 17}) {
        INFO("bound ", bound, ", rows ", rows);
        one_lane lane(shape_of(4, 1, bound, kv::codec::bf16), kv::codec::f32, rows);
        lane.check({});
        for (int r = 0; r < rows; ++r) lane.rows.set_position(0, r, bound * (r + 1) / rows - 1);
        lane.check({.rows = kv::reduction::max});
      }
    }
  }

  TEST_CASE("it is, wherever the highest logits are, and where a stretch has none but -inf") {
    enum class course { rising, falling, low_first, low_last, low, high_middle, nan_first, nan_last };
    auto const logit = [](course how, int e) -> double {
      bool const first = e < 480;
      bool const last = e >= 960;
      switch (how) {
        case course::rising:
          return e / 20.0 - 50;
        case course::falling:
          return 50 - e / 20.0;
        case course::low_first:
          return first ? -reference::infinity : e % 7;
        case course::low_last:
          return last ? -reference::infinity : e % 7;
        case course::low:
          return -reference::infinity;
        case course::high_middle:
          return first || last ? e % 3 : 200 + e % 5;
        case course::nan_first:
          return e == 100 ? quiet_nan : first ? -reference::infinity : e % 7;
        default:
          return e == 1100 ? quiet_nan : e % 7;
      }
    };
    for (course const how : {course::rising, course::falling, course::low_first, course::low_last, course::low,
                             course::high_middle, course::nan_first, course::nan_last}) {
      for (int const rows : {1, 5}) {
        INFO("how ", static_cast<int>(how), ", rows ", rows);
        int const bound = 1200;
        int const ends[] = {50, 300, 700, 1000, 1199};
        // One channel and rows of 1, one of them not: the logit is the key, or half of it.
        one_lane lane(shape_of(1, 1, bound, kv::codec::f32), kv::codec::f32, rows);
        for (int e = 0; e < bound; ++e) lane.cache.write(of::keys, {}, e, {logit(how, e)});
        for (int r = 0; r < rows; ++r) {
          lane.rows.write(0, 0, 0, r, {r == 1 ? 0.5 : 1.0});
          lane.rows.set_position(0, r, rows == 1 ? ends[4] : ends[r]);
        }
        for (auto const order : {kv::reduction_order::rows_then_group, kv::reduction_order::group_on_logits}) {
          reference::row const wanted = lane.expected({.order = order});
          for (kv::isa const simd_level : every_isa) CHECK(compare(lane.mass({.order = order}, simd_level), wanted));
        }
      }
    }
  }

  TEST_CASE("heads are gathered stretch by stretch") {
    for (auto const order : {kv::reduction_order::rows_then_group, kv::reduction_order::group_then_rows,
                             kv::reduction_order::group_on_logits}) {
      for (kv::reduction const how : {kv::reduction::mean, kv::reduction::max}) {
        CAPTURE(static_cast<int>(order));
        one_lane lane(shape_of(4, 2, 1000, kv::codec::f32), kv::codec::bf16, 18);
        lane.check({.rows = how == kv::reduction::max ? kv::reduction::sum : kv::reduction::max,
                    .group = how,
                    .order = order});
      }
    }
  }
}

TEST_SUITE("ops/host/simd/common") {
  TEST_CASE("e^x is right to 2 units in the last place from -87 to 88, 0 below, and NaN of NaN") {
    std::vector<double> values{0, -0.0, -87, 88, 87.5, 1e-30, -1e-30, 0.5, -0.5, 0.34657, -0.34658, 0.35, -0.35};
    for (int i = 0; i < 1000; ++i) values.push_back(-86.99 + i * 174.98 / 999);
    std::size_t const inside = values.size();
    values.insert(values.end(), {-87.1, -88, -1000, -reference::infinity, quiet_nan});
    int const count = static_cast<int>(values.size());
    one_lane lane(shape_of(1, 1, count, kv::codec::f32), kv::codec::f32, 1);
    // One channel, one row of 1: the logit is the key, and a log-sum-exp of 0 leaves e^logit.
    lane.rows.write(0, 0, 0, 0, {1});
    lane.rows.bring_lse();
    for (int e = 0; e < count; ++e) lane.cache.write(of::keys, {}, e, {values[as_size(e)]});
    for (kv::isa const simd_level : every_isa) {
      std::vector<float> const mass = lane.mass({}, simd_level, true);
      for (std::size_t e = 0; e < inside; ++e) {
        double const wanted = std::exp(lane.cache.row(of::keys, {}, static_cast<int>(e))[0]);
        CAPTURE(values[e]);
        CHECK(std::abs(static_cast<double>(mass[e]) - wanted) <= wanted * 0x1p-22);
      }
      for (std::size_t e = inside; e + 1 < values.size(); ++e) CHECK(mass[e] == 0);
      CHECK(std::isnan(mass.back()));
    }
  }
}

TEST_SUITE("ops/executor") {
  TEST_CASE("an executor speaks what it was told, or the best that the processor has") {
    CHECK(kv::host_executor().simd_level() == kv::best_isa());
    CHECK(kv::host_executor(2).simd_level() == kv::best_isa());
    for (kv::isa const most : every_isa)
      CHECK(kv::host_executor(1, most).simd_level() == std::min(most, kv::best_isa()));
    CHECK_THROWS_WITH_AS(kv::host_executor(0), "host_executor: threads = 0, but at least the caller works",
                         kv::invalid_argument);
  }
}
