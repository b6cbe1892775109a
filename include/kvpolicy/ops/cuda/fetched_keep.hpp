// SPDX-License-Identifier: Apache-2.0
// A keep set of a device, copied to the host.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/run/backend.hpp>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// A decision's keep set and report in host memory, for tools and tests. The kernels of an engine read the keep set,
/// and the lists that appliers write, on the device.
class fetched_keep {
 public:
  /// Copies `keep` and its report from the memory of `exec`. Waits for all earlier work of the stream.
  ///
  /// - throws: what `exec.check()` throws about the data of earlier calls; `invalid_argument` if the keep set belongs
  ///   to a plan without a decision.
  template <class Executor>
  fetched_keep(Executor& exec, keep_set const& keep)
      : offset_(static_cast<std::size_t>(keep.segments()) + 1), seen_(static_cast<std::size_t>(keep.segments())) {
    exec.check();
    expects(keep.indices != nullptr, "fetched_keep", "keep", "empty", "decide comes before fetched_keep");
    exec.fetch(offset_.data(), keep.indptr, offset_.size());
    exec.fetch(seen_.data(), keep.entry_count, seen_.size());
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
  /// How many committed entries a segment had when it decided.
  [[nodiscard]] int seen(int segment) const { return seen_[static_cast<std::size_t>(segment)]; }
  [[nodiscard]] kvpolicy::report const& report() const { return report_; }

 private:
  std::vector<std::int64_t> offset_;
  std::vector<int> seen_;
  std::vector<int> ordinal_;
  kvpolicy::report report_{};
};

}  // namespace KVPOLICY_NAMESPACE
