// SPDX-License-Identifier: Apache-2.0
// The one that goes: argmin against a plain loop, and what overwrite does with it.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// The last of the lowest, NaN below every number.
int last_lowest(std::vector<float> const& scores) {
  int lowest = 0;
  for (int e = 1; e < std::ssize(scores); ++e) {
    float const a = scores[as_size(e)];
    float const b = scores[as_size(lowest)];
    bool const below = (a != a) || (b == b && a <= b);
    if (below) lowest = e;
  }
  return lowest;
}

/// The newest of the lowest among the entries whose positions are in [low, high); -1 if there is none.
int newest_lowest(std::span<float const> scores, std::vector<int> const& position, int low, int high) {
  int lowest = -1;
  for (int e = 0; e < std::ssize(scores); ++e) {
    auto const at = as_size(e);
    if (position[at] < low || position[at] >= high) continue;
    if (lowest < 0) {
      lowest = e;
      continue;
    }
    float const a = scores[at];
    float const b = scores[as_size(lowest)];
    bool const alike = a == b || (a != a && b != b);
    bool const below = (a != a && b == b) || a < b;
    if (below || (alike && position[at] > position[as_size(lowest)])) lowest = e;
  }
  return lowest;
}

/// Scores that a function makes.
struct made_of {
  float const* numbers;
  KVPOLICY_HD float operator()(float, kv::entry at) const {
    return numbers[at.ordinal] * 3.1f + static_cast<float>(at.position % 3) * 0.7f;
  }
};

/// Scores that are the elements of a row.
struct read_from {
  float const* numbers;
  [[nodiscard]] KVPOLICY_HD float const* row(kv::lane) const { return numbers; }
  KVPOLICY_HD float operator()(float, kv::entry at) const { return numbers[at.ordinal]; }
};

/// Scores that are 0 but for rounding, if the multiplication and the addition are fused.
struct cancelled {
  float const* numbers;
  float const* minus;
  KVPOLICY_HD float operator()(float, kv::entry at) const { return numbers[at.ordinal] * 3.1f + minus[at.ordinal]; }
};

/// A scorer that says what the test says.
struct told {
  kv::by_lane<float const> numbers{};
  using needs = kv::needs<>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  struct number {
    kv::by_lane<float const> of;
    KVPOLICY_HD float operator()(float, kv::entry at) const { return of.row(at.lane)[at.ordinal]; }
  };
  void score(auto& exec, auto const&, kv::score_view const& out) const { kv::ops::map(exec, out, number{numbers}); }
  [[maybe_unused]] friend bool operator==(told const& a, told const& b) { return a.numbers.data == b.numbers.data; }
};

TEST_SUITE("argmin") {
  TEST_CASE("the last of the lowest of any row, on every instruction set") {
    dice random(5);
    for (int run = 0; run < 3000; ++run) {
      std::vector<float> row(as_size(random.between(1, run % 8 == 0 ? 700 : 140)));
      int const kind = random.below(5);
      for (float& each : row) {
        each = kind == 0 ? static_cast<float>(random.real(4)) : static_cast<float>(random.below(kind == 1 ? 3 : 40));
        if (kind == 2 && random.chance(3)) each = nan;
        if (kind == 3 && random.chance(10)) each = random.chance(50) ? -0.0f : -infinity;
        if (kind == 4) each = random.chance(90) ? infinity : -infinity;
      }
      for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
        std::int64_t odd = 0;
        auto const& kernels = kv::detail::lowest_of_isa[std::min(simd_level, kv::best_isa())];
        REQUIRE(kernels.last_lowest(row.data(), static_cast<int>(row.size()), &odd) == last_lowest(row));
        REQUIRE(odd == std::count_if(row.begin(), row.end(), [](float each) { return each != each; }));
      }
    }
  }

  TEST_CASE("of two equal scores, wherever they are, the later one is found") {
    for (int const count : {40, 300}) {
      std::vector<float> row(as_size(count), 1.0f);
      for (int a = 0; a < count; a += 3) {
        for (int b = a + 4; b < count; b += 4) {
          row[as_size(a)] = row[as_size(b)] = -1;
          for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
            std::int64_t odd = 0;
            auto const& kernels = kv::detail::lowest_of_isa[std::min(simd_level, kv::best_isa())];
            REQUIRE(kernels.last_lowest(row.data(), count, &odd) == b);
          }
          row[as_size(a)] = row[as_size(b)] = 1;
        }
      }
    }
  }

  TEST_CASE("the lowest score is found at any place of rows of any length and alignment, and so is NaN") {
    for (int const count : {1, 7, 8, 9, 127, 128, 129, 137, 1023, 1024, 1025, 1160, 2049, 2300}) {
      for (int const before : {0, 1, 4, 7}) {
        std::vector<float> memory(as_size(before + count), 2.0f);
        float* const row = memory.data() + before;
        for (int e = 0; e < count; e += 1 + count / 60) {
          int const other = (e + count / 2) % count;
          for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
            std::int64_t odd = 0;
            auto const& kernels = kv::detail::lowest_of_isa[std::min(simd_level, kv::best_isa())];
            row[other] = 1;
            row[e] = -1;
            REQUIRE(kernels.last_lowest(row, count, &odd) == e);
            row[other] = -1;
            REQUIRE(kernels.last_lowest(row, count, &odd) == std::max(e, other));
            REQUIRE(odd == 0);
            row[e] = nan;
            REQUIRE(kernels.last_lowest(row, count, &odd) == e);
            REQUIRE(odd == 1);
            row[e] = row[other] = 2;
          }
        }
      }
    }
  }

  TEST_CASE("the newest of the lowest of a lane in no order, read or made, on every instruction set") {
    dice random(6);
    for (int run = 0; run < 1500; ++run) {
      int const count = random.between(1, run % 50 == 0 ? 2600 : run % 4 == 0 ? 700 : 150);
      std::vector<float> memory(as_size(count + 15)), made(as_size(count));
      std::span<float> const row(memory.data() + random.below(16), made.size());  // it may begin anywhere in a line
      std::vector<int> position(row.size());
      for (int e = 0; e < count; ++e) position[as_size(e)] = 2 * e + 1;
      for (int e = count - 1; e > 0; --e) {
        std::swap(position[as_size(e)], position[as_size(random.between(0, e))]);
      }
      int const kind = random.below(4);
      for (float& each : row) {
        each = kind == 0 ? static_cast<float>(random.real(4)) : static_cast<float>(random.below(kind == 1 ? 3 : 900));
        if (kind == 2 && random.chance(2)) each = nan;
        if (kind == 3 && random.chance(3)) each = random.chance(50) ? infinity : -infinity;
      }
      made_of const f{row.data()};
      for (std::size_t e = 0; e < row.size(); ++e) {
        made[e] = f(0, kv::entry{{}, static_cast<int>(e), count, position[e], 0});
      }
      int const forced = random.chance(50) ? 0 : random.below(count);  // the newest ones stay
      int const high = forced == 0 ? 1 << 30 : 2 * (count - forced) + 1;
      kv::lane_entries const lane{{}, count, count, position.data(), kv::lane_order{0, -1, count, 2 * count - 1}};
      kv::ordinal_range const free{0, count - forced};
      if (free.end == 0) continue;
      for (kv::isa const most : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
        kv::isa const simd_level = std::min(most, kv::best_isa());
        auto const& kernels = kv::detail::lowest_of_isa[simd_level];
        kv::score_view scores;
        scores.lanes = {.layer_end = 1, .heads = 1, .capacity = count};
        scores.rows = {row.data(), 0, 0, 0};
        std::int64_t odd = 0;
        auto const among = kv::detail::candidates_of(kernels, lane, free);
        int const read = kv::detail::lowest_entry(kernels, kv::detail::table_scores{scores}, 0, lane, among, &odd);
        REQUIRE(read == newest_lowest(row, position, 0, high));
        int const of_function = kv::detail::lowest_entry(kernels, kv::detail::computed_scores<made_of>{f, simd_level},
                                                         0, lane, among, &odd);
        REQUIRE(of_function == newest_lowest(made, position, 0, high));
        kv::detail::computed_scores<read_from> const of_row{{row.data()}, simd_level};
        REQUIRE(kv::detail::lowest_entry(kernels, of_row, 0, lane, among, &odd) == read);
      }
    }
  }

  TEST_CASE("what a function multiplies and adds is rounded twice on every instruction set") {
    dice random(7);
    std::vector<float> numbers(200), minus(200);
    std::vector<int> position(200);
    for (std::size_t e = 0; e < numbers.size(); ++e) {
      numbers[e] = 100 + static_cast<float>(random.real(50));
      float const product = numbers[e] * 3.1f;
      minus[e] = -product;
      position[e] = static_cast<int>(e);
    }
    numbers[77] = 0;
    minus[77] = -1e-7f;
    kv::lane_entries const all{.count = 200, .position = position.data()};
    for (kv::isa const most : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
      kv::detail::computed_scores<cancelled> const made{{numbers.data(), minus.data()}, std::min(most, kv::best_isa())};
      std::int64_t odd = 0;
      CHECK(kv::detail::lowest_entry(kv::detail::lowest_of_isa[made.simd_level], made, 0, all, {0, 200}, &odd) == 77);
    }
  }

  TEST_CASE("a lane over its budget loses one entry, and its slot is the next to write") {
    mock_options how{
        .model = {2, 2, 2, 4}, .sequences = 2, .bound = 12, .where = kv::locating::slot_map, .shared_table = false};
    how.rows = content::fingerprint;
    mock_cache engine(how);
    kv::host_executor exec(2);
    std::vector<float> numbers(8 * 12);
    dice random(9);
    for (float& each : numbers) each = static_cast<float>(random.below(6));
    auto const policy = kv::eviction{.score = told{{numbers.data(), 48, 24, 12}},
                                     .protect = kv::sinks{1},
                                     .budget = kv::per_lane{7},
                                     .pick = kv::lowest_one{}};
    for (int i = 0; i < engine.lane_count(); ++i) {
      std::vector<int> positions;
      for (int e = 0; e < 6 + i % 4; ++e) positions.push_back(3 * e);
      engine.put(engine.lane_at(i), positions);
    }
    kv::cache cache = engine.view();
    auto [held, plan] = state_and_plan(exec, policy, cache);
    std::vector<int> table(as_size(cache.where.table.sequence) * 2);
    std::copy_n(cache.where.table.data, table.size(), table.data());
    kv::by_lane<int> const list{table.data(), cache.where.table.sequence, cache.where.table.layer,
                                cache.where.table.head};
    cache.where.table = {list.data, list.sequence, list.layer, list.head};
    kv::decide(exec, policy, kv::signals{cache.lanes}, held, plan);
    CHECK(plan.keep().lists == kv::side::dropped);
    kv::apply_stats came;
    std::vector<std::vector<int>> before, slots;
    for (int i = 0; i < 8; ++i) {
      kv::lane const this_lane = cache.lanes.at(i);
      before.push_back(engine.positions(this_lane, engine.count(this_lane)));
      slots.emplace_back(list.row(this_lane), list.row(this_lane) + engine.count(this_lane));
    }
    CHECK(kv::explain(policy, plan, 3, 0).find("forced") != std::string::npos);
    kv::apply(exec, kv::overwrite{list}, plan, cache, held, &came);
    std::int64_t dropped = 0;
    for (int i = 0; i < 8; ++i) {
      kv::lane const this_lane = cache.lanes.at(i);
      auto& was = before[as_size(i)];
      auto& at = slots[as_size(i)];
      int const count = static_cast<int>(was.size());
      if (count > 7) {
        std::vector<float> const free(numbers.begin() + i * 12 + 1, numbers.begin() + i * 12 + count);
        int const goes = 1 + last_lowest(free);
        was.erase(was.begin() + goes);
        int const slot = at[as_size(goes)];
        at.erase(at.begin() + goes);
        CHECK(list.row(this_lane)[count - 1] == slot);
        ++dropped;
      }
      CHECK(engine.positions(this_lane, engine.count(this_lane)) == was);
      CHECK(std::vector<int>(list.row(this_lane), list.row(this_lane) + was.size()) == at);
    }
    CHECK(dropped == 4);
    CHECK(came.physical_freed == 4);
    CHECK(came.attended_length == came.logical_kept);
  }

  TEST_CASE("slots that two sequences share are refused: both would be told to overwrite them") {
    mock_cache engine({.model = {1, 1, 1, 4}, .sequences = 2, .bound = 8, .where = kv::locating::slot_map});
    kv::host_executor exec;
    auto const policy = kv::policies::trim_kv_decode({.budget = 3});
    for (int s = 0; s < 2; ++s) engine.put({s, 0, 0}, {0, 1, 2, 3});
    kv::cache cache = engine.view();
    auto [held, plan] = state_and_plan(exec, policy, cache);
    std::vector<int> table{0, 1, 2, 3, 0, 1, 2, 3};
    kv::by_lane<int> const list{table.data(), 4, 0, 0};
    cache.where.table = {list.data, 4, 0, 0};
    kv::decide(exec, policy, kv::signals{cache.lanes}, held, plan);
    CHECK(error_of([&] {
            kv::apply(exec, kv::overwrite{list}, plan, cache, held);
          }).find("another sequence has that slot") != std::string::npos);
    CHECK(table == std::vector{0, 1, 2, 3, 0, 1, 2, 3});
  }

  TEST_CASE("other appliers refuse a list of what is dropped") {
    mock_cache engine({.model = {1, 1, 1, 4}});
    kv::host_executor exec;
    auto const policy = kv::policies::trim_kv_decode({.budget = 1});
    kv::cache cache = engine.view();
    auto [held, plan] = decided(exec, kv::signals{cache.lanes}, policy, cache);
    CHECK(error_of([&] { kv::apply(exec, kv::compact{}, plan, cache, held); }) ==
          "apply: plan.keep = the entries that lowest_one drops, but this applier takes those that are kept: overwrite "
          "takes both");
  }
}

}  // namespace
