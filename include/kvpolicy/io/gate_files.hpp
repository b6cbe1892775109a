// SPDX-License-Identifier: Apache-2.0
// Reads the weights of gates from files. This header needs nlohmann-json, so the umbrella header does not include it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/io/safetensors.hpp>
#include <kvpolicy/ops/retention_gates.hpp>
#include <kvpolicy/ops/write_gates.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Reads the tensors of a gate. A tensor's name in the file is the gate's name, a dot, and the name that is given here.
class gate_reader {
 public:
  using extents = std::vector<std::uint64_t>;
  using tensors = std::map<std::string, std::vector<float>>;

  gate_reader(safetensors_reader file, std::string gate, tensors& values)
      : file_(std::move(file)), gate_(std::move(gate)), values_(values) {}

  /// The extents of a tensor, which must have this number of axes, none of them empty.
  [[nodiscard]] extents shape_of(char const* name, std::size_t axes) const {
    auto const found = file_.tensors().find(key_of(name));
    file_.refuse(found == file_.tensors().end(), what(name), "missing",
                 [&] { return std::string("a ").append(gate_).append(" has it"); });
    extents const& shape = found->second.shape;
    file_.refuse(shape.size() != axes, what(name) + " axes", shape.size(),
                 [&] { return std::string("it has ").append(std::to_string(axes)); });
    for (std::uint64_t const extent : shape) {
      file_.refuse(extent == 0 || extent > most, what(name) + " shape", extent,
                   [&] { return std::string("an axis has 1 to ").append(std::to_string(most)); });
    }
    return shape;
  }

  /// The channels of a key, if a row of weights has one column for each channel before RoPE and one after.
  [[nodiscard]] std::uint64_t half_of(char const* name, std::uint64_t columns) const {
    file_.refuse(columns % 2 != 0, what(name), columns, "a row has 2 D columns");
    return columns / 2;
  }

  /// Reads a tensor of exactly this shape, whose values must be finite.
  [[nodiscard]] float const* take(char const* name, extents const& shape) {
    static_cast<void>(shape_of(name, shape.size()));
    std::vector<float>& values = values_[name] = file_.floats(key_of(name), shape);
    auto const bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    file_.refuse(bad != values.end(), what(name), bad != values.end() ? to_string(*bad) : std::string(),
                 "its numbers are finite");
    return values.data();
  }

  /// The text under `model` in the file's metadata; empty if there is none.
  [[nodiscard]] std::string model() const {
    auto const found = file_.all_metadata().find("model");
    return found != file_.all_metadata().end() ? found->second : std::string();
  }

 private:
  static constexpr std::uint64_t most = 1 << 24;

  [[nodiscard]] std::string key_of(char const* name) const { return std::string(gate_).append(".").append(name); }
  [[nodiscard]] std::string what(char const* name) const { return std::string("tensor ").append(key_of(name)); }

  safetensors_reader file_;
  std::string gate_;
  tensors& values_;
};

}  // namespace detail

/// The weights of WG-KV's write gates, in host memory. `weights()` points into this object, which must outlive every
/// use of them.
class write_gate_file {
 public:
  /// Reads the F32 tensors write_gate.pre_norm.weight and .post_norm.weight [L, D], .fc1.weight [L, Hkv, E, 2D],
  /// .fc1.bias and .fc2.weight [L, Hkv, E], and .fc2.bias [L, Hkv]. The sizes follow from fc1. It ignores all other
  /// tensors.
  ///
  /// - throws: `invalid_argument`, one line that names the file and the tensor, if a tensor is missing, the shapes do
  ///   not fit each other, or a number is infinite or NaN.
  explicit write_gate_file(safetensors_reader file) {
    detail::gate_reader read(std::move(file), "write_gate", values_);
    auto const shape = read.shape_of("fc1.weight", 4);
    std::uint64_t const layers = shape[0];
    std::uint64_t const heads = shape[1];
    std::uint64_t const hidden = shape[2];
    std::uint64_t const dims = read.half_of("fc1.weight", shape[3]);
    weights_ = {.layers = static_cast<int>(layers),
                .heads = static_cast<int>(heads),
                .dims = static_cast<int>(dims),
                .hidden = static_cast<int>(hidden)};
    weights_.pre_norm = read.take("pre_norm.weight", {layers, dims});
    weights_.post_norm = read.take("post_norm.weight", {layers, dims});
    weights_.fc1 = read.take("fc1.weight", shape);
    weights_.fc1_bias = read.take("fc1.bias", {layers, heads, hidden});
    weights_.fc2 = read.take("fc2.weight", {layers, heads, hidden});
    weights_.fc2_bias = read.take("fc2.bias", {layers, heads});
    model_ = read.model();
  }

  write_gate_file(write_gate_file&&) = default;
  write_gate_file& operator=(write_gate_file&&) = default;
  write_gate_file(write_gate_file const&) = delete;  // the weights point into this object's memory
  write_gate_file& operator=(write_gate_file const&) = delete;

  [[nodiscard]] write_gate_weights const& weights() const { return weights_; }
  /// The model for which the gates were trained: the text under `model` in the file's metadata, or empty.
  [[nodiscard]] std::string const& model() const { return model_; }

 private:
  detail::gate_reader::tensors values_;
  std::string model_;
  write_gate_weights weights_;
};

/// The weights of TRIM-KV's retention gates, in host memory. `weights()` points into this object, which must outlive
/// every use of them.
class retention_gate_file {
 public:
  /// Reads the F32 tensors retention_gate.fc1.weight [L, E, d], .fc1.bias [L, E], .fc2.weight [L, Hkv, E] and .fc2.bias
  /// [L, Hkv]. The sizes follow from the weights. It ignores all other tensors.
  ///
  /// - throws: `invalid_argument`, one line that names the file and the tensor, if a tensor is missing, the shapes do
  ///   not fit each other, or a number is infinite or NaN.
  explicit retention_gate_file(safetensors_reader file) {
    detail::gate_reader read(std::move(file), "retention_gate", values_);
    auto const shape = read.shape_of("fc1.weight", 3);
    std::uint64_t const layers = shape[0];
    std::uint64_t const hidden = shape[1];
    std::uint64_t const heads = read.shape_of("fc2.weight", 3)[1];
    weights_ = {.layers = static_cast<int>(layers),
                .heads = static_cast<int>(heads),
                .width = static_cast<int>(shape[2]),
                .hidden = static_cast<int>(hidden)};
    weights_.fc1 = read.take("fc1.weight", shape);
    weights_.fc1_bias = read.take("fc1.bias", {layers, hidden});
    weights_.fc2 = read.take("fc2.weight", {layers, heads, hidden});
    weights_.fc2_bias = read.take("fc2.bias", {layers, heads});
    model_ = read.model();
  }

  retention_gate_file(retention_gate_file&&) = default;
  retention_gate_file& operator=(retention_gate_file&&) = default;
  retention_gate_file(retention_gate_file const&) = delete;  // the weights point into this object's memory
  retention_gate_file& operator=(retention_gate_file const&) = delete;

  [[nodiscard]] retention_gate_weights const& weights() const { return weights_; }
  /// The model for which the gates were trained: the text under `model` in the file's metadata, or empty.
  [[nodiscard]] std::string const& model() const { return model_; }

 private:
  detail::gate_reader::tensors values_;
  std::string model_;
  retention_gate_weights weights_;
};

}  // namespace KVPOLICY_NAMESPACE
