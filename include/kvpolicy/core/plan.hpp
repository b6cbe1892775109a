// SPDX-License-Identifier: Apache-2.0
// A plan: the reusable memory of a decision and its result, a keep set.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/epochs.hpp>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/row_counts.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/turns.hpp>
#include <optional>
#include <utility>

namespace KVPOLICY_NAMESPACE {

/// The scores, keep set and report of one batch. The engine owns the plan, `decide` fills it, and appliers read it.
///
/// A plan holds the decision of the latest `decide`. It holds none before the first `decide`, and none after a `decide`
/// that threw while it was deciding (because a functor of the policy threw, for example). Without a decision `apply`,
/// `explain`, `report` and `score` throw. A `decide` that refuses its arguments leaves the previous decision in place.
template <class Executor>
class plan {
 public:
  /// `batch` is the lanes of all slots. `spare_rows` is the number of extra rows of floats that the policy's scorer
  /// and the allotter of its budget need for one turn, `capacity` floats each. `entry_bytes` is the size of K and V of
  /// one entry of one lane. `turn` is how much the plan decides about at once; by default that is the whole batch.
  plan(Executor& exec, kvpolicy::lanes const& batch, granularity decides, int spare_rows = 0,
       std::int64_t entry_bytes = 0, detail::turn_size const& turn = {})
      : turn_(turn.sequences > 0 ? turn : detail::turn_size{batch.sequences, batch.layers()}),
        segments_(kvpolicy::segments(detail::first_turn(batch, turn_), decides)),
        spare_(exec, static_cast<std::size_t>(spare_rows) * static_cast<std::size_t>(batch.capacity)),
        scores_(exec, static_cast<std::size_t>(segments_) * static_cast<std::size_t>(batch.capacity)),
        indices_(exec, scores_.size()),
        indptr_(exec, static_cast<std::size_t>(segments_) + 1),
        seen_(exec, static_cast<std::size_t>(segments_)),
        epoch_(exec, static_cast<std::size_t>(turn_.sequences) * static_cast<std::size_t>(turn_.layers)),
        report_(exec, 1),
        total_(exec, 1),
        turn_stats_(exec, 1),
        lanes_(batch),
        decides_(decides),
        entry_bytes_(entry_bytes) {}

  plan(plan&&) = default;
  plan& operator=(plan&&) = default;
  plan(plan const&) = delete;  // its keep set points into its own memory
  plan& operator=(plan const&) = delete;

  /// A view of this plan's memory for the scores of `batch`: the plan's lanes, or some of their layers.
  [[nodiscard]] score_view scores(kvpolicy::lanes const& batch) {
    score_view made = contiguous_scores(batch, decides_, scores_.data(), lanes_.capacity);
    made.spare = spare_.size() > 0 ? spare_.data() : nullptr;
    return made;
  }

  /// An entry's score in the latest decision. It requires scores in host memory.
  ///
  /// - throws: `invalid_argument` if there is no decision, or if it was not about such a segment or entry.
  [[nodiscard]] float score(int segment, int ordinal) const {
    expects_decision("score");
    expects(segment >= 0 && segment < keep_.segments(), "score", "segment", segment,
            [&] { return "the decision is about " + std::to_string(keep_.segments()) + " segments"; });
    expects(ordinal >= 0 && ordinal < keep_.entry_count[segment], "score", "ordinal", ordinal,
            [&] { return "the segment had " + std::to_string(keep_.entry_count[segment]) + " entries"; });
    return scores_.data()[std::int64_t{segment} * lanes_.capacity + ordinal];
  }

  /// The scores in memory: a row of `capacity` floats for each segment that the plan decides about at once.
  [[nodiscard]] float const* scores() const { return scores_.data(); }

  [[nodiscard]] int spare_rows() const {
    return static_cast<int>(spare_.size() / static_cast<std::size_t>(lanes_.capacity));
  }
  /// Bytes of keys and values of one entry of one lane. A budget in bytes is divided by it.
  [[nodiscard]] std::int64_t entry_bytes() const { return entry_bytes_; }

  /// Memory for the rows of a forward that count.
  [[nodiscard]] detail::row_counts<Executor>& counted() { return counted_; }
  /// Makes room for a number of each lane, for a budget that allots shares.
  void add_shares(Executor& exec) { shares_.emplace(exec, static_cast<std::size_t>(lanes_.size())); }
  [[nodiscard]] bool allots() const { return shares_.has_value(); }
  /// The entries that each lane may keep, as the latest decision's budget allotted them; null if budgets are numbers.
  [[nodiscard]] by_lane<int> shares() { return shares_ ? by_lanes(shares_->data()) : by_lane<int>{}; }
  [[nodiscard]] by_lane<int const> shares() const {
    return shares_ ? by_lanes(std::as_const(*shares_).data()) : by_lane<int const>{};
  }

  /// Makes room for a number of each lane, for a policy that counts what stays before it picks.
  void add_kept(Executor& exec) { kept_.emplace(exec, static_cast<std::size_t>(lanes_.size())); }
  [[nodiscard]] bool counts_kept() const { return kept_.has_value(); }
  /// That number of each lane: while a scorer runs that reads the budget, what the lane may keep, and from the pick on,
  /// what stays of it.
  [[nodiscard]] by_lane<int> kept() { return kept_ ? by_lanes(kept_->data()) : by_lane<int>{}; }

  /// Memory for the sums over the turns of an `evict`.
  [[nodiscard]] kvpolicy::report* total() { return total_.data(); }
  [[nodiscard]] apply_stats* turn_stats() { return turn_stats_.data(); }

  /// True if the plan holds a decision.
  [[nodiscard]] bool decided() const { return status_ == status::decided && owned_; }

  /// Throws `invalid_argument` if the plan holds no decision. The message names the `call` that needs one and the call
  /// `by` that makes one.
  void expects_decision(char const* call, char const* by = "decide") const {
    expects(decided(), call, "plan",
            !owned_                    ? "moved from"
            : status_ == status::empty ? "empty"
                                       : "empty since its last decision did not finish",
            [&] { return std::string(by) + " comes before " + call; });
  }

  /// The keep set of the decision. If there is no decision, its pointers are null.
  [[nodiscard]] keep_set const& keep() const { return keep_; }

  /// A view of this plan's memory for the keep set of a decision about `batch`. `publish` makes it the plan's keep set.
  [[nodiscard]] keep_set keep_storage(kvpolicy::lanes const& batch) {
    return {batch,          decides_,        item::token,  side::kept,
            indptr_.data(), indices_.data(), seen_.data(), static_cast<std::int64_t>(indices_.size()),
            report_.data(), slots_,          epoch_.data()};
  }
  /// Names the list in which an applier will look up slots, for `keep_set::slots`.
  void look_up_in(by_lane<int const> const& slots) { slots_ = slots; }
  /// Discards the decision before another one is written into its memory. Until `publish` the plan holds none.
  void withdraw() {
    keep_ = {};
    status_ = status::deciding;
  }
  /// Makes `decided` the plan's decision.
  void publish(keep_set const& decided) {
    keep_ = decided;
    if (decided.epochs.data == nullptr) keep_.epoch = nullptr;  // none were noted
    keep_.epochs = {};  // those of the state, which may be gone when somebody asks; `apply` is given it again
    status_ = status::decided;
  }

  /// The lanes of all slots, for which the plan was made.
  ///
  /// - throws: `invalid_argument` if the plan was moved from.
  [[nodiscard]] kvpolicy::lanes const& lanes() const {
    expects(bool(owned_), "plan", "this", "moved from", "its memory is in the plan that it was moved to");
    return lanes_;
  }
  [[nodiscard]] granularity decides() const { return decides_; }
  /// The number of segments that the plan decides about at once.
  [[nodiscard]] int segments() const { return segments_; }
  /// The largest part of a batch that the plan decides about at once.
  [[nodiscard]] detail::turn_size const& turn() const { return turn_; }
  /// The report of the decision. It requires reports in host memory. Throws `invalid_argument` if there is no decision.
  [[nodiscard]] kvpolicy::report const& report() const {
    expects_decision("report");
    return *report_.data();
  }

 private:
  enum class status { empty, deciding, decided };

  /// A table with one number for each lane of the batch.
  template <class T>
  [[nodiscard]] by_lane<T> by_lanes(T* first) const {
    std::int64_t const heads = lanes_.heads;
    std::int64_t const sequence = heads * lanes_.layers();
    return {first - lanes_.sequence_begin * sequence - lanes_.layer_begin * heads, sequence, heads, 1};
  }

  template <class T>
  using buffer = typename Executor::template buffer<T>;

  by_lane<int const> slots_{};
  detail::turn_size turn_;
  int segments_;
  buffer<float> spare_;
  buffer<float> scores_;
  buffer<int> indices_;
  buffer<std::int64_t> indptr_;
  buffer<int> seen_;
  buffer<std::uint64_t> epoch_;
  buffer<kvpolicy::report> report_;
  buffer<kvpolicy::report> total_;  ///< of the turns of an `evict`
  buffer<apply_stats> turn_stats_;  ///< of one turn
  std::optional<buffer<int>> shares_;
  std::optional<buffer<int>> kept_;
  detail::row_counts<Executor> counted_;
  kvpolicy::lanes lanes_;
  granularity decides_;
  std::int64_t entry_bytes_;
  keep_set keep_{};
  status status_ = status::empty;
  detail::still_owned owned_;
};

}  // namespace KVPOLICY_NAMESPACE
