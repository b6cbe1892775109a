// SPDX-License-Identifier: Apache-2.0
// Caches, query rows and page bounds of bench/model.hpp, once more on the device.
#pragma once

#include "cuda/gpu_measure.cuh"
#include "model.hpp"

namespace bench::gpu {

inline std::span<std::byte const> bytes_of(bench::memory const& from) { return {from.data(), from.size()}; }
inline std::span<std::byte const> bytes_of(std::byte const* from, std::size_t bytes) { return {from, bytes}; }

/// A model's cache on the device, as `from` is when this is made.
class device_cache {
 public:
  explicit device_cache(bench::model_cache& from)
      : view_(from.view()),
        k_(bytes_of(view_.k.base, from.plane_bytes())),
        v_(bytes_of(view_.v.base, from.plane_bytes())),
        counts_(std::span<int const>(view_.lanes.count.data, static_cast<std::size_t>(view_.lanes.size()))),
        positions_(std::span<int const>(view_.lanes.position.data, cells())),
        first_counts_(counts_.get()),
        first_positions_(positions_.get()) {
    view_.k.base = k_.data();
    view_.v.base = v_.data();
    view_.lanes.count.data = counts_.data();
    view_.lanes.position.data = positions_.data();
  }
  device_cache(device_cache const&) = delete;
  device_cache& operator=(device_cache const&) = delete;

  [[nodiscard]] kv::cache const& view() const { return view_; }
  [[nodiscard]] array<std::byte> const& k() const { return k_; }
  [[nodiscard]] array<std::byte> const& v() const { return v_; }
  [[nodiscard]] array<int> const& positions() const { return positions_; }
  [[nodiscard]] array<int> const& counts() const { return counts_; }
  [[nodiscard]] std::size_t cells() const {
    return static_cast<std::size_t>(view_.lanes.size()) * static_cast<std::size_t>(view_.lanes.capacity);
  }
  /// All entries are there again, at their first positions; in the order of the stream. Rows stay.
  void reset(stream const& on) const {
    checked("cudaMemcpyAsync",
            cudaMemcpyAsync(counts_.data(), first_counts_.data(), counts_.bytes(), cudaMemcpyDeviceToDevice, on.get()));
    checked("cudaMemcpyAsync", cudaMemcpyAsync(positions_.data(), first_positions_.data(), positions_.bytes(),
                                               cudaMemcpyDeviceToDevice, on.get()));
  }

 private:
  kv::cache view_;
  array<std::byte> k_, v_;
  array<int> counts_, positions_, first_counts_, first_positions_;
};

/// Query rows of a model on the device.
class device_queries {
 public:
  device_queries(kv::shape const& model, int rows, kv::query_view const& from)
      : view_(from),
        values_(bytes_of(from.base, static_cast<std::size_t>(model.layers) * static_cast<std::size_t>(from.layer))),
        positions_(std::span<int const>(from.position.data, static_cast<std::size_t>(rows))) {
    view_.base = values_.data();
    view_.position.data = positions_.data();
  }
  device_queries(device_queries const&) = delete;
  device_queries& operator=(device_queries const&) = delete;

  [[nodiscard]] kv::query_view const& view() const { return view_; }
  /// The same with log-sum-exps of one layer, [head][row], in memory of the device.
  [[nodiscard]] kv::query_view with_lse(float const* lse) const {
    kv::query_view made = view_;
    made.lse = {lse, 0, std::int64_t{view_.rows} * view_.heads, view_.rows};
    return made;
  }

 private:
  kv::query_view view_;
  array<std::byte> values_;
  array<int> positions_;
};

/// True if `found` is `expected` to `relative` of the largest there is.
inline bool close_floats(std::span<float const> found, std::span<float const> expected, float relative) {
  float scale = 0;
  for (float const each : expected) scale = std::max(scale, std::abs(each));
  if (found.size() != expected.size()) return false;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!(std::abs(found[i] - expected[i]) <= relative * scale)) return false;
  }
  return true;
}

}  // namespace bench::gpu
