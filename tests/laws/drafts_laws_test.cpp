// SPDX-License-Identifier: Apache-2.0
// Drafts in flight are not observed: whatever a forward shows of them, a state is as if they had not been there, until
// they are committed and shown again.

#include "support/device.hpp"

namespace {

using namespace kvpolicy_test;

constexpr kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4};
constexpr int slots = 3, bound = 20, prompt = 6;

/// A number that differs for every token, lane and channel.
float number_of(int slot, int layer, int head, int position, int channel) {
  return std::sin(1.0f + static_cast<float>((((slot * 2 + layer) * 4 + head) * 31 + position) * 5 + channel));
}

/// The part of a batch that a call is about.
enum class part { whole, listed, sequences, layers };

/// Signals of a forward.
struct forward {
  forward(kv::lanes const& batch, std::vector<int> const& first, std::vector<int> const& tokens, bool positions_too) {
    int const sequences = batch.sequence_end();
    rows = *std::max_element(tokens.begin(), tokens.end());
    valid = tokens;
    position.assign(as_size(sequences * rows), -1);
    query.assign(as_size(model.layers * sequences * rows * model.query_heads * model.head_dim), 0);
    number.assign(as_size(model.layers * sequences * model.kv_heads * rows), 0);
    probability.assign(as_size(model.layers * sequences * model.query_heads * rows * bound), 0);
    for (int s = batch.sequence_begin; s < sequences; ++s) {
      int const slot = kv::slot_of(batch.slots, s);
      for (int r = 0; r < tokens[as_size(s)]; ++r) {
        int const p = first[as_size(s)] + r;
        position[as_size(s * rows + r)] = p;
        for (int l = 0; l < model.layers; ++l) {
          for (int h = 0; h < model.query_heads; ++h) {
            for (int c = 0; c < model.head_dim; ++c) {
              query[as_size((((l * sequences + s) * rows + r) * model.query_heads + h) * model.head_dim + c)] =
                  number_of(slot, l, h, p, c);
            }
            for (int e = 0; e <= p; ++e) {
              probability[as_size((((l * sequences + s) * model.query_heads + h) * rows + r) * bound + e)] =
                  std::abs(number_of(slot, l, h, p, e)) / 20;
            }
          }
          for (int h = 0; h < model.kv_heads; ++h) {
            number[as_size(((l * sequences + s) * model.kv_heads + h) * rows + r)] =
                -std::abs(number_of(slot, l, h, p, 9));
          }
        }
      }
    }
    kv::row_batch const batch_of{.sequences = sequences, .valid_rows = valid.data()};
    static_cast<kv::query_view&>(asked) = kv::queries_of(query.data(), model, rows, position.data(), batch_of);
    static_cast<kv::query_view&>(turn) = asked;
    shown = kv::probabilities_of(probability.data(), model, rows, bound, position.data(), batch_of);
    numbers = kv::entry_numbers_of(number.data(), model, rows, batch_of);
    if (positions_too) numbers.position = {position.data(), rows, 0, 0};
  }
  forward(forward const&) = delete;
  forward& operator=(forward const&) = delete;

  int rows = 0;
  std::vector<int> valid, position;
  std::vector<float> query, number, probability;
  kv::queries asked{};
  kv::turn_queries turn{};
  kv::attention_probabilities shown{};
  kv::entry_numbers numbers{};
};

/// Requests under a policy, whose forwards are observed for a part of the batch.
template <class Executor, class Policy, bool Probabilities>
class served {
 public:
  served(Policy const& policy, part of, bool positions) : policy_(policy), positions_(positions) {
    for (kv::lane const one : lanes_of(all_.lanes)) {
      for (int e = 0; e < bound; ++e) {
        for (int c = 0; c < model.head_dim; ++c) {
          keys_[as_size(
              (((one.layer * slots + one.sequence) * bound + e) * model.kv_heads + one.head) * model.head_dim + c)] =
              number_of(one.sequence, one.layer, one.head, e, c + 20);
        }
      }
    }
    view_ = all_;
    for (int s = 0; s < slots; ++s) {
      kv::append(exec_, all_, state_, {.sequence = s, .tokens = prompt, .position = 0});
    }
    observe(all_.lanes, std::vector<int>(slots, 0), std::vector<int>(slots, prompt));
    if (of == part::listed) view_ = kv::only(all_, {.slots = list_.data(), .size = 2});
    observed_ = view_.lanes;
    if (of == part::sequences) observed_ = all_.lanes.sequences_only(1, slots);
    if (of == part::layers) observed_ = all_.lanes.layers_only(1, 2);
    length_.assign(as_size(view_.lanes.sequence_end()), prompt);
  }

  /// A forward of new tokens of each sequence of the view. It shows the tokens that are certain, and drafts.
  void step(std::vector<int> const& certain, std::vector<int> const& drafts) {
    std::vector<int> const first = length_;
    std::vector<int> tokens(length_.size());
    for (int s = observed_.sequence_begin; s < observed_.sequence_end(); ++s) {
      append(s, certain[as_size(s)], false);
      append(s, drafts[as_size(s)], true);
      tokens[as_size(s)] = certain[as_size(s)] + drafts[as_size(s)];
    }
    observe(observed_, first, tokens);
  }
  /// Keeps some drafts of each sequence.
  void settle(std::vector<int> const& drafts, std::vector<int> const& accepted) {
    for (int s = observed_.sequence_begin; s < observed_.sequence_end(); ++s) {
      if (drafts[as_size(s)] == 0) continue;
      length_[as_size(s)] -= drafts[as_size(s)] - accepted[as_size(s)];
      kv::truncate(exec_, view_, state_, s, length_[as_size(s)]);
      kv::commit(exec_, view_, s, accepted[as_size(s)]);
    }
  }
  /// Shows the last tokens of each sequence.
  void show_last(std::vector<int> const& tokens) {
    std::vector<int> first = length_;
    for (std::size_t s = 0; s < first.size(); ++s) first[s] -= tokens[s];
    observe(observed_, first, tokens);
  }

  /// What is recorded of all slots: of entries, as far as they are committed.
  [[nodiscard]] std::vector<std::byte> recorded() {
    std::vector<std::byte> bytes;
    for (kv::recorded_column const& each : state_.columns()) {
      for (kv::lane const one : lanes_of(all_.lanes)) {
        auto const* const row = each.rows.row(one);
        std::int64_t const entries = std::int64_t{all_.lanes.committed(one)} * each.about.bytes;
        bytes.insert(bytes.end(), row,
                     row + (each.about.extent == kv::column_extent::lane_entry ? entries : each.rows.head));
      }
    }
    return bytes;
  }

 private:
  void append(int sequence, int tokens, bool drafts) {
    if (tokens == 0) return;
    kv::append(exec_, view_, state_,
               {.sequence = sequence, .tokens = tokens, .position = length_[as_size(sequence)], .in_flight = drafts});
    length_[as_size(sequence)] += tokens;
  }
  void observe(kv::lanes const& batch, std::vector<int> const& first, std::vector<int> const& tokens) {
    forward const now(batch, first, tokens, positions_);
    kv::log_beta beta;
    kv::gate gate;
    kv::birth_score born;
    static_cast<kv::entry_numbers&>(beta) = now.numbers;
    static_cast<kv::entry_numbers&>(gate) = now.numbers;
    static_cast<kv::entry_numbers&>(born) = now.numbers;
    if constexpr (Probabilities) {
      kv::observe(exec_, policy_, kv::signals{batch, now.shown}, state_);
    } else {
      kv::observe(exec_, policy_, kv::signals{batch, kv::keys_of(view_), now.asked, now.turn, beta, gate, born},
                  state_);
    }
    if constexpr (requires { exec_.check(); }) exec_.check();
  }

  Executor exec_{};
  Policy policy_;
  bool positions_;
  std::vector<int> list_{2, 0}, counts_ = std::vector<int>(slots * 4),
                                positions_of_ = std::vector<int>(slots * 4 * bound), drafts_ = std::vector<int>(slots);
  std::vector<float> keys_ = std::vector<float>(slots * 4 * bound * 4), values_ = keys_;
  kv::cache all_ = [this] {
    kv::cache made = kv::contiguous_cache({.k = keys_.data(),
                                           .v = values_.data(),
                                           .shape = model,
                                           .sequences = slots,
                                           .capacity = bound,
                                           .counts = counts_.data(),
                                           .positions = positions_of_.data()});
    made.lanes.in_flight = drafts_.data();
    return made;
  }();
  kv::state<Executor> state_ = kv::make_state(exec_, policy_, all_);
  kv::cache view_{};
  kv::lanes observed_{};
  std::vector<int> length_;  ///< of each sequence of the view
};

template <class Executor, bool Probabilities = false, class Policy>
void drafts_leave_no_trace(char const* name, Policy const& policy, bool of_turns = false) {
  // What counts turns does so in every `observe` that shows a sequence no draft alone.
  std::vector<int> const none{0, 0, 0}, accepted{1, 0, 0};
  std::vector<int> const drafts = of_turns ? std::vector{2, 3, 1} : std::vector{2, 3, 0}, all = drafts;
  std::vector<int> const certain = of_turns ? std::vector{1, 1, 2} : std::vector{1, 0, 2};
  for (part const of : {part::whole, part::listed, part::sequences, part::layers}) {
    for (bool const positions : {false, true}) {
      if (!at_night() && positions != (of == part::listed)) continue;  // each kind with one of them is enough
      for (std::vector<int> const& before : {none, certain}) {
        for (std::vector<int> const& kept : {none, accepted, all}) {
          bool const on_host = std::same_as<Executor, kv::host_executor>;
          if (!at_night() && !on_host && kept == all) continue;  // the host has seen it
          INFO(std::string(name), ", part ", static_cast<int>(of), std::string(positions ? ", positions" : ""),
               ", certain tokens ", before[0], ", accepted ", kept[0]);
          served<Executor, Policy, Probabilities> plain(policy, of, positions);
          served<Executor, Policy, Probabilities> drafting(policy, of, positions);
          if (before != none) plain.step(before, none);
          drafting.step(before, drafts);
          CHECK(drafting.recorded() == plain.recorded());  // in flight
          drafting.settle(drafts, kept);
          if (kept == none) CHECK(drafting.recorded() == plain.recorded());
          if (kept == none) continue;
          drafting.show_last(kept);
          plain.step(kept, none);
          CHECK(drafting.recorded() == plain.recorded());
        }
      }
    }
  }
}

template <class Executor>
void every_recorder() {
  drafts_leave_no_trace<Executor>("query ring", kv::eviction<kv::snapkv>{.score = {.window = 4}});
  drafts_leave_no_trace<Executor>("mass", kv::eviction<kv::h2o>{});
  drafts_leave_no_trace<Executor, true>("mass of probabilities", kv::eviction<kv::h2o>{});
  drafts_leave_no_trace<Executor>("retention", kv::eviction<kv::trim_kv>{});
  drafts_leave_no_trace<Executor>("gate", kv::admission<kv::write_gate>{});
  drafts_leave_no_trace<Executor>("birth score", kv::eviction<kv::carried>{});
  drafts_leave_no_trace<Executor>("birth score that decays", kv::eviction<kv::carried>{.score = {.decay = 0.5f}}, true);
  drafts_leave_no_trace<Executor>("key norms", kv::eviction<kv::recorded_knorm>{});
  drafts_leave_no_trace<Executor>("query memory and key sums", kv::eviction<kv::intent_kv>{});
  drafts_leave_no_trace<Executor>("page bounds", kv::selection<kv::quest>{.score = {.page = 4}});
}

}  // namespace

TEST_SUITE("laws") {
  TEST_CASE("drafts leave no trace in what is recorded until they are committed and shown again") {
    every_recorder<kv::host_executor>();
  }

  TEST_CASE("nor on a device") { every_recorder<device_executor>(); }
}
