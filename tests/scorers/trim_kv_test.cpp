// SPDX-License-Identifier: Apache-2.0
// TRIM-KV: retention that moves with each entry and ages, one forward after another.

#include "reference/retention.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Two layers of two lanes, rows that nobody reads, and log beta of every token of every lane.
class decoding {
 public:
  static constexpr int lanes = 4;

  decoding(int bound, kv::trim_kv const& score, int budget)
      : bound_(bound),
        policy_(kv::policies::trim_kv({.budget = budget, .score = score})),
        rows_(as_size(2 * lanes * bound)),
        position_(as_size(lanes * bound)),
        state_(kv::make_state(exec_, policy_, view())),
        plan_(kv::make_plan(exec_, policy_, view())) {}

  /// So many new tokens from `position` on, [lane][token] in an element type; observed, not decided about.
  void forward(std::vector<float> const& log_beta, kv::codec element, int tokens, int position) {
    kv::cache now = view();
    kv::append(exec_, now, state_, {.tokens = tokens, .position = position});
    auto const width = as_size(kv::bytes_of(element));
    std::vector<std::byte> packed(log_beta.size() * width);
    for (std::size_t i = 0; i < log_beta.size(); ++i) kv::store(element, log_beta[i], packed.data() + i * width);
    std::int64_t const entry = kv::bytes_of(element);
    kv::log_beta const fresh{{.base = packed.data(),
                              .element = element,
                              .layer = 2 * tokens * entry,
                              .head = tokens * entry,
                              .entry = entry,
                              .entries = tokens}};
    kv::observe(exec_, policy_, kv::signals{now.lanes, fresh}, state_);
  }
  void evict() {
    kv::cache now = view();
    kv::decide(exec_, policy_, kv::signals{now.lanes}, state_, plan_);
    kv::apply(exec_, kv::compact{}, plan_, now, state_);
  }
  [[nodiscard]] std::vector<int> positions(int lane) const {
    auto const first = position_.begin() + lane * bound_;
    return {first, first + count_[lane]};
  }
  [[nodiscard]] float score(int lane, int ordinal) const { return plan_.score(lane, ordinal); }

  kv::cache view() {
    auto const plane = [&](int which) {
      return kv::plane{.base = rows_.data() + which * lanes * bound_,
                       .element = kv::codec::opaque,
                       .channels = 1,
                       .layer_stride = 2 * bound_,
                       .token_stride = 1,
                       .head_stride = bound_,
                       .channel_stride = 1};
    };
    return {.shape = {2, 2, 2, 1},
            .lanes = {.layer_end = 2,
                      .heads = 2,
                      .capacity = bound_,
                      .count = {count_, 0, 2, 1},
                      .position = {position_.data(), 0, 2 * bound_, bound_}},
            .k = plane(0),
            .v = plane(1),
            .where = kv::identity_map(bound_)};
  }

 private:
  int bound_;
  kv::eviction<kv::trim_kv, kv::sinks> policy_;
  kv::host_executor exec_{2};
  std::vector<std::byte> rows_;
  int count_[lanes] = {};
  std::vector<int> position_;
  kv::state<kv::host_executor> state_;
  kv::plan<kv::host_executor> plan_;
};

std::vector<float> all_lanes(std::vector<float> const& one) {
  std::vector<float> all;
  for (int i = 0; i < decoding::lanes; ++i) all.insert(all.end(), one.begin(), one.end());
  return all;
}

}  // namespace

TEST_SUITE("scorers/trim_kv") {
  TEST_CASE("the paper drops token 1, the released code's ages drop the newest") {
    std::vector<float> const beta = all_lanes({std::log(0.9f), std::log(0.5f), std::log(0.3f)});
    decoding paper(8, {}, 2), code(8, {.age_offset = 2}, 2);
    for (decoding* const each : {&paper, &code}) {
      each->forward(beta, kv::codec::f32, 3, 0);
      each->evict();
    }
    CHECK(paper.positions(0) == std::vector{0, 2});
    CHECK(code.positions(3) == std::vector{0, 1});
    CHECK(std::exp(code.score(0, 0)) == doctest::Approx(0.6561));
    CHECK(std::exp(code.score(0, 1)) == doctest::Approx(0.125));
    CHECK(std::exp(code.score(0, 2)) == doctest::Approx(0.09));
  }

  TEST_CASE("a retention of 1 ties with the newest, and the lower ordinal stays; long ages do not vanish") {
    decoding of(400, {}, 2);
    of.forward(all_lanes({0.0f, -0.5f, -0.25f, 0.0f}), kv::codec::f32, 4, 0);
    of.evict();
    CHECK(of.positions(0) == std::vector{0, 3});
    decoding old(400, {}, 2);
    old.forward(all_lanes(std::vector<float>(300, -0.7f)), kv::codec::f32, 300, 0);  // 0.5^299 is 0 in float
    old.evict();
    CHECK(old.positions(0) == std::vector{298, 299});
  }

  TEST_CASE("it waits until the buffer is full, then goes down to the budget; the window stays") {
    decoding of(64, {.buffer = 4, .window = 2}, 6);
    of.forward(all_lanes(std::vector<float>(9, -0.1f)), kv::codec::f32, 9, 0);
    of.evict();
    CHECK(of.positions(0).size() == 9);
    of.forward(all_lanes({-50.0f}), kv::codec::f32, 1, 9);
    of.evict();
    CHECK(of.positions(0) == std::vector{4, 5, 6, 7, 8, 9});
    of.forward(all_lanes({-0.1f, -0.1f, -0.1f, -0.1f}), kv::codec::f32, 4, 10);
    of.evict();
    CHECK(of.positions(0) == std::vector{7, 8, 10, 11, 12, 13});  // 9 has aged at its own rate
  }

  TEST_CASE("as a plain model does, over forwards of any size, in every element type") {
    holds("trim_kv: as the reference over many forwards", [] {
      kv::trim_kv score{.age_offset = *rc::gen::element(0, 2), .buffer = *rc::gen::element(1, 1, 5)};
      score.window = *rc::gen::element(0, 0, 3);
      int const budget = *rc::gen::element(0, 1, 7, 20);
      auto const element = any_float();
      decoding of(256, score, budget);
      std::vector<double> beta[decoding::lanes];
      std::vector<int> position[decoding::lanes];
      int next = 0;
      for (int round = 0; round < 8; ++round) {
        int const tokens = *rc::gen::inRange(1, 20);
        std::vector<float> fresh;
        for (int i = 0; i < decoding::lanes * tokens; ++i) {
          float const one = -0.01f * static_cast<float>(*rc::gen::inRange(0, 1000));
          std::byte held[4];
          kv::store(element, one, held);
          fresh.push_back(one);
          beta[i / tokens].push_back(static_cast<double>(kv::load(element, held)));
          position[i / tokens].push_back(next + i % tokens);
        }
        of.forward(fresh, element, tokens, next);
        of.evict();
        next += tokens + *rc::gen::inRange(0, 3);
        for (int lane = 0; lane < decoding::lanes; ++lane) {
          auto const scores = reference::retention_scores(beta[lane], position[lane], score.age_offset);
          auto const count = static_cast<int>(scores.size());
          if (count >= budget + score.buffer) {
            std::vector<int> order = up_to(static_cast<int>(scores.size()));
            auto const forced = [&](int e) { return e >= count - score.window; };
            std::sort(order.begin(), order.end(), [&](int a, int b) {
              if (forced(a) != forced(b)) return forced(a);
              auto const first = static_cast<float>(scores[as_size(a)]);
              auto const second = static_cast<float>(scores[as_size(b)]);
              return first == second ? a < b : first > second;
            });
            order.resize(as_size(std::min(count, std::max(budget, score.window))));
            std::sort(order.begin(), order.end());
            std::vector<double> kept_beta;
            std::vector<int> kept_position;
            for (int const e : order) {
              kept_beta.push_back(beta[lane][as_size(e)]);
              kept_position.push_back(position[lane][as_size(e)]);
            }
            beta[lane] = kept_beta;
            position[lane] = kept_position;
          }
          RC_ASSERT(of.positions(lane) == position[lane]);
        }
      }
    });
  }

  TEST_CASE("ages end at the greatest integer") {
    constexpr int most = std::numeric_limits<int>::max();
    constexpr float infinity = std::numeric_limits<float>::infinity();
    std::vector<int> positions = {0, 1, 5, 70, 1000};
    std::vector<float> const log_betas = {-0.0f, -0.5f, -1e-30f, -3e38f, -infinity, std::nanf("")};
    for (int const age_offset : {0, 2, most - 1000, most - 999, most}) {
      for (float const log_beta : log_betas) {
        std::vector<float> const column(positions.size(), log_beta);
        kv::lanes among{.layer_end = 1, .heads = 1, .capacity = 5};
        among.position = {positions.data()};
        auto const form = kv::trim_kv::decayed{{column.data()}, among, age_offset}.in_lane(
            {.count = 5, .position = positions.data()});
        for (int e = 0; e < 5; ++e) {
          int const position = positions[as_size(e)];
          auto const age = static_cast<int>(std::min<std::int64_t>(std::int64_t{1000} - position + age_offset, most));
          kv::entry const at{{}, e, 5, position, 0};
          float const score = form(0, at);
          float const wanted = age == 0 ? 0.0f : static_cast<float>(age) * log_beta + 0.0f;
          CHECK((score == wanted || (score != score && wanted != wanted)));
          CHECK(std::signbit(score) == (score < 0 || std::signbit(wanted)));
        }
      }
    }
  }

  TEST_CASE("more numbers than entries, and parameters out of range, are refused") {
    CHECK(error_of([&] { decoding(8, {.buffer = 0}, 2); }) ==
          "make_state: trim_kv.buffer = 0, but at the budget nothing moves");
    decoding of(8, {}, 2);
    kv::host_executor exec;
    auto const policy = kv::policies::trim_kv({.budget = 2});
    auto state = kv::make_state(exec, policy, of.view());
    std::vector<float> const numbers(as_size(of.view().lanes.size()));
    kv::log_beta const fresh{{.base = reinterpret_cast<std::byte const*>(numbers.data()),
                              .sequence = 4LL * of.view().shape.layers * of.view().shape.kv_heads,
                              .layer = 4LL * of.view().shape.kv_heads,
                              .head = 4,
                              .entries = 1}};
    CHECK(error_of([&] { kv::observe(exec, policy, kv::signals{of.view().lanes, fresh}, state); }) ==
          "observe: entries = 1, but lane 0 holds 0 entries");
  }
}
