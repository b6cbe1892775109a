// SPDX-License-Identifier: Apache-2.0
// A decoder whose layers differ (a soft cap, a window that the engine keeps itself, sinks, a shared cache, latent rows,
// other head counts) says under evictions what its full cache says under a mask of the same keep sets.

#include "groups/mixed_decoder.hpp"

namespace {

using namespace kvpolicy_test;

constexpr int capacity = 64;

std::vector<mixed_layer> layers() {
  double const scale = 1 / std::sqrt(8.0);
  return {{.scale = 3 * scale, .soft_cap = 0.5},
          {.scale = scale, .window = 6},
          {.scale = scale, .sinks = true},
          {.scale = scale, .reads = 2},
          {.kv_heads = 1, .head_dim = 12, .value_dim = 8, .rope_dim = 4, .scale = 8, .latent = true},
          {.kv_heads = 1, .head_dim = 16, .value_dim = 4, .rope_dim = 16, .scale = 0.25},
          {.scale = 3 * scale, .soft_cap = 0.5}};
}

/// The cache of one group: [layer][token][head][channel], counts, positions, slots and a mask.
struct group_memory {
  group_memory(mixed_layer const& like, int count)
      : of(like),
        model{.layers = count,
              .query_heads = mixed_decoder<float>::query_heads,
              .kv_heads = like.kv_heads,
              .head_dim = like.head_dim,
              .value_dim = like.value_dim},
        lanes(count * like.kv_heads),
        k(as_size(lanes * capacity * like.head_dim)),
        v(as_size(lanes * capacity * like.value_dim)),
        counts(as_size(lanes)),
        positions(as_size(lanes * capacity)),
        slots(positions.size()),
        hidden(positions.size()) {
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int>(i) % capacity;
    for (int l = 0; l < count; ++l) {
      for (int h = 0; h < model.query_heads; ++h) sinks.push_back(0);
    }
  }

  [[nodiscard]] kv::cache view(bool by_slot) {
    auto const plane = [&](std::vector<float>& rows, int dims) {
      std::int64_t const row = dims * std::int64_t{4};
      kv::plane made{.base = reinterpret_cast<std::byte*>(rows.data()),
                     .channels = dims,
                     .layer_stride = row * model.kv_heads * capacity,
                     .token_stride = row * model.kv_heads,
                     .head_stride = row,
                     .channel_stride = 4};
      if (by_slot) made.unit_stride = made.token_stride;
      return made;
    };
    std::int64_t const heads = model.kv_heads;
    kv::cache made{.shape = model,
                   .lanes = {.layer_end = model.layers,
                             .heads = model.kv_heads,
                             .capacity = capacity,
                             .count = {counts.data(), 0, heads, 1},
                             .position = {positions.data(), 0, heads * capacity, capacity}},
                   .k = plane(k, of.head_dim),
                   .where = kv::identity_map(capacity)};
    if (!of.latent) made.v = plane(v, of.value_dim);
    if (by_slot) made.where = kv::slot_map({slots.data(), 0, heads * capacity, capacity}, capacity);
    made.logits.scale = static_cast<float>(of.scale);
    made.logits.soft_cap = static_cast<float>(of.soft_cap);
    if (of.sinks) made.logits.sinks = {sinks.data(), model.query_heads};
    return made;
  }
  [[nodiscard]] kv::mask mask() {
    std::int64_t const heads = model.kv_heads;
    kv::mask made;
    made.list = {slots.data(), 0, heads * capacity, capacity};
    made.rows =
        kv::mask_rows{.rows = {reinterpret_cast<std::byte*>(hidden.data()), 0, heads * capacity * 4, capacity * 4},
                      .units = capacity};
    return made;
  }
  [[nodiscard]] std::size_t lane(int layer, int head) const { return as_size(layer * model.kv_heads + head); }

  mixed_layer of;
  kv::shape model;
  int lanes;
  std::vector<float> k, v;
  std::vector<int> counts, positions, slots;
  std::vector<float> hidden;  ///< the mask: 0 or -inf for each slot of a lane
  std::vector<float> sinks;
};

/// Runs the decoder with the library's groups, and its reference beside it. Returns the largest difference of a logit.
template <class Policies>
double largest_difference(Policies const& policies, bool masked) {
  std::vector<mixed_layer> const shape = layers();
  std::vector<std::vector<int>> const members{{0, 6}, {1}, {2}, {4}, {5}};
  char const* const names[] = {"capped", "sliding", "sinks", "latent", "one head"};
  std::vector<group_memory> memory;
  kv::layer_groups model{.layers = 7, .shared = {{.layer = 3, .owner = 2}}};
  for (std::size_t g = 0; g < members.size(); ++g) {
    memory.emplace_back(shape[as_size(members[g][0])], static_cast<int>(members[g].size()));
    for (int h = 0; h < 4; ++h) memory.back().sinks[as_size(h)] = mixed_decoder<float>::sink_of(members[g][0], h);
  }
  for (std::size_t g = 0; g < members.size(); ++g)
    model.groups.push_back({names[g], memory[g].view(masked), members[g]});
  kv::host_executor exec;
  auto [states, plans] = state_and_plan(exec, policies, model);
  CHECK_FALSE(states.of[1].has_value());

  std::map<std::tuple<int, int, int>, std::vector<float>> queries;  // of this forward, by layer, head, position
  mixed_decoder<float> tested(shape);
  tested.write = [&](int layer, int head, int position, std::vector<float> const& key,
                     std::vector<float> const& value) {
    auto const [g, l] = model.find(layer);
    group_memory& of = memory[as_size(g)];
    kv::lane const one{0, l, head};
    int ordinal = of.of.window > 0 ? position % of.of.window : 0;
    if (of.of.window == 0) {
      int const* const all = &of.positions[of.lane(l, head) * capacity];
      ordinal = static_cast<int>(std::find(all, all + capacity, position) - all);
    }
    if (masked && of.of.window == 0) {  // the engine gives a new token the next slot of the pool
      of.slots[of.lane(l, head) * capacity + as_size(ordinal)] = position;
    }
    kv::cache const& in = model.groups[as_size(g)].entries;
    auto const place = in.where.at(one, ordinal);
    std::copy(key.begin(), key.end(), reinterpret_cast<float*>(in.k.row(l, place, head)));
    if (!of.of.latent) std::copy(value.begin(), value.end(), reinterpret_cast<float*>(in.v.row(l, place, head)));
  };
  tested.read = [&](int layer, int head, int position) {
    auto const [g, l] = model.find(layer);
    group_memory& of = memory[as_size(g)];
    kv::cache const& in = model.groups[as_size(g)].entries;
    std::vector<mixed_decoder<float>::seen_entry> seen;
    auto const show = [&](kv::place place) {
      auto const* const key = reinterpret_cast<float const*>(in.k.row(l, place, head));
      seen.push_back({key, of.of.latent ? key : reinterpret_cast<float const*>(in.v.row(l, place, head))});
    };
    kv::lane const one{0, l, head};
    if (of.of.window > 0) {
      for (int p = std::max(0, position - of.of.window + 1); p <= position; ++p)
        show(in.where.at(one, p % of.of.window));
    } else if (masked) {  // all slots that were written, but for those that the mask hides
      for (int slot = 0; slot <= position; ++slot) {
        if (of.hidden[of.lane(l, head) * capacity + as_size(slot)] == 0) show({slot, 0});
      }
    } else {
      for (int e = 0; e < of.counts[of.lane(l, head)]; ++e) {
        if (in.lanes.position.row(one)[e] <= position) show(in.where.at(one, e));
      }
    }
    return seen;
  };
  tested.show = [&](int layer, int head, int position, std::vector<float> const& query) {
    queries[{layer, head, position}] = query;
  };

  // The reference keeps every token, and hides those that a lane does not hold.
  std::map<std::tuple<int, int, int>, std::pair<std::vector<double>, std::vector<double>>> kept;
  mixed_decoder<double> reference(shape);
  reference.write = [&](int layer, int head, int position, std::vector<double> const& key,
                        std::vector<double> const& value) { kept[{layer, head, position}] = {key, value}; };
  reference.read = [&](int layer, int head, int position) {
    auto const [g, l] = model.find(layer);
    group_memory const& of = memory[as_size(g)];
    std::vector<mixed_decoder<double>::seen_entry> seen;
    for (int p = 0; p <= position; ++p) {
      std::size_t const lane = of.lane(l, head);
      auto const begin = of.positions.begin() + static_cast<std::ptrdiff_t>(lane * capacity);
      bool const holds =
          of.of.window > 0 ? p > position - of.of.window : std::binary_search(begin, begin + of.counts[lane], p);
      auto const& [key, value] = kept[{layer, head, p}];
      if (holds) seen.push_back({key.data(), value.data()});
    }
    return seen;
  };

  // The keep sets that the policies must choose, from the reference's keys and queries.
  std::map<std::tuple<int, int, int>, std::vector<double>> reference_queries;
  reference.show = [&](int layer, int head, int position, std::vector<double> const& query) {
    reference_queries[{layer, head, position}] = query;
  };
  auto const attention = [&](int layer, int head, int position, std::vector<int> const& held) {
    mixed_layer const& like = shape[as_size(layer)];
    double total = like.sinks ? std::exp(mixed_decoder<double>::sink_of(layer, head)) : 0;
    std::vector<double> made;
    for (int const p : held) {
      auto const& key = kept[{layer, head / (4 / like.kv_heads), p}].first;
      auto const& query = reference_queries[{layer, head, position}];
      double logit = like.scale * std::inner_product(key.begin(), key.end(), query.begin(), 0.0);
      if (like.soft_cap > 0) logit = like.soft_cap * std::tanh(logit / like.soft_cap);
      made.push_back(p <= position ? std::exp(logit) : 0);
      total += made.back();
    }
    for (double& each : made) each /= total;
    return made;
  };
  auto const held_by = [&](std::size_t g, int l, int head) {
    group_memory const& of = memory[g];
    std::size_t const lane = of.lane(l, head);
    auto const begin = of.positions.begin() + static_cast<std::ptrdiff_t>(lane * capacity);
    return std::vector<int>(begin, begin + of.counts[lane]);
  };
  auto const top = [](std::vector<int> const& held, std::vector<double> const& scores, int recent, int budget) {
    if (static_cast<int>(held.size()) <= budget) return held;
    std::vector<std::size_t> order(held.size() - as_size(recent));
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
    std::vector<int> chosen(held.end() - recent, held.end());
    for (int i = 0; i < budget - recent; ++i) chosen.push_back(held[order[as_size(i)]]);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  };
  std::map<std::tuple<std::size_t, int, int, int>, double> mass;  // of group, layer, head and position
  auto const expected_of = [&](std::size_t g, int l, int head, int position, int tokens) {
    int const layer = members[g][as_size(l)];
    int const group = 4 / shape[as_size(layer)].kv_heads;
    std::vector<int> const held = held_by(g, l, head);
    std::vector<double> scores(held.size());
    if (g == 2) {  // TOVA: the last row, mean over the query heads of the layer
      for (int h = 0; h < 4; ++h) {
        auto const one = attention(layer, h, position + tokens - 1, held);
        for (std::size_t e = 0; e < held.size(); ++e) scores[e] += one[e] / 4;
      }
      return top(held, scores, 0, 12);
    }
    for (int t = 0; t < tokens; ++t) {  // H2O: all rows so far, half of the budget is recent
      for (int h = head * group; h < (head + 1) * group; ++h) {
        auto const one = attention(layer, h, position + t, held);
        for (std::size_t e = 0; e < held.size(); ++e) mass[{g, l, head, held[e]}] += one[e];
      }
    }
    for (std::size_t e = 0; e < held.size(); ++e) scores[e] = mass[{g, l, head, held[e]}];
    int const budget = g == 0 ? 12 : 10;
    return top(held, scores, budget / 2, budget);
  };

  double worst = 0;
  int next = 3;
  for (int position = 0; position < 48;) {
    int const tokens = position == 0 ? 20 : 1;
    kv::append(exec, model, states, {.sequence = 0, .tokens = tokens, .position = position});
    queries.clear();
    for (int t = 0; t < tokens; ++t) {
      int const token = position == 0 ? (t * 7) % 24 : next;
      auto const got = tested.forward(token, position + t);
      auto const expected = reference.forward(token, position + t);
      for (std::size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - expected[i]));
      next = static_cast<int>(std::max_element(got.begin(), got.end()) - got.begin());
    }
    std::vector<int> rows;
    for (int t = 0; t < tokens; ++t) rows.push_back(position + t);
    std::vector<std::vector<float>> tensors(members.size());
    auto const signals_of = [&](int g) {
      group_memory const& of = memory[as_size(g)];
      std::vector<float>& data = tensors[as_size(g)];
      data.clear();
      for (int const layer : members[as_size(g)]) {
        for (int t = 0; t < tokens; ++t) {
          for (int h = 0; h < 4; ++h) {
            auto const& query = queries[{layer, h, position + t}];
            data.insert(data.end(), query.begin(), query.end());
          }
        }
      }
      kv::cache const& in = model.groups[as_size(g)].entries;
      return kv::signals{in.lanes, kv::keys_of(in), kv::values_of(in),
                         kv::queries_of(data.data(), of.model, tokens, rows.data())};
    };
    std::map<std::tuple<std::size_t, int, int>, std::vector<int>> expected;
    for (std::size_t const g : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
      for (int l = 0; l < memory[g].model.layers; ++l) {
        for (int h = 0; h < memory[g].model.kv_heads; ++h) {
          expected[{g, l, h}] = expected_of(g, l, h, position, tokens);
        }
      }
    }
    kv::observe(exec, policies, model, signals_of, states);
    kv::decide(exec, policies, model, signals_of, states, plans);
    if (masked) {
      kv::apply(exec, [&](int g) { return memory[as_size(g)].mask(); }, plans, model, states);
    } else {
      kv::apply(exec, [](int) { return kv::compact{}; }, plans, model, states);
    }
    for (auto const& [lane, positions] : expected) {
      auto const [g, l, h] = lane;
      INFO(names[g] << ", layer " << l << ", head " << h << ", position " << position);
      CHECK(held_by(g, l, h) == positions);
    }
    position += tokens;
  }
  for (std::size_t g : {0u, 2u, 3u, 4u}) CHECK(memory[g].counts[0] <= 12);
  return worst;
}

TEST_SUITE("groups") {
  TEST_CASE("a decoder of mixed layers says under compact and mask what its full cache says under the same keep sets") {
    kv::by_group const policies(kv::policies::h2o({.budget = 12}), kv::no_policy{},
                                kv::eviction{.score = kv::tova{}, .budget = kv::per_lane{12}},
                                kv::policies::h2o({.budget = 10}),
                                kv::eviction{.score = kv::snapkv{.window = 4}, .budget = kv::per_lane{12}});
    CHECK(largest_difference(policies, false) < 1e-4);
    CHECK(largest_difference(policies, true) < 1e-4);
  }
}

}  // namespace
