// SPDX-License-Identifier: Apache-2.0
// The device's attention_mass against the host's, over every option, shape, memory layout and element type.

#include "device/as_on_host.hpp"
#include "support/masses.hpp"
#if !defined(__CUDACC__)
#include <csignal>
#include <cstdio>

#include "support/forked.hpp"
#endif

namespace {

using namespace kvpolicy_test;

/// A batch of keys and rows for the host and for the device.
struct batch : mass_batch {
  batch(mock_options shape, kv::codec queries_of, int row_count, int capacity, content content_of)
      : mass_batch((shape.skew = 0, shape), queries_of, row_count, capacity) {
    fill(cache, true);
    fill(queries, cache, content_of);
  }
};

bool alike(std::vector<float> const& a, std::vector<float> const& b, float relative = 1e-5f) {
  return masses_alike(a, b, relative);
}

kv::attention_mass_options any_options() {
  using enum kv::key_domain;
  kv::attention_mass_options how = any_mass_options({all, past, candidates}, {0, 0, 1, 3, 16});
  how.accumulate = any_bool();
  return how;
}

TEST_SUITE("device/attention_mass") {
  TEST_CASE("masses are the host's in every domain, reduction and order") {
    holds("device == host", 40, [] {
      mock_options shape = any_mock(6);
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      shape.shared_entries = any_bool();
      RC_LOG() << shape << '\n';
      int const rows = *rc::gen::element(1, 3, 0, 9, 17);
      batch of(shape, any_float(), rows, rows + *rc::gen::element(0, 0, 4), shape.rows);
      kv::attention_mass_options how = any_options();
      auto decides = kv::granularity::lane;
      if (shape.shared_entries) {
        decides = *rc::gen::element(kv::granularity::layer, kv::granularity::sequence);
        how.accumulate = false;
        if (how.domain != kv::key_domain::candidates) {
          how.lanes = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
        }
      }
      kv::query_view view = of.queries.view();
      if (any_bool()) view.position = {};
      auto const before = of.cache.save();
      kv::host_executor host;
      device_executor device(shape.seed);
      RC_ASSERT(alike(of.mass(device, view, how, decides), of.mass(host, view, how, decides)));
      RC_ASSERT(of.cache.save() == before);
    });
  }

  TEST_CASE("log-sum-exps that are given are taken where the host takes them") {
    holds("device == host, lse", 20, [] {
      mock_options const shape = any_mock(4);
      batch of(shape, kv::codec::f32, 5, 5, content::smooth);
      of.queries.bring_lse();
      for (int s = 0; s < shape.sequences; ++s) {
        for (int r = 0; r < 5; ++r) of.queries.set_lse(s, 0, shape.model.query_heads - 1, r, 0.25 * r);
      }
      auto const how = any_options();
      kv::host_executor host;
      device_executor device;
      RC_ASSERT(alike(of.mass(device, of.queries.view(), how), of.mass(host, of.queries.view(), how)));
    });
  }

  TEST_CASE("no number of a launch changes a bit, and 4097 entries are the host's") {
    mock_options shape{.model = {.layers = 1, .query_heads = 3, .kv_heads = 1, .head_dim = 8}, .bound = 4097};
    batch of(shape, kv::codec::f32, 12, 12, content::smooth);
    of.hold_all(1);
    for (int r = 0; r < 12; ++r) of.queries.set_position(0, r, 4000 + 8 * r);
    for (auto const order : {kv::reduction_order::rows_then_group, kv::reduction_order::group_on_logits}) {
      kv::attention_mass_options const how{.rows = kv::reduction::max, .group = kv::reduction::sum, .order = order};
      kv::host_executor host;
      auto const expected = of.mass(host, of.queries.view(), how);
      device_executor small(numbers_of(32, 96), 7), large(numbers_of(128, 1024), 9);
      auto const found = of.mass(small, of.queries.view(), how);
      CHECK(alike(found, expected));
      CHECK(of.mass(large, of.queries.view(), how) == found);
    }
  }

  TEST_CASE("rows that shared memory has no room for are read again, to the same bits") {
    holds("little shared memory == much", 20, [] {
      mock_options shape = any_mock(2);
      shape.model.head_dim = *rc::gen::element(16, 80);
      shape.model.query_heads = shape.model.kv_heads * 5;
      shape.element = *rc::gen::element(kv::codec::f16, kv::codec::bf16);
      shape.padding = 0;
      shape.rows = *rc::gen::element(content::smooth, content::troubled);
      batch of(shape, any_float(), 9, 9, content::smooth);
      kv::attention_mass_options const how = any_options();
      launch_numbers little = numbers_of(64, 128);
      little.shared_bytes = shape.model.head_dim == 16 ? 26 * 1024 : 33 * 1024;
      kv::host_executor host;
      device_executor small(little, 5), large(7);
      auto const found = of.mass(small, of.queries.view(), how);
      RC_ASSERT(alike(found, of.mass(host, of.queries.view(), how), 3e-5f));
      RC_ASSERT(alike(of.mass(large, of.queries.view(), how), found, 0));
    });
  }

  TEST_CASE("sums over more rows than shared memory has room for are made piece by piece, to the same bits") {
    holds("little shared memory == much, sums", 20, [] {
      mock_options shape = any_mock(2);
      shape.model.head_dim = *rc::gen::element(16, 80, 128);
      shape.model.query_heads = shape.model.kv_heads * 5;
      shape.element = *rc::gen::element(kv::codec::f32, kv::codec::f16, kv::codec::bf16);
      shape.padding = 0;
      batch of(shape, any_float(), 21, 21, content::smooth);
      kv::attention_mass_options how = any_options();
      how.rows = *rc::gen::element(kv::reduction::sum, kv::reduction::mean);
      how.group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean);
      how.order = *rc::gen::element(kv::reduction_order::rows_then_group, kv::reduction_order::group_then_rows);
      how.last_rows = 0;
      if (any_bool()) of.queries.bring_lse();
      launch_numbers little = numbers_of(*rc::gen::element(32, 64, 96), 128);
      little.shared_bytes = 16 * 1024;
      kv::host_executor host;
      device_executor small(little, 5), large(numbers_of(128, 1024), 7);
      auto const found = of.mass(small, of.queries.view(), how);
      RC_ASSERT(alike(found, of.mass(host, of.queries.view(), how), 3e-5f));
      RC_ASSERT(alike(of.mass(large, of.queries.view(), how), found, 0));
    });
  }

  TEST_CASE("an infinite key is no NaN where a row is the sum of two numbers") {
    for (auto const element : {kv::codec::bf16, kv::codec::f16}) {
      mock_options shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 8}, .bound = 6};
      shape.element = element;
      batch of(shape, kv::codec::f32, 1, 1, content::smooth);
      of.hold_all(1);
      of.queries.set_position(0, 0, 5);
      of.cache.write(of::keys, {0, 0, 0}, 2, {-reference::infinity, 1, 1, 1, 1, 1, 1, 1});
      for (double const first : {1.005, 1e-9}) {  // 1.0078125 - 0.0028125 in bf16; in f16 the other one is below all
        of.queries.write(0, 0, 0, 0, {first, 0.3, 0, 0, 0, 0, 0, 0});
        for (auto const rows : {kv::reduction::sum, kv::reduction::max}) {
          device_executor device;
          auto const found = of.mass(device, of.queries.view(), {.rows = rows});
          CHECK(found[2] == 0.0f);
          CHECK(found[1] > 0.0f);
        }
      }
    }
  }

  TEST_CASE("keys of f32 are sums of two numbers of 16 bits, and their masses the host's within 3e-5") {
    for (int const dims : {4, 64, 80, 128}) {
      for (auto const rows_of : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
        CAPTURE(dims);
        CAPTURE(kv::name_of(rows_of));
        mock_options shape{.model = {.layers = 1, .query_heads = 4, .kv_heads = 1, .head_dim = dims}, .bound = 333};
        batch of(shape, rows_of, 9, 9, content::smooth);
        of.hold_all(1);
        for (int r = 0; r < 9; ++r) of.queries.set_position(0, r, 290 + 5 * r);
        std::vector<double> row(as_size(dims));
        for (int e = 0; e < 333; ++e) {  // logits from -40 to 40: f16 alone would be wrong by more than 1e-3
          for (int d = 0; d < dims; ++d)
            row[as_size(d)] = 3 * std::sin(0.7 * e + 1.3 * d) + 1e-3 * std::cos(17.0 * e * d);
          of.cache.write(of::keys, {0, 0, 0}, e, row);
        }
        kv::host_executor host;
        device_executor device;
        CHECK(alike(of.mass(device, of.queries.view(), {}), of.mass(host, of.queries.view(), {}), 3e-5f));
      }
    }
  }

  TEST_CASE("small keys of f32 keep the bits that their logits need") {
    for (double const size : {1.0, 1e-2, 1e-3}) {
      CAPTURE(size);
      mock_options shape{.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 64}, .bound = 100};
      batch of(shape, kv::codec::f32, 3, 3, content::smooth);
      of.hold_all(1);
      std::vector<double> row(64);
      for (int e = 0; e < 100; ++e) {
        for (int d = 0; d < 64; ++d) row[as_size(d)] = size * std::sin(0.7 * e + 1.3 * d);
        of.cache.write(of::keys, {0, 0, 0}, e, row);
      }
      for (int h = 0; h < 2; ++h) {
        for (int r = 0; r < 3; ++r) {
          for (int d = 0; d < 64; ++d) row[as_size(d)] = 2 / size * std::cos(0.3 * (h + r) + 0.9 * d);
          of.queries.write(0, 0, h, r, row);
          of.queries.set_position(0, r, 90 + 4 * r);
        }
      }
      kv::host_executor host;
      device_executor device;
      CHECK(alike(of.mass(device, of.queries.view(), {}), of.mass(host, of.queries.view(), {}), 3e-5f));
    }
  }

  TEST_CASE("keys of f32 that are beyond f16, and rows that are not finite, count as in plain sums") {
    double const huge = 3e5;
    for (double const first : {1.0, -1.0, 1e-30, reference::infinity, std::nan("")}) {
      for (double const key : {huge, -huge, 65504.0, 65520.0, 1e-6, 1e-9, -reference::infinity}) {
        CAPTURE(first);
        CAPTURE(key);
        mock_options shape{.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 64}, .bound = 60};
        batch of(shape, kv::codec::f32, 3, 3, content::smooth);
        of.hold_all(1);
        for (int r = 0; r < 3; ++r) of.queries.set_position(0, r, 20 + 15 * r);
        std::vector<double> row(64, 0.125);
        row[0] = key;
        of.cache.write(of::keys, {0, 0, 0}, 7, row);
        std::vector<double> asked(64, 0.25);
        asked[0] = std::abs(key) > 1e4 && std::abs(first) == 1 ? first / huge : first;
        of.queries.write(0, 0, 1, 0, asked);  // the row of the lowest position: entries after it stay finite
        kv::host_executor host;
        device_executor device;
        auto const found = of.mass(device, of.queries.view(), {});
        CHECK(alike(found, of.mass(host, of.queries.view(), {}), 1e-5f));
      }
    }
  }

  TEST_CASE("a row of f32 that is infinite weighs entries with 0 whose logits are -inf, if its log-sum-exp is given") {
    mock_options shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 64}, .bound = 40};
    batch of(shape, kv::codec::f32, 2, 2, content::smooth);
    of.hold_all(1);
    std::vector<double> row(64, 0.0625);
    row[0] = -0.3;
    for (int e = 0; e < 40; ++e) of.cache.write(of::keys, {0, 0, 0}, e, row);
    of.queries.bring_lse();
    for (int r = 0; r < 2; ++r) {
      of.queries.set_position(0, r, 38 + r);
      of.queries.set_lse(0, 0, 0, r, 3.0);
    }
    std::vector<double> asked(64, 0.25);
    asked[0] = reference::infinity;
    of.queries.write(0, 0, 0, 1, asked);
    kv::host_executor host;
    device_executor device;
    auto const found = of.mass(device, of.queries.view(), {});
    CHECK(found[0] > 0.0f);
    CHECK(alike(found, of.mass(host, of.queries.view(), {}), 1e-5f));
  }

  TEST_CASE("more rows than have room for their sums add up, or are refused before anything is done") {
    mock_options shape{.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 1}, .bound = 40};
    batch of(shape, kv::codec::bf16, 1030, 1030, content::few);
    of.hold_all(27);
    for (int r = 0; r < 1030; ++r) of.queries.set_position(0, r, r);
    kv::host_executor host;
    device_executor device(numbers_of(128, 1024), 3);
    kv::attention_mass_options const sums{.rows = kv::reduction::mean};
    CHECK(alike(of.mass(device, of.queries.view(), sums), of.mass(host, of.queries.view(), sums)));
    CHECK(error_of([&] { of.mass(device, of.queries.view(), {.rows = kv::reduction::max}); }) ==
          "compute_attention_mass: queries.rows = 1030, but a device takes 1024 rows at once, of more it can "
          "add masses up and nothing else, unless their log-sum-exps are given");
  }

  TEST_CASE("a mean over lanes, of later rows that count more, is one of any number of rows") {
    mock_options shape;
    shape.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4};
    shape.bound = 60;
    shape.shared_entries = true;
    mock_cache cache(shape);
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), up_to(60));
    fill(cache, false);
    filled_queries queries(cache, kv::codec::f32, 1030, 1030);
    for (int r = 0; r < 1030; ++r) queries.set_position(0, r, r * 60 / 1030);
    kv::attention_mass_options const how{.rows = kv::reduction::mean,
                                         .group = kv::reduction::mean,
                                         .lanes = kv::reduction::mean,
                                         .weight = {.by = kv::weight_of_row::ramp, .last = 1.2f}};
    device_executor device(numbers_of(128, 1024), 3);
    kv::host_executor host(1);
    auto const masses = [&](auto& exec) {
      return masses_of(exec, cache, kv::keys_of(cache.view()), queries.view(), how, kv::granularity::layer);
    };
    CHECK(masses_alike(masses(device), masses(host), 1e-4f));
  }

#if !defined(__CUDACC__)
  TEST_CASE("once a fault stands no key is read, because a table of slots may be what is wrong") {
    for (auto const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (auto const rows : {kv::reduction::sum, kv::reduction::max}) {
        for (bool const given : {true, false}) {
          CAPTURE(kv::name_of(element));
          CAPTURE(static_cast<int>(rows));
          CAPTURE(given);
          mock_options shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 64}, .bound = 40};
          shape.element = element;
          batch of(shape, kv::codec::f32, 2, 2, content::smooth);
          of.hold_all(1);
          if (given) of.queries.bring_lse();
          std::vector<int> const outside(40, -100'000'000);  // as far from the pool as no process has memory
          kv::keys keys = kv::keys_of(of.cache.view());
          keys.where = kv::slot_map({outside.data(), 40, 40, 40}, 40);
          auto const reads_on = [&](bool faulty) {
            return in_a_fork([&] {
              std::signal(SIGSEGV, SIG_DFL);  // the end of this process is no failure of the test
              static_cast<void>(std::freopen("/dev/null", "w", stderr));
              device_executor device;
              device.reserve(1 << 22);
              if (faulty) *device.faults().data = kv::device_error::pack(kv::fault::list_slot, 0, 7);
              owned_scores scores(of.cache.lanes(), kv::granularity::lane);
              kv::ops::compute_attention_mass(device, keys, of.queries.view(), {.rows = rows}, scores.view());
              return true;
            });
          };
          CHECK(reads_on(true) == ending::all_good);
          CHECK(reads_on(false) != ending::all_good);
        }
      }
    }
  }
#endif

  TEST_CASE("misaligned keys and rows are refused") {
    mock_options shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}};
    batch of(shape, kv::codec::f32, 2, 2, content::few);
    device_executor device;
    kv::query_view rows = of.queries.view();
    rows.base += 2;
    CHECK(error_of([&] { of.mass(device, rows, {}); }) ==
          "compute_attention_mass: queries = misaligned rows, but a device reads elements of 4 bytes where they "
          "are aligned");
  }
}

}  // namespace
