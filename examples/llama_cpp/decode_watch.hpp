// SPDX-License-Identifier: Apache-2.0
// What a decode of llama.cpp shows to its callback: the tensors of the cache, the cells of new tokens, and query rows.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "layer_tensors.hpp"

namespace llama_cpp {

/// The callback of a context (`llama_context_params.cb_eval`). llama.cpp calls it for each node of a decode's graph,
/// first to ask whether the node's result is wanted, and then with that result. If query rows are captured, the
/// products of queries and keys are wanted, whose queries are still in memory then. Else the graph is computed in one
/// piece.
///
/// The callback throws nothing, because C code may be on the stack.
class decode_watch {
 public:
  /// Reads the tensors of every layer from the next decode.
  void begin_probe(int layers) {
    layers_.assign(static_cast<std::size_t>(layers), {});
    stray_.clear();
    probing_ = true;
    begin_decode(nullptr, 0);
  }
  void end_probe() { probing_ = false; }

  /// Begins a decode. Query rows are written to `queries`, floats [layer][row][head][D] with room for `capacity` rows
  /// of a layer, unless it is null. With `only_cells` the decode ends once the cells of its tokens are known.
  void begin_decode(float* queries, int capacity, bool only_cells = false) {
    cells_.clear();
    only_cells_ = only_cells;
    queries_ = queries;
    capacity_ = capacity;
    rows_.assign(layers_.size(), 0);
  }

  /// From now on copies the keys of every new token, before they are quantised, to floats [layer][cell][head][D] with
  /// room for `cells` cells of a layer.
  void copy_keys(float* to, int cells) {
    keys_ = to;
    key_cells_ = cells;
  }

  [[nodiscard]] std::vector<layer_tensors> const& layers() const { return layers_; }
  /// The name of the first tensor of a cache that is neither cache_k_l<N> nor cache_v_l<N>; "" if there is none.
  [[nodiscard]] std::string const& stray() const { return stray_; }
  /// The cells of the tokens of the last decode, in the order of the batch.
  [[nodiscard]] std::vector<int> const& cells() const { return cells_; }
  /// The query rows that the last decode wrote for a layer.
  [[nodiscard]] int rows(int layer) const { return rows_[static_cast<std::size_t>(layer)]; }

  static bool callback(ggml_tensor* node, bool ask, void* watch) {
    auto* const self = static_cast<decode_watch*>(watch);
    if (!ask) {
      if (self->only_cells_) return false;  // nothing more is computed
      self->take_queries(node);
      self->take_keys(node);
      return true;  // go on
    }
    if (self->probing_) self->look(node);
    if (node->op == GGML_OP_SET_ROWS) self->take_cells(node);
    if (self->only_cells_) return !self->cells_.empty();
    if (self->keys_ != nullptr && layer_written(node) >= 0) return true;
    return self->queries_ != nullptr && product_of(node).layer >= 0;
  }

 private:
  static std::string_view name_of(ggml_tensor const* t) { return t->name; }

  /// The layer of a tensor that is exactly cache_k_l<N> or cache_v_l<N>; -1 for another. A copy of a cache has a longer
  /// name that begins alike.
  static int layer_of_cache(ggml_tensor const* t, char which) {
    int layer = -1, end = 0;
    char letter = 0;
    std::string_view const name = name_of(t);
    if (std::sscanf(t->name, "cache_%c_l%d%n", &letter, &layer, &end) != 2) return -1;
    return letter == which && static_cast<std::size_t>(end) == name.size() ? layer : -1;
  }

  /// Calls visit(tensor) for the tensors that a node reads, of views those that they are views of.
  template <class Visit>
  static void each_source(ggml_tensor const* node, Visit const& visit) {
    for (ggml_tensor* const source : node->src) {
      if (source != nullptr) visit(source->view_src != nullptr ? source->view_src : source);
    }
  }

  /// The layer whose keys a tensor is a view of, or a copy of such a view; -1 if there is none.
  static int layer_of_keys(ggml_tensor const* t) {
    for (int depth = 0; t != nullptr && depth < 4; ++depth, t = t->src[0]) {
      ggml_tensor const* const root = t->view_src != nullptr ? t->view_src : t;
      if (int const layer = layer_of_cache(root, 'k'); layer >= 0) return layer;
    }
    return -1;
  }

  /// A product of a layer's keys with query rows [head][token][channel], of any strides.
  struct product {
    int layer = -1;  ///< -1: the node is none
    ggml_tensor const* queries = nullptr;
  };
  static product product_of(ggml_tensor const* node) {
    if (node->op == GGML_OP_FLASH_ATTN_EXT) return {layer_of_keys(node->src[1]), node->src[0]};
    if (node->op == GGML_OP_MUL_MAT) return {layer_of_keys(node->src[0]), node->src[1]};
    return {};
  }

  [[nodiscard]] layer_tensors* at(int layer) {
    return layer >= 0 && layer < static_cast<int>(layers_.size()) ? &layers_[static_cast<std::size_t>(layer)] : nullptr;
  }

  void look(ggml_tensor* node) {
    each_source(node, [&](ggml_tensor* t) {
      std::string_view const name = name_of(t);
      if (layer_tensors* const of = at(layer_of_cache(t, 'k')); of != nullptr) {
        of->k = t;
      } else if (layer_tensors* const also = at(layer_of_cache(t, 'v')); also != nullptr) {
        also->v = t;
      } else if (name.starts_with("cache_") && t->op == GGML_OP_NONE && stray_.empty()) {
        stray_ = name;
      }
    });
    if (product const found = product_of(node); found.layer >= 0)
      look_at_attention(found, node->op == GGML_OP_FLASH_ATTN_EXT ? node : nullptr);
    if (node->op == GGML_OP_SOFT_MAX) look_at_softmax(node);
    bool const caps = node->op == GGML_OP_UNARY && ggml_get_unary_op(node) == GGML_UNARY_OP_TANH;
    if (caps && last_ != nullptr && last_->scale == 0) last_->softcap = -1;  // its number is in another node
  }

  void look_at_attention(product const& found, ggml_tensor const* softmax) {
    layer_tensors* const of = at(found.layer);
    if (of == nullptr || of->k == nullptr) return;
    ggml_tensor const* const queries = found.queries;
    ggml_tensor const* const root = queries->view_src != nullptr ? queries->view_src : queries;
    of->rotated = ggml_is_quantized(of->k->type) && root->op == GGML_OP_MUL_MAT;
    of->query_dims = static_cast<int>(queries->ne[0]);
    of->query_heads = static_cast<int>(queries->ne[2]);
    last_ = of;
    if (softmax != nullptr) read_options(*of, softmax, 2);
  }
  /// Without flash attention the softmax is a node of its own, after the product.
  void look_at_softmax(ggml_tensor const* node) {
    if (last_ != nullptr && last_->scale == 0) read_options(*last_, node, 0);
  }
  static void read_options(layer_tensors& of, ggml_tensor const* node, int softcap) {
    float numbers[3] = {};
    std::memcpy(numbers, node->op_params, sizeof numbers);
    of.scale = numbers[0];
    of.max_bias = numbers[1];
    if (softcap > 0) of.softcap = numbers[softcap];
    of.sinks = softcap > 0 ? node->src[4] != nullptr : node->src[2] != nullptr;
  }

  /// The layer whose keys a node writes; -1 if it writes none.
  static int layer_written(ggml_tensor const* node) {
    bool const writes = node->op == GGML_OP_SET_ROWS && node->view_src != nullptr;
    return writes ? layer_of_cache(node->view_src, 'k') : -1;
  }

  void take_keys(ggml_tensor const* node) {
    int const layer = layer_written(node);
    if (keys_ == nullptr || layer < 0 || layer >= static_cast<int>(layers_.size())) return;
    ggml_tensor const& from = *node->src[0];
    auto const* const cells = static_cast<std::int64_t const*>(node->src[1]->data);
    if (from.type != GGML_TYPE_F32) return;
    for (std::int64_t row = 0; row < from.ne[1]; ++row) {
      ggml_backend_tensor_get(&from, keys_ + (std::int64_t{layer} * key_cells_ + cells[row]) * from.ne[0],
                              static_cast<std::size_t>(row) * from.nb[1],
                              static_cast<std::size_t>(from.ne[0]) * sizeof(float));
    }
  }

  /// The cells of a decode are the row numbers with which the keys of the first layer are written.
  void take_cells(ggml_tensor const* node) {
    if (layer_written(node) != 0) return;
    ggml_tensor const* const index = node->src[1];
    if (index == nullptr || index->type != GGML_TYPE_I64 || index->data == nullptr) return;
    auto const* const numbers = static_cast<std::int64_t const*>(index->data);
    for (std::int64_t i = 0; i < ggml_nelements(index); ++i) cells_.push_back(static_cast<int>(numbers[i]));
  }

  void take_queries(ggml_tensor const* node) {
    product const found = product_of(node);
    if (found.layer < 0 || found.layer >= static_cast<int>(layers_.size()) || queries_ == nullptr) return;
    ggml_tensor const& from = *found.queries;
    int const rows = static_cast<int>(from.ne[1]), heads = static_cast<int>(from.ne[2]);
    int& written = rows_[static_cast<std::size_t>(found.layer)];
    if (from.type != GGML_TYPE_F32 || from.nb[0] != sizeof(float) || written + rows > capacity_) return;
    auto const bytes = static_cast<std::size_t>(from.ne[0]) * sizeof(float);
    float* to = queries_ + (std::int64_t{found.layer} * capacity_ + written) * heads * from.ne[0];
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < heads; ++head, to += from.ne[0]) {
        std::size_t const at = static_cast<std::size_t>(row) * from.nb[1] + static_cast<std::size_t>(head) * from.nb[2];
        ggml_backend_tensor_get(&from, to, at, bytes);
      }
    }
    written += rows;
  }

  std::vector<layer_tensors> layers_;
  layer_tensors* last_ = nullptr;
  std::string stray_;
  std::vector<int> cells_;
  std::vector<int> rows_;  ///< query rows of each layer
  float* keys_ = nullptr;
  int key_cells_ = 0;
  float* queries_ = nullptr;
  int capacity_ = 0;
  bool probing_ = false;
  bool only_cells_ = false;
};

}  // namespace llama_cpp
