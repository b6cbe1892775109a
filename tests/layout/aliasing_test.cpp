// SPDX-License-Identifier: Apache-2.0
// dead_slot and list_rewrite where slots have several owners: a small serving engine with a prefix tree and forks works
// on a pool that is too small, and every reference to every slot is written down beside it.

#include "reference/slot_pool.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

using reference::require;
using ints = std::vector<int>;

/// Positions that a sequence protects.
struct before_prefix {
  int const* prefix = nullptr;
  bool operator()(kv::entry at) const { return at.position < prefix[at.lane.sequence]; }
  [[maybe_unused]] friend bool operator==(before_prefix const&, before_prefix const&) = default;
};

/// What an engine tells the applier: somebody else refers to the slot.
struct in_table {
  char const* flags = nullptr;
  bool operator()(int slot) const { return flags[slot] != 0; }
};

/// What a whole run came to.
struct totals {
  std::int64_t evictions = 0;
  std::int64_t slots_seen = 0;    ///< slots in use, over all evictions
  std::int64_t slots_shared = 0;  ///< of those, with more than one reference
  std::int64_t exhausted = 0;     ///< allocations that failed
  std::int64_t freed = 0, released = 0, rewrites = 0, aliases = 0;
};

class serving {
 public:
  serving(std::uint64_t seed, totals& count)
      : random_(seed),
        count_(count),
        sequences_(random_.between(2, 4)),
        bound_(random_.between(8, 14)),
        redirects_(random_.chance(70)),
        tree_is_counted_(!redirects_ || random_.chance(50)),
        pool_(random_.between(bound_, bound_ + bound_ / 2) + 1, random_.below(bound_)),
        seen_(as_size(sequences_)),
        flags_(as_size(pool_.slots())) {
    auto const n = as_size(sequences_);
    list_.assign(n * as_size(bound_), pool_.dead());
    map_.assign(n * row_, pool_.dead());
    position_.assign(n * as_size(bound_), -1);
    freed_ = released_ = ints(n * as_size(bound_));
    for (ints* each : {&count_of_, &drafts_, &prefix_, &locked_, &freed_count_, &released_count_}) each->assign(n, 0);
    k_.resize(as_size(2 * pool_.slots() * 2));
    for (std::size_t i = 0; i < k_.size(); ++i) k_[i] = static_cast<float>(i);
    v_ = k_;
    state_.emplace(kv::make_state(exec_, policy(bound_), view()));
    plan_.emplace(kv::make_plan(exec_, policy(bound_), view()));
  }

  void step() {
    int const s = random_.below(sequences_);
    int const what = random_.below(100);
    if (drafts_[as_size(s)] > 0 && random_.chance(70)) accept(s);
    if (what < 40) append(s, random_.between(1, 5));
    if (what >= 40 && what < 60) share(s, random_.below(sequences_));
    if (what >= 60 && what < 80) evict(random_.below(bound_));
    if (what >= 80 && what < 86) truncate(s, random_.below(length(s) + 1));
    if (what >= 86 && what < 88) truncate(s, 0);
    if (what >= 88) rewrite(s);
    if (what >= 75 && what < 80) evict(random_.below(bound_));  // a second eviction in a row
    check();
  }

 private:
  static constexpr std::size_t row_ = 48;  ///< positions of a map

  [[nodiscard]] int length(int s) const { return static_cast<int>(seen_[as_size(s)].map.size()); }
  int* list(int s) { return list_.data() + s * bound_; }
  int* map(int s) { return map_.data() + as_size(s) * row_; }

  kv::cache view() {
    std::int64_t const layer = 4 * 2 * pool_.slots();
    kv::plane const k{reinterpret_cast<std::byte*>(k_.data()), kv::codec::f32, 1, layer, 8, 8, 4, 4};
    kv::plane const v{reinterpret_cast<std::byte*>(v_.data()), kv::codec::f32, 1, layer, 8, 8, 4, 4};
    kv::lanes const batch{.sequences = sequences_,
                          .layer_end = 2,
                          .heads = 2,
                          .capacity = bound_,
                          .count = {count_of_.data(), 1, 0, 0},
                          .position = {position_.data(), bound_, 0, 0},
                          .in_flight = drafts_.data()};
    return {{.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 1},
            batch,
            k,
            v,
            kv::slot_map({list_.data(), bound_, 0, 0}, pool_.slots())};
  }

  using policy_type = kv::eviction<kv::reduce_lanes<kv::random_scores>, before_prefix>;
  policy_type policy(int budget) {
    return {.score = {.score_of = {.seed = static_cast<std::uint64_t>(random_.below(1000))}},
            .protect = {prefix_.data()},
            .budget = {budget}};
  }

  kv::dead_slot<in_table> redirect_how() {
    return {.list = {list_.data(), bound_, 0, 0},
            .map = {map_.data(), row_, 0, 0},
            .dead = pool_.dead(),
            .protected_prefix = {prefix_.data(), 1, 0, 0},
            .locked_prefix = {locked_.data(), 1, 0, 0},
            .shared = {flags_.data()},
            .freed = {{freed_.data(), bound_, 0, 0}, {freed_count_.data(), 1, 0, 0}},
            .released = {{released_.data(), bound_, 0, 0}, {released_count_.data(), 1, 0, 0}}};
  }
  kv::list_rewrite<in_table> rewrite_how() {
    auto const how = redirect_how();
    return {.list = how.list, .freed = how.freed, .shared = how.shared, .released = how.released};
  }

  // --- The tree ------------------------------------------------------------------------------------------------------

  int owner_of_tree(std::size_t node) const { return 1000 + static_cast<int>(node); }

  /// The tree keeps these slots.
  void cache_prefix(ints const& slots) {
    for (int const slot : slots) pool_.refer(owner_of_tree(tree_.size()), slot);
    tree_.push_back(slots);
  }
  /// The tree forgets a prefix that no sequence has locked.
  bool forget_prefix() {
    if (tree_.empty() || std::any_of(locked_.begin(), locked_.end(), [](int p) { return p > 0; })) return false;
    for (int const slot : tree_.back()) pool_.leave(owner_of_tree(tree_.size() - 1), slot);
    tree_.pop_back();
    return true;
  }

  // --- What an engine does -------------------------------------------------------------------------------------------

  std::optional<int> allocate() {
    if (auto const slot = pool_.allocate(random_.below(1000))) return slot;
    ++count_.exhausted;
    evict(random_.below(bound_ / 2 + 1));
    if (auto const slot = pool_.allocate(random_.below(1000))) return slot;
    while (forget_prefix()) {
      if (auto const slot = pool_.allocate(random_.below(1000))) return slot;
    }
    return std::nullopt;
  }

  /// A slot for the next position: a fresh one, or one that this sequence has already (in two places then).
  std::optional<int> slot_for(int s) {
    reference::mapped_sequence const& seen = seen_[as_size(s)];
    ints own;
    for (int const p : seen.live) {
      if (tree_is_counted_ || p >= seen.locked) own.push_back(seen.map[as_size(p)]);
    }
    if (own.empty() || !random_.chance(45)) return allocate();
    ++count_.aliases;
    return random_.one_of(own);
  }

  void append(int s, int tokens) {
    bool const drafts = drafts_[as_size(s)] > 0 || random_.chance(15);
    for (int t = 0; t < tokens; ++t) {
      if (count_of_[as_size(s)] == bound_) evict(bound_ / 2);
      if (count_of_[as_size(s)] == bound_ || length(s) == static_cast<int>(row_)) return;
      auto const slot = slot_for(s);
      if (!slot) return;
      append_at(s, *slot, drafts);
    }
  }

  void append_at(int s, int slot, bool draft) {
    pool_.refer(s, slot);
    int const position = length(s);
    list(s)[count_of_[as_size(s)]] = slot;
    map(s)[position] = slot;
    kv::cache cache = view();
    kv::append(exec_, cache, *state_, {.sequence = s, .tokens = 1, .position = position, .in_flight = draft});
    seen_[as_size(s)].map.push_back(slot);
    seen_[as_size(s)].live.insert(position);
  }

  void accept(int s) {
    int const first = length(s) - drafts_[as_size(s)];
    truncate(s, random_.between(first, length(s)));
    kv::cache cache = view();
    kv::commit(exec_, cache, s, drafts_[as_size(s)]);
  }

  void truncate(int s, int position) {
    reference::mapped_sequence& seen = seen_[as_size(s)];
    kv::cache cache = view();
    kv::truncate(exec_, cache, *state_, s, position);
    for (int p = position; p < length(s); ++p) {
      if (seen.live.erase(p) != 0) pool_.leave(s, seen.map[as_size(p)]);
    }
    seen.map.resize(as_size(position));
    seen.prefix = prefix_[as_size(s)] = std::min(seen.prefix, position);
    seen.locked = locked_[as_size(s)] = std::min(seen.locked, position);
  }

  /// A new sequence begins with what another one (or the tree) has: its first positions, as far as they are all alive.
  void share(int s, int from) {
    if (s == from) return truncate(s, 0);
    int most = 0;
    reference::mapped_sequence const& source = seen_[as_size(from)];
    while (most < length(from) - drafts_[as_size(from)] && source.live.count(most) != 0) ++most;
    int tokens = random_.below(most + 1);
    if (!tree_is_counted_ && reaches_behind(source.map, tokens)) tokens = 0;
    ints const slots(source.map.begin(), source.map.begin() + tokens);
    bool const through_tree = !tree_is_counted_ || random_.chance(50);
    if (through_tree && tokens > 0) cache_prefix(slots);
    if (!tree_is_counted_) lock(from, tokens);
    truncate(s, 0);
    for (int const slot : slots) append_at(s, slot, false);
    if (redirects_ && through_tree) lock(s, tokens);
    if (!redirects_ || !random_.chance(50)) return;
    seen_[as_size(s)].prefix = prefix_[as_size(s)] = tokens;
  }

  /// A slot of the first `tokens` positions is that of a later one, too.
  static bool reaches_behind(ints const& map, int tokens) {
    return std::any_of(map.begin(), map.begin() + tokens,
                       [&](int slot) { return std::find(map.begin() + tokens, map.end(), slot) != map.end(); });
  }

  /// Slots of these positions are the tree's. What aliases them behind would be the tree's too, unnoticed.
  void lock(int s, int tokens) {
    if (tree_is_counted_ && random_.chance(50)) return;
    seen_[as_size(s)].locked = locked_[as_size(s)] = std::max(seen_[as_size(s)].locked, tokens);
  }

  /// The tree takes a sequence's first positions, dead ones too, and says where it keeps them.
  void rewrite(int s) {
    if (!redirects_ || drafts_[as_size(s)] > 0 || length(s) < 2) return;
    int const tokens = random_.between(1, length(s));
    ints slots;
    for (int p = 0; p < tokens; ++p) {
      int const old = seen_[as_size(s)].map[as_size(p)];
      bool const alive = seen_[as_size(s)].live.count(p) != 0;
      ints const& all = seen_[as_size(s)].map;
      bool const also_behind = std::find(all.begin() + tokens, all.end(), old) != all.end();
      if (alive && !also_behind && random_.chance(60)) {
        slots.push_back(old);
      } else if (auto const slot = pool_.allocate(random_.below(1000))) {
        slots.push_back(*slot);
        pool_.refer(owner_of_tree(tree_.size()), *slot);  // nobody may take it meanwhile
      } else {
        for (int const each : slots) {
          if (pool_.refers(owner_of_tree(tree_.size()), each)) pool_.leave(owner_of_tree(tree_.size()), each);
        }
        return;
      }
    }
    ++count_.rewrites;
    for (int const slot : slots) {
      if (pool_.owner_count(slot) != 1 || !pool_.refers(owner_of_tree(tree_.size()), slot)) {
        pool_.refer(owner_of_tree(tree_.size()), slot);
      }
    }
    settle(slots);
    tree_.push_back(slots);
    reference::mapped_sequence& seen = seen_[as_size(s)];
    for (int p = 0; p < tokens; ++p) {
      if (seen.live.count(p) != 0) {
        pool_.refer(s, slots[as_size(p)]);
        pool_.leave(s, seen.map[as_size(p)]);
      }
      seen.map[as_size(p)] = map(s)[p] = slots[as_size(p)];
    }
    if (!tree_is_counted_) lock(s, tokens);
    kv::relist(exec_, redirect_how(), view(), s, length(s));
    reference::redirection const expected = reference::relisted(seen, pool_.dead());
    seen.map = expected.map;
    require(ints(map(s), map(s) + length(s)) == expected.map, "relist: the map");
    require(ints(list(s), list(s) + count_of_[as_size(s)]) == expected.list, "relist: the list");
  }

  /// A slot that stands twice in a prefix has as many references of the tree.
  void settle(ints const& slots) {
    int const owner = owner_of_tree(tree_.size());
    for (int const slot : std::set<int>(slots.begin(), slots.end())) {
      int const wanted = static_cast<int>(std::count(slots.begin(), slots.end(), slot));
      while (pool_.references(slot).at(owner) < wanted) pool_.refer(owner, slot);
      while (pool_.references(slot).at(owner) > wanted) pool_.forget(owner, slot);
    }
  }

  // --- Evictions -----------------------------------------------------------------------------------------------------

  void evict(int budget) {
    kv::cache cache = view();
    kv::decide(exec_, policy(budget), kv::signals{cache.lanes}, *state_, *plan_);
    ++count_.evictions;
    tell_shared();
    std::vector<reference::redirection> expected;
    for (int s = 0; s < sequences_; ++s) expected.push_back(expect(s));
    auto const k_before = k_;
    auto const v_before = v_;
    if (redirects_) kv::apply(exec_, redirect_how(), *plan_, cache, *state_);
    if (!redirects_) kv::apply(exec_, rewrite_how(), *plan_, cache, *state_);
    require(k_ == k_before && v_ == v_before, "a row was written");
    for (int s = 0; s < sequences_; ++s) carry_out(s, expected[as_size(s)]);
  }

  void tell_shared() {
    for (int slot = 0; slot < pool_.slots(); ++slot) {
      int owners = 0;
      for (auto const& [owner, times] : pool_.references(slot)) owners += owner < 1000 || tree_is_counted_ ? 1 : 0;
      flags_[as_size(slot)] = owners > 1 ? 1 : 0;
      count_.slots_seen += pool_.reference_count(slot) > 0 ? 1 : 0;
      count_.slots_shared += pool_.reference_count(slot) > 1 ? 1 : 0;
    }
  }

  reference::redirection expect(int s) {
    auto const kept = plan_->keep().listed(s);
    std::set<int> dropped = seen_[as_size(s)].live;
    for (int const ordinal : kept) dropped.erase(position_[as_size(s * bound_ + ordinal)]);
    for (int p = length(s) - drafts_[as_size(s)]; p < length(s); ++p) dropped.erase(p);
    auto const expected = reference::redirect(seen_[as_size(s)], dropped, pool_.dead(),
                                              [&](int slot) { return flags_[as_size(slot)] != 0; });
    dropped_.resize(as_size(sequences_));
    dropped_[as_size(s)] = dropped;
    return expected;
  }

  static ints sorted(int const* first, int count) {
    ints all(first, first + count);
    std::sort(all.begin(), all.end());
    return all;
  }

  void carry_out(int s, reference::redirection const& expected) {
    reference::mapped_sequence& seen = seen_[as_size(s)];
    ints const freed = sorted(freed_.data() + s * bound_, freed_count_[as_size(s)]);
    ints const released = sorted(released_.data() + s * bound_, released_count_[as_size(s)]);
    for (int const p : dropped_[as_size(s)]) {
      seen.live.erase(p);
      pool_.forget(s, seen.map[as_size(p)]);
    }
    for (int const slot : freed) pool_.give_back(slot);  // throws at what must not be freed
    for (int const slot : released) {
      require(!pool_.refers(s, slot), "a slot is released that is still referred to");
      if (pool_.owner_count(slot) == 0 && !pool_.is_free(slot)) pool_.give_back(slot);
    }
    count_.freed += static_cast<int>(freed.size());
    count_.released += static_cast<int>(released.size());
    seen.map = expected.map;
    require(freed == expected.freed, "the freed slots are others");
    require(released == expected.released, "the released slots are others");
    require(ints(list(s), list(s) + count_of_[as_size(s)]) == expected.list, "the live list");
    if (redirects_) require(ints(map(s), map(s) + length(s)) == expected.map, "the map");
  }

  /// Owners are who refers to a slot, nothing is lost, and positions are what they were.
  void check() {
    for (int slot = 0; slot < pool_.slots(); ++slot) {
      if (slot != pool_.dead()) require(pool_.is_free(slot) == (pool_.owner_count(slot) == 0), "a slot leaked");
      for (int s = 0; s < sequences_; ++s) {
        int times = 0;
        for (int const p : seen_[as_size(s)].live) times += seen_[as_size(s)].map[as_size(p)] == slot ? 1 : 0;
        auto const& owners = pool_.references(slot);
        require(times == (owners.count(s) != 0 ? owners.at(s) : 0), "the owner map");
      }
    }
    for (int s = 0; s < sequences_; ++s) {
      auto const& live = seen_[as_size(s)].live;
      require(as_size(count_of_[as_size(s)]) == live.size(), "the count");
      int const* const positions = position_.data() + s * bound_;
      require(std::equal(live.begin(), live.end(), positions), "positions");
    }
  }

  dice random_;
  totals& count_;
  int sequences_;
  int bound_;
  bool redirects_;        ///< dead_slot; otherwise list_rewrite
  bool tree_is_counted_;  ///< the engine's predicate knows of the tree; otherwise `locked` alone protects its slots
  reference::slot_pool pool_;
  std::vector<reference::mapped_sequence> seen_;
  std::vector<std::set<int>> dropped_;
  std::vector<ints> tree_;
  std::vector<char> flags_;
  std::vector<float> k_, v_;
  ints list_, map_, position_, count_of_, drafts_, prefix_, locked_, freed_, freed_count_, released_, released_count_;
  kv::host_executor exec_;
  std::optional<kv::state<kv::host_executor>> state_;
  std::optional<kv::plan<kv::host_executor>> plan_;
};

}  // namespace

TEST_SUITE("layout/dead_slot") {
  TEST_CASE("no slot is freed twice, and none that is kept, shared, locked or dead") {
    totals count;
    int const cases = under_address_sanitizer ? 2000 : rounds(10000);
    for (int seed = 0; seed < cases; ++seed) {
      serving engine(static_cast<std::uint64_t>(seed), count);
      std::string error;
      try {
        for (int step = 0; step < 24; ++step) engine.step();
      } catch (std::exception const& failed) {
        error = failed.what();
      }
      INFO("case " << seed);
      REQUIRE(error == "");
    }
    MESSAGE(count.evictions << " evictions, " << 100 * count.slots_shared / count.slots_seen << " % of "
                            << count.slots_seen << " slots shared, pool exhausted " << count.exhausted << " times, "
                            << count.freed << " freed, " << count.released << " released, " << count.rewrites
                            << " rewrites, " << count.aliases << " aliases");
    CHECK(100 * count.slots_shared >= 30 * count.slots_seen);
    CHECK(count.exhausted >= 100);
    CHECK(count.evictions >= 10000);
    CHECK(count.freed >= 10000);
    CHECK(count.released >= 1000);
    CHECK(count.rewrites >= 1000);
  }
}
