// SPDX-License-Identifier: Apache-2.0
// kvreplay's output file: results as tensors, and the rows that are left, which are written layer by layer.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

#include "options.hpp"
#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// A safetensors file that is written in parts. It appears under its name only when it is complete.
class tensor_file {
 public:
  explicit tensor_file(std::string const& path) : file_(path, "kvreplay", "--out") {}

  /// Adds a tensor, whose bytes are written later. Returns the offset of its bytes.
  std::int64_t add(std::string const& name, char const* dtype, std::vector<std::int64_t> const& shape,
                   std::int64_t bytes) {
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {at_, at_ + bytes}}};
    return std::exchange(at_, at_ + bytes);
  }

  /// Writes the header after all tensors were added. Bytes can be written from then on.
  void begin() {
    std::string text = header_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    auto const bytes = static_cast<std::uint64_t>(text.size());
    put(0, &bytes, 8);
    put(8, text.data(), text.size());
    data_ = 8 + std::ssize(text);
  }
  void put(std::int64_t at, void const* from, std::size_t bytes) {
    file_->write_at(static_cast<std::uint64_t>(data_ + at), from, bytes);
  }
  template <class T>
  void put(std::int64_t at, std::vector<T> const& values) {
    put(at, values.data(), values.size() * sizeof(T));
  }

  /// Waits until the file is on the disk.
  void finish() { file_->finish(); }
  /// Gives the file its name.
  void commit() { file_->commit(); }

 private:
  examples::output_file file_;
  nlohmann::json header_ = nlohmann::json::object();
  std::int64_t at_ = 0;
  std::int64_t data_ = 0;
};

[[nodiscard]] inline char const* dtype_of(kv::codec element) {
  return element == kv::codec::f32    ? "F32"
         : element == kv::codec::f16  ? "F16"
         : element == kv::codec::bf16 ? "BF16"
         : element == kv::codec::e4m3 ? "F8_E4M3"
                                      : "F8_E5M2";
}

/// Writes one replay: the header when all is decided, rows as layers are applied, and `output` at the end.
class result_writer {
 public:
  result_writer(options const& with, trace const& of) : with_(with), trace_(of), file_(with.out) {}

  void begin(results const& found) {
    std::int64_t const segments = found.segments;
    std::vector<std::pair<std::int64_t, std::vector<std::int64_t> const*>> lists;
    auto const add = [&](char const* name, std::vector<std::int64_t> const& list, std::vector<std::int64_t> shape) {
      lists.emplace_back(file_.add(name, "I64", shape, std::ssize(list) * 8), &list);
    };
    add("keep.offsets", found.keep.offsets, {segments + 1});
    add("keep.ordinals", found.keep.ordinals, {std::ssize(found.keep.ordinals)});
    if (found.local) {
      add("local.offsets", found.local->offsets, {segments + 1});
      add("local.ordinals", found.local->ordinals, {std::ssize(found.local->ordinals)});
    }
    if (found.pages) {
      add("pages.offsets", found.pages->offsets, {segments + 1});
      add("pages.ids", found.pages->ordinals, {std::ssize(found.pages->ordinals)});
    }
    if (!found.shares.empty()) add("shares", found.shares, {segments});
    std::int64_t const came = segments > 0 ? std::ssize(found.layer_kept) / segments : 0;
    if (came > 0) add("layer.kept", found.layer_kept, {came, segments});
    if (!found.recipe.empty()) add("recipe", found.recipe, {segments});
    if (with_.how == mode::decode || with_.how == mode::chunks)
      add("events", found.events, {std::ssize(found.events) / 3, 3});
    if (with_.how == mode::turns) {
      add("turn.offsets", found.turns.offsets, {std::ssize(found.turns.offsets)});
      add("turn.ordinals", found.turns.ordinals, {std::ssize(found.turns.ordinals)});
    }
    std::int64_t scores = 0;
    std::int64_t const wide = std::ssize(found.scores) * 4;
    if (wide > 0) scores = file_.add("scores", "F32", {segments, wide / 4 / segments}, wide);
    kv::shape const& model = trace_.shape();
    std::int64_t statistics = 0;
    std::int64_t const numbers = std::ssize(found.statistics);
    if (numbers > 0) statistics = file_.add("layer.statistics", "F32", {numbers / 3, 3}, numbers * 4);
    std::int64_t memory = 0;
    if (!found.memory.empty()) {
      memory =
          file_.add("memory", "F32", {model.layers, model.query_heads, model.head_dim}, std::ssize(found.memory) * 4);
    }
    add_output();
    add_rows(found);
    file_.begin();
    file_.put(memory, found.memory);
    for (auto const& [at, list] : lists) file_.put(at, *list);
    if (wide > 0) file_.put(scores, found.scores);
    if (numbers > 0) file_.put(statistics, found.statistics);
  }

  /// Writes the rows that a layer has kept. Layers come in any order.
  template <class By>
  void layer(By const& by, int layer) {
    for (bool const keys : {true, false}) {
      std::int64_t const at = keys ? keys_at_ : values_at_;
      std::int64_t const width = (keys ? trace_.keys : trace_.values).stride(2);
      for (int head = 0; at >= 0 && head < trace_.shape().kv_heads; ++head) {
        auto const rows = by.rows_left(keys, {0, layer, head});
        file_.put(at + first_row_[size(layer * trace_.shape().kv_heads + head)] * width, rows.data(), rows.size());
      }
    }
  }

  void finish(results const& found) {
    if (with_.attend) file_.put(output_at_, found.output);
    file_.finish();
  }

  /// Gives the file its name after the run has succeeded.
  void commit() { file_.commit(); }

 private:
  void add_output() {
    if (!with_.attend) return;
    kv::shape const& model = trace_.shape();
    std::int64_t const values = std::int64_t{model.layers} * model.query_heads * trace_.value_dim();
    output_at_ = file_.add("output", "F32", {model.layers, model.query_heads, trace_.value_dim()}, values * 4);
  }

  /// Adds the tensors of kept rows. Each lane of a segment holds the segment's entries.
  void add_rows(results const& found) {
    bool const adjacent = with_.lay == layout::compact || with_.lay == layout::compact_rerotated;
    if (!adjacent && with_.lay != layout::own) return;
    int const heads = trace_.shape().kv_heads;
    std::int64_t rows = 0;
    for (int i = 0; i < trace_.shape().layers * heads; ++i) {
      first_row_.push_back(rows);
      auto const segment = size(found.segment_of(i / heads, i % heads, heads));
      rows += found.keep.offsets[segment + 1] - found.keep.offsets[segment];
    }
    for (bool const keys : {true, false}) {
      array const& from = keys ? trace_.keys : trace_.values;
      if (!from) continue;
      (keys ? keys_at_ : values_at_) =
          file_.add(keys ? "keys" : "values", dtype_of(from.element), {rows, from.shape[3]}, rows * from.stride(2));
    }
  }

  options const& with_;
  trace const& trace_;
  tensor_file file_;
  std::vector<std::int64_t> first_row_;  ///< of each lane
  std::int64_t keys_at_ = -1, values_at_ = -1, output_at_ = -1;
};

}  // namespace kvreplay
