// SPDX-License-Identifier: Apache-2.0
// A ring in shared memory for what each thread loads ahead of its use.
#pragma once

#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// For each thread `Stages` places of `Pieces` pieces of sixteen bytes, which no other thread accesses. A thread fills
/// all places; then it takes the pieces of the oldest place, and refills that place once it has used them.
template <int Stages, int Pieces>
class async_ring {
 public:
  static constexpr int stages = Stages;
  struct alignas(16) piece {
    std::byte of[16];
  };

  template <class Block>
  KVPOLICY_HD async_ring(Block& block, shared_arena& arena)
      : pieces_(arena.take<piece>(count(block.threads())) + block.thread()), threads_(block.threads()) {}
  [[nodiscard]] static std::size_t bytes(int threads) { return shared_arena::bytes_of_piece<piece>(count(threads)); }

  /// Begins to load a place: piece i from from(i). A `commit_loads` follows, also for a place that stays empty.
  template <class Block, class From>
  KVPOLICY_HD void fill(Block& block, int stage, From const& from) const {
    for (int i = 0; i < Pieces; ++i) block.load_async(place(stage, i)->of, from(i));
  }
  /// Waits for the oldest place.
  template <class Block>
  KVPOLICY_HD void wait(Block& block) const {
    block.template wait_loads<Stages - 1>();
  }
  template <class T>
  [[nodiscard]] KVPOLICY_HD T const& taken(int stage, int i) const {
    static_assert(sizeof(T) == sizeof(piece));
    return *reinterpret_cast<T const*>(place(stage, i)->of);
  }

 private:
  [[nodiscard]] KVPOLICY_HD static constexpr int count(int threads) { return Stages * Pieces * threads; }
  [[nodiscard]] KVPOLICY_HD piece* place(int stage, int i) const { return pieces_ + (stage * Pieces + i) * threads_; }

  piece* pieces_;
  int threads_;
};

}  // namespace KVPOLICY_NAMESPACE::detail
