// SPDX-License-Identifier: Apache-2.0
// Admission: what every step sees, promotion before the overwrite, chunks, drafts, caps and pools that run out.

#include "reference/dual_cache.hpp"
#include "support/dual_engine.hpp"

namespace {

using namespace kvpolicy_test;

/// A sequence under an admission, with a gate for every token of every lane.
template <class Policy>
class admitted {
 public:
  admitted(dual_options const& how, Policy const& admits, std::vector<std::vector<float>> gates, int threads = 1)
      : engine(how),
        exec(threads),
        policy(admits),
        gates_(std::move(gates)),
        both(engine.view()),
        held(kv::make_state(exec, policy, both)),
        plans(kv::make_plan(exec, policy, both)),
        of_fresh_(kv::make_state(exec, policy, engine.chunk(0, 0))),
        fresh_plan_(kv::make_plan(exec, policy, engine.chunk(0, 0))) {}

  /// One token in a step of decoding; its gate is told when it is written.
  void step(bool draft = false) {
    step_untold(draft);
    if (!draft) tell_last(1);
  }
  void step_untold(bool draft = false) {
    if (!draft) kv::promote(exec, policy, kv::signals{both.window.lanes}, both, held, plans, 1, &told);
    kv::append(exec, both.window, held.window, {.tokens = 1, .position = length, .in_flight = draft});
    for (int i = 0; i < engine.lanes(); ++i) {
      kv::lane const this_lane = both.window.lanes.at(i);
      dual_engine::write(both.window, this_lane, *both.window.lanes.count.row(this_lane) - 1, length);
    }
    ++length;
  }
  void tell_last(int tokens) { tell(both.window.lanes, held.window, tokens, length - tokens); }
  void commit(int drafts, int kept) {
    length -= drafts - kept;
    kv::truncate(exec, both.window, held.window, 0, length);
    kv::commit(exec, both.window, 0, kept);
    if (kept > 0) tell(both.window.lanes, held.window, kept, length - kept);
  }
  void chunk(int tokens) {
    kv::cache const chunk = engine.chunk(tokens, length);
    if (tokens > 0) tell(chunk.lanes, of_fresh_, tokens, length);
    kv::decide(exec, policy, kv::signals{chunk.lanes}, of_fresh_, fresh_plan_);
    kv::ingest(exec, policy, kv::signals{both.window.lanes}, chunk, of_fresh_, fresh_plan_, both, held, plans, &told);
    length += tokens;
  }
  [[nodiscard]] float gate(int lane, int position) const {
    auto const& row = gates_[as_size(lane)];
    return row[as_size(position) % row.size()];
  }
  /// Row `length - 1` of the mask, from its definition.
  [[nodiscard]] std::vector<int> mask_row(int lane) const {
    std::vector<int> row;
    for (int j = 0; j < length; ++j) {
      bool const is_admitted = policy.pick(gate(lane, j));
      if (length - 1 - j < policy.window || is_admitted) row.push_back(j);
    }
    return row;
  }
  void check() {
    for (int i = 0; i < engine.lanes(); ++i) {
      kv::lane const this_lane = both.window.lanes.at(i);
      REQUIRE(dual_engine::seen(both, this_lane) == mask_row(i));
      for (kv::cache const* part : {&both.pages.entries, &both.window}) {
        for (int e = 0; e < *part->lanes.count.row(this_lane); ++e)
          REQUIRE(dual_engine::true_rows(*part, this_lane, e));
      }
    }
    REQUIRE(engine.held_pages() + engine.free_pages() == pages);
  }

  dual_engine engine;
  kv::host_executor exec;
  Policy policy;

 private:
  std::vector<std::vector<float>> gates_;
  std::vector<float> config_;

 public:
  kv::dual_cache both;
  kv::dual_state<kv::host_executor> held;
  kv::exit_plan<kv::host_executor> plans;
  kv::promotion_stats told;
  int length = 0;
  int pages = 64;

 private:
  void tell(kv::lanes const& batch, kv::state<kv::host_executor>& to, int tokens, int position) {
    config_.clear();
    for (int i = 0; i < engine.lanes(); ++i) {
      for (int e = 0; e < tokens; ++e) config_.push_back(gate(i, position + e));
    }
    kv::gate fresh;
    fresh.base = reinterpret_cast<std::byte const*>(config_.data());
    fresh.head = tokens * 4;
    fresh.layer = fresh.head * batch.heads;
    fresh.entry = 4;
    fresh.entries = tokens;
    kv::observe(exec, policy, kv::signals{batch, fresh}, to);
  }

  kv::state<kv::host_executor> of_fresh_;
  kv::plan<kv::host_executor> fresh_plan_;
};

std::vector<std::vector<float>> random_gates(dice& random, int lanes, int tokens, int percent) {
  std::vector<std::vector<float>> gates(as_size(lanes));
  for (auto& row : gates) {
    for (int t = 0; t < tokens; ++t)
      row.push_back(random.chance(percent) ? 0.1f + 0.9f * static_cast<float>(random.below(5)) / 5 : 0.05f);
  }
  return gates;
}

kv::admission<kv::write_gate> gated(int window, int cap = -1) {
  return kv::policies::wg_kv({.window = window, .cap = cap});
}

// example-begin gate
/// A gate of one's own: it admits keys that are not long.
struct short_keys {
  using needs = kv::needs<kv::keys>;
  static constexpr auto decides = kv::granularity::lane;
  struct shorter {
    float limit;
    KVPOLICY_HD float operator()(float, float norm) const { return norm < limit ? 1.0f : 0.0f; }
  };
  float limit = 1;
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::row_norm(exec, in.template get<kv::keys>(), shorter{limit}, out);
  }
  [[maybe_unused]] friend bool operator==(short_keys const&, short_keys const&) = default;
};
// example-end

TEST_SUITE("admission") {
  TEST_CASE("the worked example: W = 2, token 1 admitted") {
    std::vector<std::vector<float>> const gates{{0, 1, 0, 0, 0, 0}};
    admitted now({.model = {1, 1, 1, 4}, .rows = 4}, gated(2), gates);
    std::vector<std::vector<int>> const rows{{0}, {0, 1}, {1, 2}, {1, 2, 3}, {1, 3, 4}, {1, 4, 5}};
    for (auto const& row : rows) {
      now.step();
      CHECK(dual_engine::seen(now.both, {}) == row);
    }
    admitted whole({.model = {1, 1, 1, 4}, .rows = 4}, gated(2), gates);
    whole.chunk(5);
    CHECK(dual_engine::seen(whole.both, {}) == rows[4]);
    CHECK(*whole.both.pages.entries.lanes.count.row({}) == 1);
    whole.step();
    CHECK(dual_engine::seen(whole.both, {}) == rows[5]);
    CHECK(whole.told == kv::promotion_stats{});  // 3 was not admitted
  }

  TEST_CASE("every step sees its row of the exact mask, after chunks of any size") {
    dice random(7);
    for (int run = 0; run < 40; ++run) {
      int const window = random.between(1, 12);
      dual_options how{
          .model = {random.between(1, 3), 4, random.one_of(std::vector{1, 2, 4}), 4}, .rows = 16, .bound = 64};
      how.pages = 400;
      admitted now(how, gated(window),
                   random_gates(random, how.model.layers * how.model.kv_heads, 64, random.below(101)),
                   random.between(1, 2));
      now.pages = how.pages;
      while (now.length < 3 * window + 16) {
        int const left = 3 * window + 16 - now.length;
        if (random.chance(30)) {
          now.chunk(random.below(std::min(left, 2 * window + 3) + 1));
        } else {
          now.step();
        }
        if (now.length > 0) now.check();
      }
    }
  }

  TEST_CASE("everything admitted is the full cache, nothing admitted the sliding window") {
    for (float const gate : {1.0f, 0.0f}) {
      admitted now({}, gated(8), {4, std::vector<float>{gate}});
      for (int t = 0; t < 40; ++t) {
        now.step();
        std::vector<int> const seen = dual_engine::seen(now.both, {0, 1, 1});
        CHECK(std::ssize(seen) == (gate > 0 ? now.length : std::min(now.length, 8)));
        now.check();
      }
    }
  }

  TEST_CASE("a gate at the threshold is admitted, unless the comparison is strict") {
    for (bool const strict : {false, true}) {
      auto const policy = kv::policies::wg_kv({.window = 1, .strict = strict});
      admitted now({.model = {1, 1, 1, 4}, .rows = 4}, policy, {{0.1f}});
      for (int t = 0; t < 5; ++t) now.step();
      CHECK(std::ssize(dual_engine::seen(now.both, {})) == (strict ? 1 : 5));
    }
  }

  TEST_CASE("a strict threshold is rounded to the type of the gates") {
    float const gate = kv::rounded_to(kv::codec::bf16, 0.1f);  // a little more than 0.1
    for (kv::codec const type : {kv::codec::f32, kv::codec::bf16}) {
      for (bool const strict : {false, true}) {
        auto const policy = kv::policies::wg_kv({.window = 1, .strict = strict, .gate_type = type});
        admitted now({.model = {1, 1, 1, 4}, .rows = 4}, policy, {{gate}});
        for (int t = 0; t < 5; ++t) now.step();
        CHECK(std::ssize(dual_engine::seen(now.both, {})) == (strict && type == kv::codec::bf16 ? 1 : 5));
      }
    }
  }

  TEST_CASE("a NaN gate admits nothing and is counted") {
    admitted now({.model = {1, 1, 1, 4}, .rows = 4}, gated(1), {{std::numeric_limits<float>::quiet_NaN()}});
    now.step();
    now.step();
    CHECK(*now.both.pages.entries.lanes.count.row({}) == 0);
    CHECK(now.plans.decided.report().nan_scores == 1);
  }

  TEST_CASE("static gates: sinks, and the table of heads") {
    std::vector<float> const heads{1, 0, 0.5f, 1};  // more than 0.5 retrieves
    auto const duo = kv::policies::duo_attention({.window = 4, .sinks = 2, .retrieval = {heads.data(), 0, 2, 1}});
    dual_engine engine({});
    kv::host_executor exec;
    kv::dual_cache both = engine.view();
    auto [held, plans] = state_and_plan(exec, duo, both);
    for (int t = 0; t < 20; ++t) {
      kv::promote(exec, duo, kv::signals{both.window.lanes}, both, held, plans, 1);
      kv::append(exec, both.window, held.window, {.tokens = 1, .position = t});
    }
    CHECK(std::ssize(dual_engine::seen(both, {0, 0, 0})) == 20);
    CHECK(dual_engine::seen(both, {0, 0, 1}) == std::vector{0, 1, 16, 17, 18, 19});
    CHECK(dual_engine::seen(both, {0, 1, 0}) == std::vector{0, 1, 16, 17, 18, 19});
    CHECK(std::ssize(dual_engine::seen(both, {0, 1, 1})) == 20);
    CHECK(kv::to_string(kv::policies::local_attention({.sinks = 4})) ==
          "head_table | sinks(4) | at_least(least=0.5, strict=false, unbounded=false) | window(256)");
  }

  TEST_CASE("heads that retrieve: the quantile of their weights, ties to the lower head") {
    std::vector<float> const alpha{0.9f, 0.1f, 0.5f, 0.1f, 2.0f};
    CHECK(kv::retrieval_heads(alpha, 0.5) == std::vector{1.0f, 0.0f, 1.0f, 0.0f, 1.0f});
    CHECK(kv::retrieval_heads(alpha, 0.2) == std::vector{1.0f, 1.0f, 1.0f, 0.0f, 1.0f});
    CHECK(kv::retrieval_heads(alpha, 0.0) == std::vector(5, 1.0f));
    CHECK(kv::retrieval_heads(alpha, 1.0) == std::vector(5, 0.0f));
  }

  TEST_CASE("drafts are in the window beyond its size, and roll back without a trace") {
    dice random(11);
    admitted now({.rows = 16}, gated(12), random_gates(random, 4, 64, 40));
    while (now.length < 60) {
      now.step();
      int const drafts = random.below(5);
      for (int d = 0; d < drafts; ++d) now.step(true);
      if (random.chance(50)) now.tell_last(drafts);  // nobody hears it: the accepted ones are told after the commit
      now.commit(drafts, random.below(drafts + 1));
      // What was accepted beyond the window's size leaves with the next step.
      kv::promote(now.exec, now.policy, kv::signals{now.both.window.lanes}, now.both, now.held, now.plans, 0);
      now.check();
    }
  }

  TEST_CASE("as the reference does, with caps and drafts, in steps and chunks") {
    dice random(23);
    for (int run = 0; run < 30; ++run) {
      int const window = random.between(2, 10);
      int const cap = random.chance(50) ? random.between(0, 12) : -1;
      dual_options how{.model = {1, 2, 2, 4}, .rows = 16, .pages = 64};
      auto const gates = random_gates(random, 2, 48, random.below(101));
      admitted now(how, gated(window, cap), gates);
      std::vector<kvpolicy_reference::dual_lane> lanes;
      for (int i = 0; i < 2; ++i) {
        lanes.emplace_back(kvpolicy_reference::dual_options{
            .window = window, .admit = {.threshold = 0.1f}, .cap = cap, .max_draft = 4});
      }
      auto const tokens = [&](int lane, int first, int count) {
        std::vector<kvpolicy_reference::gated_token> made;
        for (int p = first; p < first + count; ++p) made.push_back({p, static_cast<double>(now.gate(lane, p))});
        return made;
      };
      while (now.length < 44) {
        int const before = now.length;
        if (random.chance(25)) {
          now.chunk(random.below(15));
        } else {
          now.step();
        }
        for (int i = 0; i < 2; ++i) {
          lanes[as_size(i)].append(tokens(i, before, now.length - before));
          kv::lane const this_lane = now.both.window.lanes.at(i);
          std::vector<int> seen = lanes[as_size(i)].global();
          std::vector<int> const local = lanes[as_size(i)].local();
          REQUIRE(*now.both.pages.num_pages.row(this_lane) == lanes[as_size(i)].pages(how.page));
          seen.insert(seen.end(), local.begin(), local.end());
          REQUIRE(dual_engine::seen(now.both, this_lane) == seen);
        }
      }
    }
  }

  TEST_CASE("gates may be told a window at a time, before any of it leaves") {
    dice random(3);
    admitted at_once({}, gated(8), random_gates(random, 4, 64, 50));
    for (int t = 0; t < 64; ++t) {
      at_once.step_untold();
      if (at_once.length % 8 == 0) at_once.tell_last(8);
      at_once.check();
    }
  }

  TEST_CASE("a gate of one's own is any scorer: it looks at the keys that leave") {
    dual_engine engine({});
    kv::host_executor exec;
    kv::dual_cache both = engine.view();
    auto const policy =
        kv::admission{.score = short_keys{4000}, .protect = kv::nothing{}, .window = 4, .pick = kv::at_least{}};
    auto [held, plans] = state_and_plan(exec, policy, both);
    for (int t = 0; t < 30; ++t) {
      kv::promote(exec, policy, kv::signals{both.window.lanes, kv::keys_of(both.window)}, both, held, plans, 1);
      kv::append(exec, both.window, held.window, {.tokens = 1, .position = t});
      for (int i = 0; i < engine.lanes(); ++i) {
        kv::lane const this_lane = both.window.lanes.at(i);
        dual_engine::write(both.window, this_lane, *both.window.lanes.count.row(this_lane) - 1, t);
      }
    }
    // A row's numbers are about 128 for each position, so its norm is about 256 times the position.
    CHECK(dual_engine::seen(both, {}) ==
          std::vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 26, 27, 28, 29});
  }

  TEST_CASE("a cap drops what exceeds it and says so; without one a pool that runs out changes nothing") {
    admitted capped({.pages = 8}, gated(4, 6), {4, std::vector<float>{1.0f}});
    capped.pages = 8;
    std::int64_t dropped = 0;
    for (int t = 0; t < 30; ++t) {
      capped.step();
      dropped += capped.told.over_cap;
    }
    CHECK(*capped.both.pages.entries.lanes.count.row({}) == 6);
    CHECK(dropped == 4 * (30 - 4 - 6));

    admitted small({.pages = 7}, gated(4), {4, std::vector<float>{1.0f}});
    for (int t = 0; t < 8; ++t) small.step();
    std::string const error = error_of([&] { small.step(); });
    CHECK(error == "promote: pages = 4, but the pool has 3 left");
    small.pages = 7;
    small.check();
    CHECK(*small.both.window.lanes.count.row({}) == 4);
  }

  TEST_CASE("bad input names the argument") {
    kv::host_executor exec;
    dual_engine engine({});
    kv::dual_cache const both = engine.view();
    auto const refused = [&](auto const& policy, kv::dual_cache const& of) {
      return error_of([&] { static_cast<void>(kv::make_plan(exec, policy, of)); });
    };
    CHECK(refused(gated(0), both) == "make_plan: admission.window = 0, but the newest token is always seen");
    CHECK(refused(gated(17), both) == "make_plan: admission.window = 17, but the ring has 16 rows");
    CHECK(refused(kv::policies::wg_kv({.window = 4, .threshold = 1.5f}), both) ==
          "make_plan: at_least.least = 1.5, but gates lie between 0 and 1: say `unbounded` for other scores");
    auto open = kv::policies::wg_kv({.window = 4, .threshold = 1.5f});
    open.pick.unbounded = true;
    CHECK(refused(open, both).empty());
    kv::dual_cache other = both;
    other.window.where.unit_tokens = 18;
    CHECK(refused(gated(4), other) == "make_plan: window.rows = 18, but the ring is made of whole pages of 4 tokens");
    other = both;
    other.window.lanes.count.head = 1;
    CHECK(refused(gated(4), other) ==
          "make_plan: window.lanes = a count for each lane, but all lanes of a sequence are in step in the window");
    other = both;
    other.pages.table.head = 0;
    CHECK(refused(gated(4), other).starts_with("make_plan: pages.table.head = 0, but the locator's table has stride "));
  }

  TEST_CASE("a chunk that does not belong to the cache is refused, and nothing changes") {
    admitted now({}, gated(4), {4, std::vector<float>{1.0f}});
    for (int t = 0; t < 10; ++t) now.step();
    auto const& policy = now.policy;
    auto const refused = [&](kv::cache const& chunk, auto const& state, auto const& plan) {
      return error_of([&] {
        kv::ingest(now.exec, policy, kv::signals{now.both.window.lanes}, chunk, state, plan, now.both, now.held,
                   now.plans);
      });
    };
    kv::cache const old = now.engine.chunk(3, 9);  // position 9 is there
    auto [state, plan] = state_and_plan(now.exec, policy, old);
    CHECK(refused(old, state, plan) == "ingest: decided = empty or not of lanes, but decide comes before ingest");
    kv::decide(now.exec, policy, kv::signals{old.lanes}, state, plan);
    CHECK(refused(old, state, plan) == "ingest: position = 9, but positions ascend and the last is 9");
    kv::cache part = old;
    part.lanes.count.layer = 1;
    CHECK(refused(part, state, plan) ==
          "ingest: chunk.lanes = a count for each lane, but all lanes of a sequence read the same tokens");
    part = old;
    part.lanes.count.head = 1;
    CHECK(refused(part, state, plan).starts_with("ingest: chunk.lanes = a count for each lane"));
    part = old;
    part.lanes = old.lanes.layers_only(0, 1);
    CHECK(refused(part, state, plan).starts_with("ingest: "));
    auto const other = kv::policies::local_attention({.window = 4});
    auto const stateless = kv::make_state(now.exec, other, old);
    CHECK(refused(old, stateless, plan).starts_with("ingest: state = another policy's"));
    now.check();
    kv::append(now.exec, now.both.window, now.held.window, {.tokens = 1, .position = 10, .in_flight = true});
    CHECK(error_of([&] {
            kv::promote(now.exec, policy, kv::signals{now.both.window.lanes}, now.both, now.held, now.plans, 1);
          }) == "promote: in_flight = 1, but drafts of sequence 0 are committed or truncated first");
  }

  TEST_CASE("drafts stand in the way of further tokens, also where nothing leaves the window") {
    admitted now({}, gated(4), {4, std::vector<float>{1.0f}});
    now.step();
    kv::append(now.exec, now.both.window, now.held.window, {.tokens = 1, .position = 1, .in_flight = true});
    kv::promote(now.exec, now.policy, kv::signals{now.both.window.lanes}, now.both, now.held, now.plans, 0);
    CHECK(error_of([&] {
            kv::promote(now.exec, now.policy, kv::signals{now.both.window.lanes}, now.both, now.held, now.plans, 1);
          }) == "promote: in_flight = 1, but drafts of sequence 0 are committed or truncated first");
  }

  TEST_CASE("the sentinel page is never handed out") {
    admitted now({}, gated(1), {4, std::vector<float>{1.0f}});
    now.step();
    now.engine.free_list()[as_size(now.engine.free_pages()) - 1] = now.engine.sentinel();
    std::string const error = error_of([&] { now.step(); });
    CHECK(error == "promote: pages.free = " + std::to_string(now.engine.sentinel()) +
                       ", but it is the sentinel, which is never handed out");
  }

  TEST_CASE("required_bytes tells what make_plan and make_state take") {
    dual_engine engine({});
    kv::dual_cache const both = engine.view();
    kv::required const told = kv::required_bytes<kv::host_executor>(gated(4), both);
    // A gate an entry of four lanes, twice the ring's rows, and pages; an epoch for each layer of both parts.
    CHECK(told.state == 4 * (4 * 2 * 16 + 4 * 64) + 2 * 2 * 8);
    CHECK(told.plan == 4 * 16 * 8 + 5 * 8 + 4 * 4 + 2 * 8 + 2 * sizeof(kv::report) + sizeof(kv::apply_stats) + 3 * 4);
  }

  TEST_CASE("a step allocates nothing") {
    admitted now({}, gated(4), {4, std::vector<float>{1.0f, 0.0f, 1.0f}});
    for (int t = 0; t < 6; ++t) now.step();
    for (int t = 0; t < 12; ++t) {
      CHECK(allocations_in([&] {
              kv::promote(now.exec, now.policy, kv::signals{now.both.window.lanes}, now.both, now.held, now.plans, 1);
              kv::append(now.exec, now.both.window, now.held.window, {.tokens = 1, .position = now.length});
            }) == 0);
      ++now.length;
    }
  }

  TEST_CASE("index lists for sparse prefill: columns and slash make the mask") {
    std::vector<int> const admitted{0, 3, 4, 9, 12};
    for (int row = 0; row < 16; ++row) {
      kv::slash_columns const lists = kv::columns_of(admitted, 5, row);
      std::vector<int> read(lists.vertical.begin(), lists.vertical.end());
      for (int j = lists.slash; j <= row; ++j) read.push_back(j);
      std::vector<int> exact;
      for (int j = 0; j < 16; ++j) {
        bool const in = std::find(admitted.begin(), admitted.end(), j) != admitted.end();
        if (kv::visible(row, j, 5, in)) exact.push_back(j);
      }
      CHECK(read == exact);
    }
  }
}

}  // namespace
