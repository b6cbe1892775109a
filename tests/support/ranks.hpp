// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <barrier>

#include "support/test.hpp"

namespace kvpolicy_test {

/// Tensor-parallel ranks as threads of one process. Every rank reduces the same numbers in the same order, so that all
/// have the same bits.
class rank_group {
 public:
  explicit rank_group(int ranks) : given_(as_size(ranks)), all_there_(ranks) {}

  [[nodiscard]] int ranks() const { return static_cast<int>(given_.size()); }

  void all_reduce(int rank, float* values, std::size_t count) {
    reduce(rank, values, count, [](double sum, double each) { return sum + each; });
  }
  /// NaN of any rank is NaN.
  void all_reduce_max(int rank, float* values, std::size_t count) {
    reduce(rank, values, count, [](double most, double each) { return most >= each || most != most ? most : each; });
  }

 private:
  template <class Combine>
  void reduce(int rank, float* values, std::size_t count, Combine const& combine) {
    given_[as_size(rank)] = values;
    all_there_.arrive_and_wait();
    std::vector<float> reduced(count);
    for (std::size_t i = 0; i < count; ++i) {
      auto one = static_cast<double>(given_.front()[i]);
      for (std::size_t r = 1; r < given_.size(); ++r) one = combine(one, static_cast<double>(given_[r][i]));
      reduced[i] = static_cast<float>(one);
    }
    all_there_.arrive_and_wait();
    std::copy(reduced.begin(), reduced.end(), values);
    all_there_.arrive_and_wait();
  }

  std::vector<float*> given_;
  std::barrier<> all_there_;
};

/// A host executor that is one of a group's ranks.
class rank_executor : public kv::host_executor {
 public:
  rank_executor(rank_group& group, int rank) : group_(&group), rank_(rank) {}
  [[nodiscard]] int ranks() const { return group_->ranks(); }
  void all_reduce(float* values, std::size_t count) { group_->all_reduce(rank_, values, count); }
  void all_reduce_max(float* values, std::size_t count) { group_->all_reduce_max(rank_, values, count); }

 private:
  rank_group* group_;
  int rank_;
};
static_assert(kv::executor<rank_executor>);

/// Calls work(executor of the rank, rank) on a thread for each rank.
template <class Work>
void on_ranks(int ranks, Work const& work) {
  rank_group group(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      rank_executor exec(group, rank);
      work(exec, rank);
    });
  }
  for (std::thread& each : threads) each.join();
}

}  // namespace kvpolicy_test
