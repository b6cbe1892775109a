// SPDX-License-Identifier: Apache-2.0
// A thousand turns of the replay's bookkeeping without its model: an owner map beside the allocator at each step.

#include <agent_replay/owner_map.hpp>

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
namespace replay = agent_replay;

using ids = std::vector<replay::token>;

constexpr kv::shape model{.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4};
constexpr int prefix = 12;

/// What a slot must hold for a token: it follows from all tokens up to it, as a real key does.
float wanted_row(std::span<replay::token const> upto, std::size_t element) {
  std::uint64_t hash = 1469598103934665603u + element;
  for (replay::token const one : upto) hash = (hash ^ one) * 1099511628211u;
  return static_cast<float>(hash >> 44) * 0x1p-20f - 0.5f;
}

/// A session whose policy drops what has large keys, and the text that it sends.
struct talker {
  using policy_type = kv::eviction<kv::reduce_lanes<kv::knorm>, kv::sinks>;

  talker(replay::token_memory& in, replay::executor& exec, int session, int budget, bool holes)
      : cache(in, session, {.prefix = prefix, .allow_holes = holes, .bound = 220}),
        policy{.protect = {prefix}, .budget = {budget}},
        state(kv::make_state(exec, policy, cache.view())),
        plan(kv::make_plan(exec, policy, cache.view())) {}

  ids text;
  replay::session_cache cache;
  policy_type policy;
  replay::held_state state;
  replay::held_plan plan;
};

/// What happened, so that the test can say that everything did.
struct tally {
  int turns = 0, refused = 0, evicted = 0, forked = 0, resurrected = 0, through_holes = 0, drafts = 0, pruned = 0;
};

class soak {
 public:
  soak(int slots, std::uint64_t seed) : memory_(model, slots), random_(seed) {
    for (int i = 0; i < prefix; ++i) system_.push_back(static_cast<replay::token>(random_.below(256)));
  }

  /// One event: a request begins, goes on or ends. The owner map is checked after it.
  void step() {
    if (talkers_.size() < 6 && random_.below(4) == 0) join();
    if (talkers_.empty()) join();
    std::size_t const who = as_size(random_.below(static_cast<int>(talkers_.size())));
    talker& one = *talkers_[who];
    if (!one.cache.is_open()) {
      begin(one, who);
    } else {
      switch (random_.below(5)) {
        case 0:
          decode(one, random_.between(1, 4));
          break;
        case 1:
          draft(one);
          break;
        case 2:
          publish(one);
          break;
        default:
          end(one, who);
      }
    }
    check();
  }

  /// Everybody leaves, and the tree gives up everything.
  void finish() {
    for (auto& one : talkers_) {
      if (one->cache.is_open()) one->cache.close(exec_, one->text);
    }
    talkers_.clear();
    memory_.tree.evict(memory_.slots.slots());
    check();
  }

  replay::token_memory memory_;
  tally seen;

 private:
  void join() {
    bool const holes = random_.below(4) != 0;
    talkers_.push_back(
        std::make_unique<talker>(memory_, exec_, next_session_++, prefix + random_.between(8, 40), holes));
    talkers_.back()->text = system_;
    if (talkers_.size() < 2 || random_.below(3) != 0) return;
    ids const& other = talkers_[as_size(random_.below(static_cast<int>(talkers_.size()) - 1))]->text;  // a fork
    auto const length = std::max<std::size_t>(prefix, other.size() - other.size() / 4);
    talkers_.back()->text.assign(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(length));
    ++seen.forked;
  }

  /// A request is admitted if there is room for all of its tokens; one that is refused ends at once.
  void begin(talker& one, std::size_t who) {
    for (int i = random_.between(4, 30); i > 0; --i) add_token(one);
    int const before = memory_.slots.allocated();
    int const matched = one.cache.open(exec_, one.state, one.text);
    auto const map = one.cache.map();
    if (std::count(map.begin(), map.end(), replay::slot_allocator::dead) > 0) ++seen.through_holes;
    int const missing = static_cast<int>(one.text.size()) - matched;
    if (!one.cache.reserve(missing)) {
      ++seen.refused;
      return end(one, who);
    }
    if (memory_.slots.allocated() < before) ++seen.evicted;
    append(one, missing, false);
    ++seen.turns;
    prune(one);
  }

  void prune(talker& one) {
    int const held = one.cache.live();
    kv::decide(exec_, one.policy, kv::signals{one.cache.view().lanes, kv::keys_of(one.cache.view())}, one.state,
               one.plan);
    one.cache.prune(exec_, one.plan, one.state);
    seen.pruned += one.cache.live() < held ? 1 : 0;
    for (int p = 0; p < prefix; ++p) REQUIRE(one.cache.map()[as_size(p)] != 0);
  }

  void decode(talker& one, int tokens) {
    if (!one.cache.reserve(tokens)) return;
    for (int i = 0; i < tokens; ++i) add_token(one);
    append(one, tokens, false);
  }

  /// Three drafts, a decision while they are in flight, and fewer of them accepted.
  void draft(talker& one) {
    if (!one.cache.reserve(3)) return;
    for (int i = 0; i < 3; ++i) add_token(one);
    append(one, 3, true);
    check();
    if (random_.below(2) == 0) prune(one);
    int const accepted = random_.below(3);
    one.cache.truncate(exec_, one.state, one.cache.length() - (3 - accepted));
    one.text.resize(as_size(one.cache.length()));
    one.cache.commit(exec_, accepted);
    ++seen.drafts;
  }

  /// The tree may bring dropped positions back into the map; they stay dead.
  void publish(talker& one) {
    auto const before = std::vector<int>(one.cache.map().begin(), one.cache.map().end());
    auto const live = std::vector<int>(one.cache.positions().begin(), one.cache.positions().end());
    one.cache.publish(exec_, one.text);
    REQUIRE(live == std::vector<int>(one.cache.positions().begin(), one.cache.positions().end()));
    int dead = 0;
    for (int const slot : one.cache.map()) dead += slot == replay::slot_allocator::dead ? 1 : 0;
    REQUIRE(dead + one.cache.live() == one.cache.length());
    seen.resurrected += readable_dead(one);
  }

  /// Dead positions of a map for which the tree has a slot: it was brought back, and redirected again.
  int readable_dead(talker& one) {
    auto const again = memory_.tree.match(std::span(one.text).first(as_size(one.cache.length())), one.cache.session());
    int count = 0;
    for (std::size_t p = 0; p < again.slots.size(); ++p) {
      count += one.cache.map()[p] == 0 && again.slots[p] != 0 ? 1 : 0;
    }
    return count;
  }

  void end(talker& one, std::size_t who) {
    one.cache.close(exec_, one.text);
    if (one.text.size() > 150 || random_.below(12) == 0) {
      talkers_.erase(talkers_.begin() + static_cast<std::ptrdiff_t>(who));
    }
  }

  void add_token(talker& one) { one.text.push_back(static_cast<replay::token>(random_.below(3))); }

  /// The last `tokens` of the text get their rows.
  void append(talker& one, int tokens, bool drafts) {
    int const first = one.cache.length();
    one.cache.append(exec_, one.state, tokens, drafts);
    for (int p = first; p < one.cache.length(); ++p) {
      auto const row = memory_.slot(one.cache.map()[as_size(p)]);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = wanted_row(upto(one, p), i);
    }
  }

  static std::span<replay::token const> upto(talker const& one, int position) {
    return std::span(one.text).first(as_size(position) + 1);
  }

  /// Owners, and that every row that a request would read is still its own token's.
  void check() {
    std::vector<replay::session_cache*> all;
    for (auto const& one : talkers_) all.push_back(&one->cache);
    replay::owner_map const owners(memory_, all);
    REQUIRE(owners.slots() == memory_.slots.allocated());
    REQUIRE(memory_.slots.double_frees() == 0);
    for (auto const& one : talkers_) {
      if (!one->cache.is_open()) continue;
      for (std::size_t e = 0; e < one->cache.list().size(); ++e) {
        auto const row = memory_.slot(one->cache.list()[e]);
        REQUIRE(row[e % row.size()] == wanted_row(upto(*one, one->cache.positions()[e]), e % row.size()));
      }
    }
  }

  replay::executor exec_;
  dice random_;
  ids system_;
  std::vector<std::unique_ptr<talker>> talkers_;
  int next_session_ = 0;
};

}  // namespace

TEST_SUITE("agent_replay") {
  TEST_CASE("a thousand turns leak no slot and free none twice, whoever shares, forks, drafts or is refused") {
    soak all(260, 11);
    while (all.seen.turns < 1000) all.step();
    CHECK(all.seen.pruned > 300);
    CHECK(all.seen.refused > 10);
    CHECK(all.seen.evicted > 10);
    CHECK(all.seen.forked > 10);
    CHECK(all.seen.drafts > 100);
    CHECK(all.seen.through_holes > 100);
    CHECK(all.seen.resurrected > 0);
    all.finish();
    CHECK(all.memory_.slots.allocated() == 0);
    CHECK(all.memory_.slots.double_frees() == 0);
  }
}
