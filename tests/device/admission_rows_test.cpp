// SPDX-License-Identifier: Apache-2.0
// Rows of any kind that enter a window, and a window that lets its oldest go: the device against the host.

#include "support/dual_sides.hpp"

namespace {

using namespace kvpolicy_test;

/// A window of any layout, its columns (one of 4 bytes, one of 6), a plane beside K and V, its cursor.
struct any_window {
  any_window(mock_options const& how, int ahead)
      : cache(how),
        numbers(as_size(cache.lane_count()) * as_size(how.bound + ahead) * 10),
        oldest(as_size(how.sequences), 2) {
    fill(cache, false);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::byte>(i * 7 + how.seed);
    kv::locator const where = cache.where();
    std::int64_t const heads = how.model.kv_heads;
    std::int64_t const token = 3 * heads * how.model.layers;
    scales.resize(as_size(where.units * where.unit_tokens * token), std::byte{9});
    more = {{.base = scales.data(),
             .element = kv::codec::opaque,
             .channels = 3,
             .layer_stride = 3 * heads,
             .unit_stride = where.unit_tokens * token,
             .token_stride = token,
             .head_stride = 3,
             .channel_stride = 1}};
    std::int64_t begin = 0;
    for (int const bytes : {4, 6}) {
      std::int64_t const row = std::int64_t{bytes} * (how.bound + ahead);
      columns.push_back({{bytes == 4 ? "four" : "six", kv::column_extent::lane_entry, kv::on_move::permute, bytes, 0},
                         {numbers.data() + begin + ahead * bytes, row * heads * how.model.layers, row * heads, row}});
      begin += row * cache.lane_count();
    }
  }
  kv::cache view() {
    kv::cache made = cache.view();
    made.more = more;
    return made;
  }

  mock_cache cache;
  std::vector<std::byte> numbers, scales;
  std::vector<int> oldest;
  std::vector<kv::plane> more;
  std::vector<kv::recorded_column> columns;
};

/// What a chunk's last entries and a window's oldest come to, which is all that the verbs may change.
template <class Executor>
auto entered(Executor& exec, mock_options const& from_how, mock_options const& to_how, int ahead) {
  any_window from(from_how, 0);
  any_window to(to_how, ahead);
  dice random(to_how.seed);
  std::vector<int> first, gone;
  for (int s = 0; s < to_how.sequences; ++s) {
    int const held = *to.cache.lanes().count.row({s, 0, 0});
    int const num_new_tokens = *from.cache.lanes().count.row({s, 0, 0});
    gone.push_back(random.below(held + 1));
    first.push_back(std::max(0, num_new_tokens - random.below(to_how.bound - held + gone.back() + 1)));
  }
  std::span<kv::recorded_column const> const known(from.columns.data() + random.below(2), 1);
  std::span<kv::recorded_column const> const columns(to.columns);
  kv::ops::drop_oldest(exec, to.view(), kv::by_lane<int>{to.oldest.data(), 1, 0, 0}, columns, gone.data(),
                       ahead == 0 && to_how.seed % 2 == 0 ? -1 : ahead);
  settle(exec);
  for (kv::recorded_column& each : to.columns) each.rows.data -= ahead * each.about.bytes;
  kv::ops::enter_rows(exec, from.view(), known, to.view(), columns, first.data());
  settle(exec);
  return std::tuple{to.cache.save(), to.numbers, to.scales, to.oldest};
}

/// A window of another layout for the same entries.
mock_options another(mock_options how) {
  bool const latent = how.memory == arrangement::latent || how.memory == arrangement::latent_view;
  how.memory = *rc::gen::element(arrangement::nhd, arrangement::hnd, arrangement::transposed_v, arrangement::reversed);
  if (latent) how.memory = *rc::gen::element(arrangement::latent, arrangement::latent_view);
  how.where = *rc::gen::element(kv::locating::identity, kv::locating::slot_map, kv::locating::ring);
  how.shared_table = any_bool();
  how.skew = *rc::gen::element(0, 0, 2);
  how.seed += 17;
  return how;
}

TEST_SUITE("device/admission_rows") {
  TEST_CASE("rows, scales and columns of any kind enter a window as on the host") {
    holds("any two layouts", [] {
      mock_options from = any_mock();
      from.shared_entries = true;
      from.scales = scaling::none;  // those of two caches are refused unless they move, which append_rows tests
      mock_options const to = another(from);
      int const ahead = *rc::gen::inRange(0, 3);
      kv::host_executor host;
      device_executor device(to.seed);
      RC_ASSERT(entered(host, from, to, ahead) == entered(device, from, to, ahead));
    });
  }

  TEST_CASE("rows are copied into another cache of any layout as on the host") {
    auto const copied = [](auto& exec, mock_options const& from_how, mock_options const& to_how) {
      any_window from(from_how, 0);
      any_window to(to_how, 0);
      kv::ops::copy_rows(exec, from.view(), to.view());
      settle(exec);
      return std::tuple{to.cache.save(), to.scales};
    };
    holds("any two layouts", [&] {
      mock_options from = any_mock();
      from.scales = scaling::none;
      mock_options const to = another(from);
      kv::host_executor host;
      device_executor device(to.seed);
      RC_ASSERT(copied(host, from, to) == copied(device, from, to));
    });
  }

  TEST_CASE("a long window, and blocks of other sizes") {
    mock_options how{
        .model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 1}, .bound = 4097, .shared_entries = true};
    kv::host_executor host;
    auto const expected = entered(host, how, how, 1);
    for (int const threads : {32, 128}) {
      device_executor device(
          {.entry_threads = threads, .row_threads = threads, .lane_threads = 160 - threads, .processors = 2}, 3);
      CHECK((expected == entered(device, how, how, 1)));
    }
  }
}

}  // namespace
