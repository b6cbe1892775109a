// A keep set that a device holds, copied to the host.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/backend.hpp>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// What a decision came to, where the host can read it: for tools and tests. An engine's kernels read the keep set, and
/// the lists that appliers write, where they are.
class fetched_keep {
 public:
  /// Copies `keep` and its report from the memory of `exec`, whose `fetch` waits for everything before.
  ///
  /// - throws: what `exec.check()` throws about the data of calls before; `invalid_argument` if the keep set is that of
  ///   a plan without a decision.
  template <class Executor>
  fetched_keep(Executor& exec, keep_set const& keep)
      : offset_(static_cast<std::size_t>(keep.segments()) + 1), seen_(static_cast<std::size_t>(keep.segments())) {
    exec.check();
    expects(keep.indices != nullptr, "fetched_keep", "keep", "empty", "decide comes before fetched_keep");
    exec.fetch(offset_.data(), keep.indptr, offset_.size());
    exec.fetch(seen_.data(), keep.seen, seen_.size());
    exec.fetch(&report_, keep.report, 1);
    ordinal_.resize(static_cast<std::size_t>(offset_.back()));
    exec.fetch(ordinal_.data(), keep.indices, ordinal_.size());
  }

  [[nodiscard]] int segments() const { return static_cast<int>(seen_.size()); }
  /// The ordinals listed for one segment.
  [[nodiscard]] std::span<int const> listed(int segment) const {
    auto const at = static_cast<std::size_t>(segment);
    return {ordinal_.data() + offset_[at], static_cast<std::size_t>(offset_[at + 1] - offset_[at])};
  }
  /// Committed entries of a segment when it decided.
  [[nodiscard]] int seen(int segment) const { return seen_[static_cast<std::size_t>(segment)]; }
  [[nodiscard]] kvpolicy::report const& report() const { return report_; }

 private:
  std::vector<std::int64_t> offset_;
  std::vector<int> seen_;
  std::vector<int> ordinal_;
  kvpolicy::report report_{};
};

}  // namespace KVPOLICY_NAMESPACE
