// The reusable memory of a selection: lanes whose entries are pages, and the pages that are read.
#pragma once

#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/ops/page_bounds.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores of pages, chosen pages and report of one batch. The engine owns it, `select_pages` fills it.
template <class Executor>
class selection_plan {
 public:
  /// For lanes of up to `lanes.bound` entries in pages of `page`. `entry_bytes`: of K and V.
  selection_plan(Executor& exec, kvpolicy::lanes const& batch, int page, std::int64_t entry_bytes = 0)
      : counts_(exec, static_cast<std::size_t>(batch.size())),
        positions_(exec, static_cast<std::size_t>(detail::pages_for(batch.bound, page))),
        lanes_(batch),
        page_(page),
        plan_(exec, pages_of(batch), granularity::lane, 0, entry_bytes) {}

  selection_plan(selection_plan&&) = default;
  selection_plan& operator=(selection_plan&&) = default;
  selection_plan(selection_plan const&) = delete;
  selection_plan& operator=(selection_plan const&) = delete;

  /// The lanes of `among` with pages for entries: counts and positions are this plan's, and what the last `select`
  /// wrote. A page's position is its number.
  [[nodiscard]] kvpolicy::lanes pages_of(kvpolicy::lanes const& among) {
    std::int64_t const heads = lanes_.heads;
    kvpolicy::lanes made = among;
    made.bound = static_cast<int>(positions_.size());
    made.count = {counts_.data() - lanes_.layer_begin * heads, heads * lanes_.layers(), heads, 1};
    made.position = {positions_.data(), 0, 0, 0};
    made.in_flight = nullptr;
    return made;
  }

  /// The chosen pages of the latest `select`, ascending, a lane a segment; without memory where there are none.
  [[nodiscard]] keep_set const& keep() const { return plan_.keep(); }
  /// True if the plan holds a choice: that of the latest `select`, unless it threw while it was choosing.
  [[nodiscard]] bool decided() const { return plan_.decided(); }
  /// Throws `invalid_argument` if the plan holds no choice, which `call` needs.
  void expects_decision(char const* call) const { plan_.expects_decision(call, "select"); }
  /// A page's score in the latest `select`, where scores are in host memory and the lane's layer is not dense.
  /// `segment` counts the lanes of the whole plan. Throws as `report`.
  [[nodiscard]] float score(int segment, int page) const {
    expects_decision("score");
    return plan_.score(segment, page);
  }
  /// Room for the scores of `pages`, some of this plan's.
  [[nodiscard]] score_view scores(kvpolicy::lanes const& pages) {
    kvpolicy::lanes all = pages_of(lanes_);
    score_view made = plan_.scores(all);
    made.lanes = pages;
    return made;
  }
  /// Room for a keep set of `pages`. It becomes this plan's when it is published.
  [[nodiscard]] keep_set keep_storage(kvpolicy::lanes const& pages) {
    keep_set made = plan_.keep_storage(pages);
    made.of = unit::page;
    return made;
  }
  /// Another choice begins in this plan's memory: until it is published the plan holds none.
  void withdraw() { plan_.withdraw(); }
  void publish(keep_set const& chosen) { plan_.publish(chosen); }

  [[nodiscard]] kvpolicy::lanes const& lanes() const { return lanes_; }
  [[nodiscard]] int page() const { return page_; }
  [[nodiscard]] std::int64_t entry_bytes() const { return plan_.entry_bytes(); }
  /// Throws `invalid_argument` if the plan holds no choice.
  [[nodiscard]] kvpolicy::report const& report() const {
    expects_decision("report");
    return plan_.report();
  }

 private:
  typename Executor::template buffer<int> counts_;
  typename Executor::template buffer<int> positions_;
  kvpolicy::lanes lanes_;  ///< entries
  int page_;
  plan<Executor> plan_;
};

}  // namespace KVPOLICY_NAMESPACE
