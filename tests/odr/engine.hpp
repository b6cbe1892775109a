// SPDX-License-Identifier: Apache-2.0
// The small engine that every part of this folder decides for. Includes core alone, so that each part is free to
// include as little of the library as it uses.
#pragma once

#include <cstddef>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/signals.hpp>
#include <vector>

namespace kv = kvpolicy;

namespace {  // every source file has its own: only what belongs to the library is shared by the linker

/// One layer, four query heads on two KV heads of 64 channels, up to 512 entries a lane in slots of a pool.
class small_engine {
 public:
  static constexpr int heads = 2;
  static constexpr int group = 2;
  static constexpr int dims = 64;
  static constexpr int bound = 512;

  explicit small_engine(int tokens) {
    for (std::size_t i = 0; i < k_.size(); ++i) k_[i] = v_[i] = static_cast<float>(i * 2654435761u % 1000u) / 1000.0f;
    for (std::size_t i = 0; i < q_.size(); ++i) q_[i] = static_cast<float>(i * 40503u % 997u) / 997.0f;
    for (int head = 0; head < heads; ++head) {
      count_[at(head)] = tokens;
      for (int e = 0; e < bound; ++e) {
        slot_[at(head) * bound + at(e)] = e;
        position_[at(head) * bound + at(e)] = e;
      }
    }
    for (int r = 0; r < rows; ++r) row_position_[at(r)] = tokens - rows + r;
  }

  [[nodiscard]] kv::cache view() {
    kv::lanes const batch{.layer_end = 1,
                          .heads = heads,
                          .capacity = bound,
                          .count = {count_.data(), 0, 0, 1},
                          .position = {position_.data(), 0, 0, bound}};
    return {.shape = {1, heads * group, heads, dims},
            .lanes = batch,
            .k = plane_of(k_),
            .v = plane_of(v_),
            .where = kv::slot_map({slot_.data(), 0, 0, bound}, bound)};
  }

  /// The query rows of the last 32 tokens.
  [[nodiscard]] kv::queries queries() const {
    kv::queries made;
    made.base = reinterpret_cast<std::byte const*>(q_.data());
    made.dims = dims;
    made.head = std::int64_t{4} * dims * rows;
    made.row = std::int64_t{4} * dims;
    made.heads = heads * group;
    made.rows = rows;
    made.position = {row_position_.data(), 0, 0, 0};
    return made;
  }

  [[nodiscard]] kv::by_lane<int> slots() { return {slot_.data(), 0, 0, bound}; }
  [[nodiscard]] int count(int head) const { return count_[at(head)]; }

 private:
  static constexpr int rows = 32;
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  static kv::plane plane_of(std::vector<float>& of) {
    return {.base = reinterpret_cast<std::byte*>(of.data()),
            .channels = dims,
            .unit_stride = std::int64_t{4} * dims,
            .head_stride = std::int64_t{4} * dims * bound,
            .channel_stride = 4};
  }

  std::vector<float> k_ = std::vector<float>(std::size_t{heads} * bound * dims);
  std::vector<float> v_ = std::vector<float>(std::size_t{heads} * bound * dims);
  std::vector<float> q_ = std::vector<float>(std::size_t{heads} * group * rows * dims);
  std::vector<int> count_ = std::vector<int>(heads);
  std::vector<int> slot_ = std::vector<int>(std::size_t{heads} * bound);
  std::vector<int> position_ = std::vector<int>(std::size_t{heads} * bound);
  std::vector<int> row_position_ = std::vector<int>(rows);
};

}  // namespace
