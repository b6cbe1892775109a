// SPDX-License-Identifier: Apache-2.0
// Reads the tables of a model from a file. This header needs nlohmann-json, so the umbrella header does not include it.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/io/safetensors.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <string>
#include <utility>

namespace KVPOLICY_NAMESPACE {

/// Reads tables from a safetensors file: each F32 tensor `heads.NAME` and `shares.NAME`, [layers, KV heads],
/// `rows.NAME`, [layers, KV heads, channels], and `query_heads.NAME`, [layers, query heads], which is a row of each KV
/// head, too. The model's name is the text under `model` in the metadata. Other tensors are ignored.
///
///     kv::model_tables const tables = kv::read_tables(kv::safetensors_reader("tables.safetensors"), model);
/// - throws: `invalid_argument`, one line that names the file and the tensor, if a table has another shape than
///   `about`, a number is infinite or NaN, or a share is no count.
[[nodiscard]] inline model_tables read_tables(safetensors_reader file, shape const& about) {
  auto const named = file.all_metadata().find("model");
  model_tables made(named != file.all_metadata().end() ? named->second : std::string(), about);
  auto const lanes =
      std::vector<std::uint64_t>{static_cast<std::uint64_t>(about.layers), static_cast<std::uint64_t>(about.kv_heads)};
  auto rows = lanes;
  rows.push_back(static_cast<std::uint64_t>(about.head_dim));
  auto queries = lanes;
  queries.back() = static_cast<std::uint64_t>(about.query_heads);
  auto const tensors = file.tensors();
  for (auto const& [key, tensor] : tensors) {
    bool const of_heads = key.starts_with("heads.");
    bool const of_queries = key.starts_with("query_heads.");
    bool const of_rows = of_queries || key.starts_with("rows.");
    if (!of_heads && !of_rows && !key.starts_with("shares.")) continue;
    std::string const name = key.substr(key.find('.') + 1);
    std::vector<float> const numbers = file.floats(key, of_queries ? queries : of_rows ? rows : lanes);
    std::vector<int> counts;
    for (float const each : numbers) {
      file.refuse(!std::isfinite(each), "tensor " + key, to_string(each), "its numbers are finite");
      bool const is_count = each >= 0 && each < 0x1p31f && std::floor(each) == each;
      file.refuse(!of_heads && !of_rows && !is_count, "tensor " + key, to_string(each), "a share is a count");
      if (is_count) counts.push_back(static_cast<int>(each));
    }
    if (of_heads) made.add_heads(name, numbers);
    if (of_rows) made.add_rows(name, numbers);
    if (!of_heads && !of_rows) made.add_shares(name, std::move(counts));
  }
  return made;
}

}  // namespace KVPOLICY_NAMESPACE
