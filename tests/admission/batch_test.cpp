// SPDX-License-Identifier: Apache-2.0
// A batch whose sequences step apart, against a plain model: chunks, drafts, caps, evictions, pools that run out,
// forks.

#include "support/dual_engine.hpp"

namespace {

using namespace kvpolicy_test;

/// One number for each lane and position, from 0 to 1.
float number_of(kv::lane this_lane, int position, unsigned salt) {
  unsigned mixed = static_cast<unsigned>(position) * 2654435761u;
  mixed ^= static_cast<unsigned>(this_lane.sequence * 7 + this_lane.layer * 3 + this_lane.head) * 40503u + salt;
  mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
  return static_cast<float>((mixed ^ (mixed >> 13)) >> 8) / static_cast<float>(1 << 24);
}
float log_beta_of(kv::lane this_lane, int position) { return -0.1f * number_of(this_lane, position, 3) - 1e-3f; }

struct batch_options {
  int sequences, window, cap, percent, pages, budget;
};

class batch {
 public:
  static constexpr int most = 20;

  batch(batch_options const& how, std::uint64_t seed, int threads)
      : how_(how),
        random_(seed),
        policy_{.admit = kv::policies::wg_kv({.window = how.window, .cap = how.cap}),
                .evict = kv::policies::trim_kv({.budget = how.budget})},
        engine_({.sequences = how.sequences,
                 .rows = (how.window + 3 + 3) / 4 * 4,
                 .pages = how.pages,
                 .bound = 48,
                 .most_fresh = most}),
        exec_(threads),
        both_(engine_.view()),
        held_(kv::make_state(exec_, policy_, both_)),
        plans_(kv::make_plan(exec_, policy_, both_)),
        of_fresh_(kv::make_state(exec_, kv::window_part(policy_), engine_.chunk(0, 0))),
        decided_(kv::make_plan(exec_, kv::window_part(policy_), engine_.chunk(0, 0))),
        length_(as_size(how.sequences)),
        begin_(as_size(how.sequences)),
        kept_(as_size(engine_.lanes())) {}

  void act() {
    int const what = random_.below(10);
    if (what < 6) {
      step();
    } else if (what < 7) {
      speculate();
    } else if (what < 9) {
      chunk();
    } else {
      evict();
    }
  }

  /// Rows, positions and columns of both parts are what the model says; every page is somewhere once.
  void check() {
    auto const gates = kv::record_gate::view(held_.window.columns_from(0)).gate;
    auto const betas = kv::record_retention::view(held_.window.columns_from(1)).log_beta;
    auto const old_betas = kv::record_retention::view(held_.pages.columns_from(0)).log_beta;
    std::multiset<int> owned(engine_.free_list().begin(), engine_.free_list().begin() + engine_.free_pages());
    for (int i = 0; i < engine_.lanes(); ++i) {
      kv::lane const this_lane = both_.window.lanes.at(i);
      int const s = this_lane.sequence;
      int const recent = *both_.window.lanes.count.row(this_lane);
      REQUIRE(recent == length_[as_size(s)] - begin_[as_size(s)]);
      for (int e = 0; e < recent; ++e) {
        int const position = begin_[as_size(s)] + e;
        REQUIRE(both_.window.lanes.position.row(this_lane)[e] == position);
        REQUIRE(dual_engine::true_rows(both_.window, this_lane, e));
        REQUIRE(gates.row(this_lane)[e] == gate_of(this_lane, position));
        REQUIRE(betas.row(this_lane)[e] == log_beta_of(this_lane, position));
      }
      std::vector<int> const& mine = kept_[as_size(i)];
      REQUIRE(*both_.pages.entries.lanes.count.row(this_lane) == std::ssize(mine));
      for (int e = 0; e < std::ssize(mine); ++e) {
        REQUIRE(both_.pages.entries.lanes.position.row(this_lane)[e] == mine[as_size(e)]);
        REQUIRE(dual_engine::true_rows(both_.pages.entries, this_lane, e));
        REQUIRE(old_betas.row(this_lane)[e] == log_beta_of(this_lane, mine[as_size(e)]));
      }
      int const* const pages = both_.pages.table.row(this_lane);
      owned.insert(pages, pages + *both_.pages.num_pages.row(this_lane));
    }
    REQUIRE(std::ssize(owned) == how_.pages);
    REQUIRE(std::ssize(std::set<int>(owned.begin(), owned.end())) == how_.pages);
  }

  long promoted = 0, exhausted = 0, over_cap = 0;

 private:
  [[nodiscard]] float gate_of(kv::lane this_lane, int position) const {
    return number_of(this_lane, position, 1) * 100 < static_cast<float>(how_.percent) ? 0.75f : 0.01f;
  }

  /// The oldest of a sequence leave, up to `end`.
  void leave(int sequence, int end) {
    for (int i = 0; i < engine_.lanes(); ++i) {
      kv::lane const this_lane = both_.window.lanes.at(i);
      if (this_lane.sequence != sequence) continue;
      for (int p = begin_[as_size(sequence)]; p < end; ++p) {
        if (gate_of(this_lane, p) < 0.1f) continue;
        bool const full = how_.cap >= 0 && std::ssize(kept_[as_size(i)]) >= how_.cap;
        if (!full) kept_[as_size(i)].push_back(p);
        (full ? over_cap : promoted) += 1;
      }
    }
    begin_[as_size(sequence)] = std::max(begin_[as_size(sequence)], end);
  }

  /// Gate and log beta of the last `tokens[s]` entries of each sequence, the first at `first[s]`.
  void tell(kv::lanes const& shown, kv::state<kv::host_executor>& to, std::vector<int> const& tokens,
            std::vector<int> const& first) {
    std::vector<float> gates(as_size(engine_.lanes() * most)), betas(gates.size());
    for (int i = 0; i < engine_.lanes(); ++i) {
      kv::lane const one = shown.at(i);
      for (int t = 0; t < tokens[as_size(one.sequence)]; ++t) {
        gates[as_size(i * most + t)] = gate_of(one, first[as_size(one.sequence)] + t);
        betas[as_size(i * most + t)] = log_beta_of(one, first[as_size(one.sequence)] + t);
      }
    }
    auto const numbers = [&](auto fresh, std::vector<float> const& values) {
      fresh.base = reinterpret_cast<std::byte const*>(values.data());
      fresh.entry = 4;
      fresh.head = 4 * most;
      fresh.layer = 2 * fresh.head;
      fresh.sequence = 2 * fresh.layer;
      fresh.counts = {tokens.data(), 1, 0, 0};
      return fresh;
    };
    kv::observe(exec_, kv::window_part(policy_),
                kv::signals{shown, numbers(kv::gate{}, gates), numbers(kv::log_beta{}, betas)}, to);
  }

  /// Runs what may find no page; then nothing may have changed, and something is evicted.
  template <class Call>
  bool went_well(Call const& call) {
    auto const before = counts();
    int const slid = held_.window.slid();
    std::string const error = error_of(call);
    if (error.empty()) return true;
    REQUIRE(error.starts_with("promote: "));
    REQUIRE(counts() == before);
    REQUIRE(held_.window.slid() == slid);
    ++exhausted;
    evict();
    return false;
  }
  [[nodiscard]] std::vector<int> counts() const {
    std::vector<int> all;
    for (int i = 0; i < engine_.lanes(); ++i) {
      kv::lane const this_lane = both_.window.lanes.at(i);
      all.insert(all.end(), {*both_.window.lanes.count.row(this_lane), *both_.pages.entries.lanes.count.row(this_lane),
                             *both_.pages.num_pages.row(this_lane)});
    }
    return all;
  }

  void write(int sequence, int tokens, int first) {
    int const count = *both_.window.lanes.count.row({sequence, 0, 0});
    for (int i = 0; i < engine_.lanes(); ++i) {
      kv::lane const this_lane = both_.window.lanes.at(i);
      for (int t = 0; this_lane.sequence == sequence && t < tokens; ++t) {
        dual_engine::write(both_.window, this_lane, count - tokens + t, first + t);
      }
    }
  }

  void step() {
    std::vector<int> tokens(as_size(how_.sequences), 1);
    if (random_.chance(60)) {
      for (int& each : tokens) each = std::min(how_.window, random_.below(4));
    }
    if (!went_well([&] {
          kv::promote(exec_, kv::window_part(policy_), kv::signals{both_.window.lanes}, both_, held_, *plans_.admission,
                      std::span<int const>(tokens));
        })) {
      return;
    }
    std::vector<int> const first = length_;
    for (int s = 0; s < how_.sequences; ++s) {
      leave(s, length_[as_size(s)] + tokens[as_size(s)] - how_.window);
      if (tokens[as_size(s)] == 0) continue;
      kv::append(exec_, both_.window, held_.window,
                 {.sequence = s, .tokens = tokens[as_size(s)], .position = length_[as_size(s)]});
      write(s, tokens[as_size(s)], length_[as_size(s)]);
      length_[as_size(s)] += tokens[as_size(s)];
    }
    tell(both_.window.lanes, held_.window, tokens, first);
  }

  void speculate() {
    std::vector<int> accepted(as_size(how_.sequences));
    std::vector<int> const first = length_;
    for (int s = 0; s < how_.sequences; ++s) {
      int const capacity = both_.window.lanes.capacity - *both_.window.lanes.count.row({s, 0, 0});
      int const drafts = random_.below(std::min(3, capacity) + 1);
      if (drafts == 0) continue;
      kv::append(exec_, both_.window, held_.window,
                 {.sequence = s, .tokens = drafts, .position = length_[as_size(s)], .in_flight = true});
      write(s, drafts, length_[as_size(s)]);
      accepted[as_size(s)] = random_.below(drafts + 1);
      length_[as_size(s)] += accepted[as_size(s)];
      kv::truncate(exec_, both_, held_, s, length_[as_size(s)]);
      kv::commit(exec_, both_.window, s, accepted[as_size(s)]);
    }
    tell(both_.window.lanes, held_.window, accepted, first);
  }

  void chunk() {
    std::vector<int> tokens(as_size(how_.sequences));
    for (int& each : tokens) each = random_.chance(20) ? 0 : random_.below(most + 1);
    kv::cache const chunk = engine_.chunk(tokens, length_);
    tell(chunk.lanes, of_fresh_, tokens, length_);
    kv::decide(exec_, kv::window_part(policy_), kv::signals{chunk.lanes}, of_fresh_, decided_);
    if (!went_well([&] {
          kv::ingest(exec_, kv::window_part(policy_), kv::signals{both_.window.lanes}, chunk, of_fresh_, decided_,
                     both_, held_, *plans_.admission);
        })) {
      return;
    }
    for (int s = 0; s < how_.sequences; ++s) {
      length_[as_size(s)] += tokens[as_size(s)];
      leave(s, length_[as_size(s)] - how_.window);
    }
  }

  void evict() {
    kv::maintain(exec_, policy_, kv::signals{both_.window.lanes}, both_.pages, held_.pages, plans_);
    for (int i = 0; i < engine_.lanes(); ++i) {
      std::vector<int> left;
      for (int const e : plans_.eviction.keep().listed(i)) left.push_back(kept_[as_size(i)][as_size(e)]);
      kept_[as_size(i)] = left;
    }
  }

  using admit_type = decltype(kv::policies::wg_kv());
  using evict_type = decltype(kv::policies::trim_kv());

  batch_options how_;
  dice random_;
  kv::cache_policy<admit_type, kv::omitted, evict_type> policy_;
  dual_engine engine_;
  kv::host_executor exec_;
  kv::dual_cache both_;
  kv::dual_state<kv::host_executor> held_;
  kv::step_plan<kv::host_executor> plans_;
  kv::state<kv::host_executor> of_fresh_;
  kv::plan<kv::host_executor> decided_;
  std::vector<int> length_, begin_;
  std::vector<std::vector<int>> kept_;  ///< positions in each lane's pages
};

TEST_SUITE("admission") {
  TEST_CASE("sequences of a batch step apart, and each holds what the model says") {
    dice random(17);
    long promoted = 0, exhausted = 0, over_cap = 0;
    for (int run = 0; run < 40; ++run) {
      batch_options how{.sequences = random.between(1, 3),
                        .window = random.between(1, 8),
                        .cap = -1,
                        .percent = random.below(101),
                        .pages = random.between(24, 100),
                        .budget = random.between(1, 24)};
      if (random.chance(30)) how.cap = random.between(0, 20);
      batch now(how, static_cast<std::uint64_t>(run), random.between(1, 2));
      for (int act = 0; act < 60; ++act) {
        now.act();
        now.check();
      }
      promoted += now.promoted;
      exhausted += now.exhausted;
      over_cap += now.over_cap;
    }
    CHECK(promoted > 1000);
    CHECK(exhausted > 20);
    CHECK(over_cap > 100);
  }
}

}  // namespace
