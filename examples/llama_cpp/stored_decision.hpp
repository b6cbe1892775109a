// SPDX-License-Identifier: Apache-2.0
// A decision about a sequence, kept while those about other sequences are made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <vector>

namespace llama_cpp {

namespace kv = kvpolicy;

/// A copy of the keep set of a plan, which is put back into it before it is carried out.
class stored_decision {
 public:
  explicit stored_decision(kv::keep_set const& from)
      : of_(from),
        indptr_(from.indptr, from.indptr + from.segments() + 1),
        indices_(from.indices, from.indices + indptr_.back()),
        seen_(from.entry_count, from.entry_count + from.segments()),
        epoch_(from.epoch, from.epoch + (from.epoch != nullptr ? from.lanes.sequences * from.lanes.layers() : 0)),
        report_(*from.report) {}

  /// Makes it the decision of the plan that it is a copy of. `epochs` are those of the state.
  void put_back(kv::plan<kv::host_executor>& into, kv::by_lane<std::uint64_t> const& epochs) const {
    kv::keep_set made = into.keep_storage(of_.lanes);
    made.lists = of_.lists;
    made.epochs = epoch_.empty() ? kv::by_lane<std::uint64_t>{} : epochs;
    std::copy(indptr_.begin(), indptr_.end(), made.indptr);
    std::copy(indices_.begin(), indices_.end(), made.indices);
    std::copy(seen_.begin(), seen_.end(), made.entry_count);
    std::copy(epoch_.begin(), epoch_.end(), made.epoch);
    *made.report = report_;
    into.publish(made);
  }

 private:
  kv::keep_set of_;  ///< without its memory, which the next decision overwrites
  std::vector<std::int64_t> indptr_;
  std::vector<int> indices_;
  std::vector<int> seen_;
  std::vector<std::uint64_t> epoch_;
  kv::report report_;
};

}  // namespace llama_cpp
