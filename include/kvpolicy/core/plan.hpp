// A plan: the reusable memory of a decision, and the keep set that it holds.
#pragma once

#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/scores.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores, keep set and report of one batch. The engine owns it, `decide` fills it, appliers read it.
template <class Executor>
class plan {
 public:
  plan(Executor& exec, lanes const& who, granularity decides)
      : scores_(exec, static_cast<std::size_t>(kvpolicy::segments(who, decides)) * static_cast<std::size_t>(who.bound)),
        ordinals_(exec, scores_.size()),
        offsets_(exec, static_cast<std::size_t>(kvpolicy::segments(who, decides)) + 1),
        seen_(exec, static_cast<std::size_t>(kvpolicy::segments(who, decides))),
        report_(exec, 1),
        who_(who),
        decides_(decides) {}

  plan(plan&&) = default;
  plan& operator=(plan&&) = default;
  plan(plan const&) = delete;  // its keep set points into its own memory
  plan& operator=(plan const&) = delete;

  /// Room for the scores of `among`, which may be some of the plan's layers.
  [[nodiscard]] score_view scores(lanes const& among) {
    return contiguous_scores(among, decides_, scores_.data(), who_.bound);
  }

  /// The keep set of the latest decision; one without memory before the first.
  [[nodiscard]] keep_set const& keep() const { return keep_; }

  /// Room for the keep set of a decision about `among`. It becomes this plan's keep set when it is published.
  [[nodiscard]] keep_set room(lanes const& among) {
    return {among,           decides_,         unit::token,  side::kept,
            offsets_.data(), ordinals_.data(), seen_.data(), static_cast<std::int64_t>(ordinals_.size()),
            report_.data()};
  }
  void publish(keep_set const& decided) { keep_ = decided; }

  [[nodiscard]] lanes const& who() const { return who_; }
  [[nodiscard]] granularity decides() const { return decides_; }
  [[nodiscard]] kvpolicy::report const& report() const { return *report_.data(); }

 private:
  template <class T>
  using buffer = typename Executor::template buffer<T>;

  buffer<float> scores_;
  buffer<int> ordinals_;
  buffer<std::int64_t> offsets_;
  buffer<int> seen_;
  buffer<kvpolicy::report> report_;
  lanes who_;
  granularity decides_;
  keep_set keep_{};
};

}  // namespace KVPOLICY_NAMESPACE
