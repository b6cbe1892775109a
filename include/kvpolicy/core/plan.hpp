// A plan: the reusable memory of a decision, and the keep set that it holds.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/scores.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores, keep set and report of one batch. The engine owns it, `decide` fills it, appliers read it.
///
/// A plan holds the decision of the latest `decide`, or none: before the first one, and after one that threw while it
/// was deciding (what a functor of the policy throws, say). Without a decision `apply`, `explain`, `report` and `score`
/// throw. A `decide` that refuses its arguments has not begun, and the decision before stands.
template <class Executor>
class plan {
 public:
  /// `spare_rows`: rows of floats that the policy's scorer needs beside its scores. `entry_bytes`: of K and V.
  plan(Executor& exec, kvpolicy::lanes const& batch, granularity decides, int spare_rows = 0,
       std::int64_t entry_bytes = 0)
      : spare_(exec, static_cast<std::size_t>(spare_rows) * static_cast<std::size_t>(batch.bound)),
        scores_(exec,
                static_cast<std::size_t>(kvpolicy::segments(batch, decides)) * static_cast<std::size_t>(batch.bound)),
        ordinals_(exec, scores_.size()),
        offsets_(exec, static_cast<std::size_t>(kvpolicy::segments(batch, decides)) + 1),
        seen_(exec, static_cast<std::size_t>(kvpolicy::segments(batch, decides))),
        report_(exec, 1),
        lanes_(batch),
        decides_(decides),
        entry_bytes_(entry_bytes) {}

  plan(plan&&) = default;
  plan& operator=(plan&&) = default;
  plan(plan const&) = delete;  // its keep set points into its own memory
  plan& operator=(plan const&) = delete;

  /// Room for the scores of `among`, which may be some of the plan's layers.
  [[nodiscard]] score_view scores(kvpolicy::lanes const& among) {
    score_view made = contiguous_scores(among, decides_, scores_.data(), lanes_.bound);
    made.spare = spare_.size() > 0 ? spare_.data() : nullptr;
    return made;
  }

  /// An entry's score in the latest decision, where scores are in host memory. Throws as `report`.
  [[nodiscard]] float score(int segment, int ordinal) const {
    expects_decision("score");
    return scores_.data()[std::int64_t{segment} * lanes_.bound + ordinal];
  }

  [[nodiscard]] int spare_rows() const {
    return static_cast<int>(spare_.size() / static_cast<std::size_t>(lanes_.bound));
  }
  /// Bytes of keys and values of one entry of one lane: what a budget in bytes counts in.
  [[nodiscard]] std::int64_t entry_bytes() const { return entry_bytes_; }

  /// True if the plan holds a decision.
  [[nodiscard]] bool decided() const { return holds_ == holding::decision; }

  /// Throws `invalid_argument` if the plan holds no decision: `call` needs one, and `by` makes it.
  void expects_decision(char const* call, char const* by = "decide") const {
    expects(
        decided(), call, "plan",
        [&] { return holds_ == holding::nothing ? std::string("empty") : std::string("empty since ") + by + " threw"; },
        [&] { return std::string(by) + " comes before " + call; });
  }

  /// The keep set of the decision; one without memory where there is none.
  [[nodiscard]] keep_set const& keep() const { return keep_; }

  /// Room for the keep set of a decision about `among`. It becomes this plan's keep set when it is published.
  [[nodiscard]] keep_set keep_storage(kvpolicy::lanes const& among) {
    return {among,           decides_,         unit::token,  side::kept,
            offsets_.data(), ordinals_.data(), seen_.data(), static_cast<std::int64_t>(ordinals_.size()),
            report_.data()};
  }
  /// Another decision begins in this plan's memory: until it is published the plan holds none.
  void withdraw() {
    keep_ = {};
    holds_ = holding::half_a_decision;
  }
  void publish(keep_set const& decided) {
    keep_ = decided;
    holds_ = holding::decision;
  }

  [[nodiscard]] kvpolicy::lanes const& lanes() const { return lanes_; }
  [[nodiscard]] granularity decides() const { return decides_; }
  /// What the decision came to, where reports are in host memory. Throws `invalid_argument` if there is no decision.
  [[nodiscard]] kvpolicy::report const& report() const {
    expects_decision("report");
    return *report_.data();
  }

 private:
  enum class holding { nothing, half_a_decision, decision };

  template <class T>
  using buffer = typename Executor::template buffer<T>;

  buffer<float> spare_;
  buffer<float> scores_;
  buffer<int> ordinals_;
  buffer<std::int64_t> offsets_;
  buffer<int> seen_;
  buffer<kvpolicy::report> report_;
  kvpolicy::lanes lanes_;
  granularity decides_;
  std::int64_t entry_bytes_;
  keep_set keep_{};
  holding holds_ = holding::nothing;
};

}  // namespace KVPOLICY_NAMESPACE
