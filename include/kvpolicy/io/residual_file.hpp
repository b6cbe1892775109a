// SPDX-License-Identifier: Apache-2.0
// Reads the weights of a residual head from a file. This header needs nlohmann-json, so the umbrella header does not
// include it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <kvpolicy/io/safetensors.hpp>
#include <kvpolicy/ops/residual.hpp>
#include <map>
#include <string>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The weights of IntentKV's residual head, in host memory. A policy points to them through `head()`, so they must
/// outlive it.
///
///     kv::residual_weights const weights(kv::safetensors_reader("residual.safetensors"));
///     auto policy = kv::policies::intent_kv({.budget = 8192, .score = {.mode = kv::intent_mode::learnable}});
///     policy.score.residual = weights.head();
class residual_weights {
 public:
  /// Reads the F32 tensors residual.w_q.* [d_c, 3D + 1], .w_k.* and .w_v.* [d_c, D], .fc1.* [h, 3D + 1 + d_c], .fc2.*
  /// [1, h] and .alpha ([] or [1]). Each * stands for `weight`, of this shape, and `bias`, as long as its first axis.
  /// D, d_c and h follow from the shapes.
  ///
  /// - throws: `invalid_argument`, one line that names the file and the tensor, if a tensor is missing, the shapes do
  ///   not fit each other, d_c is not a multiple of the four heads, or a number is infinite or NaN.
  explicit residual_weights(safetensors_reader file) {
    auto const query = shape_of(file, "w_q.weight", 2);
    auto const hidden = shape_of(file, "fc1.weight", 2)[0];
    std::uint64_t const width = query[0];
    file.refuse(query[1] < 4 || query[1] % 3 != 1, "tensor residual.w_q.weight", query[1], "it has 3 D + 1 columns");
    file.refuse(width == 0 || width % residual_head::heads != 0, "tensor residual.w_q.weight", width,
                "four heads share its rows evenly");
    file.refuse(hidden == 0, "tensor residual.fc1.weight", hidden, "there is at least one hidden unit");
    std::uint64_t const phi = query[1];
    std::uint64_t const dims = phi / 3;
    read(file, "w_q", {width, phi});
    read(file, "w_k", {width, dims});
    read(file, "w_v", {width, dims});
    read(file, "fc1", {hidden, phi + width});
    read(file, "fc2", {1, hidden});
    bool const scalar = shape_of(file, "alpha", -1).empty();
    take(file, "alpha", scalar ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{1});
    head_ = residual_head::named(static_cast<int>(dims), static_cast<int>(width), static_cast<int>(hidden),
                                 [&](char const* name) { return values_.at(name).data(); });
    std::int64_t all = 0;
    for (auto const& [name, values] : values_) all += std::ssize(values);
    std::int64_t const needed = residual_head::parameters(head_.dims, head_.width, head_.hidden);
    file.refuse(all != needed, "parameters", all,
                [&] { return std::string("a head of this shape has ").append(std::to_string(needed)); });
  }

  residual_weights(residual_weights&&) = default;
  residual_weights& operator=(residual_weights&&) = default;
  residual_weights(residual_weights const&) = delete;  // the head points into this object's memory
  residual_weights& operator=(residual_weights const&) = delete;

  [[nodiscard]] residual_head const& head() const { return head_; }

 private:
  static std::string key_of(std::string const& name) { return std::string("residual.").append(name); }

  /// The shape of a tensor, which must have `axes` axes, or any number if `axes` is negative.
  static std::vector<std::uint64_t> shape_of(safetensors_reader const& file, std::string const& name, int axes) {
    std::string const what = std::string("tensor ").append(key_of(name));
    auto const found = file.tensors().find(key_of(name));
    file.refuse(found == file.tensors().end(), what, "missing", "a residual head has eleven tensors");
    auto const& shape = found->second.shape;
    file.refuse(axes >= 0 && shape.size() != static_cast<std::size_t>(axes), what + " axes", shape.size(),
                [&] { return std::string("it has ").append(std::to_string(axes)); });
    return shape;
  }

  void take(safetensors_reader& file, std::string const& name, std::vector<std::uint64_t> const& shape) {
    std::vector<float>& values = values_[name] = file.floats(key_of(name), shape);
    auto const bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    file.refuse(bad != values.end(), std::string("tensor ").append(key_of(name)),
                bad != values.end() ? to_string(*bad) : std::string(), "its numbers are finite");
  }

  void read(safetensors_reader& file, std::string const& name, std::vector<std::uint64_t> const& shape) {
    take(file, name + ".weight", shape);
    take(file, name + ".bias", {shape[0]});
  }

  std::map<std::string, std::vector<float>> values_;
  residual_head head_;
};

}  // namespace KVPOLICY_NAMESPACE
