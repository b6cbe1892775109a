// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// What a request brings: its tokens, chunk by chunk. All of its rows follow from its seed, the lane and the position,
/// never from the slot or the batch in which it is served.
struct request_script {
  std::uint64_t seed = 1;
  int number = 0;           ///< the number that seeded scores use
  std::vector<int> chunks;  ///< tokens of each forward

  /// The number `which` of a token in a lane.
  [[nodiscard]] float number_of(int kind, int layer, int head, int position, int which) const {
    std::uint64_t const lane =
        (seed * 31u + static_cast<std::uint64_t>(kind)) * 131u + static_cast<std::uint64_t>(layer * 17 + head);
    return kvpolicy_test::number_of(lane * 100003u + static_cast<std::uint64_t>(position * 64 + which));
  }
};

/// The bytes of a request in its slot that must not depend on the batch: counts, positions, rows, recorded columns.
using request_image = std::vector<std::byte>;

/// An engine in small whose requests come and go: slots, forwards of some of them in any order, rows that do not count,
/// and evictions, in turns where the plan is small.
template <class Executor>
class serving_engine {
 public:
  using policy_type = kv::basic_any_policy<Executor>;

  serving_engine(mock_options const& how, policy_type const& policy, int threads, kv::at_once const& size,
                 std::uint64_t seed)
      : exec_(threads),
        random_(seed),
        cache_(how),
        requests_(as_size(how.sequences), 0),
        policy_(policy),
        all_(view()),
        state_(kv::make_state(exec_, policy_, all_)),
        plan_(kv::make_plan(exec_, policy_, all_, size, kv::compact{})) {}

  [[nodiscard]] int slots() const { return cache_.options().sequences; }
  Executor& exec() { return exec_; }
  kv::cache& all() { return all_; }
  kv::state<Executor>& state() { return state_; }
  mock_cache& memory() { return cache_; }

  /// Writes numbers that no request may read into the columns and positions of a slot, and resets it.
  void begin(int slot, request_script const& script) {
    for (kv::recorded_column const& each : state_.columns()) {
      std::memset(each.rows.row({slot, 0, 0}), 0x7F, as_size(each.rows.sequence));
    }
    kv::reset(exec_, all_, state_, slot);
    requests_[as_size(slot)] = script.number;
  }
  void set_number(int slot, int number) { requests_[as_size(slot)] = number; }

  struct turn {
    int slot;
    request_script const* script;
    int position;  ///< of the first new token
    int tokens;
  };

  /// One forward of these slots, in this order. `padded` slots are in the batch and bring no token.
  void forward(std::vector<turn> const& batch, std::vector<int> const& padded = {}) {
    std::vector<int> slots;
    for (turn const& each : batch) slots.push_back(each.slot);
    slots.insert(slots.end(), padded.begin(), padded.end());
    kv::cache active = kv::only(all_, {.slots = slots.data(), .size = static_cast<int>(slots.size())});
    int most = 1;
    for (turn const& each : batch) most = std::max(most, each.tokens);
    most += random_.below(3);
    for (std::size_t s = 0; s < batch.size(); ++s) {
      write_rows(batch[s]);
      kv::append(exec_, active, state_, {static_cast<int>(s), batch[s].tokens, batch[s].position});
    }
    observe(active, batch, slots.size(), most);
  }

  /// The bytes of a request that must not depend on its batch.
  [[nodiscard]] request_image image(int slot) {
    request_image made;
    auto const put = [&](void const* from, std::size_t bytes) {
      auto const* const first = static_cast<std::byte const*>(from);
      made.insert(made.end(), first, first + bytes);
    };
    for (int layer = 0; layer < cache_.model().layers; ++layer) {
      for (int head = 0; head < cache_.model().kv_heads; ++head) {
        kv::lane const one{slot, layer, head};
        int const count = cache_.count(one);
        put(&count, sizeof count);
        for (int const position : cache_.positions(one, count)) put(&position, sizeof position);
        for (of const plane : {of::keys, of::values}) {
          for (int e = 0; e < count; ++e) {
            for (double const value : cache_.row(plane, one, e)) put(&value, sizeof value);
          }
        }
        for (kv::recorded_column const& each : state_.columns()) {
          int const elements = each.about.units == 0 ? count : each.about.units;
          put(each.rows.row(one), as_size(elements) * as_size(each.about.bytes));
        }
      }
    }
    return made;
  }

 private:
  [[nodiscard]] kv::cache view() {
    kv::cache made = cache_.view();
    made.lanes.request = {requests_.data(), 1, 0, 0};
    return made;
  }

  void write_rows(turn const& each) {
    for (int layer = 0; layer < cache_.model().layers; ++layer) {
      for (int head = 0; head < cache_.model().kv_heads; ++head) {
        kv::lane const one{each.slot, layer, head};
        for (int t = 0; t < each.tokens; ++t) {
          for (of const plane : {of::keys, of::values}) {
            reference::row row;
            int const dims = plane == of::keys ? cache_.model().head_dim : cache_.value_dim();
            for (int d = 0; d < dims; ++d) {
              row.push_back(each.script->number_of(plane == of::keys ? 1 : 2, layer, head, each.position + t, d));
            }
            cache_.write(plane, one, cache_.count(one) + t, row);
          }
        }
      }
    }
  }

  /// The tensors of a forward, in the order of the batch. Rows that do not count are at random places.
  void observe(kv::cache const& active, std::vector<turn> const& batch, std::size_t sequences, int most) {
    kv::shape const& model = cache_.model();
    auto const size = [](int number) { return as_size(number); };
    std::vector<int> positions(sequences * size(most), -1);
    for (std::size_t s = 0; s < batch.size(); ++s) {
      std::vector<int> const places = random_.subset(most, batch[s].tokens);
      for (int t = 0; t < batch[s].tokens; ++t)
        positions[s * size(most) + size(places[size(t)])] = batch[s].position + t;
    }
    std::vector<float> rows(sequences * size(model.layers * model.query_heads * most * model.head_dim), 1e30f);
    std::vector<float> betas(sequences * size(model.layers * model.kv_heads * most), 1e30f);
    for (std::size_t s = 0; s < batch.size(); ++s) {
      for (int layer = 0; layer < model.layers; ++layer) {
        for (int r = 0; r < most; ++r) {
          int const at = positions[s * size(most) + size(r)];
          if (at < 0) continue;
          for (int head = 0; head < model.query_heads; ++head) {
            std::size_t const row =
                ((size(layer) * sequences + s) * size(most) + size(r)) * size(model.query_heads) + size(head);
            for (int d = 0; d < model.head_dim; ++d) {
              rows[row * size(model.head_dim) + size(d)] = batch[s].script->number_of(3, layer, head, at, d);
            }
          }
          for (int head = 0; head < model.kv_heads; ++head) {
            betas[((size(layer) * sequences + s) * size(model.kv_heads) + size(head)) * size(most) + size(r)] =
                -0.1f - 0.1f * std::abs(batch[s].script->number_of(4, layer, head, at, 0));
          }
        }
      }
    }
    kv::row_batch const how{.sequences = static_cast<int>(sequences)};
    kv::queries const queries = kv::queries_of(rows.data(), model, most, positions.data(), how);
    kv::turn_queries of_turn{};
    static_cast<kv::query_view&>(of_turn) = queries;
    kv::log_beta log_beta{kv::entry_numbers_of(betas.data(), model, most, how)};
    log_beta.position = {positions.data(), most, 0, 0};
    kv::signals const in{active.lanes, kv::keys_of(active), kv::values_of(active), queries, of_turn, log_beta};
    kv::any_signals const named(in);
    bool const by_layer = random_.chance(30);
    for (int layer = 0; layer < model.layers; layer += by_layer ? 1 : model.layers) {
      kv::lanes const some = active.lanes.layers_only(layer, by_layer ? layer + 1 : model.layers);
      kv::observe(exec_, policy_, named.with(some), state_);
    }
    // Sequences that bring no token are not decided about: alone, they would not be either.
    kv::cache deciding = active;
    deciding.lanes = active.lanes.sequences_only(0, static_cast<int>(batch.size()));
    kv::evict(exec_, policy_, named.with(deciding.lanes), kv::compact{}, deciding, state_, plan_);
  }

  Executor exec_;
  dice random_;
  mock_cache cache_;
  std::vector<int> requests_;
  policy_type policy_;
  kv::cache all_;
  kv::state<Executor> state_;
  kv::plan<Executor> plan_;
};

}  // namespace kvpolicy_test
