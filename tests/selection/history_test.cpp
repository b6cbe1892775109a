// SPDX-License-Identifier: Apache-2.0
// Bounds of pages through any history of forwards, drafts, roll-backs and evictions by any applier: what they speak of
// is what bounds made from scratch say, bit for bit.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using bounds_policy = kv::selection<kv::quest>;
using random_policy =
    kv::eviction<kv::with_recorders<kv::random_scores, kv::record_page_bounds>, kv::nothing, kv::drop_ratio>;

/// A cache of one token a unit, found through a table for each lane, so that every applier may carry out a decision.
class paged_engine {
 public:
  static constexpr int sequences = 2, layers = 2, heads = 2, dims = 4, bound = 40, lanes = sequences * layers * heads;
  static constexpr int slots = 2 * bound + 1, dead = slots - 1, length = 1000;

  explicit paged_engine(int page) : policy_{.score = {.page = page}} {
    for (int i = 0; i < lanes; ++i) {
      for (int e = 0; e < bound; ++e) table_[at(i, bound, e)] = i / (layers * heads) * bound + e;
    }
    for (auto* const each : {&state_, &scratch_}) *each = kv::make_state(exec_, policy_, view());
  }
  paged_engine(paged_engine const&) = delete;
  paged_engine& operator=(paged_engine const&) = delete;

  [[nodiscard]] kv::cache view() {
    kv::cache made{.shape = {layers, heads, heads, dims},
                   .k = plane(k_),
                   .v = plane(v_),
                   .where = kv::block_table(by_lane<int const>(table_.data(), bound), 1, slots)};
    made.lanes = {.sequences = sequences,
                  .layer_end = layers,
                  .heads = heads,
                  .capacity = bound,
                  .count = by_lane<int>(count_.data(), 1),
                  .position = by_lane<int>(position_.data(), bound),
                  .in_flight = drafts_.data()};
    return made;
  }
  [[nodiscard]] kv::by_lane<int> list() { return by_lane<int>(table_.data(), bound); }
  [[nodiscard]] kv::by_lane<int> map() { return by_lane<int>(map_.data(), length); }
  [[nodiscard]] kv::mask_rows mask() {
    return {by_lane<std::byte>(mask_.data(), slots), kv::mask_form::boolean, slots};
  }
  [[nodiscard]] int drafts(int sequence) const { return drafts_[as_size(sequence)]; }
  [[nodiscard]] int next(int sequence) const { return next_[as_size(sequence)]; }

  void append(int sequence, int tokens, bool in_flight, dice& random) {
    for (int i = 0; i < lanes; ++i) {
      if (i / (layers * heads) == sequence) tokens = std::min(tokens, bound - count_[as_size(i)]);
    }
    kv::cache cache = view();
    for (int i = 0; i < lanes; ++i) {
      kv::lane const this_lane = cache.lanes.at(i);
      for (int t = 0; this_lane.sequence == sequence && t < tokens; ++t) write(cache, this_lane, t, random);
    }
    kv::append(exec_, cache, state_, {sequence, tokens, next(sequence), in_flight});
    next_[as_size(sequence)] += tokens;
  }

  void truncate(int sequence, int position) {
    kv::cache cache = view();
    kv::truncate(exec_, cache, state_, sequence, position);
    next_[as_size(sequence)] = position;
  }
  /// Some drafts are accepted, the others rolled back.
  void accept(int sequence, int tokens) {
    truncate(sequence, next(sequence) - drafts(sequence) + tokens);
    kv::cache cache = view();
    kv::commit(exec_, cache, sequence, tokens);
  }

  template <class Applier>
  void evict(Applier const& how, double drop, dice& random) {
    random_policy const policy{
        .score = {{static_cast<std::uint64_t>(random.below(1 << 20))}, kv::recorders_of(policy_.score)},
        .budget = {.drop = drop, .held = true}};
    auto plan = kv::make_plan(exec_, policy, view());
    kv::cache cache = view();
    kv::decide(exec_, policy, kv::signals{cache.lanes}, state_, plan);
    kv::apply(exec_, how, plan, cache, state_);
  }

  /// After keys have turned, a sequence goes on at its number of entries.
  void restart() {
    for (int i = 0; i < lanes; i += layers * heads) {
      next_[as_size(i / (layers * heads))] = count_[as_size(i)];
    }
  }

  /// Lanes of a sequence hold as many entries. Those that were compacted apart and then cut back at one position do
  /// not.
  [[nodiscard]] bool even() const {
    for (int i = 0; i < lanes; ++i) {
      if (count_[as_size(i)] != count_[at(i / (layers * heads), layers * heads, 0)]) return false;
    }
    return true;
  }

  void observe() { kv::observe(exec_, policy_, kv::signals{view().lanes, kv::keys_of(view())}, state_); }

  /// What the bounds speak of is there, and true: of whole pages always, of all that is committed after `observe`.
  void check(bool observed) {
    scratch_.forget(exec_, view().lanes, 0, 0), scratch_.forget(exec_, view().lanes, 1, 0);
    kv::observe(exec_, policy_, kv::signals{view().lanes, kv::keys_of(view())}, scratch_);
    kv::record_page_bounds const keeps{policy_.score.page};
    kv::page_bounds const is = keeps.view(state_.columns_from(0));
    kv::page_bounds const wanted = keeps.view(scratch_.columns_from(0));
    for (int i = 0; i < lanes; ++i) {
      kv::lane const this_lane = view().lanes.at(i);
      int const known = *is.known.row(this_lane);
      int const committed = view().lanes.committed(this_lane);
      RC_LOG() << "lane " << i << " of " << committed << ", known " << known << '\n';
      RC_ASSERT(known <= committed);
      RC_ASSERT((!observed || known == committed));
      int const pages = observed ? (committed + is.page - 1) / is.page : known / is.page;
      RC_ASSERT(std::memcmp(is.row(this_lane, 0), wanted.row(this_lane, 0), as_size(pages * is.row_bytes())) == 0);
    }
  }

 private:
  static std::size_t at(int lane, int row, int i) { return as_size(lane * row + i); }
  template <class T, class Row>
  static kv::by_lane<T> by_lane(Row* data, int row) {
    return {data, std::int64_t{row} * layers * heads, std::int64_t{row} * heads, row};
  }
  static kv::plane plane(std::vector<float>& of) {
    return {.base = reinterpret_cast<std::byte*>(of.data()),
            .channels = dims,
            .layer_stride = 4LL * dims * slots * heads,
            .unit_stride = 4LL * dims,
            .token_stride = 4LL * dims,
            .head_stride = 4LL * dims * slots,
            .channel_stride = 4};
  }
  /// The rows of a new entry, behind the last.
  void write(kv::cache const& cache, kv::lane this_lane, int t, dice& random) {
    int const slot = cache.where.list(this_lane)[*cache.lanes.count.row(this_lane) + t];
    map().row(this_lane)[next(this_lane.sequence) + t] = slot;
    for (int d = 0; d < dims; ++d) {
      auto const value = static_cast<float>(random.between(-50, 50));
      std::memcpy(cache.k.row(this_lane.layer, {slot, 0}, this_lane.head) + d * cache.k.channel_stride, &value,
                  sizeof value);
    }
  }

  std::vector<float> k_ = std::vector<float>(std::size_t{layers} * heads * slots * dims);
  std::vector<float> v_ = k_;
  std::vector<int> table_ = std::vector<int>(std::size_t{lanes} * bound);
  std::vector<int> map_ = std::vector<int>(std::size_t{lanes} * length, dead);
  std::vector<int> position_ = table_;
  std::vector<int> count_ = std::vector<int>(lanes);
  std::vector<int> drafts_ = std::vector<int>(sequences);
  std::vector<int> next_ = drafts_;
  std::vector<std::byte> mask_ = std::vector<std::byte>(std::size_t{lanes} * slots);
  kv::host_executor exec_;
  bounds_policy policy_;
  kv::state<kv::host_executor> state_{exec_, {layers, heads, heads, dims}, view().lanes};
  kv::state<kv::host_executor> scratch_{exec_, {layers, heads, heads, dims}, view().lanes};
};

using eviction = std::function<void(paged_engine&, double, dice&)>;

void step(paged_engine& now, eviction const& evict, int choice, dice& random) {
  int const s = random.below(paged_engine::sequences);
  RC_LOG() << "step " << choice << " of sequence " << s << '\n';
  if (choice <= 2 && now.drafts(s) == 0) now.append(s, random.between(1, 12), false, random);
  if (choice == 3) now.append(s, random.between(1, 3), true, random);
  if (choice == 4) now.accept(s, random.below(now.drafts(s) + 1));
  if (choice == 5 && now.drafts(s) == 0) now.truncate(s, random.below(now.next(s) + 1));
  if (choice >= 6) evict(now, random.one_of<double>({0.1, 0.5, 0.9}), random);
}

void keep_true(char const* applier, eviction const& evict) {
  holds(applier, 20, [&] {
    dice random(any_seed());
    paged_engine now(*rc::gen::element(4, 1, 3, 16));
    for (int const choice : *rc::gen::container<std::vector<int>>(30, rc::gen::inRange(0, 9))) {
      step(now, evict, choice, random);
      bool const observed = random.chance(60);
      if (observed) now.observe();
      now.check(observed);
    }
  });
}

TEST_SUITE("recorders/bound_pages") {
  TEST_CASE("bounds stay true when rows move") {
    keep_true("compact", [](paged_engine& now, double drop, dice& random) { now.evict(kv::compact{}, drop, random); });
    keep_true("overwrite",
              [](paged_engine& now, double drop, dice& random) { now.evict(kv::overwrite{now.list()}, drop, random); });
  }

  TEST_CASE("bounds are made again when keys turn") {
    keep_true("compact_rerotated", [](paged_engine& now, double drop, dice& random) {
      bool const apart = random.chance(50) || !now.even();  // positions are no ordinals any more
      if (apart) return now.evict(kv::compact{}, drop, random);
      now.evict(kv::compact_rerotated{}, drop, random);
      now.restart();
    });
  }

  TEST_CASE("bounds stay true when lists are edited") {
    keep_true("list_rewrite", [](paged_engine& now, double drop, dice& random) {
      now.evict(kv::list_rewrite{.list = now.list()}, drop, random);
    });
    keep_true("mask", [](paged_engine& now, double drop, dice& random) {
      now.evict(kv::mask{now.list(), now.mask()}, drop, random);
    });
    keep_true("dead_slot", [](paged_engine& now, double drop, dice& random) {
      now.evict(kv::dead_slot{.list = now.list(), .map = now.map(), .dead = paged_engine::dead}, drop, random);
    });
    keep_true("drop_blocks", [](paged_engine& now, double drop, dice& random) {
      now.evict(kv::drop_blocks{now.list(), {}}, drop, random);
    });
  }
}

}  // namespace
