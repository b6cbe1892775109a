// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/device.hpp"
#include "support/dual_engine.hpp"
#include "support/test.hpp"
#include "support/verbs.hpp"

namespace kvpolicy_test {

/// One number for each lane and position: at the threshold, on either side of it, or none.
inline float gate_of(kv::lane this_lane, int position) {
  unsigned const mixed =
      (static_cast<unsigned>(position * 31 + this_lane.sequence * 7 + this_lane.layer * 3 + this_lane.head) *
       2654435761u) >>
      20;
  float const values[] = {0.1f, 0.05f, 0.9f, 0.1f, std::numeric_limits<float>::quiet_NaN(), 0.0f, 0.5f};
  return values[mixed % 7];
}

using policy_type = kv::admission<kv::write_gate>;

/// A batch under an admission, on either side.
template <class Executor, class Policy = policy_type>
class side {
 public:
  static constexpr int most = 40;

  side(dual_options const& how, Policy const& policy, Executor& exec)
      : how_(how),
        policy_(policy),
        engine(std::make_unique<dual_engine>(how)),
        exec_(exec),
        both(engine->view()),
        held(kv::make_state(exec, policy, both)),
        plans_(kv::make_plan(exec, policy, both)),
        of_fresh_(kv::make_state(exec, policy, engine->chunk(0, 0))),
        decided_(kv::make_plan(exec, policy, engine->chunk(0, 0))),
        gates_(as_size(engine->lanes() * most)),
        told_(1),
        length(as_size(how.sequences)) {}

  void step(std::vector<int> const& tokens, bool counts = true) {
    promote(tokens, counts);
    first_ = length;
    for (int s = 0; s < how_.sequences; ++s) write(s, tokens[as_size(s)], false);
    tell(both.window.lanes, held.window, tokens);
  }

  /// Only makes room.
  void promote(std::vector<int> const& tokens, bool counts = true) {
    decision_.clear();
    kv::promote(exec_, policy_, kv::signals{both.window.lanes}, both, held, plans_, std::span<int const>(tokens),
                counts ? told_.data() : nullptr);
    settle(exec_);
    note_decision();
  }

  /// Drafts of each sequence, of which some are accepted.
  void speculate(std::vector<int> const& drafts, std::vector<int> const& accepted) {
    first_ = length;
    for (int s = 0; s < how_.sequences; ++s) {
      if (drafts[as_size(s)] == 0) continue;
      write(s, drafts[as_size(s)], true);
      roll_back(s, first_[as_size(s)] + accepted[as_size(s)]);
      kv::commit(exec_, both.window, s, accepted[as_size(s)]);
      settle(exec_);
    }
    tell(both.window.lanes, held.window, accepted);
  }

  void chunk(std::vector<int> const& tokens) {
    decision_.clear();
    kv::cache const chunk = engine->chunk(tokens, length);
    first_ = length;
    tell(chunk.lanes, of_fresh_, tokens);
    kv::decide(exec_, policy_, kv::signals{chunk.lanes}, of_fresh_, decided_);
    kv::ingest(exec_, policy_, kv::signals{both.window.lanes}, chunk, of_fresh_, decided_, both, held, plans_,
               told_.data());
    settle(exec_);
    note_decision();
    for (int s = 0; s < how_.sequences; ++s) length[as_size(s)] += tokens[as_size(s)];
  }

  void roll_back(int sequence, int position) {
    kv::truncate(exec_, both, held, sequence, position);
    settle(exec_);
    length[as_size(sequence)] = std::min(length[as_size(sequence)], position);
  }

  /// Tokens of a sequence, appended and written without making room.
  void write(int sequence, int tokens, bool drafts) {
    kv::append(exec_, both.window, held.window, {sequence, tokens, length[as_size(sequence)], drafts});
    settle(exec_);
    int const count = *both.window.lanes.count.row({sequence, 0, 0});
    for (int i = 0; i < engine->lanes(); ++i) {
      kv::lane const this_lane = both.window.lanes.at(i);
      for (int t = 0; this_lane.sequence == sequence && t < tokens; ++t) {
        dual_engine::write(both.window, this_lane, count - tokens + t, length[as_size(sequence)] + t);
      }
    }
    length[as_size(sequence)] += tokens;
  }

  /// The latest decision about entries that left: its numbers, or nothing if it was refused.
  [[nodiscard]] std::vector<std::byte> const& decision() const { return decision_; }

  /// The keep set of the latest decision, which may have been refused.
  [[nodiscard]] kv::keep_set const& keep() const { return plans_.decided.keep(); }

  /// All that the other side must have, too, byte for byte.
  [[nodiscard]] std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    auto const add = [&](void const* from, std::int64_t count) { append(all, from, count); };
    kv::cache const& window = both.window;
    kv::cache const& pages = both.pages.entries;
    std::int64_t const rows = pages.where.units * how_.page * how_.model.head_dim * 4;
    add(pages.k.base, rows);
    add(pages.v.base, rows);
    add(engine->free_list().data(), how_.pages * 4);
    add(both.pages.free_pages.count, 4);
    add(told_.data(), sizeof(kv::promotion_stats));
    add(both.window.lanes.in_flight, how_.sequences * 4);
    for (int i = 0; i < engine->lanes(); ++i) {
      kv::lane const this_lane = both.window.lanes.at(i);
      add(both.oldest.row(this_lane), 4);
      add(both.pages.num_pages.row(this_lane), 4);
      add(both.pages.table.row(this_lane), (how_.bound + how_.page - 1) / how_.page * 4);
      for (kv::cache const* part : {&window, &pages}) {
        int const count = *part->lanes.count.row(this_lane);
        add(&count, 4);
        add(part->lanes.position.row(this_lane), part->lanes.capacity * 4);
        auto const& columns = (part == &pages ? held.pages : held.window).columns();
        for (kv::recorded_column const& each : columns) add(each.rows.row(this_lane), count * each.about.bytes);
      }
    }
    return all;
  }

 private:
  static void append(std::vector<std::byte>& all, void const* from, std::int64_t count) {
    auto const* const begin = static_cast<std::byte const*>(from);
    all.insert(all.end(), begin, begin + count);
  }

  /// Keeps the numbers of a decision: the keep set, its report, and the scores.
  void note_decision() {
    kv::keep_set const& keep = plans_.decided.keep();
    std::int64_t const segments = keep.segments();
    append(decision_, plans_.exits(), how_.sequences * 4);
    append(decision_, keep.indptr, (segments + 1) * 8);
    append(decision_, keep.indices, keep.indptr[segments] * 4);
    append(decision_, keep.entry_count, segments * 4);
    append(decision_, keep.report, sizeof(kv::report));
    kv::score_view const scores = plans_.decided.scores(keep.lanes);
    for (int i = 0; i < segments; ++i) {
      for (int e = 0; e < keep.entry_count[i]; ++e) {
        float const score = scores.row(i)[e];
        float const one = std::isnan(score) ? std::numeric_limits<float>::quiet_NaN() : score;  // a GPU has one NaN
        append(decision_, &one, sizeof one);
      }
    }
  }

  void tell(kv::lanes const& batch, kv::state<Executor>& to, std::vector<int> const& tokens) {
    counts_ = tokens;
    for (int i = 0; i < engine->lanes(); ++i) {
      kv::lane const one = batch.at(i);
      for (int t = 0; t < tokens[as_size(one.sequence)]; ++t) {
        gates_[as_size(i * most + t)] = gate_of(one, first_[as_size(one.sequence)] + t);
      }
    }
    kv::gate fresh;
    fresh.base = reinterpret_cast<std::byte const*>(gates_.data());
    fresh.entry = 4;
    fresh.head = 4 * most;
    fresh.layer = fresh.head * batch.heads;
    fresh.sequence = fresh.layer * batch.layers();
    fresh.counts = {counts_.data(), 1, 0, 0};
    kv::log_beta betas;
    static_cast<kv::entry_numbers&>(betas) = fresh;
    kv::observe(exec_, policy_, kv::signals{batch, fresh, betas}, to);
    settle(exec_);
  }

  dual_options how_;
  Policy policy_;

 public:
  std::unique_ptr<dual_engine> engine;

 private:
  Executor& exec_;

 public:
  kv::dual_cache both;
  kv::dual_state<Executor> held;

 private:
  kv::exit_plan<Executor> plans_;
  kv::state<Executor> of_fresh_;
  kv::plan<Executor> decided_;
  std::vector<float> gates_;
  std::vector<kv::promotion_stats> told_;
  std::vector<int> first_, counts_;
  std::vector<std::byte> decision_;

 public:
  std::vector<int> length;
};

/// The host and the device, who are asked the same.
template <class Policy = policy_type>
struct both_sides {
  both_sides(dual_options const& how, Policy const& policy, launch_numbers const& numbers, std::uint64_t seed)
      : device(numbers, seed), expected(how, policy, host), found(how, policy, device) {}

  /// What the host says to a call; the device must say as much, and be left the same.
  template <class Call>
  std::string ask(Call const& call) {
    std::string const refused = error_of([&] { call(expected); });
    std::string const fault = error_of([&] { call(found); });
    INFO(refused, " / ", fault);
    REQUIRE(refused.empty() == fault.empty());
    REQUIRE(refused.substr(0, refused.find(' ')) == fault.substr(0, fault.find(' ')));
    REQUIRE((expected.bytes() == found.bytes()));
    REQUIRE((expected.decision() == found.decision()));
    return fault;
  }

  kv::host_executor host;
  device_executor device;
  side<kv::host_executor, Policy> expected;
  side<device_executor, Policy> found;
};

}  // namespace kvpolicy_test
