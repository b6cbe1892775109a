// SPDX-License-Identifier: Apache-2.0
// The signals of a call about arrays.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rows.hpp"

namespace kvpolicy_python {

/// The model of an `evictor`.
struct model_shape {
  kv::shape sizes{};
  std::optional<float> scale{};  ///< the factor of q.k; empty: 1 / sqrt(head_dim)
  float soft_cap = 0;

  [[nodiscard]] int value_channels() const { return sizes.value_dim != 0 ? sizes.value_dim : sizes.head_dim; }
};

/// What a caller knows of the query rows before RoPE, and how they turn.
struct query_moments {
  numbers mean;                     ///< [layer, sequence, query head, channel]
  std::optional<numbers> square{};  ///< [layer, sequence, query head, channel, channel], the covariance
  std::vector<double> frequencies;  ///< of the pairs of channels that turn, i and i + half: radians per position
};

/// The query rows of tokens that the cache does not hold, which a model has read after it.
struct external_rows {
  tensor queries;                            ///< [layer, sequence, query head, row, channel]
  std::optional<tensor> keys{};              ///< of the same tokens, [layer, sequence, KV head, row, channel]
  std::vector<std::pair<int, int>> spans{};  ///< the entries [begin, end) that each row is about; empty: all
  std::optional<numbers> hidden_norms{};     ///< [layer, sequence, row]
  std::optional<numbers> log_sum_exps{};     ///< of the logits of each row, [layer, sequence, query head, row]
};

/// What a caller gives to a call: one array [sequence, KV head, row, channel] for each layer.
struct given_rows {
  std::vector<rows> keys;
  std::vector<rows> values;
  std::optional<numbers> scores;         ///< [layer, sequence, KV head, entry]
  std::vector<rows> turn{};              ///< the query rows of a turn
  std::optional<numbers> value_norms{};  ///< of the values after the output projection, as `scores`
  std::optional<query_moments> moments{};
  std::vector<rows> queries{};        ///< the query rows of a prompt
  std::vector<rows> pre_rope_keys{};  ///< the keys before RoPE
  std::optional<external_rows> external{};
  std::optional<tensor> projection{};   ///< W_o, [layer, channel of the output, query head, channel of a value]
  std::optional<block_lists> blocks{};  ///< then keys and values are those of a pool: [block, token, KV head, channel]
};

/// What a forward shows of one layer: the rows and the numbers of new tokens. Each is optional. The last one is that of
/// a sequence's last token; before a sequence's new tokens there is padding.
struct shown_tokens {
  std::optional<rows> queries{};         ///< the last query rows
  std::optional<rows> turn{};            ///< the query rows of a turn
  std::optional<numbers> log_beta{};     ///< [sequence, KV head, token]
  std::optional<numbers> birth_score{};  ///< [sequence, KV head, token]
};

/// Refuses an array of another batch.
inline void check_batch(char const* call, char const* name, std::int64_t sequences, int batch) {
  kv::expects(sequences == batch, call, std::string(name) + ".shape", std::to_string(sequences) + " sequences",
              [&] { return "the batch has " + std::to_string(batch); });
}

/// The signals of a call, and the tables that they point to, in the memory of the executor of the call.
template <class Executor>
class layer_signals {
 public:
  /// - in: `lanes` are those of the call, and `longest` [layer, sequence] the entries of the longest head of each layer
  ///   of a sequence; `given` is about all these layers.
  /// - throws: `invalid_argument` if an array has another shape.
  layer_signals(char const* call, Executor& exec, model_shape const& model, given_rows const& given,
                kv::lanes const& lanes, std::vector<int> longest)
      : call_(call),
        model_(model),
        sequences_(lanes.sequences),
        longest_(std::move(longest)),
        layers_(lanes.layers()),
        blocks_(given.blocks),
        memory(exec),
        all(lanes) {
    if (blocks_) check_batch(call, "blocks", blocks_->sequences, sequences_);
    add("keys", given.keys, model.sizes.head_dim, [&](kv::row_view const& view) {
      keys_ = {view, {.scale = model.scale, .soft_cap = model.soft_cap}};
      all.add(keys_);
    });
    add("values", given.values, model.value_channels(), [&](kv::row_view const& view) {
      values_ = {view};
      all.add(values_);
    });
    if (given.scores) {
      scores_ = {of_entries("scores", *given.scores)};
      all.add(scores_);
    }
    if (given.value_norms) {
      norms_ = {of_entries("value_norms", *given.value_norms)};
      all.add(norms_);
    }
    if (given.moments) add_moments(*given.moments);
    add("pre_rope_keys", given.pre_rope_keys, model.sizes.head_dim, [&](kv::row_view const& view) {
      before_rope_ = {view};
      all.add(before_rope_);
    });
    if (given.external) add_external(*given.external);
    if (given.projection) add_projection(*given.projection);
  }
  layer_signals(layer_signals const&) = delete;
  layer_signals& operator=(layer_signals const&) = delete;

 private:
  template <class Offer>
  void add(char const* name, std::vector<rows> const& given, int channels, Offer const& offer) {
    if (given.empty()) return;
    auto const shape = [name] { return std::string(name) + ".shape"; };
    kv::expects(std::ssize(given) == layers_, call_, name, std::to_string(given.size()) + " layers",
                [&] { return "there are " + std::to_string(layers_); });
    rows const& first = given.front();
    if (!blocks_) check_batch(call_, name, first.sequences, sequences_);
    std::int64_t const heads = blocks_ ? first.count : first.heads;
    kv::expects(heads == model_.sizes.kv_heads, call_, shape, std::to_string(heads) + " heads",
                [&] { return "the model has " + std::to_string(model_.sizes.kv_heads) + " KV heads"; });
    kv::expects(first.channels == channels, call_, shape, std::to_string(first.channels) + " channels",
                [&] { return "a row has " + std::to_string(channels) + " channels"; });
    offer(blocks_ ? rows_in_blocks(call_, name, given, *blocks_, longest_, memory)
                  : layer_rows(call_, name, given, longest_, memory).view());
  }

  /// Numbers [layer, sequence, KV head, entry] as rows of lanes.
  kv::by_lane<float const> of_entries(std::string const& name, numbers const& from) const {
    kv::expects(
        from.size.size() == 4, call_, name + ".shape", [&] { return from.shape(); },
        "the axes are layer, sequence, KV head and entry");
    check_batch(call_, name.c_str(), from.size[1], sequences_);
    int const most = *std::max_element(longest_.begin(), longest_.end());
    bool const fits =
        from.size[0] == layers_ && from.size[2] == model_.sizes.kv_heads && from.size[3] >= most && from.stride[3] == 1;
    kv::expects(
        fits, call_, name + ".shape", [&] { return from.shape(); },
        [&] {
          return "it is " + std::to_string(layers_) + " layers, the sequences, " +
                 std::to_string(model_.sizes.kv_heads) + " KV heads and at least " + std::to_string(most) +
                 " contiguous entries";
        });
    return {from.data, from.stride[1], from.stride[0], from.stride[2]};
  }

  /// Numbers [layer, sequence, query head, channel], or of one axis of channels more, as rows of query heads.
  kv::query_view of_query_heads(std::string const& name, numbers const& from, std::size_t axes) const {
    int const dims = model_.sizes.head_dim;
    std::vector<std::int64_t> wanted{layers_, sequences_, model_.sizes.query_heads, dims};
    wanted.resize(axes, dims);
    kv::expects(
        from.size == wanted && from.stride.back() == 1, call_, name + ".shape", [&] { return from.shape(); },
        [&] { return "it is " + numbers{.size = wanted, .stride = {}}.shape() + ", and the last axis is contiguous"; });
    constexpr std::int64_t width = sizeof(float);
    kv::query_view made{};
    made.base = reinterpret_cast<std::byte const*>(from.data);
    made.dims = dims;
    made.layer = from.stride[0] * width;
    made.sequence = from.stride[1] * width;
    made.head = from.stride[2] * width;
    made.row = axes > 4 ? from.stride[3] * width : 0;
    made.heads = model_.sizes.query_heads;
    made.rows = axes > 4 ? dims : 1;
    return made;
  }

  void add_moments(query_moments const& from) {
    model_of_queries_.mean = of_query_heads("query_mean", from.mean, 4);
    if (from.square) model_of_queries_.square = of_query_heads("query_square", *from.square, 5);
    auto const turned = static_cast<int>(2 * from.frequencies.size());
    kv::expects(turned > 0 && turned <= model_.sizes.head_dim, call_, "frequencies", from.frequencies.size(),
                "they are of pairs of channels");
    model_of_queries_.rope = {.dims = turned, .frequency = memory.put(from.frequencies)};
    all.add(model_of_queries_);
  }

  void expect_sizes(std::string const& name, std::vector<std::int64_t> const& found,
                    std::vector<std::int64_t> const& wanted, bool contiguous) const {
    kv::expects(
        found == wanted && contiguous, call_, name + ".shape",
        [&] { return numbers{.size = found, .stride = {}}.shape(); },
        [&] { return "it is " + numbers{.size = wanted, .stride = {}}.shape() + ", and the last axis is contiguous"; });
  }

  /// Rows [layer, sequence, head, row, channel] of tokens that are no entries.
  kv::query_view of_no_entries(std::string const& name, tensor const& from, int heads, std::int64_t count) const {
    expect_sizes(name, from.size, {layers_, sequences_, heads, count, model_.sizes.head_dim},
                 !from.stride.empty() && from.stride.back() == kv::bytes_of(from.element));
    kv::query_view made{};
    made.base = from.data;
    made.element = from.element;
    made.dims = model_.sizes.head_dim;
    made.layer = from.stride[0];
    made.sequence = from.stride[1];
    made.head = from.stride[2];
    made.row = from.stride[3];
    made.heads = heads;
    made.rows = static_cast<int>(count);
    return made;
  }

  void add_external(external_rows const& from) {
    kv::shape const& sizes = model_.sizes;
    std::int64_t const count = from.queries.size.size() == 5 ? from.queries.size[3] : 0;
    static_cast<kv::query_view&>(external_) = of_no_entries("external_queries", from.queries, sizes.query_heads, count);
    if (from.keys) external_.spans.keys = of_no_entries("external_keys", *from.keys, sizes.kv_heads, count);
    if (!from.spans.empty()) {
      kv::expects(std::ssize(from.spans) == count, call_, "external_spans", from.spans.size(),
                  [&] { return "there are " + std::to_string(count) + " rows"; });
      std::vector<int> begin, end;
      for (auto const& [first, last] : from.spans) {
        begin.push_back(first);
        end.push_back(last);
      }
      external_.spans.begin = {memory.put(begin), 0, 0, 0};
      external_.spans.end = {memory.put(end), 0, 0, 0};
    }
    if (from.hidden_norms) {
      numbers const& norms = *from.hidden_norms;
      expect_sizes("external_hidden_norms", norms.size, {layers_, sequences_, count},
                   norms.size.empty() || norms.stride.back() == 1);
      external_.hidden_norm = {norms.data, norms.stride[1], norms.stride[0], 0};
    }
    if (from.log_sum_exps) {
      numbers const& sums = *from.log_sum_exps;
      expect_sizes("external_log_sum_exps", sums.size, {layers_, sequences_, sizes.query_heads, count},
                   sums.size.empty() || sums.stride.back() == 1);
      external_.lse = {sums.data, sums.stride[1], sums.stride[0], sums.stride[2]};
    }
    all.add(external_);
  }

  void add_projection(tensor const& from) {
    std::int64_t const width = from.size.size() > 1 ? from.size[1] : 0;
    expect_sizes("output_projection", from.size, {layers_, width, model_.sizes.query_heads, model_.value_channels()},
                 !from.stride.empty() && from.stride.back() == kv::bytes_of(from.element));
    projection_ = {.base = from.data,
                   .element = from.element,
                   .dims = model_.value_channels(),
                   .width = static_cast<int>(width),
                   .heads = model_.sizes.query_heads,
                   .layer = from.stride[0],
                   .channel = from.stride[1],
                   .head = from.stride[2]};
    all.add(projection_);
  }

  char const* call_;
  model_shape const& model_;
  int sequences_;
  std::vector<int> longest_;
  int layers_;
  std::optional<block_lists> blocks_;
  kv::keys keys_{};
  kv::values values_{};
  kv::external_scores scores_{};
  kv::value_norms norms_{};
  kv::query_model model_of_queries_{};
  kv::pre_rope_keys before_rope_{};
  kv::external_queries external_{};
  kv::output_projection projection_{};

 public:
  tables_of_call<Executor> memory;  ///< for more tables of the call
  kv::any_signals all;              ///< points to the members above
};

}  // namespace kvpolicy_python
