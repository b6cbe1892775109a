// SPDX-License-Identifier: Apache-2.0
// The cache of one session: its map of positions, its list of live slots, and the part that is in the prefix tree.
#pragma once

#include <algorithm>
#include <array>
#include <kvpolicy/kvpolicy.hpp>
#include <span>
#include <string>
#include <vector>

#include "memory.hpp"

namespace agent_replay {

using executor = kv::host_executor;
using held_state = kv::state<executor>;
using held_plan = kv::plan<executor>;

/// How dropped tokens leave the memory.
///
/// - dead_slot: the map redirects them to the dead slot. Kept rows stay where they are, and the whole map is inserted
///   into the prefix tree.
/// - compact: kept rows move to the front. Rows that may move cannot be shared, so only the first `prefix` tokens are
///   inserted into the tree.
enum class substrate { dead_slot, compact };

[[nodiscard]] constexpr std::array<char const*, 2> names(substrate) { return {"dead slot", "compact"}; }

struct cache_options {
  substrate lay = substrate::dead_slot;
  int prefix = 0;           ///< the first positions, which other sessions read too, and which the policy protects
  bool allow_holes = true;  ///< with dead_slot: insert maps with holes into the tree, private to this session
  int bound = 1280;         ///< the largest number of positions of a session
};

/// The entries of a session. It is open while a request runs, from `open` to `close`. Between requests the tree owns
/// the slots, and the session stores which positions are live.
///
/// The positions [0, tree_length) are in slots of the tree, which are locked. The session owns the slots of later
/// positions.
class session_cache {
 public:
  session_cache(token_memory& in, int session, cache_options const& how) : in_(&in), session_(session), how_(how) {
    auto const bound = static_cast<std::size_t>(how.bound);
    table_.resize(bound);
    map_.resize(bound);
    freed_.resize(bound);
    count_.resize(static_cast<std::size_t>(rows()));
    position_.resize(bound * static_cast<std::size_t>(rows()));
  }
  session_cache(session_cache const&) = delete;  // states and plans point to its tables
  session_cache& operator=(session_cache const&) = delete;

  [[nodiscard]] kv::cache view() {
    kv::shape const& model = in_->model();
    std::int64_t const head = how_.lay == substrate::compact ? 1 : 0;
    std::int64_t const layer = head * model.kv_heads;
    return {.shape = model,
            .lanes = {.layer_end = model.layers,
                      .heads = model.kv_heads,
                      .capacity = how_.bound,
                      .count = {count_.data(), 0, layer, head},
                      .position = {position_.data(), 0, layer * how_.bound, head * how_.bound},
                      .in_flight = &in_flight_},
            .k = in_->keys(),
            .v = in_->values(),
            .where = kv::slot_map({table_.data()}, in_->slots.slots())};
  }

  /// Begins a request: locks the longest prefix in the tree, and removes the session's entries after it. Returns the
  /// number of tokens that need not be computed. At least one token is left to compute.
  ///
  /// - throws: `invalid_argument` if a request runs already, or there is no token.
  int open(executor& exec, held_state& state, std::span<token const> ids) {
    kv::expects(!is_open() && !ids.empty(), "session_cache::open", "ids", std::ssize(ids),
                "one request runs at a time, and it has a token at least");
    auto const most = std::min(static_cast<std::size_t>(std::min(shareable(), how_.bound)), ids.size() - 1);
    auto const found = in_->tree.match(ids.first(most), session_);
    node_ = found.node;
    in_->tree.lock(*node_);
    int const known = std::min(length_, static_cast<int>(found.slots.size()));
    tree_length_ = length_ = static_cast<int>(found.slots.size());
    std::copy(found.slots.begin(), found.slots.end(), map_.begin());
    kv::cache seen = view();
    std::vector<std::byte> memory(state.session_bytes());  // the session goes on, also where its cache begins anew
    state.save_session(exec, 0, memory.data());
    kv::truncate(exec, seen, state, 0, known);
    state.load_session(exec, 0, memory.data());
    for (int p = known; p < length_; ++p) {
      if (map_[at(p)] != slot_allocator::dead) kv::append(exec, seen, state, {.tokens = 1, .position = p});
    }
    relist(exec);
    return length_;
  }

  /// True if the pool has slots for `tokens` more tokens and `spare` further slots. If necessary the tree evicts leaves
  /// that no request reads.
  [[nodiscard]] bool reserve(int tokens, int spare = 0) {
    int const slots = tokens + spare;
    if (in_->slots.available() < slots) in_->tree.evict(slots - in_->slots.available());
    return in_->slots.available() >= slots && tokens <= how_.bound - length_;
  }

  /// Appends new tokens, in slots that the session owns.
  /// - throws: `invalid_argument` if there are too few slots. Nothing is changed then.
  void append(executor& exec, held_state& state, int tokens, bool draft = false) {
    kv::expects(reserve(tokens), "session_cache::append", "tokens", tokens, [&] {
      return std::to_string(in_->slots.available()) + " slots and " + std::to_string(how_.bound - length_) +
             " positions are left";
    });
    int const count = count_[0];
    kv::cache seen = view();
    kv::append(exec, seen, state, {.tokens = tokens, .position = length_, .in_flight = draft});
    for (int t = 0; t < tokens; ++t) table_[at(count + t)] = map_[at(length_ + t)] = in_->slots.take();
    length_ += tokens;
  }

  /// Applies a decision, and frees the slots of dropped tokens.
  void prune(executor& exec, held_plan const& decided, held_state& state) {
    claim();
    kv::cache seen = view();
    if (how_.lay == substrate::dead_slot) {
      redirect(exec, decided, seen, state);
    } else {
      int const before = count_[0];
      kv::apply(exec, kv::compact{}, decided, seen, state);
      bool const even = std::count(count_.begin(), count_.end(), count_[0]) == rows();
      kv::expects(even, "prune", "count", "ragged", "a slot is a token of every lane: all lanes keep equally many");
      for (int e = count_[0]; e < before; ++e) in_->slots.give(table_[at(e)]);
    }
  }

  /// Rolls the request back to `position`, which must not be before the end of the part in the tree.
  void truncate(executor& exec, held_state& state, int position) {
    kv::expects(position >= tree_length_ && position <= length_, "session_cache::truncate", "position", position,
                "tokens before it are in the tree, or there are not so many");
    for (int e = entries_before(position); e < count_[0]; ++e) in_->slots.give(table_[at(e)]);
    kv::cache seen = view();
    kv::truncate(exec, seen, state, 0, position);
    length_ = position;
  }

  /// Accepts the oldest `tokens` of the drafts in flight.
  void commit(executor& exec, int tokens) {
    kv::cache seen = view();
    kv::commit(exec, seen, 0, tokens);
  }

  /// Inserts the part that may be shared into the tree while the request continues. The tree frees duplicates and
  /// rewrites the map, also for dead positions, which stay dead.
  void publish(executor& exec, std::span<token const> ids) {
    kv::expects(in_flight_ == 0, "session_cache::publish", "drafts", in_flight_, "they are nobody's prefix");
    int const tokens = std::min(length_, shareable());
    auto const put = in_->tree.insert(ids.first(at(tokens)), std::span(map_).first(at(tokens)), session_,
                                      how_.lay == substrate::dead_slot && how_.allow_holes);
    in_->tree.lock(*put.node);
    in_->tree.unlock(*node_);
    node_ = put.node;
    tree_length_ = put.tokens;
    relist(exec);
  }

  /// Ends the request: the tree owns the part that may be shared, and all other slots are freed.
  void close(executor& exec, std::span<token const> ids) {
    if (shareable() > 0) publish(exec, ids);
    for_each_own([&](int slot) { in_->slots.give(slot); });
    in_->tree.unlock(*node_);
    node_ = nullptr;
  }

  [[nodiscard]] bool is_open() const { return node_ != nullptr; }
  [[nodiscard]] int session() const { return session_; }
  [[nodiscard]] int length() const { return length_; }            ///< positions so far, dead ones included
  [[nodiscard]] int live() const { return count_[0]; }            ///< entries of a lane, drafts included
  [[nodiscard]] int tree_length() const { return tree_length_; }  ///< positions in slots of the tree
  [[nodiscard]] std::span<int const> map() const { return std::span(map_).first(at(length_)); }
  [[nodiscard]] std::span<int const> list() const { return std::span(table_).first(at(count_[0])); }
  [[nodiscard]] std::span<int const> positions() const { return std::span(position_).first(at(count_[0])); }
  [[nodiscard]] cache_options const& how() const { return how_; }

  /// Calls visit(slot) for every slot that the session owns while it is open.
  template <class Visit>
  void for_each_own(Visit const& visit) const {
    if (!is_open()) return;
    for (int e = entries_before(tree_length_); e < count_[0]; ++e) visit(table_[at(e)]);
  }

 private:
  static constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

  [[nodiscard]] int rows() const { return how_.lay == substrate::compact ? in_->lanes() : 1; }
  [[nodiscard]] int shareable() const { return how_.lay == substrate::dead_slot ? how_.bound : how_.prefix; }
  [[nodiscard]] int entries_before(int position) const {
    return static_cast<int>(std::lower_bound(position_.begin(), position_.begin() + count_[0], position) -
                            position_.begin());
  }

  [[nodiscard]] kv::dead_slot<> redirecting() {
    return {.list = {table_.data()},
            .map = {map_.data()},
            .dead = slot_allocator::dead,
            .freed = {{freed_.data()}, {&freed_count_}}};
  }

  void relist(executor& exec) {
    if (how_.lay == substrate::dead_slot) {
      kv::relist(exec, redirecting(), view(), 0, length_);
    } else {
      std::copy_n(map_.begin(), tree_length_, table_.begin());  // nothing was dropped from the prefix
    }
  }

  /// Takes the nodes that only this request reads out of the tree, so that their dropped slots can be freed.
  void claim() {
    auto const mine = in_->tree.claim(*node_, tree_length_, how_.prefix);
    for (std::size_t i = 0; i < mine.slots.size(); ++i) {
      int const slot = mine.slots[i];
      bool const dropped = map_[at(mine.length) + i] == slot_allocator::dead;
      if (dropped && slot != slot_allocator::dead) in_->slots.give(slot);  // the tree had restored it
    }
    node_ = mine.node;
    tree_length_ = mine.length;
  }

  void redirect(executor& exec, held_plan const& decided, kv::cache& seen, held_state& state) {
    int const prefix = std::min(how_.prefix, length_);
    kv::dead_slot<> how = redirecting();
    how.protected_prefix = {&prefix};
    how.locked_prefix = {&tree_length_};
    kv::apply(exec, how, decided, seen, state);
    for (int i = 0; i < freed_count_; ++i) in_->slots.give(freed_[at(i)]);
  }

  token_memory* in_;
  int session_;
  cache_options how_;
  std::vector<int> table_;     ///< the slot of each live entry
  std::vector<int> map_;       ///< the slot of each position
  std::vector<int> count_;     ///< [rows], the number of entries; one row for all lanes, or one for each
  std::vector<int> position_;  ///< [rows][bound]
  std::vector<int> freed_;
  int freed_count_ = 0;
  int in_flight_ = 0;
  int length_ = 0;
  int tree_length_ = 0;
  tree_node* node_ = nullptr;
};

}  // namespace agent_replay
