// A llama.cpp context whose cache the host can read and write: what it must be like, and one decode at a time.
#pragma once

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "decode_watch.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

struct context_options {
  int cells = 4096;  ///< tokens that the cache holds, those of all sequences together
  int sequences = 1;
  int chunk = 512;  ///< tokens of a decode at most; a prefill is read in chunks of this size
  int threads = 0;  ///< of llama.cpp; 0: one for each core
  ggml_type type_k = GGML_TYPE_F16;
  ggml_type type_v = GGML_TYPE_F16;
  bool flash_attention = true;
  bool keep_keys = false;  ///< keep a copy in float32 of keys that are quantised, for policies that read keys
};

namespace detail {

/// Refuses models whose cache is not one cell for each token of each layer.
inline void check_model(llama_model const* with) {
  auto const refuse = [](bool wrong, char const* what, char const* rule) {
    kv::expects(!wrong, "llama_cpp::engine", "model", what, rule);
  };
  kv::expects(with != nullptr, "llama_cpp::engine", "model", "null", "llama_model_load_from_file has failed");
  refuse(llama_model_is_recurrent(with), "recurrent", "its state has no rows that could be evicted");
  refuse(llama_model_is_hybrid(with), "hybrid", "the state of its recurrent layers has no rows that could be evicted");
  refuse(llama_model_has_encoder(with), "an encoder and a decoder", "the engine reads one text");
  int const window = llama_model_n_swa(with);
  kv::expects(
      window <= 0, "llama_cpp::engine", "model", [&] { return "a sliding window of " + std::to_string(window); },
      "llama.cpp masks by the positions of cells, which mean nothing after an eviction");
  auto const rope = llama_model_rope_type(with);
  refuse(rope != LLAMA_ROPE_TYPE_NONE && rope != LLAMA_ROPE_TYPE_NORM && rope != LLAMA_ROPE_TYPE_NEOX,
         "RoPE of several positions", "a token has one position");
}

/// The element type as the library knows it. Types that it cannot read are opaque: their rows are moved.
[[nodiscard]] inline kv::codec codec_of(ggml_type type) {
  if (type == GGML_TYPE_F32) return kv::codec::f32;
  if (type == GGML_TYPE_F16) return kv::codec::f16;
  return type == GGML_TYPE_BF16 ? kv::codec::bf16 : kv::codec::opaque;
}

}  // namespace detail

/// - throws: `kvpolicy::invalid_argument`, one line that names what was found, if the model or its cache is of a kind
/// that
///   cannot be served.
class context {
 public:
  context(llama_model* with, context_options const& options) : options_(options) {
    detail::check_model(with);
    check_options();
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
  template <class Rows>
  [[nodiscard]] Rows slice(Rows const& all, int at, int tokens) const {
    auto const part = [&](auto const& values, int each) {
      return values.empty() ? values
                            : values.subspan(static_cast<std::size_t>(at) * static_cast<std::size_t>(each),
                                             static_cast<std::size_t>(tokens) * static_cast<std::size_t>(each));
    };
    return {part(all.tokens, 1), part(all.embeddings, width_)};
  }

  void clear_batch() {
    ids_.clear();
    embeddings_.clear();
    at_.clear();
    of_.clear();
    wanted_.clear();
  }
  /// Adds tokens of a sequence to the batch. The logits of the last one are wanted, or those of each.
  void add(int sequence, int position, std::span<llama_token const> ids, std::span<float const> rows,
           bool every_logit) {
    int const tokens = tokens_of("decode", ids, rows);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    if (ids.empty()) embeddings_.insert(embeddings_.end(), rows.begin(), rows.end());
    kv::expects(ids_.empty() || embeddings_.empty(), "decode", "embeddings", embeddings_.size(),
                "a batch has ids or embeddings, not both");
    for (int i = 0; i < tokens; ++i) {
      at_.push_back(position + i);
      of_.push_back(sequence);
      wanted_.push_back(every_logit || i == tokens - 1);
    }
  }
  /// Decodes the batch. Returns false if llama.cpp failed; then some of its tokens may be in the cache.
  [[nodiscard]] bool decode(bool captured) {
    int const tokens = static_cast<int>(at_.size());
    captured = captured && has_queries();
    watch_.begin_decode(captured ? queries_.data() : nullptr, options_.chunk);
    bool const done = run() == 0 && static_cast<int>(watch_.cells().size()) == tokens;
    captured_ = done && captured;
    bool shown = true;
    for (int layer = 0; captured && layer < shape_.layers; ++layer) shown = shown && watch_.rows(layer) == tokens;
    return done && shown;
  }
  /// The cells of the tokens of the last decode.
  [[nodiscard]] std::vector<int> const& new_cells() const { return watch_.cells(); }
  void take_logits(std::vector<float>& to) const {
    float const* const from = llama_get_logits(context_.get());
    auto const rows = std::count(wanted_.begin(), wanted_.end(), 1);
    to.assign(from, from + rows * vocabulary_);
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
    made.position = {at_.data() + first, 0, 0, 0};
    return made;
  }

  /// Takes the cells of positions [begin, end) from a sequence; -1 is the first or the last one.
  void remove(int sequence, llama_pos begin, llama_pos end) { llama_memory_seq_rm(memory(), sequence, begin, end); }

  /// Refuses a sequence that somebody else has changed since the engine's last call: its tables would be wrong.
  void check_untouched(char const* call, int sequence, llama_pos last) const {
    llama_pos const found = llama_memory_seq_pos_max(memory(), sequence);
    kv::expects(
        found == last, call, "sequence",
        [&] { return std::to_string(sequence) + ", whose last cell is at position " + std::to_string(found); },
        [&] {
          return "the engine left it at " + std::to_string(last) +
                 ": cells are moved, shifted and removed by the engine's own calls only";
        });
  }

  /// Copies the rows of a token, those of all layers.
  void copy_rows(int from, int to) {
    if (from == to) return;
    for (int layer = 0; keeps_keys() && layer < shape_.layers; ++layer) {
      kv::place const source{from, 0}, target{to, 0};
      std::memcpy(kept_keys_.row(layer, target, 0), kept_keys_.row(layer, source, 0),
                  static_cast<std::size_t>(kept_keys_.unit));
    }
    for (layer_tensors const& layer : watch_.layers()) {
      std::memcpy(cell(*layer.k, to), cell(*layer.k, from), ggml_row_size(layer.k->type, layer.k->ne[0]));
      if (options_.flash_attention) {
        std::memcpy(cell(*layer.v, to), cell(*layer.v, from), ggml_row_size(layer.v->type, layer.v->ne[0]));
        continue;
      }
      std::size_t const bytes = ggml_type_size(layer.v->type);  // transposed: the cells of a channel are adjacent
      for (std::int64_t channel = 0; channel < layer.v->ne[0]; ++channel) {
        auto* const row = static_cast<std::byte*>(layer.v->data) + static_cast<std::size_t>(channel * cells_) * bytes;
        std::memcpy(row + static_cast<std::size_t>(to) * bytes, row + static_cast<std::size_t>(from) * bytes, bytes);
      }
    }
  }

  /// Takes cells for a sequence that has none, at positions from `position` on, by decoding that many tokens. Their
  /// rows mean nothing. Writes the cells to `to`.
  ///
  /// - throws: `std::runtime_error` if llama.cpp fails.
  void occupy(int sequence, int position, int tokens, int* to) {
    std::vector<llama_token> const ids(static_cast<std::size_t>(std::min(tokens, chunk())));
    for (int at = 0; at < tokens; at += chunk()) {
      int const some = std::min(chunk(), tokens - at);
      clear_batch();
      add(sequence, position + at, std::span(ids).first(static_cast<std::size_t>(some)), {}, false);
      if (!decode(false)) throw std::runtime_error("load: llama_decode failed");
      to = std::copy(new_cells().begin(), new_cells().end(), to);
    }
  }

  /// Moves the newest token of a sequence from `cell`, which is at `position`, to the lowest cells that are free.
  /// llama.cpp has no call for this: a token of a spare sequence is decoded into the free cell, which then changes
  /// hands. Returns the new cell, or `cell` if there is no lower one.
  int move_newest_down(int sequence, llama_pos position, int from) {
    llama_seq_id const spare = options_.sequences;
    clear_batch();
    ids_.push_back(0);
    at_.push_back(position);
    of_.push_back(spare);
    wanted_.push_back(0);
    watch_.begin_decode(nullptr, 0);
    bool const decoded = run() == 0 && watch_.cells().size() == 1 && watch_.cells().front() < from;
    captured_ = false;
    int const to = decoded ? watch_.cells().front() : from;
    if (decoded) {
      copy_rows(from, to);
      remove(sequence, position, position + 1);
      llama_memory_seq_cp(memory(), spare, sequence, -1, -1);
    }
    remove(spare, -1, -1);
    return to;
  }

 private:
  struct free_context {
    void operator()(llama_context* one) const { llama_free(one); }
  };

  [[nodiscard]] llama_memory_t memory() const { return llama_get_memory(context_.get()); }
  [[nodiscard]] int value_dim() const { return shape_.value_dim != 0 ? shape_.value_dim : shape_.head_dim; }
  static int row_bytes(ggml_type type, int dims) { return static_cast<int>(ggml_row_size(type, dims)); }
  static std::byte* cell(ggml_tensor const& of, int which) {
    return static_cast<std::byte*>(of.data) + static_cast<std::size_t>(which) * of.nb[1];
  }

  void check_options() const {
    auto const positive = [](char const* what, int value) {
      kv::expects(value >= 1, "llama_cpp::engine", what, value, "it must be at least 1");
    };
    positive("cells", options_.cells);
    positive("sequences", options_.sequences);
    positive("chunk", options_.chunk);
    kv::expects(options_.threads >= 0, "llama_cpp::engine", "threads", options_.threads, "0 stands for all cores");
    bool const quantised = detail::codec_of(options_.type_v) == kv::codec::opaque;
    kv::expects(!quantised || options_.flash_attention, "llama_cpp::engine", "type_v", ggml_type_name(options_.type_v),
                "quantised values need flash attention");
  }

  void open(llama_model* with) {
    llama_context_params params = llama_context_default_params();
    int const cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    params.n_ctx = static_cast<std::uint32_t>(options_.cells);
    params.n_seq_max = static_cast<std::uint32_t>(options_.sequences + 1);  // one is spare: see move_newest_down
    params.n_batch = std::max(static_cast<std::uint32_t>(options_.chunk), params.n_seq_max);
    params.n_ubatch = params.n_batch;  // a decode is one graph
    params.kv_unified = true;          // all sequences have their cells in one place
    params.n_threads = options_.threads > 0 ? options_.threads : cores;
    params.n_threads_batch = params.n_threads;
    params.type_k = options_.type_k;
    params.type_v = options_.type_v;
    params.flash_attn_type = options_.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.offload_kqv = false;  // the cache is in the host's memory
    params.swa_full = true;
    params.cb_eval = &decode_watch::callback;
    params.cb_eval_user_data = &watch_;
    context_.reset(llama_init_from_model(with, params));
    kv::expects(context_ != nullptr, "llama_cpp::engine", "model", "refused by llama.cpp",
                "llama_init_from_model makes no context of it with these options");
    kv::expects(memory() != nullptr, "llama_cpp::engine", "model", "without a cache", "there is nothing to evict");
  }

  /// Decodes one token to learn what the graph reads, and another to see that query rows are shown; then forgets both.
  void probe(llama_model const* with) {
    shape_.layers = llama_model_n_layer(with);
    watch_.begin_probe(shape_.layers);
    clear_batch();
    ids_.push_back(0);
    at_.push_back(0);
    of_.push_back(0);
    wanted_.push_back(1);
    int const status = run();
    watch_.end_probe();
    kv::expects(status == 0, "llama_cpp::engine", "model", "refused by llama.cpp",
                "llama_decode reads no token with it");
    check_layers();
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
    if (options_.keep_keys && detail::codec_of(options_.type_k) == kv::codec::opaque) make_key_rows();
    at_.front() = 1;
    kv::expects(decode(true), "llama_cpp::engine", "model", "without query rows in the graph of llama.cpp",
                "a policy reads those that are multiplied with the keys");
    captured_ = false;
    llama_memory_clear(memory(), true);
    clear_batch();
    bool const whole =
        shape_.head_dim % ggml_blck_size(options_.type_k) == 0 && value_dim() % ggml_blck_size(options_.type_v) == 0;
    kv::expects(whole, "llama_cpp::engine", "type_k", ggml_type_name(options_.type_k),
                [&] { return "a head has " + std::to_string(shape_.head_dim) + " channels, which are whole blocks"; });
  }

  /// Makes room for the copy of the keys.
  void make_key_rows() {
    std::int64_t const row = std::int64_t{shape_.kv_heads} * shape_.head_dim;
    key_rows_.resize(static_cast<std::size_t>(shape_.layers * cells_ * row));
    kept_keys_ = {.base = reinterpret_cast<std::byte*>(key_rows_.data()),
                  .element = kv::codec::f32,
                  .dims = shape_.head_dim,
                  .layer = cells_ * row * 4,
                  .unit = row * 4,
                  .token = row * 4,
                  .head = std::int64_t{shape_.head_dim} * 4,
                  .dim = 4};
    watch_.copy_keys(key_rows_.data(), cells_);
  }

  /// Refuses a graph in which a layer reads no plain cache, or another one than the first layer.
  void check_layers() const {
    layer_tensors const& first = watch_.layers().front();
    for (int i = 0; i < shape_.layers; ++i) {
      layer_tensors const& layer = watch_.layers()[static_cast<std::size_t>(i)];
      std::string const where = "layer " + std::to_string(i);
      auto const expects = [&](bool ok, std::string const& found, std::string const& rule) {
        kv::expects(ok, "llama_cpp::engine", "model", found, rule);
      };
      std::string const other = watch_.stray().empty() ? " without a cache" : " with the cache " + watch_.stray();
      expects(layer.k != nullptr && layer.v != nullptr, where + other,
              "each layer has the tensors cache_k_l" + std::to_string(i) + " and cache_v_l" + std::to_string(i));
      bool const on_host = ggml_backend_buffer_is_host(layer.k->buffer) && ggml_backend_buffer_is_host(layer.v->buffer);
      expects(on_host, where + " with a cache in " + ggml_backend_buffer_name(layer.k->buffer) + " memory",
              "the host reads and writes the cache");
      bool const alike = layer.k->ne[0] == first.k->ne[0] && layer.v->ne[0] == first.v->ne[0] &&
                         layer.query_heads == first.query_heads && layer.query_dims == first.query_dims;
      expects(alike, where + " with other heads than layer 0", "all layers are alike");
      expects(layer.scale > 0 && layer.scale == first.scale && layer.query_dims > 0 &&
                  layer.k->ne[0] % layer.query_dims == 0,
              where + " with an attention that is none of the known ones", "it is a softmax of scaled products");
      expects(layer.max_bias == 0, where + " with ALiBi", "positions of cells mean nothing after an eviction");
      expects(!layer.sinks && layer.softcap >= 0, where + " with sinks or a soft cap", "its numbers are known");
    }
  }

  int run() {
    std::vector<llama_seq_id*> lists;
    std::vector<int> listed(at_.size(), 1);
    for (llama_seq_id& one : of_) lists.push_back(&one);
    llama_batch const batch{.n_tokens = static_cast<int>(at_.size()),
                            .token = embeddings_.empty() ? ids_.data() : nullptr,
                            .embd = embeddings_.empty() ? nullptr : embeddings_.data(),
                            .pos = at_.data(),
                            .n_seq_id = listed.data(),
                            .seq_id = lists.data(),
                            .logits = wanted_.data()};
    return llama_decode(context_.get(), batch);
  }

  context_options options_;
  int width_ = 0;
  int vocabulary_ = 0;
  int cells_ = 0;
  kv::shape shape_{};
  kv::logit_options logits_{};
  decode_watch watch_;
  std::unique_ptr<llama_context, free_context> context_;
  std::vector<std::byte*> k_data_, v_data_;  ///< [layer]
  std::vector<float> queries_;               ///< [layer][row of a decode][query head][D]
  std::vector<float> key_rows_;              ///< the copy of the keys [layer][cell][KV head][D], if there is one
  kv::plane kept_keys_{};
  bool captured_ = false;  ///< `queries_` holds the rows of the last decode

  // The batch.
  std::vector<llama_token> ids_;
  std::vector<float> embeddings_;
  std::vector<llama_pos> at_;
  std::vector<llama_seq_id> of_;
  std::vector<std::int8_t> wanted_;
};

}  // namespace llama_cpp
