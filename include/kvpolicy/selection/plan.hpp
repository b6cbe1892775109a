// SPDX-License-Identifier: Apache-2.0
// `selection_plan`: the reusable memory of a selection and its result, the pages that are read.
#pragma once

#include <algorithm>
#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/ops/page_bounds.hpp>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The scores of pages, the chosen pages and the report of one batch. The engine owns the plan, and `select_pages`
/// fills it.
template <class Executor>
class selection_plan {
 public:
  /// Makes a plan for lanes of up to `batch.capacity` entries in pages of `page` entries. `entry_bytes` is the size of
  /// K and V of one entry of one lane.
  selection_plan(Executor& exec, kvpolicy::lanes const& batch, int page, std::int64_t entry_bytes = 0)
      : counts_(exec, static_cast<std::size_t>(batch.size())),
        positions_(exec, static_cast<std::size_t>(detail::pages_for(batch.capacity, page))),
        lanes_(batch),
        page_(page),
        chosen_until_(static_cast<std::size_t>(batch.sequences), -1),
        plan_(exec, pages_of(batch), granularity::lane, 0, entry_bytes) {}

  selection_plan(selection_plan&&) = default;
  selection_plan& operator=(selection_plan&&) = default;
  selection_plan(selection_plan const&) = delete;
  selection_plan& operator=(selection_plan const&) = delete;

  /// The lanes of `batch` with pages in the place of entries. Their counts and positions are in this plan's memory, and
  /// the last `select_pages` wrote them. The position of a page is its index in the lane.
  [[nodiscard]] kvpolicy::lanes pages_of(kvpolicy::lanes const& batch) {
    std::int64_t const heads = lanes_.heads;
    kvpolicy::lanes made = batch;
    made.capacity = static_cast<int>(positions_.size());
    made.count = {counts_.data() - lanes_.layer_begin * heads, heads * lanes_.layers(), heads, 1};
    made.position = {positions_.data(), 0, 0, 0};
    made.in_flight = nullptr;
    return made;
  }

  /// The pages that the latest `select_pages` chose, ascending, one segment for each lane. If there is no choice, its
  /// pointers are null.
  [[nodiscard]] keep_set const& keep() const { return plan_.keep(); }
  /// True if the plan holds a choice: that of the latest `select_pages`, unless it threw while it was choosing.
  [[nodiscard]] bool decided() const { return plan_.decided(); }
  /// Throws `invalid_argument` if the plan holds no choice. The message names the `call` that needs one.
  void expects_decision(char const* call) const { plan_.expects_decision(call, "select"); }
  /// A page's score in the latest `select_pages`. It requires scores in host memory and a lane whose layer is not
  /// dense. `segment` is the index of the lane in the whole plan. Throws as `report` does.
  [[nodiscard]] float score(int segment, int page) const {
    expects_decision("score");
    keep_set const& of = keep();
    lane const one = segment >= 0 && segment < lanes_.size() ? lanes_.at(segment) : lane{-1, -1, -1};
    bool const chosen = one.sequence >= of.lanes.sequence_begin && one.sequence < of.lanes.sequence_end() &&
                        one.layer >= of.lanes.layer_begin && one.layer < of.lanes.layer_end;
    expects(chosen, "score", "segment", segment, "the latest choice was not about this lane");
    int const pages = of.entry_count[of.lanes.index(one)];
    expects(page >= 0 && page < pages, "score", "page", page,
            [&] { return "the lane had " + std::to_string(pages) + " pages"; });
    return *(std::as_const(plan_).scores() + std::int64_t{segment} * static_cast<std::int64_t>(positions_.size()) +
             page);
  }
  /// A view of this plan's memory for the scores of `pages`, which are all lanes of the plan or some of their layers.
  [[nodiscard]] score_view scores(kvpolicy::lanes const& pages) {
    kvpolicy::lanes all = pages_of(lanes_);
    score_view made = plan_.scores(all);
    made.lanes = pages;
    return made;
  }
  /// A view of this plan's memory for a keep set of `pages`. `publish` makes it the plan's keep set.
  [[nodiscard]] keep_set keep_storage(kvpolicy::lanes const& pages) {
    keep_set made = plan_.keep_storage(pages);
    made.items = item::page;
    return made;
  }
  /// The layer at which the latest choice for a sequence of the batch ended; -1 if it did not finish.
  [[nodiscard]] int chosen_until(int sequence) const { return chosen_until_[static_cast<std::size_t>(sequence)]; }
  /// Discards the choice before another one is written into its memory. Until `publish` the plan holds none.
  void withdraw(kvpolicy::lanes const& batch) {
    plan_.withdraw();
    note_end(batch, -1);
  }
  /// Makes `chosen` the plan's choice.
  void publish(keep_set const& chosen) {
    plan_.publish(chosen);
    note_end(chosen.lanes, chosen.lanes.layer_end);
  }

  /// Memory for the rows of a forward that count.
  [[nodiscard]] detail::row_counts<Executor>& counted() { return plan_.counted(); }
  [[nodiscard]] kvpolicy::lanes const& lanes() const { return lanes_; }
  [[nodiscard]] int page() const { return page_; }
  [[nodiscard]] std::int64_t entry_bytes() const { return plan_.entry_bytes(); }
  /// Throws `invalid_argument` if the plan holds no choice.
  [[nodiscard]] kvpolicy::report const& report() const {
    expects_decision("report");
    return plan_.report();
  }

 private:
  void note_end(kvpolicy::lanes const& batch, int layer) {
    auto const first = chosen_until_.begin() + batch.sequence_begin;
    std::fill(first, first + batch.sequences, layer);
  }

  typename Executor::template buffer<int> counts_;
  typename Executor::template buffer<int> positions_;
  kvpolicy::lanes lanes_;  ///< the lanes whose entries are in pages
  int page_;
  std::vector<int> chosen_until_;  ///< for each sequence of a batch
  plan<Executor> plan_;
};

}  // namespace KVPOLICY_NAMESPACE
