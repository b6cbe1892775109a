// SPDX-License-Identifier: Apache-2.0
// top_k of long rows, where a sample brackets the cut, against "sort everything"; and what protections say of a lane at
// once against what they say of each entry.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

constexpr float infinite = std::numeric_limits<float>::infinity();

enum class shaped { normal, softmax, halves, levels, equal, rising, falling, nan, hidden, two, ties, last_bits, steps };

/// A score of a row as models give them, and as they hurt a selection by samples; `at` is its place, from 0 to 1.
float score_of(shaped what, float at, dice& random) {
  auto const bell = static_cast<float>(random.real(1) + random.real(1) + random.real(1));
  switch (what) {
    case shaped::normal:
      return bell;
    case shaped::softmax:
      return std::exp(20 * bell);
    case shaped::halves:
      return bell > 0 ? bell : 0;
    case shaped::levels:
      return std::round(bell * 10);
    case shaped::equal:
      return 2;
    case shaped::rising:
      return at;
    case shaped::falling:
      return -at;
    case shaped::nan:
      return random.chance(1) ? NAN : bell;
    case shaped::hidden:
      return random.chance(90) ? -infinite : bell;
    case shaped::two:
      return random.chance(3) ? 2.0f : 1.0f;
    case shaped::ties:
      return troubled_score(random, trouble::ties);
    case shaped::last_bits:
      return troubled_score(random, trouble::last_bits);
    default:
      return std::floor(at * 16) + (random.chance(50) ? 1e-6f : 0);
  }
}

std::vector<float> row_of(shaped what, int count, dice& random) {
  std::vector<float> row;
  for (int e = 0; e < count; ++e)
    row.push_back(score_of(what, static_cast<float>(e) / static_cast<float>(count), random));
  return row;
}

reference::selection expected_of(std::vector<float> const& row, int const* position, kv::safe const& protects,
                                 int budget) {
  reference::flags forced;
  int const count = static_cast<int>(row.size());
  for (int e = 0; e < count; ++e) forced.push_back(position[e] < protects.sinks || e >= count - protects.recent);
  return reference::select(as_row(row), forced, budget);
}

void check_row(std::vector<float> const& row, kv::safe const& protects, int budget, kv::isa simd_level) {
  kv::host_executor exec(1, simd_level);
  int const count = static_cast<int>(row.size());
  exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, count));
  owned_lanes const lanes(count);
  owned_scores scores(lanes.view());
  std::copy(row.begin(), row.end(), scores.row(0, 0).data());
  owned_keep keep(scores.view());
  auto const rule = kv::detail::decision_rule{protects, kv::nothing{}, kv::per_lane{budget}, kv::over_budget{}};
  static_assert(requires(kv::lane_entries const& of) { rule.candidates(of); });
  kv::ops::top_k(exec, scores.view(), rule, keep.view());
  auto const expected = expected_of(row, lanes.view().position.row({}), protects, budget);
  RC_ASSERT(keep.kept(0) == expected.kept);
  RC_ASSERT(keep.report().nan_scores == expected.nan_candidates);
  RC_ASSERT(keep.report().forced_over_budget == (expected.forced_over_budget > 0 ? 1 : 0));
}

/// A layer of long rows, some of which keep all entries, and the keep set of a decision about them.
class long_rows {
 public:
  explicit long_rows(std::vector<int> entries)
      : count_(std::move(entries)),
        bound_(*std::max_element(count_.begin(), count_.end())),
        position_(as_size(bound_)),
        seen_(count_.size()),
        offset_(count_.size() + 1),
        ordinal_(count_.size() * as_size(bound_), untouched) {
    for (int e = 0; e < bound_; ++e) position_[as_size(e)] = e;
    dice random(7);
    for (int const count : count_) row_.push_back(row_of(shaped::levels, count, random));
    for (auto const& row : row_) {
      score_.insert(score_.end(), row.begin(), row.end());
      score_.resize(score_.size() + as_size(bound_) - row.size(), NAN);
    }
  }

  /// Decides, and returns how many ordinals are behind the lists although nothing was to be written there.
  int decide(kv::host_executor& exec, kv::safe const& protects, int budget) {
    kv::lanes const batch{.layer_end = 1,
                          .heads = static_cast<int>(count_.size()),
                          .capacity = bound_,
                          .count = {count_.data(), 0, 0, 1},
                          .position = {position_.data()}};
    kv::keep_set const keep{
        batch,          kv::granularity::lane, kv::item::token, kv::side::kept,
        offset_.data(), ordinal_.data(),       seen_.data(),    static_cast<std::int64_t>(ordinal_.size()),
        &report_};
    kv::ops::top_k(exec, kv::contiguous_scores(batch, kv::granularity::lane, score_.data(), bound_),
                   kv::detail::decision_rule{protects, kv::nothing{}, kv::per_lane{budget}, kv::over_budget{}}, keep);
    return static_cast<int>(std::count_if(ordinal_.begin() + offset_.back(), ordinal_.end(),
                                          [](int ordinal) { return ordinal != untouched; }));
  }

  void check(kv::safe const& protects, int budget) const {
    int nan = 0;
    for (std::size_t i = 0; i < row_.size(); ++i) {
      auto const expected = expected_of(row_[i], position_.data(), protects, std::min(budget, count_[i]));
      CHECK(std::vector<int>(ordinal_.begin() + offset_[i], ordinal_.begin() + offset_[i + 1]) == expected.kept);
      nan += count_[i] > budget ? expected.nan_candidates : 0;
    }
    CHECK(report_.nan_scores == nan);
  }

 private:
  static constexpr int untouched = -77;

  std::vector<int> count_;
  int bound_;
  std::vector<int> position_, seen_;
  std::vector<std::int64_t> offset_;
  std::vector<int> ordinal_;
  std::vector<std::vector<float>> row_;
  std::vector<float> score_;
  kv::report report_{};
};

}  // namespace

TEST_SUITE("ops/top_k: long rows") {
  TEST_CASE("rows are listed one behind the other, whichever thread lists them, and nothing behind the last") {
    for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
      for (int const threads : {1, 3}) {
        for (int const budget : {0, 1, 7, 15, 17, 64, 1030, 4099, 4100, 9001}) {
          INFO("simd_level ", static_cast<int>(simd_level), ", threads ", threads, ", budget ", budget);
          kv::host_executor exec(threads, simd_level);
          exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, 9000));
          kv::safe const protects{4, budget % 2 == 0 ? 0 : 33};
          long_rows rows({4100, 9000, 12, 4097, 8191, 0, 5000});
          CHECK(rows.decide(exec, protects, budget) == 0);
          rows.check(protects, budget);
        }
      }
    }
  }

  TEST_CASE("an executor without room for the keys of a row decides the same") {
    kv::host_executor exec(2);
    long_rows rows({4100, 9000, 12, 4097, 8191, 0, 5000});
    static_cast<void>(rows.decide(exec, {4, 32}, 1030));
    rows.check({4, 32}, 1030);
  }

  TEST_CASE("a pass that lists ordinals writes none behind those that it says it lists") {
    dice random(11);
    for (kv::isa const simd_level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
      auto const& kernels = kv::detail::select_of_isa[std::min(simd_level, kv::best_isa())];
      for (int count = 0; count <= 70; ++count) {
        auto const row = row_of(shaped::levels, count, random);
        for (int ties = 0; ties <= 2; ++ties) {
          std::vector<int> expected;
          int equal = 0;
          for (int e = 0; e < count; ++e) {
            float const score = row[as_size(e)];
            if (score > 3 || (score == 3 && equal++ < ties)) expected.push_back(100 + e);
          }
          auto const most = static_cast<int>(expected.size());
          std::vector<int> listed(as_size(most) + 16, -77);
          kv::detail::row_prefetcher nothing(row.data(), 0);
          CHECK(kernels.emit(row.data(), count, 100, {3, ties, most}, listed.data(), nothing) == most);
          expected.resize(expected.size() + 16, -77);
          CHECK(listed == expected);
        }
      }
    }
  }

  TEST_CASE("the best of a long row are those of a sorted one, whatever the scores and the instructions") {
    holds("sampled top_k == sort", 500, [] {
      dice random(any_seed());
      auto const what = *rc::gen::element(shaped::normal, shaped::softmax, shaped::halves, shaped::levels,
                                          shaped::equal, shaped::rising, shaped::falling, shaped::nan, shaped::hidden,
                                          shaped::two, shaped::ties, shaped::last_bits, shaped::steps);
      int const count = *rc::gen::element(4097, 2047, 2048, 2049, 2080, 9000, 33000);
      kv::safe const protects{*rc::gen::element(0, 4, 17), *rc::gen::element(0, 32, 33, 5000)};
      int const budget =
          *rc::gen::oneOf(rc::gen::inRange(0, count + 1), rc::gen::inRange(0, 60), rc::gen::inRange(count - 60, count));
      auto const simd_level = *rc::gen::element(kv::isa::portable, kv::isa::avx2, kv::isa::avx512);
      RC_LOG() << static_cast<int>(what) << ", " << count << " entries, " << kv::to_string(protects) << ", budget "
               << budget << '\n';
      check_row(row_of(what, count, random), protects, budget, simd_level);
    });
  }

  TEST_CASE("a row that deceives its sample is selected from all the same") {
    // The sample looks at pieces of four, evenly spread; here just those are high, and here just those are low.
    for (bool const high : {true, false}) {
      int const count = 8192;
      std::vector<float> row(as_size(count), high ? 0.0f : 10.0f);
      for (int i = 0; i < 1024; ++i) {
        std::int64_t const from = static_cast<std::int64_t>(i / 4 * 4) * (count - 4) / 1020;
        row[as_size(from + i % 4)] = static_cast<float>(high ? 1 + i : -i);
      }
      for (int const budget : {1, 500, 1024, 1500, 4000, 7168, 8000}) {
        kv::host_executor exec;
        owned_lanes const lanes(count);
        auto const expected = expected_of(row, lanes.view().position.row({}), {0, 0}, budget);
        owned_scores scores(lanes.view());
        std::copy(row.begin(), row.end(), scores.row(0, 0).data());
        owned_keep keep(scores.view());
        kv::ops::top_k(exec, scores.view(), kv::plain_top_k{budget}, keep.view());
        CHECK(keep.kept(0) == expected.kept);
      }
    }
  }
}

TEST_SUITE("protect: candidates") {
  TEST_CASE("outside its run a protection protects every entry, inside none") {
    holds("candidates == not protected", [] {
      dice random(any_seed());
      int const count = *rc::gen::inRange(0, 40);
      std::vector<int> const position = random.subset(60, count);
      int const budget = random.below(50);
      auto const check = [&](auto const& protects) {
        kv::lane_entries const all{{}, count, budget, position.data()};
        kv::ordinal_range const free = protects.candidates(all);
        for (int e = 0; e < count; ++e) {
          kv::entry const one{{}, e, count, position[as_size(e)], budget};
          RC_ASSERT(protects(one) == !(e >= free.begin && e < free.end));
        }
      };
      kv::sinks const first{random.below(70)};
      kv::recent const last{random.below(50)};
      check(kv::nothing{});
      check(kv::everything{});
      check(first);
      check(last);
      check(kv::safe{random.below(70), random.below(50)});
      check(first | last);
      check(kv::nothing{} | last);
      check((first | last) | kv::everything{});
      check(kv::recent_of_budget{random.below(20) - 1, random.below(20) - 1});
    });
  }

  TEST_CASE("one that protects the middle says nothing of a run, nor does what it is part of") {
    CHECK(!kv::has_candidates<kv::position_span>);
    CHECK(!kv::has_candidates<kv::either<kv::position_span, kv::sinks>>);
    CHECK(kv::has_candidates<kv::either<kv::recent, kv::sinks>>);
  }
}
