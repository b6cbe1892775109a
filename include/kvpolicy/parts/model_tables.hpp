// SPDX-License-Identifier: Apache-2.0
// Tables that were profiled for one model: numbers of heads, and shares of lanes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// A row of `dims` floats for each KV head of each layer, such as a direction. The memory is the caller's.
struct rows_of_heads {
  by_lane<float const> rows{};
  int dims = 0;
  friend bool operator==(rows_of_heads const& a, rows_of_heads const& b) {
    return a.rows.data == b.rows.data && a.rows.sequence == b.rows.sequence && a.rows.layer == b.rows.layer &&
           a.rows.head == b.rows.head && a.dims == b.dims;
  }
};

/// Tables of one model by their names, in host memory, with one number or one row for each KV head of each layer. The
/// views that it gives point into it, so it must outlive every policy that reads them.
///
///     kv::model_tables tables("llama-3.2-1b", model);
///     tables.add_heads("retrieval", numbers);
///     registry.table(tables, "llama-3.2-1b", model);  // refuses those of another model
///
/// `read_tables` (io/tables.hpp) reads them from a file.
class model_tables {
 public:
  /// - in: `model` is the name of the model, which may be empty if nobody knows it; `about` is its shape.
  model_tables(std::string model, shape const& about) : model_(std::move(model)), about_(about) {}

  model_tables(model_tables&&) = default;
  model_tables& operator=(model_tables&&) = default;
  model_tables(model_tables const&) = delete;  // the views point into this object's memory
  model_tables& operator=(model_tables const&) = delete;

  /// Adds a table of numbers of heads, [layer][KV head].
  /// - throws: `invalid_argument` if there are more or fewer numbers than lanes, or one is NaN.
  void add_heads(std::string const& name, std::vector<float> numbers) {
    check_size(name, numbers.size());
    for (float const each : numbers)
      expects(each == each, "model_tables", name.c_str(), "NaN", "heads are compared by it");
    heads_.insert_or_assign(name, std::move(numbers));
  }
  /// Adds a table of shares: how many entries each lane may keep, [layer][KV head].
  /// - throws: `invalid_argument` if there are more or fewer numbers than lanes, or one is negative.
  void add_shares(std::string const& name, std::vector<int> numbers) {
    check_size(name, numbers.size());
    for (int const each : numbers) expects(each >= 0, "model_tables", name.c_str(), each, "a count cannot be negative");
    shares_.insert_or_assign(name, std::move(numbers));
  }

  /// Adds a table of rows, [layer][KV head][channel].
  /// - throws: `invalid_argument` if there are not as many numbers in each row, or one is not finite.
  void add_rows(std::string const& name, std::vector<float> numbers) {
    auto const lanes = static_cast<std::size_t>(about_.layers) * static_cast<std::size_t>(about_.kv_heads);
    auto const dims = numbers.size() / std::max<std::size_t>(lanes, 1);
    check_size(name, dims * lanes == numbers.size() && dims > 0 ? lanes : numbers.size());
    for (float const each : numbers)
      expects(std::isfinite(each), "model_tables", name.c_str(), each, "keys are multiplied by it");
    rows_.insert_or_assign(name, std::move(numbers));
  }

  [[nodiscard]] std::string const& model() const { return model_; }
  [[nodiscard]] std::map<std::string, by_lane<float const>> heads() const { return views_of(heads_); }
  [[nodiscard]] std::map<std::string, by_lane<int const>> shares() const { return views_of(shares_); }

  [[nodiscard]] std::map<std::string, rows_of_heads> rows() const {
    std::map<std::string, rows_of_heads> made;
    for (auto const& [name, numbers] : rows_) {
      auto const dims = static_cast<int>(numbers.size()) / (about_.layers * about_.kv_heads);
      made[name] = {{numbers.data(), 0, std::int64_t{dims} * about_.kv_heads, dims}, dims};
    }
    return made;
  }

  /// Refuses tables of another model.
  /// - throws: `invalid_argument`, one line that names what differs.
  void check(char const* call, std::string_view model, shape const& about) const {
    expects(model_ == model, call, "tables.model", model_.empty() ? "no name" : model_, [&] {
      return "the model that decides is " + (model.empty() ? std::string("without a name") : std::string(model));
    });
    expects(about_.layers == about.layers, call, "tables.layers", about_.layers,
            [&] { return "the model has " + std::to_string(about.layers); });
    expects(about_.kv_heads == about.kv_heads, call, "tables.kv_heads", about_.kv_heads,
            [&] { return "the model has " + std::to_string(about.kv_heads); });
  }

 private:
  void check_size(std::string const& name, std::size_t numbers) const {
    auto const lanes = static_cast<std::size_t>(about_.layers) * static_cast<std::size_t>(about_.kv_heads);
    expects(numbers == lanes, "model_tables", name.c_str(), numbers,
            [&] { return "there are " + std::to_string(lanes) + " lanes: one number for each"; });
  }
  template <class T>
  [[nodiscard]] std::map<std::string, by_lane<T const>> views_of(
      std::map<std::string, std::vector<T>> const& all) const {
    std::map<std::string, by_lane<T const>> made;
    for (auto const& [name, numbers] : all) made[name] = {numbers.data(), 0, about_.kv_heads, 1};
    return made;
  }

  std::string model_;
  shape about_;
  std::map<std::string, std::vector<float>> heads_;
  std::map<std::string, std::vector<int>> shares_;
  std::map<std::string, std::vector<float>> rows_;
};

}  // namespace KVPOLICY_NAMESPACE
