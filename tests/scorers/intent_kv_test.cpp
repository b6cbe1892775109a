// SPDX-License-Identifier: Apache-2.0
// IntentKV against the reference: several turns over a slot map whose holes are earlier turns'.

#include "layout/slot_cache.hpp"
#include "support/turn_rows.hpp"

namespace {

using namespace kvpolicy_test;
using ordinals = std::vector<int>;

/// A residual head with weights of its own, and the same numbers as the reference takes them.
class owned_head {
 public:
  owned_head(int dims, int width, int hidden, float alpha, double size, std::uint64_t seed)
      : dims_(dims), width_(width), hidden_(hidden), alpha_(alpha) {
    dice random(seed);
    int const phi = 3 * dims + 1;
    int const sizes[] = {width * phi, width, width * dims, width, width * dims, width, hidden * (phi + width), hidden,
                         hidden,      1};
    for (std::size_t i = 0; i < 10; ++i) {
      for (int n = 0; n < sizes[i]; ++n) parts_[i].push_back(static_cast<float>(random.real(size)));
    }
  }
  void silence() {
    for (std::size_t const last : {8u, 9u}) std::fill(parts_[last].begin(), parts_[last].end(), 0.0f);
  }
  void set_alpha(float alpha) { alpha_ = alpha; }

  [[nodiscard]] kv::residual_head view() const {
    kv::residual_head made;
    made.dims = dims_;
    made.width = width_;
    made.hidden = hidden_;
    float const** const fields[] = {&made.w_q,      &made.w_q_bias, &made.w_k,      &made.w_k_bias, &made.w_v,
                                    &made.w_v_bias, &made.fc1,      &made.fc1_bias, &made.fc2,      &made.fc2_bias};
    for (std::size_t i = 0; i < 10; ++i) *fields[i] = parts_[i].data();
    made.alpha = alpha_;
    return made;
  }
  [[nodiscard]] reference::residual_weights weights() const {
    return {layer(0), layer(2), layer(4), layer(6), layer(8), static_cast<double>(alpha_)};
  }

 private:
  /// Rows of the weight at `first`, whose bias follows it.
  [[nodiscard]] reference::linear layer(std::size_t first) const {
    reference::linear made;
    std::vector<float> const& bias = parts_[first + 1];
    std::size_t const in = parts_[first].size() / bias.size();
    for (std::size_t o = 0; o < bias.size(); ++o) {
      made.bias.push_back(static_cast<double>(bias[o]));
      auto const row = parts_[first].begin() + static_cast<std::ptrdiff_t>(o * in);
      made.weight.push_back(reference::row(row, row + static_cast<std::ptrdiff_t>(in)));
    }
    return made;
  }

  int dims_, width_, hidden_;
  float alpha_;
  std::vector<float> parts_[10];
};

/// One sequence's turn: so many new tokens, of which the last are drafts; the rows are of its last positions.
struct turn_plan {
  int tokens = 0, drafts = 0, jump = 0;  ///< jump: positions that are left out before the new tokens
  int rows = 0, begin = 0, end = 0, first = 0;
  double trouble = 0;             ///< what some element of some live key becomes, if not 0
  std::vector<int> numbers = {};  ///< which token each is: equal ones have equal rows
};

/// An engine over dead slots. The same options and turns make the same data, whatever the policy.
struct agent {
  using policy_type = kv::eviction<kv::intent_kv, kv::sinks>;

  agent(slot_options const& shape, policy_type const& how, int capacity, kv::codec rows_of, int threads = 1)
      : cache(shape),
        policy(how),
        exec(threads),
        view(cache.view()),
        state(kv::make_state(exec, policy, view)),
        plan(kv::make_plan(exec, policy, view)),
        rows(shape.model, shape.sequences, capacity, rows_of),
        said(as_size(shape.sequences)) {}

  void append(int s, turn_plan const& what) {
    cache.in_flight[as_size(s)] = 0;
    std::vector<int>& positions = said[as_size(s)];
    for (int t = 0; t < what.tokens; ++t) {
      int const position = positions.empty() ? 0 : positions.back() + 1 + (t == 0 ? what.jump : 0);
      cache.write_token(s, position, what.numbers[as_size(t)]);
      kv::append(exec, view, state, {s, 1, position});
      positions.push_back(position);
    }
    cache.in_flight[as_size(s)] = what.drafts;
    std::vector<int> const last(positions.end() - what.drafts - what.rows, positions.end() - what.drafts);
    rows.turn(s, last, what.begin, what.end, what.first);
    if (what.trouble != 0 && committed(s) > 0) spoil(s, what);
  }
  void spoil(int s, turn_plan const& what) {
    kv::shape const& model = cache.options.model;
    kv::lane const this_lane{s, what.first % model.layers, what.first % model.kv_heads};
    int const slot = cache.row(cache.list, this_lane, committed(s))[as_size(what.first % committed(s))];
    reference::row key = cache.read(true, this_lane, slot);
    key[as_size(what.first % model.head_dim)] = what.trouble;
    cache.write(true, this_lane, slot, 0, key);
  }
  void observe_and_decide() {
    kv::signals const in{view.lanes, kv::keys_of(view), rows.view()};
    kvpolicy_test::observe_and_decide(exec, policy, in, state, plan);
  }
  void apply() { kv::apply(exec, cache.redirecting(), plan, view, state); }

  [[nodiscard]] int committed(int s) const { return cache.committed({s, 0, 0}); }
  [[nodiscard]] std::vector<std::byte> memory(int s) {
    std::vector<std::byte> bytes(state.session_bytes());
    state.save_session(exec, s, bytes.data());
    return bytes;
  }
  [[nodiscard]] std::vector<float> scores(int s) {
    float const* const row = plan.scores(view.lanes).row(s);
    return {row, row + committed(s)};
  }
  /// What the reference sees of a sequence.
  [[nodiscard]] reference::intent_sequence sequence(int s) {
    kv::shape const& model = cache.options.model;
    reference::intent_sequence made;
    made.positions = cache.row(cache.position, {s, 0, 0}, committed(s));
    auto const [begin, end] = rows.span(s, policy.score.tail);
    if (begin < end) {
      made.span_begin = rows.position(s, begin);
      made.span_end = rows.position(s, end - 1) + 1;
    }
    auto const slots = cache.row(cache.list, {s, 0, 0}, committed(s));
    for (int l = 0; l < model.layers; ++l) {
      made.keys.emplace_back();
      for (int h = 0; h < model.kv_heads; ++h) {
        reference::matrix entries;
        for (int const slot : slots) entries.push_back(cache.read(true, {s, l, h}, slot));
        made.keys.back().push_back(entries);
      }
    }
    return made;
  }

  slot_cache cache;
  policy_type policy;
  kv::host_executor exec;
  kv::cache view;
  kv::state<kv::host_executor> state;
  kv::plan<kv::host_executor> plan;
  turn_rows rows;
  std::vector<std::vector<int>> said;  ///< positions of every token so far
};

/// The reference beside an agent: its memories, and whether a decision is what they say.
struct judge {
  explicit judge(agent& of) : whom(of) {
    kv::shape const& model = of.cache.options.model;
    memory.assign(of.said.size(),
                  reference::no_memory(as_size(model.layers), as_size(model.query_heads), as_size(model.head_dim)));
  }

  /// After observe and decide of a turn; how many sequences decided.
  int check(owned_head const* head) {
    int decided = 0;
    for (int s = 0; s < whom.cache.options.sequences; ++s) {
      remember(s);
      decided += check_decision(s, head) ? 1 : 0;
    }
    RC_ASSERT(whom.plan.report().triggered == decided);
    RC_ASSERT(whom.plan.report().nan_scores == nan_scores);
    RC_ASSERT(whom.plan.report().forced_over_budget == over_budget);
    over_budget = nan_scores = 0;
    return decided;
  }

  void remember(int s) {
    kv::intent_kv const& score = whom.policy.score;
    reference::head_rows& mine = memory[as_size(s)];
    mine = reference::remembered(mine, whom.rows.span_rows(s, score.tail),
                                 {.lambda = static_cast<double>(score.lambda),
                                  .normalize_encoding = score.normalize_encoding,
                                  .forgets = score.mode == kv::intent_mode::query});
    auto const bytes = whom.memory(s);
    std::vector<float> held(bytes.size() / sizeof(float));
    std::memcpy(held.data(), bytes.data(), bytes.size());
    reference::row flat;
    for (reference::matrix const& layer : mine) {
      for (reference::row const& row : layer) flat.insert(flat.end(), row.begin(), row.end());
    }
    comparison const result = compare(held, flat, 1.0);
    RC_LOG() << "memory of sequence " << s << ": " << result << '\n';
    RC_ASSERT(result.same);
  }

  bool check_decision(int s, owned_head const* head) {
    kv::intent_kv const& score = whom.policy.score;
    reference::residual_weights weights;
    if (head != nullptr) weights = head->weights();
    auto const expected =
        reference::intent_kv(whom.sequence(s), memory[as_size(s)],
                             {.budget = whom.policy.budget.tokens,
                              .prefix = std::max(score.prefix, whom.policy.protect.tokens),
                              .min_growth = score.min_growth,
                              .residual = score.mode == kv::intent_mode::learnable ? &weights : nullptr,
                              .cross_attention = score.cross_attention});
    auto const kept = listed(whom.plan.keep(), s);
    int const slack = std::max(0, score.min_growth - 1);
    if (!reference::fires(expected.scores.size(), whom.policy.budget.tokens, slack)) {
      RC_ASSERT(kept == expected.result.kept);
      return false;
    }
    auto const found = whom.scores(s);
    check_scores(found, expected, head != nullptr);
    // What is kept follows from the scores found, to the last tie.
    reference::row const as_found(found.begin(), found.end());
    auto const chosen = reference::select(as_found, expected.forced, whom.policy.budget.tokens, slack);
    RC_ASSERT(kept == chosen.kept);
    over_budget += chosen.forced_over_budget > 0 ? 1 : 0;
    nan_scores += expected.result.nan_candidates;
    return true;
  }

  void check_scores(std::vector<float> const& found, reference::intent_decision const& expected, bool learned) {
    double largest = 1.0, sum = 0.0;
    for (double const one : expected.scores) largest = std::isfinite(one) ? std::max(largest, std::abs(one)) : largest;
    int candidates = 0;
    for (std::size_t j = 0; j < found.size(); ++j) {
      if (expected.forced[j]) continue;
      ++candidates;
      sum += static_cast<double>(found[j]);
      bool const same = close(static_cast<double>(found[j]), expected.scores[j], learned ? largest : 0.0);
      RC_LOG() << (same ? ""
                        : "entry " + std::to_string(j) + ": " + std::to_string(found[j]) + ", the reference says " +
                              std::to_string(expected.scores[j]) + "\n");
      RC_ASSERT(same);
    }
    kv::shape const& model = whom.cache.options.model;
    double const heads = model.layers * model.query_heads;
    if (!learned && candidates > 0 && !std::isnan(sum)) RC_ASSERT(std::abs(sum - heads) <= 1e-5 * heads);
  }

  agent& whom;
  std::vector<reference::head_rows> memory;
  int over_budget = 0, nan_scores = 0;
};

// --- Random agents ---------------------------------------------------------------------------------------------------

slot_options any_shape() {
  slot_options shape;
  shape.model.head_dim = *rc::gen::element(64, 80, 128, 256, 4);
  shape.model.kv_heads = *rc::gen::inRange(1, 3);
  shape.model.query_heads = shape.model.kv_heads * *rc::gen::element(1, 4, 8);
  shape.model.layers = *rc::gen::inRange(1, 4);
  shape.sequences = *rc::gen::inRange(1, 3);
  shape.bound = *rc::gen::element(40, 1, 31, 32, 33, 64);
  shape.element = any_float();
  shape.seed = *rc::gen::inRange<std::uint64_t>(1, 1u << 20);
  return shape;
}

agent::policy_type any_policy(bool learned) {
  agent::policy_type policy{.protect = {*rc::gen::element(0, 0, 3)}};
  policy.score = {
      .mode = learned ? kv::intent_mode::learnable : *rc::gen::element(kv::intent_mode::memory, kv::intent_mode::query),
      .lambda = *rc::gen::element(0.5f, 0.0f, 2.0f),
      .prefix = *rc::gen::element(0, 1, 5),
      .tail = *rc::gen::element(32, 1, 5),
      .normalize_encoding = any_bool(),
      .min_growth = *rc::gen::element(0, 0, 1, 4),
      .cross_attention = *rc::gen::element(true, true, false)};
  return policy;
}

/// A turn that fits: now and then none, often with ties, with rows that reach back into earlier turns.
turn_plan any_turn(dice& random, agent const& of, int s, int capacity) {
  turn_plan turn;
  std::vector<int> const& said = of.said[as_size(s)];
  int const next = said.empty() ? 0 : said.back() + 10;  // the map has 4 places an entry
  int const room = std::min(of.cache.options.bound - of.cache.held({s, 0, 0}), std::max(0, of.cache.map_row - next));
  turn.tokens = random.between(0, room);
  if (said.empty()) turn.tokens = std::max(1, turn.tokens);
  turn.drafts = random.chance(20) ? random.below(std::min(3, turn.tokens + 1)) : 0;
  turn.jump = random.chance(30) ? random.between(1, 9) : 0;
  for (int t = 0; t < turn.tokens; ++t)
    turn.numbers.push_back(random.chance(30) ? random.below(4) : random.below(9999));
  int const all = static_cast<int>(said.size()) + turn.tokens - turn.drafts;
  if (all == 0 || random.chance(15)) return turn;  // not its turn
  turn.rows = random.between(1, std::min(capacity, all));
  turn.begin = random.below(turn.rows + 1);
  turn.end = random.between(turn.begin, turn.rows);
  turn.first = random.below(capacity);
  double const nothing = std::numeric_limits<double>::quiet_NaN();
  if (random.chance(8)) turn.trouble = random.one_of<double>({nothing, reference::infinity, -reference::infinity});
  if (of.policy.score.mode == kv::intent_mode::learnable && std::isinf(turn.trouble)) turn.trouble = nothing;
  return turn;
}

/// Drafts are over before the next turn: the engine took them all back or all in; here, in.
void run_turn(std::vector<agent*> const& who, dice& random, int capacity, int budget, bool troubles = true) {
  agent& first = *who.front();
  dice const rows_random = random;  // every agent's rows are the same
  for (int s = 0; s < first.cache.options.sequences; ++s) {
    turn_plan turn = any_turn(random, first, s, capacity);
    if (!troubles) turn.trouble = 0;
    for (agent* each : who) each->append(s, turn);
  }
  for (agent* each : who) {
    dice same = rows_random;
    each->rows.fill(same, 3.0);
    each->policy.budget.tokens = budget;
    each->observe_and_decide();
  }
}

int any_budget(dice& random, agent const& of) {
  int const live = of.committed(0);
  return random.one_of<int>({0, 1, live / 2, live / 2, std::max(0, live - 1), live, of.cache.options.bound / 2});
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Two agents said and decided the same, to the last bit.
void check_equal(agent& a, agent& b) {
  RC_ASSERT(a.plan.report() == b.plan.report());
  for (int s = 0; s < a.cache.options.sequences; ++s) {
    RC_ASSERT(listed(a.plan.keep(), s) == listed(b.plan.keep(), s));
    RC_ASSERT(a.memory(s) == b.memory(s));
    RC_ASSERT(same_bits(a.scores(s), b.scores(s)));
  }
}

void decides_as_the_reference(bool learned) {
  slot_options const shape = any_shape();
  auto policy = any_policy(learned);
  int const capacity = *rc::gen::element(33, 1, 31, 32, 40);
  kv::codec const rows_of = any_float();
  owned_head const head(shape.model.head_dim, *rc::gen::element(4, 8, 128, 200), *rc::gen::element(1, 7, 256),
                        *rc::gen::element(1.0f, -0.5f, 9.0f), 0.1, shape.seed);
  if (learned) policy.score.residual = head.view();
  RC_LOG() << kv::to_string(policy) << ", D " << shape.model.head_dim << ", " << shape.model.layers << " layers, "
           << shape.model.query_heads << "/" << shape.model.kv_heads << ", bound " << shape.bound << ", "
           << shape.sequences << " sequences, rows " << capacity << ", seed " << shape.seed << '\n';
  agent one(shape, policy, capacity, rows_of), many(shape, policy, capacity, rows_of, 3);
  judge reference_of(one);
  dice random(shape.seed);
  int const turns = *rc::gen::inRange(1, 5);
  for (int turn = 0; turn < turns; ++turn) {
    run_turn({&one, &many}, random, capacity, any_budget(random, one));
    RC_LOG() << "turn " << turn << ", budget " << one.policy.budget.tokens << '\n';
    reference_of.check(learned ? &head : nullptr);
    check_equal(one, many);
    one.apply();
    many.apply();
  }
}

/// The learnable mode with this head says what the memory mode says, to the last bit. A last layer of zeros makes NaN
/// of a NaN that only the head looks at, so it is shown none.
void is_the_rule(bool by_alpha) {
  slot_options const shape = any_shape();
  auto policy = any_policy(true);
  owned_head head(shape.model.head_dim, 8, 7, 1.0f, 0.5, shape.seed);
  if (by_alpha) head.set_alpha(*rc::gen::element(0.0f, -0.0f));
  if (!by_alpha) head.silence();
  policy.score.residual = head.view();
  agent learned(shape, policy, 33, kv::codec::f32);
  policy.score.mode = kv::intent_mode::memory;
  agent plain(shape, policy, 33, kv::codec::f32);
  dice random(shape.seed);
  for (int turn = 0; turn < 3; ++turn) {
    run_turn({&learned, &plain}, random, 33, any_budget(random, plain), by_alpha);
    check_equal(learned, plain);
    learned.apply();
    plain.apply();
  }
}

// --- Examples --------------------------------------------------------------------------------------------------------

/// The worked example of two turns: the first is long gone, only its memory is left.
struct worked_example {
  slot_options shape{.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 4}, .bound = 8};
  agent of;

  explicit worked_example(agent::policy_type const& policy) : of(shape, policy, 1, kv::codec::f32) {
    double const keys[5][4] = {{1, 1, 0, 0}, {0, 0, 2, 0}, {0, 0, 0, 3}, {-1, 0, 0, 1}, {4, 0, 0, 0}};
    of.append(0, {.tokens = 4, .rows = 1, .begin = 0, .end = 1, .numbers = {0, 1, 2, 3}});
    speak({1, 1, 0, 0}, {0, 0, 2, 0});
    kv::observe(of.exec, of.policy, kv::signals{of.view.lanes, kv::keys_of(of.view), of.rows.view()}, of.state);
    of.append(0, {.tokens = 1, .rows = 1, .begin = 0, .end = 1, .numbers = {4}});
    for (int j = 0; j < 5; ++j) {
      of.cache.write(true, {}, of.cache.list[as_size(j)], 0, reference::row(keys[j], keys[j] + 4));
    }
    speak({0, 0, 0, 1}, {1, 0, 0, 0});
    of.observe_and_decide();
  }
  void speak(reference::row const& first, reference::row const& second) {
    of.rows.write({}, 0, 0, first);
    of.rows.write({}, 1, 0, second);
  }
};

agent::policy_type budget_of(int tokens, kv::intent_kv const& score = {}) {
  return {.score = score, .protect = {0}, .budget = {tokens}};
}

/// One turn of so many tokens in one lane of D = 64, of which the last `span` are the span.
struct one_turn {
  agent of;
  one_turn(agent::policy_type const& policy, int tokens, int span, int bad_key = -1)
      : of({.model = {.layers = 2, .query_heads = 4, .kv_heads = 1, .head_dim = 64}, .bound = tokens}, policy, span,
           kv::codec::f32, 2) {
    turn_plan turn{.tokens = tokens, .rows = span, .begin = 0, .end = span};
    for (int t = 0; t < tokens; ++t) turn.numbers.push_back(t);
    of.append(0, turn);
    dice random(3);
    of.rows.fill(random, 2.0);
    if (bad_key >= 0) {
      reference::row const nothing(1, std::numeric_limits<double>::quiet_NaN());
      of.cache.write(true, {0, 1, 0}, of.cache.list[as_size(bad_key)], 0, nothing);
    }
    of.observe_and_decide();
  }
  [[nodiscard]] ordinals kept() { return listed(of.plan.keep(), 0); }
};

ordinals from_to(std::vector<std::pair<int, int>> const& ranges) {
  ordinals all;
  for (auto const& [begin, end] : ranges) {
    for (int i = begin; i < end; ++i) all.push_back(i);
  }
  return all;
}

}  // namespace

TEST_SUITE("scorers/intent_kv") {
  TEST_CASE("the worked example: the rule over three candidates, and what a budget of 4 keeps") {
    worked_example example(budget_of(4, {.prefix = 1}));
    double const rule[] = {0, .674134, .913122, .412745, 0};
    auto const found = example.of.scores(0);
    for (std::size_t j = 1; j < 4; ++j) CHECK(std::abs(static_cast<double>(found[j]) - rule[j]) <= 1e-6);
    CHECK(found[0] == -std::numeric_limits<float>::infinity());
    CHECK(found[4] == -std::numeric_limits<float>::infinity());
    CHECK(listed(example.of.plan.keep(), 0) == ordinals{0, 1, 2, 4});
    CHECK(example.of.plan.report() == kv::report{.triggered = 1});
  }

  TEST_CASE("in the query mode the first turn of the worked example counts for nothing") {
    worked_example example(budget_of(4, {.mode = kv::intent_mode::query, .prefix = 1}));
    auto const expected =
        reference::intent_kv(example.of.sequence(0), {{{0, 0, 0, 1}, {1, 0, 0, 0}}}, {.budget = 4, .prefix = 1});
    auto const found = example.of.scores(0);
    for (std::size_t j = 1; j < 4; ++j) CHECK(close(static_cast<double>(found[j]), expected.scores[j]));
  }

  TEST_CASE("memory and query modes decide as the reference, turn after turn") {
    holds("any agent", 300, [] { decides_as_the_reference(false); });
  }

  TEST_CASE("the learnable mode decides as the reference, turn after turn") {
    holds("any agent and any head", 100, [] { decides_as_the_reference(true); });
  }

  TEST_CASE("a residual of nothing is the memory mode to the last bit") {
    holds("alpha = 0", 50, [] { is_the_rule(true); });
    holds("a last layer of zeros", 50, [] { is_the_rule(false); });
  }

  TEST_CASE("thousands of entries decide as the reference") {
    for (bool const learned : {false, true}) {
      owned_head const head(64, 8, 16, 1.0f, 0.1, 5);
      kv::intent_kv const score{
          .mode = learned ? kv::intent_mode::learnable : kv::intent_mode::memory, .prefix = 7, .residual = head.view()};
      int const entries = under_address_sanitizer ? 1025 : 4097;
      holds("as many entries of 2 layers", 1, [&] {
        one_turn example(budget_of(entries / 4, score), entries, 40);
        RC_ASSERT(judge(example.of).check(learned ? &head : nullptr) == 1);
      });
    }
  }

  TEST_CASE("a forced set above the budget stays whole and is reported, at it nothing else stays") {
    for (int const budget : {0, 1, 12, 13}) {
      one_turn example(budget_of(budget, {.prefix = 3}), 40, 10);
      CHECK(example.kept() == from_to({{0, 3}, {30, 40}}));
      int const over = budget < 13 ? 1 : 0;
      CHECK(example.of.plan.report() == kv::report{.forced_over_budget = over, .triggered = 1, .over_budget = over});
    }
    one_turn example(budget_of(14, {.prefix = 3}), 40, 10);
    CHECK(example.kept().size() == 14);
  }

  TEST_CASE("up to the budget, and below the growth, nothing goes but the turn is remembered") {
    one_turn decided(budget_of(10), 40, 5);
    for (auto const& policy : {budget_of(40), budget_of(30, {.min_growth = 11})}) {
      one_turn idle(policy, 40, 5);
      CHECK(idle.kept() == from_to({{0, 40}}));
      CHECK(idle.of.plan.report() == kv::report{.over_budget = policy.budget.tokens < 40 ? 1 : 0});
      CHECK(idle.of.memory(0) == decided.of.memory(0));
    }
    CHECK(one_turn(budget_of(30, {.min_growth = 10}), 40, 5).kept().size() == 30);
  }

  TEST_CASE("a NaN in a candidate's key is every candidate's score; in a forced one it is nobody's") {
    one_turn candidate(budget_of(16, {.prefix = 2}), 40, 5, 20);
    CHECK(candidate.kept() == from_to({{0, 11}, {35, 40}}));
    CHECK(candidate.of.plan.report() == kv::report{.nan_scores = 33, .triggered = 1});
    one_turn clean(budget_of(16, {.prefix = 2}), 40, 5);
    for (int const forced : {1, 37}) {
      one_turn example(budget_of(16, {.prefix = 2}), 40, 5, forced);
      CHECK(example.kept() == clean.kept());
      CHECK(example.of.plan.report() == kv::report{.triggered = 1});
      CHECK(same_bits(example.of.scores(0), clean.of.scores(0)));
    }
  }

  TEST_CASE("a head of another model, or none where it is needed, is refused") {
    auto const learnable = [](kv::residual_head const& head) {
      return budget_of(8, {.mode = kv::intent_mode::learnable, .residual = head});
    };
    owned_head const other(128, 8, 4, 1.0f, 0.1, 1), uneven(64, 6, 4, 1.0f, 0.1, 1);
    CHECK_THROWS_AS(one_turn(learnable({}), 20, 4), kv::invalid_argument);
    CHECK_THROWS_AS(one_turn(learnable(other.view()), 20, 4), kv::invalid_argument);
    CHECK_THROWS_AS(one_turn(learnable(uneven.view()), 20, 4), kv::invalid_argument);
    CHECK_THROWS_AS(one_turn(budget_of(8, {.prefix = -1}), 20, 4), kv::invalid_argument);
    CHECK_THROWS_AS(one_turn(budget_of(8, {.tail = 0}), 20, 4), kv::invalid_argument);
    CHECK_THROWS_AS(one_turn(budget_of(8, {.min_growth = -1}), 20, 4), kv::invalid_argument);
    CHECK_THROWS_AS(one_turn(budget_of(8, {.lambda = std::nanf("")}), 20, 4), kv::invalid_argument);
  }

  TEST_CASE("it prints its name and its parameters") {
    CHECK(kv::to_string(kv::intent_kv{}) ==
          "intent_kv(mode=memory, lambda=0.5, prefix=0, tail=32, normalize_encoding=false, min_growth=0, "
          "cross_attention=true)");
  }
}
