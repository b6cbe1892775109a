// SPDX-License-Identifier: Apache-2.0
// H2O with the probabilities that an engine has computed itself, against sums in double precision.

#include "laws/refusal.hpp"
#include "reference/heavy_hitters.hpp"

namespace probabilities_test {

using namespace kvpolicy_test;

/// The probabilities of one forward of a batch, [layer, sequence, query head, row, entry], with positions of the rows.
struct forward {
  forward(kv::shape const& shape, kv::codec of, int batch, int most_rows, int row_entries)
      : model(shape), element(of), sequences(batch), rows(most_rows), entries(row_entries) {
    memory.resize(as_size(shape.layers * batch * shape.query_heads * rows * entries * kv::bytes_of(of)));
    positions.resize(as_size(batch * rows));
    valid.assign(as_size(batch), rows);
  }
  std::byte* at(kv::lane of, int query_head, int row, int entry) {
    int const head = (of.layer * sequences + of.sequence) * model.query_heads + query_head;
    return memory.data() + ((head * rows + row) * entries + entry) * kv::bytes_of(element);
  }
  [[nodiscard]] kv::attention_probabilities view() const {
    return kv::probabilities_of(memory.data(), element, model, rows, entries, positions.data(),
                                {.sequences = sequences, .valid_rows = valid.data()});
  }

  kv::shape model;
  kv::codec element;
  int sequences;
  int rows;
  int entries;
  std::vector<std::byte> memory;
  std::vector<int> positions, valid;
};

/// The mass that one forward adds to each entry of a lane, from the stored numbers.
reference::row added(forward& of, kv::lane lane, int count, kv::reduction how) {
  int const group = of.model.group();
  reference::row sums;
  for (int e = 0; e < count; ++e) {
    reference::row heads;
    for (int h = lane.head * group; h < (lane.head + 1) * group; ++h) {
      double received = 0;
      for (int r = 0; r < of.valid[as_size(lane.sequence)]; ++r) {
        received += decoded(of.element, of.at(lane, h, r, e));
      }
      heads.push_back(received);
    }
    double all = 0;
    for (double const one : heads) all += one;
    if (how == kv::reduction::mean) all /= group;
    if (how == kv::reduction::max) all = *std::max_element(heads.begin(), heads.end());
    sums.push_back(all);
  }
  return sums;
}

/// Forwards of a prompt in chunks and then of single tokens, with a decision after each, typed and by name.
void sums_as_the_reference() {
  mock_options how;
  how.model = {.layers = *rc::gen::inRange(1, 3), .query_heads = 1, .kv_heads = *rc::gen::inRange(1, 3), .head_dim = 4};
  how.model.query_heads = how.model.kv_heads * *rc::gen::element(1, 4, 8);
  how.sequences = *rc::gen::inRange(1, 3);
  how.bound = *rc::gen::element(31, 32, 33, 70);
  how.where = *rc::gen::element(kv::locating::identity, kv::locating::slot_map);
  how.shared_table = false;
  how.seed = any_seed();
  auto const element = any_float();
  auto const group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
  bool const by_name = any_bool();
  int const budget = *rc::gen::inRange(0, how.bound + 1);
  mock_cache cache(how);
  kv::cache view = cache.view();
  kv::host_executor exec(*rc::gen::element(1, 3));
  kv::h2o const score{.group = group};
  kv::eviction<kv::h2o> const policy{.score = score, .budget = {budget}};
  kv::any_policy const erased = policy;
  auto [state, plan] = state_and_plan(exec, policy, view, kv::compact{});
  std::vector<reference::h2o_lane> lanes(as_size(cache.lane_count()),
                                         reference::h2o_lane(budget / 2, budget - budget / 2));
  int position = 0;
  for (int const tokens : {7, 5, 1, 1, 1}) {
    forward now(how.model, element, how.sequences, tokens, how.bound);
    int longest = 0;
    for (int s = 0; s < how.sequences; ++s) {
      int const valid = tokens == 1 ? 1 : tokens - s;  // sequences of a prefill differ in length
      now.valid[as_size(s)] = valid;
      for (int r = 0; r < tokens; ++r) now.positions[as_size(s * tokens + r)] = r < valid ? position + r : 0;
      kv::append(exec, view, state, {.sequence = s, .tokens = valid, .position = position});
      longest = std::max(longest, valid);
    }
    for (int i = 0; i < cache.lane_count(); ++i) {
      for (int h = 0; h < how.model.query_heads; ++h) {
        for (int r = 0; r < tokens; ++r) {
          for (int e = 0; e < how.bound; ++e) {
            encode(element, cache.random().real(0.5) + 0.5, now.at(cache.lane_at(i), h, r, e));
          }
        }
      }
    }
    kv::signals const in{view.lanes, now.view()};
    if (by_name) {
      observe_and_decide(exec, erased, in, state, plan);
    } else {
      observe_and_decide(exec, policy, in, state, plan);
    }
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const lane = cache.lane_at(i);
      int const count = *view.lanes.count.row(lane);
      auto const kept = lanes[as_size(i)].step(added(now, lane, count, group));
      auto const& mass = lanes[as_size(i)].accumulated_before_drop();
      kv::score_view const scores = plan.scores(view.lanes);
      comparison const result = compare({scores.row(i), mass.size()}, mass, 1.0);
      RC_LOG() << "lane " << i << ": " << result << '\n';
      RC_ASSERT(result.same);
      RC_ASSERT(listed(plan.keep(), i) == kept);
    }
    kv::apply(exec, kv::compact{}, plan, view, state);
    position += longest;
  }
}

TEST_SUITE("recorders/attention_probabilities") {
  TEST_CASE("masses are the sums of the given probabilities, through prefill, decode and compaction") {
    holds("masses and keep sets", 150, sums_as_the_reference);
  }

  TEST_CASE("an engine's own probabilities give the masses that keys and queries give") {
    mock_cache cache({.model = {.layers = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 16}, .bound = 40});
    for (int i = 0; i < cache.lane_count(); ++i) {
      cache.put(cache.lane_at(i), up_to(33));
    }
    current_queries queries(cache, kv::codec::f32, 5, 5);
    for (int r = 0; r < 5; ++r) queries.set_position(0, r, 28 + r);
    forward now(cache.model(), kv::codec::f32, 1, 5, 40);
    for (int r = 0; r < 5; ++r) now.positions[as_size(r)] = 28 + r;
    for (kv::lane const lane : lanes_of(cache)) {
      auto const seen = reference_lane(cache, queries, lane);
      auto const visible = reference::visibility(seen, reference::key_domain::all);
      auto const logits = reference::attention_logits(seen);
      for (std::size_t h = 0; h < logits.size(); ++h) {
        for (std::size_t r = 0; r < 5; ++r) {
          auto const weights = reference::softmax(logits[h][r], visible[r]);
          for (std::size_t e = 0; e < weights.size(); ++e) {
            int const head = lane.head * cache.model().group() + static_cast<int>(h);
            encode(kv::codec::f32, weights[e], now.at(lane, head, static_cast<int>(r), static_cast<int>(e)));
          }
        }
      }
    }
    kv::host_executor exec;
    kv::eviction<kv::h2o> const policy{.budget = {12}};
    kv::cache const view = cache.view();
    auto given = kv::make_state(exec, policy, view);
    auto computed = kv::make_state(exec, policy, view);
    kv::observe(exec, policy, kv::signals{view.lanes, now.view()}, given);
    kv::observe(exec, policy, kv::signals{view.lanes, kv::keys_of(view), kv::queries{queries.view()}}, computed);
    for (int i = 0; i < cache.lane_count(); ++i) {
      auto const mass = [&](auto& state) {
        return state.columns_from(0).template table<float const>(0).row(cache.lane_at(i));
      };
      for (int e = 0; e < 33; ++e) CHECK(mass(given)[e] == doctest::Approx(mass(computed)[e]).epsilon(1e-5));
    }
    // Given both, the engine's own come first: nothing is counted twice.
    auto both = kv::make_state(exec, policy, view);
    kv::observe(exec, policy, kv::signals{view.lanes, kv::keys_of(view), kv::queries{queries.view()}, now.view()},
                both);
    for (int i = 0; i < cache.lane_count(); ++i) {
      auto const* const one = both.columns_from(0).table<float const>(0).row(cache.lane_at(i));
      auto const* const other = given.columns_from(0).table<float const>(0).row(cache.lane_at(i));
      CHECK(std::equal(one, one + 33, other));
    }
  }

  TEST_CASE("probabilities that do not fit are refused, and nothing changes") {
    working_batch now;
    forward right(now.view.shape, kv::codec::f32, 2, 3, 16);
    for (int s = 0; s < 2; ++s) {
      for (int r = 0; r < 3; ++r) right.positions[as_size(3 * s + r)] = 7 + r;
    }
    auto const refuses = [&](std::string const& text, auto const& change) {
      kv::attention_probabilities bad = right.view();
      change(bad);
      now.refuses("observe: attention_probabilities" + text,
                  [&] { kv::observe(now.exec, now.policy, kv::signals(now.view.lanes, bad), now.state); });
      kv::any_policy const erased = now.policy;
      now.refuses("observe: attention_probabilities" + text,
                  [&] { kv::observe(now.exec, erased, kv::signals(now.view.lanes, bad), now.state); });
    };
    refuses(" = null, but a signal is the engine's memory", [](auto& bad) { bad.base = nullptr; });
    refuses(" = opaque rows, but only their engine can read them", [](auto& bad) { bad.element = kv::codec::opaque; });
    refuses(".position = null, but every row says its position", [](auto& bad) { bad.position = {}; });
    refuses(".heads = 2, but the model has 4 query heads", [](auto& bad) { bad.heads = 2; });
    refuses(".rows = -1, but a count cannot be negative", [](auto& bad) { bad.rows = -1; });
    refuses(".sequence = 0, but there are 2 sequences, and each has memory of its own",
            [](auto& bad) { bad.sequence = 0; });
    refuses(".layer = 0, but there are 2 layers, and each has memory of its own", [](auto& bad) { bad.layer = 0; });
    refuses(".head = 0, but there are 4 query heads, and each has memory of its own", [](auto& bad) { bad.head = 0; });
    refuses(".row = 0, but there are 3 rows, and each has memory of its own", [](auto& bad) { bad.row = 0; });
    refuses(".position.sequence = 0, but there are 2 sequences, and each has memory of its own",
            [](auto& bad) { bad.position.sequence = 0; });
    refuses(".valid_rows.sequence = 0, but there are 2 sequences, and each has memory of its own",
            [](auto& bad) { bad.valid_rows.sequence = 0; });
    refuses(".entries = 9, but a lane holds 10 entries, and each row has one for each of them",
            [](auto& bad) { bad.entries = 9; });
    right.valid[1] = 4;
    refuses(".valid_rows = 4 of sequence 1, but a lane has 0 to 3 rows", [](auto&) {});
    right.valid[1] = 3;
    for (int& each : right.positions) --each;
    refuses(
        ".position = 8 in the last row of sequence 0, but the newest entry is at 9: these rows are of an earlier "
        "forward, or positions do not count from the sequence's start",
        [](auto&) {});
    right.valid[0] = right.valid[1] = 0;  // no rows: nothing to refuse
    CHECK(error_of([&] {
            kv::observe(now.exec, now.policy, kv::signals(now.view.lanes, right.view()), now.state);
          }).empty());
  }

  TEST_CASE("by name a missing signal is told with the one that can stand for it") {
    working_batch now;
    kv::any_policy const erased = now.policy;
    now.refuses("observe: signals = keys, but h2o needs signal queries or attention_probabilities",
                [&] { kv::observe(now.exec, erased, kv::signals(now.view.lanes, kv::keys_of(now.view)), now.state); });
    now.refuses("observe: signals = queries, but h2o needs signal keys or attention_probabilities", [&] {
      kv::observe(now.exec, erased, kv::signals(now.view.lanes, kv::queries{now.queries.view()}), now.state);
    });
  }
}

}  // namespace probabilities_test
