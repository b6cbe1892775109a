// SPDX-License-Identifier: Apache-2.0
// The query memory against the reference: what each turn leaves in it, and what outlives a request.

#include "support/turn_rows.hpp"

namespace {

using namespace kvpolicy_test;

/// A state that holds the memory alone.
struct memory_of {
  memory_of(kv::record_query_memory const& how, kv::shape const& model, int sequences, int threads = 1)
      : keeps(how),
        exec(threads),
        lanes(sequences, model.layers, model.kv_heads, 4,
              std::vector<int>(as_size(sequences * model.layers * model.kv_heads), 0)),
        state(exec, model, lanes.view()) {
    exec.reserve(1 << 16);
    state.add(keeps);
  }
  void observe(kv::turn_queries const& turn, kv::lanes const& batch) {
    keeps.observe(exec, kv::signals{batch, turn}, state.columns_from(0));
  }
  void observe(kv::turn_queries const& turn) { observe(turn, lanes.view()); }

  /// The row of each layer and query head, through the signal.
  [[nodiscard]] std::vector<float> row(int sequence, int layer, int query_head) {
    kv::query_memory const seen = kv::record_query_memory::view(state.columns_from(0));
    std::vector<float> values(as_size(state.model().head_dim));
    std::memcpy(values.data(), seen.at({sequence, layer, query_head / state.model().group()}, query_head, 0),
                values.size() * sizeof(float));
    return values;
  }
  [[nodiscard]] std::vector<std::byte> saved(int sequence) {
    std::vector<std::byte> bytes(state.session_bytes());
    state.save_session(exec, sequence, bytes.data());
    return bytes;
  }

  kv::record_query_memory keeps;
  kv::host_executor exec;
  owned_lanes lanes;
  kv::state<kv::host_executor> state;
};

/// The elements of a unit vector: within 1e-5 of its length.
comparison same_memory(memory_of& actual, int sequence, reference::head_rows const& expected) {
  for (std::size_t l = 0; l < expected.size(); ++l) {
    for (std::size_t h = 0; h < expected[l].size(); ++h) {
      auto const row = actual.row(sequence, static_cast<int>(l), static_cast<int>(h));
      comparison const one = compare(row, expected[l][h], 1.0);
      if (!one) return one;
    }
  }
  return {};
}

kv::shape any_model() {
  kv::shape model;
  model.head_dim = *rc::gen::element(64, 80, 128, 256, 4, 5);
  model.layers = *rc::gen::inRange(1, 4);
  model.kv_heads = *rc::gen::inRange(1, 4);
  model.query_heads = model.kv_heads * *rc::gen::element(1, 4, 8);
  return model;
}

std::vector<int> from(int first, int count) {
  std::vector<int> all;
  for (int i = 0; i < count; ++i) all.push_back(first + i);
  return all;
}

/// Several turns of two sequences, of which one may have none: on one thread, on three, and layer by layer.
void remembers_as_the_reference() {
  kv::shape const model = any_model();
  kv::codec const element = any_float();
  int const capacity = *rc::gen::element(1, 31, 32, 33, 40);
  kv::record_query_memory const how{.keep = *rc::gen::element(0.60653066f, 0.0f, 1.0f),
                                    .normalize_encoding = any_bool(),
                                    .tail = *rc::gen::element(32, 1, 5)};
  dice random(*rc::gen::inRange<std::uint64_t>(1, 1u << 20));
  RC_LOG() << model.layers << " layers, " << model.query_heads << "/" << model.kv_heads << ", D " << model.head_dim
           << ", " << kv::name_of(element) << ", capacity " << capacity << '\n';
  memory_of one(how, model, 2), many(how, model, 2, 3), layered(how, model, 2);
  std::vector<reference::head_rows> expected(
      2, reference::no_memory(as_size(model.layers), as_size(model.query_heads), as_size(model.head_dim)));
  for (int turn = 0; turn < 3; ++turn) {
    turn_rows rows(model, 2, capacity, element);
    rows.fill(random, 3.0);
    for (int s = 0; s < 2; ++s) {
      int const count = random.chance(25) ? 0 : random.between(1, capacity);
      int const begin = random.below(count + 1);
      rows.turn(s, from(100 * turn, count), begin, random.between(begin, count), random.below(capacity));
    }
    bool const resolved = random.chance(80);
    auto const before = one.saved(0), before_other = one.saved(1);
    one.observe(rows.view(resolved));
    many.observe(rows.view(resolved));
    for (int l = 0; l < model.layers; ++l)
      layered.observe(rows.view(resolved), layered.lanes.view().layers_only(l, l + 1));
    for (int s = 0; s < 2; ++s) {
      if (!resolved) rows.turn(s, from(100 * turn, rows.rows(s)), 0, 0, rows.first(s));
      auto& memory = expected[as_size(s)];
      // e^-lambda is `keep`; the reference forgets where it is 0.
      double const lambda = how.keep > 0 ? -std::log(static_cast<double>(how.keep)) : 0;
      memory = reference::remembered(
          memory, rows.span_rows(s, how.tail),
          {.lambda = lambda, .normalize_encoding = how.normalize_encoding, .forgets = how.keep == 0});
      comparison const result = same_memory(one, s, memory);
      RC_LOG() << "turn " << turn << ", sequence " << s << ": " << result << '\n';
      RC_ASSERT(result.same);
      RC_ASSERT(one.saved(s) == many.saved(s));
      RC_ASSERT(one.saved(s) == layered.saved(s));
      if (rows.rows(s) == 0) RC_ASSERT(one.saved(s) == (s == 0 ? before : before_other));
    }
  }
}

}  // namespace

TEST_SUITE("recorders/remember") {
  TEST_CASE("the worked example: two turns, literally") {
    kv::shape const model{.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 4};
    memory_of memory({}, model, 1);
    turn_rows rows(model, 1, 1);
    rows.turn(0, {0}, 0, 1);
    rows.write({}, 0, 0, {1, 1, 0, 0});
    rows.write({}, 1, 0, {0, 0, 2, 0});
    memory.observe(rows.view());
    CHECK(same_memory(memory, 0, {{{std::sqrt(.5), std::sqrt(.5), 0, 0}, {0, 0, 1, 0}}}));
    rows.write({}, 0, 0, {0, 0, 0, 1});
    rows.write({}, 1, 0, {1, 0, 0, 0});
    memory.observe(rows.view());
    reference::row const first{.366702, .366702, 0, .855020}, second{.855020, 0, .518596, 0};
    for (std::size_t d = 0; d < 4; ++d) {
      CHECK(std::abs(static_cast<double>(memory.row(0, 0, 0)[d]) - first[d]) <= 1e-6);
      CHECK(std::abs(static_cast<double>(memory.row(0, 0, 1)[d]) - second[d]) <= 1e-6);
    }
  }

  TEST_CASE("any turns of any shape are remembered as the reference remembers them") {
    holds("the memory, on one thread, on three, and layer by layer", 300, remembers_as_the_reference);
  }

  TEST_CASE("rows of zeros leave a memory of zeros, and a turn that cancels it leaves nothing that is not a number") {
    kv::shape const model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 64};
    memory_of memory({.keep = 1}, model, 1);
    turn_rows rows(model, 1, 2);
    rows.turn(0, {0, 1}, 0, 2);
    reference::row const zeros(64, 0.0);
    rows.write({}, 0, 0, zeros);
    rows.write({}, 0, 1, zeros);
    memory.observe(rows.view());
    CHECK(same_memory(memory, 0, {{zeros}}));
    reference::row axis = zeros;
    for (double const sign : {1.0, -1.0}) {
      axis[5] = sign;
      rows.write({}, 0, 0, axis);
      rows.write({}, 0, 1, axis);
      memory.observe(rows.view());
    }
    CHECK(same_memory(memory, 0, {{zeros}}));
  }

  TEST_CASE("a session is saved and goes on in another sequence, which others do not notice") {
    kv::shape const model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 64};
    memory_of first({}, model, 1), second({}, model, 3), straight({}, model, 1);
    CHECK(first.state.session_bytes() == std::size_t{2} * 4 * 64 * 4);
    dice random(7);
    turn_rows rows(model, 1, 5);
    rows.fill(random, 1.0);
    rows.turn(0, from(0, 5), 1, 4);
    first.observe(rows.view());
    straight.observe(rows.view());
    auto const others = second.saved(2);
    second.state.load_session(second.exec, 1, first.saved(0).data());
    CHECK(second.saved(1) == first.saved(0));
    CHECK(second.saved(0) == others);
    CHECK(second.saved(2) == others);

    turn_rows next(model, 3, 5), alone(model, 1, 5);
    next.fill(random, 1.0);
    next.turn(1, from(9, 5), 0, 5);
    alone.turn(0, from(9, 5), 0, 5);
    for (int r = 0; r < 5; ++r) {
      for (int i = 0; i < 8; ++i) {
        reference::row values(64);
        for (double& each : values) each = random.real(1.0);
        next.write({1, i / 4, 0}, i % 4, r, values);
        alone.write({0, i / 4, 0}, i % 4, r, values);
      }
    }
    second.observe(next.view());
    straight.observe(alone.view());
    CHECK(second.saved(1) == straight.saved(0));
    CHECK(second.saved(0) == others);
  }

  TEST_CASE("a span of thousands of rows has their mean") {
    kv::shape const model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 64};
    memory_of memory({}, model, 1);
    turn_rows rows(model, 1, 4097);
    dice random(11);
    rows.fill(random, 2.0);
    rows.turn(0, from(0, 4097), 0, 4097);
    memory.observe(rows.view());
    CHECK(same_memory(memory, 0, reference::remembered(reference::no_memory(1, 1, 64), rows.span_rows(0, 32), {})));
  }

  TEST_CASE("a span that is not among the rows is refused, and nothing was remembered") {
    kv::shape const model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 64};
    memory_of memory({}, model, 2);
    turn_rows rows(model, 2, 6);
    dice random(12);
    rows.fill(random, 2.0);
    rows.turn(0, from(0, 5), 0, 5);
    for (auto const& [begin, end] : {std::pair{10, 12}, {3, 6}, {-3, 2}, {4, 2}}) {
      rows.turn(1, from(0, 5), begin, end);
      CHECK_THROWS_AS(memory.observe(rows.view()), kv::invalid_argument);
    }
    CHECK(same_memory(memory, 0, reference::no_memory(1, 1, 64)));
  }

  TEST_CASE("a session of a sequence that is not there is refused") {
    memory_of one({}, {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, 2);
    std::vector<std::byte> bytes(one.state.session_bytes());
    for (int const sequence : {-1, 2}) {
      CHECK_THROWS_AS(one.state.save_session(one.exec, sequence, bytes.data()), kv::invalid_argument);
      CHECK_THROWS_AS(one.state.load_session(one.exec, sequence, bytes.data()), kv::invalid_argument);
    }
  }
}
