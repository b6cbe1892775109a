// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>

#include "attention.hpp"
#include "basics.hpp"

namespace kvpolicy_reference {

struct cached_entry {
  int position = 0;
  row key;
  row value;
  row carried;  ///< state that travels with the entry: accumulated mass, log beta, ...

  bool operator==(cached_entry const&) const = default;
};

/// A lane as a plain list of entries, ascending in position. A model that never evicts holds the full history, and with
/// a set of live positions it says what any other layout of the survivors must compute.
class lane_model {
 public:
  /// `value_width` values come out of attention, also when there is nothing left to attend to.
  explicit lane_model(std::size_t value_width) : value_width_{value_width} {}

  std::vector<cached_entry> const& entries() const { return entries_; }

  matrix keys() const {
    matrix result;
    for (cached_entry const& one : entries_) result.push_back(one.key);
    return result;
  }

  std::vector<int> positions() const {
    std::vector<int> result;
    for (cached_entry const& one : entries_) result.push_back(one.position);
    return result;
  }

  row& carried(int ordinal) { return entries_.at(static_cast<std::size_t>(ordinal)).carried; }

  void append(cached_entry const& entry) {
    require(entry.value.size() == value_width_, "values have one width");
    require(entries_.empty() || entries_.back().position < entry.position, "positions ascend");
    entries_.push_back(entry);
  }

  /// Keeps the entries with these ordinals, which ascend, and nothing else.
  void evict(std::vector<int> const& kept) {
    std::vector<cached_entry> survivors;
    int previous = -1;
    for (int const ordinal : kept) {
      require(ordinal > previous, "a keep set ascends");
      survivors.push_back(entries_.at(static_cast<std::size_t>(ordinal)));
      previous = ordinal;
    }
    entries_ = survivors;
  }

  /// Rolls back to a sequence of `length` tokens: drops every entry at position `length` or later.
  void truncate(int length) {
    while (!entries_.empty() && entries_.back().position >= length) entries_.pop_back();
  }

  /// softmax(q . k / sqrt(D)) v over the entries at or before the query's position that are in `live`. No such entry
  /// gives zeros.
  row attend(row const& query, int query_position, std::set<int> const& live) const {
    row logits;
    std::vector<bool> visible;
    for (cached_entry const& one : entries_) {
      logits.push_back(dot(query, one.key) / std::sqrt(static_cast<double>(query.size())));
      visible.push_back(one.position <= query_position && live.count(one.position) != 0);
    }
    row const weights = softmax(logits, visible);
    row output(value_width_, 0.0);
    for (std::size_t j = 0; j < entries_.size(); ++j) {
      if (!visible[j]) continue;  // 0 * NaN would let a masked value through
      for (std::size_t d = 0; d < output.size(); ++d) output[d] += weights[j] * entries_[j].value[d];
    }
    return output;
  }

  /// The same with every entry live.
  row attend(row const& query, int query_position) const {
    std::vector<int> const all = positions();
    return attend(query, query_position, std::set<int>(all.begin(), all.end()));
  }

 private:
  std::size_t value_width_;
  std::vector<cached_entry> entries_;
};

}  // namespace kvpolicy_reference
