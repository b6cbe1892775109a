// SPDX-License-Identifier: Apache-2.0
// A llama.cpp context whose cache the host can read and write: what it must be like, and one decode at a time.
#pragma once

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cell_watch.hpp"
#include "context_options.hpp"
#include "decode_watch.hpp"
#include "token_batch.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

/// A context of llama.cpp with one cache for all sequences, which one decode at a time fills.
///
/// - throws: `kvpolicy::invalid_argument`, one line that names what was found, if the model or its cache is of a kind
///   that cannot be served.
class context {
 public:
  context(llama_model* with, context_options const& options) : options_(options) {
    detail::check_model(with);
    detail::check_options(options_);
    detail::check_types(with, options_);
    width_ = llama_model_n_embd_inp(with);
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(with));
    open(with);
    probe(with);
  }
  context(context const&) = delete;  // the callback points to it
  context& operator=(context const&) = delete;

  [[nodiscard]] llama_context* get() const { return context_.get(); }
  [[nodiscard]] kv::shape const& shape() const { return shape_; }
  [[nodiscard]] int cells() const { return cells_; }
  [[nodiscard]] int sequences() const { return options_.sequences; }
  [[nodiscard]] int chunk() const { return options_.chunk; }
  [[nodiscard]] context_options const& options() const { return options_; }
  [[nodiscard]] int vocabulary() const { return vocabulary_; }

  /// The cache as the library sees it. `table` has the cells of each sequence.
  [[nodiscard]] kv::cache view(kv::lanes const& batch, kv::by_lane<int const> table) {
    auto const cells = [&]<bool Flash>() {
      kv::engines::llama_cpp_cells<Flash> const made{.shape = shape_,
                                                     .k = k_data_.data(),
                                                     .v = v_data_.data(),
                                                     .type_k = detail::codec_of(options_.type_k),
                                                     .type_v = detail::codec_of(options_.type_v),
                                                     .k_row_bytes = row_bytes(options_.type_k, shape_.head_dim),
                                                     .v_row_bytes = row_bytes(options_.type_v, value_dim()),
                                                     .kv_size = cells_,
                                                     .cells = table};
      return made.view(batch);
    };
    kv::cache made = options_.flash_attention ? cells.operator()<true>() : cells.operator()<false>();
    made.logits = logits_;
    if (keeps_keys()) made.more = {&kept_keys_, 1};  // they move with the rows
    return made;
  }

  /// The number of tokens of some rows: ids, or embeddings.
  [[nodiscard]] int tokens_of(char const* call, std::span<llama_token const> ids, std::span<float const> rows) const {
    if (!ids.empty() || rows.empty()) return static_cast<int>(ids.size());
    auto const width = static_cast<std::size_t>(width_);
    kv::expects(rows.size() % width == 0, call, "embeddings", rows.size(),
                [&] { return "a token has " + std::to_string(width) + " numbers"; });
    return static_cast<int>(rows.size() / width);
  }
  /// Refuses ids that are none of the model's tokens.
  void check_ids(char const* call, std::span<llama_token const> ids) const {
    for (llama_token const id : ids) {
      kv::expects(id >= 0 && id < vocabulary_, call, "token", id,
                  [&] { return "the model has tokens 0 to " + std::to_string(vocabulary_ - 1); });
    }
  }
  template <class Rows>
  [[nodiscard]] Rows slice(Rows const& all, int at, int tokens) const {
    auto const part = [&](auto const& values, int each) {
      return values.empty() ? values
                            : values.subspan(static_cast<std::size_t>(at) * static_cast<std::size_t>(each),
                                             static_cast<std::size_t>(tokens) * static_cast<std::size_t>(each));
    };
    return {part(all.tokens, 1), part(all.embeddings, width_)};
  }

  void clear_batch() { batch_.clear(); }
  /// Adds tokens of a sequence to the batch. The logits of the last one are wanted, or those of each.
  void add(int sequence, int position, std::span<llama_token const> ids, std::span<float const> rows,
           bool every_logit) {
    batch_.add(sequence, position, tokens_of("decode", ids, rows), ids, rows, every_logit);
  }
  /// Decodes the batch. Returns false if llama.cpp failed; then some of its tokens may be in the cache.
  [[nodiscard]] bool decode(bool captured) {
    int const tokens = batch_.tokens();
    captured = captured && has_queries();
    watch_.begin_decode(captured ? queries_.data() : nullptr, options_.chunk);
    bool const done = batch_.decode(context_.get()) == 0 && static_cast<int>(watch_.cells().size()) == tokens;
    captured_ = done && captured;
    bool shown = true;
    for (int layer = 0; captured && layer < shape_.layers; ++layer) shown = shown && watch_.rows(layer) == tokens;
    return done && shown;
  }
  /// The cells of the tokens of the last decode.
  [[nodiscard]] std::vector<int> const& new_cells() const { return watch_.cells(); }
  void take_logits(std::vector<float>& to) const {
    float const* const from = llama_get_logits(context_.get());
    to.assign(from, from + batch_.logits() * vocabulary_);
  }
  /// True if there is a copy of the keys.
  [[nodiscard]] bool keeps_keys() const { return !key_rows_.empty(); }
  /// The keys as a signal. Quantised ones are none, unless there is a copy.
  [[nodiscard]] kv::keys keys_of(kv::cache const& in) const {
    kv::keys made = kv::keys_of(in);
    if (keeps_keys()) made.rows = kept_keys_;
    return made;
  }
  /// False if the query rows are turned by a matrix, as the keys are before they are quantised, and there is no copy of
  /// such keys: then the rows are no signal. With the copy they are, because the matrix changes neither products nor
  /// norms.
  [[nodiscard]] bool has_queries() const { return keeps_keys() || !watch_.layers().front().rotated; }
  /// Query rows of the last decode, those of the tokens [first, first + rows) of its batch.
  [[nodiscard]] kv::queries queries(int first, int rows) const {
    auto const row = static_cast<std::int64_t>(shape_.query_heads) * shape_.head_dim * 4;
    kv::queries made{};
    made.base = reinterpret_cast<std::byte const*>(queries_.data()) + first * row;
    made.dims = shape_.head_dim;
    made.layer = options_.chunk * row;
    made.head = std::int64_t{shape_.head_dim} * 4;
    made.row = row;
    made.heads = shape_.query_heads;
    made.rows = captured_ ? rows : 0;
    made.position = {batch_.positions().data() + first, 0, 0, 0};
    return made;
  }

  /// Takes the cells of positions [begin, end) from a sequence; -1 is the first or the last one.
  void remove(int sequence, llama_pos begin, llama_pos end) { llama_memory_seq_rm(memory(), sequence, begin, end); }

  /// Refuses a sequence whose cells are not those that the engine left, at the ascending positions `left`.
  void check_untouched(char const* call, int sequence, std::span<llama_pos const> left) const {
    cell_watch(context_.get(), spare(), counter_, options_.count_cells).check(call, sequence, left);
  }

  /// Copies the rows of a token, those of all layers.
  void copy_rows(int from, int to) {
    if (from == to) return;
    for (int layer = 0; keeps_keys() && layer < shape_.layers; ++layer) {
      kv::place const source{from, 0}, target{to, 0};
      std::memcpy(kept_keys_.row(layer, target, 0), kept_keys_.row(layer, source, 0),
                  static_cast<std::size_t>(kept_keys_.unit_stride));
    }
    for (layer_tensors const& layer : watch_.layers()) {
      detail::copy_row(*layer.k, from, to);
      options_.flash_attention ? detail::copy_row(*layer.v, from, to) : detail::copy_column(*layer.v, from, to, cells_);
    }
  }

  /// Takes cells for a sequence that has none, at positions from `position` on. Their rows mean nothing. Writes the
  /// cells to `to`.
  ///
  /// - throws: `std::runtime_error` if llama.cpp fails.
  void occupy(char const* call, int sequence, int position, int tokens, int* to) {
    for (int at = 0; at < tokens; at += chunk()) {
      int const some = std::min(chunk(), tokens - at);
      if (!take_cells(sequence, position + at, some))
        throw std::runtime_error(std::string(call) + ": llama_decode failed");
      to = std::copy(new_cells().begin(), new_cells().end(), to);
    }
  }

  /// Moves the newest token of a sequence from `cell`, which is at `position`, to the lowest cells that are free.
  /// llama.cpp has no call for this: a token of a spare sequence takes the free cell, which then changes hands. Returns
  /// the new cell, or `cell` if there is no lower one.
  int move_newest_down(int sequence, llama_pos position, int from) {
    bool const lower = take_cells(spare(), position, 1) && new_cells().front() < from;
    int const to = lower ? new_cells().front() : from;
    if (lower) {
      copy_rows(from, to);
      remove(sequence, position, position + 1);
      llama_memory_seq_cp(memory(), spare(), sequence, -1, -1);
    }
    remove(spare(), -1, -1);
    return to;
  }

 private:
  struct free_context {
    void operator()(llama_context* one) const { llama_free(one); }
  };

  /// Takes cells for tokens whose rows mean nothing. llama.cpp gives cells to decoded tokens only; the callback ends
  /// that decode once the cells are known, so that it costs no more than a part of the first layer.
  [[nodiscard]] bool take_cells(int sequence, int position, int tokens) {
    token_batch taking;  // the tokens and query rows of the last decode stay
    taking.add_cells(sequence, position, tokens);
    watch_.begin_decode(nullptr, 0, true);
    return taking.decode(context_.get()) == 0 && static_cast<int>(watch_.cells().size()) == tokens;
  }

  [[nodiscard]] llama_seq_id spare() const { return options_.sequences; }
  [[nodiscard]] llama_memory_t memory() const { return llama_get_memory(context_.get()); }
  [[nodiscard]] int value_dim() const { return shape_.value_dim != 0 ? shape_.value_dim : shape_.head_dim; }
  static int row_bytes(ggml_type type, int dims) { return static_cast<int>(ggml_row_size(type, dims)); }

  void open(llama_model* with) {
    llama_context_params params = detail::params_of(options_);
    params.cb_eval = &decode_watch::callback;
    params.cb_eval_user_data = &watch_;
    context_.reset(llama_init_from_model(with, params));
    kv::expects(context_ != nullptr, "llama_cpp::engine", "model", "refused by llama.cpp",
                "llama_init_from_model makes no context of it with these options");
    kv::expects(memory() != nullptr, "llama_cpp::engine", "model", "without a cache", "there is nothing to evict");
    // A context of few cells takes smaller batches than it was asked for.
    options_.chunk = std::min(options_.chunk, static_cast<int>(llama_n_ubatch(context_.get())));
  }

  /// Decodes one token to learn what the graph reads, and another to see that query rows are shown; then forgets both.
  void probe(llama_model const* with) {
    shape_.layers = llama_model_n_layer(with);
    watch_.begin_probe(shape_.layers);
    llama_token const first_token = 0;
    clear_batch();
    add(0, 0, {&first_token, 1}, {}, false);
    int const status = batch_.decode(context_.get());
    watch_.end_probe();
    kv::expects(status == 0, "llama_cpp::engine", "model", "refused by llama.cpp",
                "llama_decode reads no token with it");
    counter_.learn(context_.get(), 1);
    detail::check_layers(watch_.layers(), watch_.stray());
    layer_tensors const& first = watch_.layers().front();
    shape_.query_heads = first.query_heads;
    shape_.head_dim = first.query_dims;
    shape_.kv_heads = static_cast<int>(first.k->ne[0]) / first.query_dims;
    int const values = static_cast<int>(first.v->ne[0]) / shape_.kv_heads;
    shape_.value_dim = values == shape_.head_dim ? 0 : values;
    cells_ = static_cast<int>(first.k->ne[1]);
    logits_ = {.scale = first.scale, .soft_cap = first.softcap};
    for (layer_tensors const& layer : watch_.layers()) {
      k_data_.push_back(static_cast<std::byte*>(layer.k->data));
      v_data_.push_back(static_cast<std::byte*>(layer.v->data));
    }
    queries_.resize(static_cast<std::size_t>(shape_.layers) * static_cast<std::size_t>(options_.chunk) *
                    static_cast<std::size_t>(shape_.query_heads) * static_cast<std::size_t>(shape_.head_dim));
    detail::check_blocks("type_k", options_.type_k, shape_.head_dim);
    detail::check_blocks("type_v", options_.type_v, value_dim());
    if (options_.keep_keys && detail::codec_of(options_.type_k) == kv::codec::opaque) make_key_rows();
    clear_batch();
    add(0, 1, {&first_token, 1}, {}, false);
    kv::expects(decode(true), "llama_cpp::engine", "model", "without query rows in the graph of llama.cpp",
                "a policy reads those that are multiplied with the keys");
    counter_.learn(context_.get(), 2);
    captured_ = false;
    llama_memory_clear(memory(), true);
    clear_batch();
  }

  /// Makes room for the copy of the keys.
  void make_key_rows() {
    std::int64_t const row = std::int64_t{shape_.kv_heads} * shape_.head_dim;
    key_rows_.resize(static_cast<std::size_t>(row * shape_.layers * cells_));
    kept_keys_ = {.base = reinterpret_cast<std::byte*>(key_rows_.data()),
                  .element = kv::codec::f32,
                  .channels = shape_.head_dim,
                  .layer_stride = cells_ * row * 4,
                  .unit_stride = row * 4,
                  .token_stride = row * 4,
                  .head_stride = std::int64_t{shape_.head_dim} * 4,
                  .channel_stride = 4};
    watch_.copy_keys(key_rows_.data(), cells_);
  }

  context_options options_;
  int width_ = 0;
  int vocabulary_ = 0;
  int cells_ = 0;
  kv::shape shape_{};
  kv::logit_options logits_{};
  decode_watch watch_;
  cell_counter counter_;
  std::unique_ptr<llama_context, free_context> context_;
  std::vector<std::byte*> k_data_, v_data_;  ///< [layer]
  std::vector<float> queries_;               ///< [layer][row of a decode][query head][D]
  std::vector<float> key_rows_;              ///< the copy of the keys [layer][cell][KV head][D], if there is one
  kv::plane kept_keys_{};
  token_batch batch_;
  bool captured_ = false;  ///< `queries_` holds the rows of the last decode
};

}  // namespace llama_cpp
