// SPDX-License-Identifier: Apache-2.0
// Epochs: how a plan is found to be older than the lanes that it decided about.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/lanes.hpp>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// An epoch for each slot and layer of a state, in the executor's memory. Every call that changes a lane raises those
/// of its slot and layer (`ops::raise_epochs`). A decision notes them, and `apply` refuses a decision that noted
/// others.
///
/// They never decrease, and no two states of a process have one in common. So they are not saved, forked or moved with
/// a request. A captured launch raises them, too, because they are where the kernels are.
template <class Executor>
class epochs {
 public:
  epochs(Executor& exec, kvpolicy::lanes const& batch)
      : memory_(exec, static_cast<std::size_t>(batch.sequences) * static_cast<std::size_t>(batch.layers())),
        first_(memory_.data() - batch.layer_begin),
        layers_(batch.layers()) {
    renew(exec);
  }

  /// Gives all slots epochs that none has had. Allocates nothing.
  void renew(Executor& exec) {
    static std::atomic<std::uint32_t> states{0};
    std::array<std::uint64_t, 512> first;
    first.fill(std::uint64_t{++states} << 32);
    auto* const to = reinterpret_cast<std::byte*>(memory_.data());
    std::size_t const all = memory_.size() * sizeof(std::uint64_t);
    for (std::size_t at = 0; at < all; at += sizeof first) {
      exec.copy(to + at, reinterpret_cast<std::byte const*>(first.data()), std::min(sizeof first, all - at));
    }
  }

  /// The epochs of a batch, as a table. As with columns, a state that is not changed says where they are.
  [[nodiscard]] by_lane<std::uint64_t> of(int const* slots) const { return {first_, layers_, 1, 0, slots}; }

 private:
  typename Executor::template buffer<std::uint64_t> memory_;
  std::uint64_t* first_;  ///< of the first slot, and of a layer 0
  int layers_;
};

/// True until its owner is moved from.
class still_owned {
 public:
  still_owned() = default;
  still_owned(still_owned&& from) noexcept : owned_(std::exchange(from.owned_, false)) {}
  still_owned& operator=(still_owned&& from) noexcept {
    owned_ = std::exchange(from.owned_, false);
    return *this;
  }
  ~still_owned() = default;
  still_owned(still_owned const&) = delete;
  still_owned& operator=(still_owned const&) = delete;

  explicit operator bool() const { return owned_; }

 private:
  bool owned_ = true;
};

}  // namespace KVPOLICY_NAMESPACE::detail
