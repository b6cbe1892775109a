// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "laws/subjects.hpp"
#include "reference/cache_model.hpp"
#include "reference/methods.hpp"
#include "support/masses.hpp"

namespace kvpolicy_test {

/// A serving engine in small: it runs forwards with made-up keys, values and queries, drafts, rolls back and evicts
/// through the library; and a plain model of every lane runs beside it. Every token has a number of its own, from which
/// all of its rows follow, so that a row in the wrong place is seen.
template <class Policy>
class engine {
 public:
  engine(mock_options const& shape, Policy const& policy, int threads = 1)
      : cache(shape),
        policy_(policy),
        exec_(threads),
        state_(kv::make_state(exec_, policy, cache.view())),
        plan_(kv::make_plan(exec_, policy, cache.view())),
        lanes_(as_size(cache.lane_count()), reference::lane_model(as_size(cache.value_dim()))),
        rings_(as_size(shape.sequences)),
        next_(as_size(shape.sequences), 0) {}

  mock_cache cache;

  [[nodiscard]] int sequences() const { return cache.options().sequences; }
  [[nodiscard]] int next(int sequence) const { return next_[as_size(sequence)]; }
  [[nodiscard]] kv::plan<kv::host_executor> const& plan() const { return plan_; }
  [[nodiscard]] reference::lane_model& lane(int i) { return lanes_[as_size(i)]; }

  /// How many tokens a sequence has room for.
  [[nodiscard]] int room(int sequence) {
    int most = cache.options().bound;
    for_each_lane(sequence, [&](kv::lane this_lane, reference::lane_model&) {
      most = std::min(most, cache.options().bound - cache.count(this_lane));
    });
    return most;
  }

  /// One batched forward of `tokens[s]` new tokens for each sequence, observed layer by layer if so wished.
  void forward(std::vector<int> const& tokens, bool by_layer) {
    std::vector<std::vector<int>> positions;
    for (int s = 0; s < sequences(); ++s) positions.push_back(append(s, tokens[as_size(s)], false));
    observe(positions, by_layer);
  }

  /// Drafts for one sequence: written and appended, not observed.
  void draft(int sequence, int tokens) { append(sequence, tokens, true); }

  /// The first `tokens` drafts are accepted, the others rolled back, and the accepted ones observed.
  void accept(int sequence, int tokens) {
    int const first = next(sequence) - cache.drafts(sequence);
    rollback(sequence, first + tokens);
    kv::cache view = cache.view();
    kv::commit(exec_, view, sequence, tokens);
    std::vector<std::vector<int>> positions(as_size(sequences()));
    for (int p = first; p < first + tokens; ++p) positions[as_size(sequence)].push_back(p);
    observe(positions, false);
  }

  void rollback(int sequence, int position) {
    kv::cache view = cache.view();
    kv::truncate(exec_, view, state_, sequence, position);
    for_each_lane(sequence, [&](kv::lane, reference::lane_model& model) { model.truncate(position); });
    next_[as_size(sequence)] = std::min(next(sequence), position);
  }

  void decide() {
    kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{no_rows().view()}};
    kv::decide(exec_, policy_, in, state_, plan_);
  }

  void evict() {
    decide();
    for (int i = 0; i < cache.lane_count(); ++i) {
      std::vector<int> kept = listed(plan_.keep(), i);
      kv::lane const this_lane = cache.lane_at(i);
      for (int d = cache.committed(this_lane); d < cache.count(this_lane); ++d) kept.push_back(d);
      lane(i).evict(kept);
    }
    kv::cache view = cache.view();
    kv::apply(exec_, kv::compact{}, plan_, view, state_);
  }

  /// Every row, position and carried number is its token's own.
  void check_memory() {
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      auto const& entries = lane(i).entries();
      RC_ASSERT(cache.count(this_lane) == static_cast<int>(entries.size()));
      RC_ASSERT(cache.positions(this_lane, cache.count(this_lane)) == lane(i).positions());
      for (int e = 0; e < cache.count(this_lane); ++e) {
        RC_ASSERT(cache.row(of::keys, this_lane, e) == entries[as_size(e)].key);
        RC_ASSERT(cache.row(of::values, this_lane, e) == entries[as_size(e)].value);
      }
      if constexpr (keeps_mass) {
        auto const* const mass = reinterpret_cast<float const*>(state_.columns()[0].rows.row(this_lane));
        reference::row expected;
        for (auto const& entry : entries) expected.push_back(entry.carried[1]);
        comparison const result = compare({mass, expected.size()}, expected);
        RC_LOG() << "lane " << i << ": mass " << result << '\n';
        RC_ASSERT(result.same);
      }
    }
  }

  /// The keep set of the last decide is the method's, computed in double from the model alone.
  void check_decision() {
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      auto const count = as_size(cache.committed(this_lane));
      reference::lane_attention attention = seen_by(i, {});
      reference::row scores(count, 0.0);
      if constexpr (keeps_mass) {
        for (std::size_t e = 0; e < count; ++e) scores[e] = lane(i).entries()[e].carried[1];
      } else if constexpr (keeps_ring) {
        attention = seen_by(i, rings_[as_size(this_lane.sequence)]);
        auto const& score = policy_.score;
        scores = reference::snapkv(attention, {.window = score.window,
                                               .pool = in_double(score.pool),
                                               .mass = {.rows = static_cast<reference::reduction>(score.rows),
                                                        .group = static_cast<reference::reduction>(score.group)}})
                     .scores;
      } else {
        continue;
      }
      RC_ASSERT(decided_by(listed(plan_.keep(), i), scores, forced_entries(policy_, attention.key_positions),
                           policy_.budget.tokens, policy_.trigger.slack));
    }
  }

 private:
  using scorer = std::remove_cvref_t<decltype(std::declval<Policy>().score)>;
  static constexpr bool keeps_mass = std::same_as<scorer, kv::h2o>;
  static constexpr bool keeps_ring = std::same_as<scorer, kv::snapkv>;
  using row_of_token = std::pair<int, int>;  // position, number of the token

  template <class Visit>
  void for_each_lane(int sequence, Visit const& visit) {
    for (int i = 0; i < cache.lane_count(); ++i) {
      if (cache.lane_at(i).sequence == sequence) visit(cache.lane_at(i), lane(i));
    }
  }

  /// The engine writes rows behind the last entry, then tells the library. Returns the new positions.
  std::vector<int> append(int sequence, int tokens, bool drafts) {
    if (tokens == 0 && cache.drafts(sequence) > 0) return {};  // a batch steps on while this sequence verifies drafts
    int const first = next(sequence);
    int& number = config_[as_size(sequence)];
    std::vector<int> positions;
    for (int t = 0; t < tokens; ++t) positions.push_back(first + t);
    for_each_lane(sequence, [&](kv::lane this_lane, reference::lane_model& model) {
      for (int t = 0; t < tokens; ++t) {
        reference::row const key = cache.fingerprint(of::keys, this_lane, number + t);
        reference::row const value = cache.fingerprint(of::values, this_lane, number + t);
        cache.write(of::keys, this_lane, cache.count(this_lane) + t, key);
        cache.write(of::values, this_lane, cache.count(this_lane) + t, value);
        model.append({first + t, key, value, {static_cast<double>(number + t), 0.0}});
      }
    });
    kv::cache view = cache.view();
    kv::append(exec_, view, state_, {sequence, tokens, first, drafts});
    auto& tokens_at = number_at_[as_size(sequence)];
    tokens_at.resize(as_size(first));
    for (int t = 0; t < tokens; ++t) tokens_at.push_back(number++);
    next_[as_size(sequence)] = first + tokens;
    return positions;
  }

  /// The query rows of the tokens at these positions, a list for each sequence.
  void observe(std::vector<std::vector<int>> const& positions, bool by_layer) {
    std::size_t most = 0;
    for (auto const& some : positions) most = std::max(most, some.size());
    mock_queries rows(cache, kv::codec::f32, static_cast<int>(most), static_cast<int>(most) + 1);
    for (int s = 0; s < sequences(); ++s) {
      auto const& some = positions[as_size(s)];
      rows.set_valid(s, static_cast<int>(some.size()));
      auto& ring = rings_[as_size(s)];
      for (std::size_t r = 0; r < some.size(); ++r) {
        int const number = number_at_[as_size(s)][as_size(some[r])];
        rows.set_position(s, static_cast<int>(r), some[r]);
        for (int i = 0; i < cache.model().layers * cache.model().query_heads; ++i) {
          int const layer = i / cache.model().query_heads;
          int const head = i % cache.model().query_heads;
          rows.write(s, layer, head, static_cast<int>(r), query(s, layer, head, number));
        }
        while (!ring.empty() && ring.back().first >= some[r]) ring.pop_back();
        ring.push_back({some[r], number});
        if constexpr (keeps_ring) {
          if (static_cast<int>(ring.size()) > policy_.score.window) ring.pop_front();
        }
      }
    }
    show(rows, by_layer);
    if constexpr (keeps_mass) add_mass(positions);
  }

  void show(mock_queries& rows, bool by_layer) {
    kv::lanes const all = cache.lanes();
    int const step = by_layer ? 1 : all.layer_end;
    for (int layer = 0; layer < all.layer_end; layer += step) {
      kv::signals const in{all.layers_only(layer, layer + step), kv::keys_of(cache.view()), kv::queries{rows.view()}};
      kv::observe(exec_, policy_, in, state_);
    }
  }

  void add_mass(std::vector<std::vector<int>> const& positions) {
    for (int i = 0; i < cache.lane_count(); ++i) {
      int const s = cache.lane_at(i).sequence;
      std::deque<row_of_token> rows;
      for (int const p : positions[as_size(s)]) {
        rows.push_back({p, number_at_[as_size(s)][as_size(p)]});
      }
      auto const mass = reference::attention_mass(seen_by(i, rows),
                                                  {.group = static_cast<reference::reduction>(policy_.score.group)});
      for (std::size_t e = 0; e < mass.size(); ++e) lane(i).carried(static_cast<int>(e))[1] += mass[e];
    }
  }

  /// The committed entries of a lane in the model, and those query rows that are not after the last of them.
  reference::lane_attention seen_by(int i, std::deque<row_of_token> const& rows) {
    kv::lane const this_lane = cache.lane_at(i);
    auto const count = as_size(cache.committed(this_lane));
    reference::lane_attention attention{lane(i).keys(), lane(i).positions(), {}, {}};
    attention.keys.resize(count);
    attention.key_positions.resize(count);
    attention.queries.resize(as_size(cache.model().group()));
    for (auto const& [position, number] : rows) {
      if (count == 0 || position > attention.key_positions.back()) continue;
      attention.query_positions.push_back(position);
      for (int h = 0; h < cache.model().group(); ++h) {
        attention.queries[as_size(h)].push_back(
            query(this_lane.sequence, this_lane.layer, this_lane.head * cache.model().group() + h, number));
      }
    }
    return attention;
  }

  /// The query row of a token: multiples of 1/64, which every element type holds exactly.
  reference::row query(int sequence, int layer, int head, int number) const {
    dice from(static_cast<std::uint64_t>(((sequence * 64 + layer) * 64 + head) * 65536 + number) * 2654435761u + 17u);
    reference::row values;
    for (int d = 0; d < cache.model().head_dim; ++d) values.push_back(from.between(-128, 128) / 64.0);
    return values;
  }

  mock_queries& no_rows() { return nothing_; }

  Policy policy_;
  kv::host_executor exec_;
  kv::state<kv::host_executor> state_;
  kv::plan<kv::host_executor> plan_;
  std::vector<reference::lane_model> lanes_;
  std::vector<std::deque<row_of_token>> rings_;
  std::vector<int> next_;
  std::vector<std::vector<int>> number_at_ = std::vector<std::vector<int>>(rings_.size());
  std::vector<int> config_ = std::vector<int>(rings_.size(), 1);  ///< of the next token of each sequence
  mock_queries nothing_{cache, kv::codec::f32, 0, 1};
};

}  // namespace kvpolicy_test
