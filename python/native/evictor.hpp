// An eviction by name about a batch of sequences, with its state, for a caller that keeps keys and values itself.
#pragma once

#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "layer_signals.hpp"

namespace kvpolicy_python {

/// What each lane keeps. Lanes are in the order of sequence, layer, head.
struct decision {
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;
  kv::report report{};
};

/// Counts, positions and recorded signals of a batch under one policy, and its decisions. The caller keeps keys and
/// values, tells how many tokens each sequence received, and moves rows as `decide` says. Lanes of a sequence may come
/// to hold unequal numbers of entries.
class evictor {
 public:
  evictor(std::string const& spec, model_shape const& model, int sequences, int capacity, int threads)
      : policy_(kv::parse(spec)), exec_(threads), sequences_(sequences), model_(model) {
    kv::expects(sequences > 0, "Evictor", "sequences", sequences, "a batch has at least one sequence");
    kv::expects(capacity > 0, "Evictor", "capacity", capacity, "a sequence has room for at least one token");
    next_.assign(index(sequences), 0);
    newest_ = next_;
    kv::expects(model.sizes.layers > 0, "Evictor", "layers", model.sizes.layers, "a model has at least one layer");
    kv::expects(model.sizes.kv_heads > 0, "Evictor", "kv_heads", model.sizes.kv_heads,
                "a model has at least one KV head");
    lay_out(capacity, tables_);
    kv::detail::refuse_needs_beyond(
        "Evictor", policy_, {"keys", "values", "queries", "turn_queries", "log_beta", "birth_score", "external"},
        "arrays do");
    kv::cache const in = cache_of(tables_);
    state_.emplace(kv::make_state(exec_, policy_, in));
  }

  /// Adds tokens[s] tokens to sequence s. Their rows are the last ones of the next arrays.
  void append(std::vector<int> const& tokens) {
    std::lock_guard const lock(busy_);
    kv::expects(std::ssize(tokens) == sequences_, "append", "tokens", tokens.size(),
                [&] { return "the batch has " + std::to_string(sequences_) + " sequences"; });
    int most = 0;
    for (int s = 0; s < sequences_; ++s) {
      int const more = tokens[index(s)];
      kv::expects(more >= 0, "append", "tokens", more, "a count cannot be negative");
      kv::expects(more <= limit - next_[index(s)], "append", "tokens", more, "positions fit into 32 bits");
      most = std::max(most, longest(s) + more);
    }
    if (most > tables_.capacity) grow(std::max(most, most <= limit / 2 ? 2 * tables_.capacity : most));
    kv::cache in = cache_of(tables_);
    for (int s = 0; s < sequences_; ++s) {
      kv::append(exec_, in, *state_, {.sequence = s, .tokens = tokens[index(s)], .position = next_[index(s)]});
      next_[index(s)] += tokens[index(s)];
    }
    newest_ = tokens;
  }

  /// Takes the last tokens[s] tokens of sequence s back.
  void remove_last(std::vector<int> const& tokens) {
    std::lock_guard const lock(busy_);
    kv::expects(std::ssize(tokens) == sequences_, "remove_last", "tokens", tokens.size(),
                [&] { return "the batch has " + std::to_string(sequences_) + " sequences"; });
    for (int s = 0; s < sequences_; ++s) {
      kv::expects(tokens[index(s)] >= 0 && tokens[index(s)] <= next_[index(s)], "remove_last", "tokens",
                  tokens[index(s)], [&] { return "the sequence has " + std::to_string(next_[index(s)]) + " tokens"; });
    }
    kv::cache in = cache_of(tables_);
    for (int s = 0; s < sequences_; ++s) {
      if (tokens[index(s)] == 0) continue;
      next_[index(s)] -= tokens[index(s)];
      newest_[index(s)] = std::max(newest_[index(s)] - tokens[index(s)], 0);
      kv::truncate(exec_, in, *state_, s, next_[index(s)]);
    }
  }

  /// Shows rows and numbers of one layer to the policy: those of the latest `append`, or the last of them.
  void observe(int layer, shown_tokens const& shown, given_rows const& given) {
    std::lock_guard const lock(busy_);
    check_layer("observe", layer);
    kv::cache const in = cache_of(tables_);
    kv::lanes const lanes = in.lanes.layers_only(layer, layer + 1);
    layer_signals const signals("observe", model_, given, lanes);
    std::vector<int> of_rows, of_turn, of_betas, of_births;
    kv::queries newest;
    kv::turn_queries turn;
    kv::log_beta betas;
    kv::birth_score births;
    kv::any_signals all = signals.all;
    if (shown.queries) {
      static_cast<kv::query_view&>(newest) = query_rows("observe", "queries", *shown.queries, of_rows);
      all.add(newest);
    }
    if (shown.turn) {
      static_cast<kv::query_view&>(turn) = query_rows("observe", "turn_queries", *shown.turn, of_turn, true);
      all.add(turn);
    }
    if (shown.log_beta) {
      static_cast<kv::entry_numbers&>(betas) = numbers("observe", "log_beta", *shown.log_beta, of_betas);
      all.add(betas);
    }
    if (shown.birth_score) {
      static_cast<kv::entry_numbers&>(births) = numbers("observe", "birth_score", *shown.birth_score, of_births);
      all.add(births);
    }
    kv::refuse_missed_rows("observe", policy_, all, *state_, true);
    kv::observe(exec_, policy_, all, *state_);
  }

  /// Decides what every lane keeps. Until `apply` nothing is changed. A decision that rests on nothing is refused, and
  /// then there is none.
  decision decide(given_rows const& given) {
    std::lock_guard const lock(busy_);
    kv::cache const in = cache_of(tables_);
    layer_signals const signals("decide", model_, given, in.lanes);
    kv::any_signals all = signals.all;
    std::vector<int> of_turn;
    std::vector<std::byte> rows_of_turn;
    kv::turn_queries turn;
    if (!given.turn.empty()) {
      static_cast<kv::query_view&>(turn) = turn_rows(given.turn, of_turn, rows_of_turn);
      all.add(turn);
    }
    kv::refuse_missed_rows("decide", policy_, all, *state_, false);
    if (!plan_) plan_.emplace(kv::make_plan(exec_, policy_, of_real_rows(in, given), kv::compact{}));
    kv::decide(exec_, policy_, all, *state_, *plan_);
    decision made;
    made.report = plan_->report();
    if (std::string const why = kv::detail::why_unobserved("decide", policy_, made.report); !why.empty()) {
      plan_->withdraw();
      throw kv::invalid_argument(why);
    }
    kv::keep_set const& keep = plan_->keep();
    for (int i = 0; i < keep.lanes.size(); ++i) {
      auto const kept = keep.listed(kv::segment_of(keep.lanes, keep.decides, i));
      made.indices.insert(made.indices.end(), kept.begin(), kept.end());
      made.indptr.push_back(std::ssize(made.indices));
    }
    return made;
  }

  /// Moves counts, positions and recorded signals as the latest decision says; the caller moves keys and values.
  void apply() {
    std::lock_guard const lock(busy_);
    kv::expects(plan_.has_value(), "apply", "decision", "none", "decide comes before apply");
    kv::cache in = cache_of(tables_);
    kv::apply(exec_, kv::compact{}, *plan_, in, *state_);
  }

  /// The entries of each sequence's longest lane.
  [[nodiscard]] std::vector<int> counts() const {
    std::lock_guard const lock(busy_);
    std::vector<int> made;
    for (int s = 0; s < sequences_; ++s) made.push_back(longest(s));
    return made;
  }
  /// The entries of every lane, [sequence, layer, KV head].
  [[nodiscard]] std::vector<int> lane_counts() const {
    std::lock_guard const lock(busy_);
    return tables_.counts;
  }
  /// The positions of what the lanes of a layer hold, [sequence, KV head, entry of the longest lane]; -1 after a lane's
  /// last entry.
  [[nodiscard]] std::vector<int> positions(int layer, int& most) const {
    std::lock_guard const lock(busy_);
    check_layer("positions", layer);
    std::vector<int> made;
    most = 0;
    for (int s = 0; s < sequences_; ++s) {
      for (int h = 0; h < model_.sizes.kv_heads; ++h)
        most = std::max(most, tables_.counts[index(lane_of(s, layer, h))]);
    }
    for (int s = 0; s < sequences_; ++s) {
      for (int h = 0; h < model_.sizes.kv_heads; ++h) {
        std::size_t const lane = index(lane_of(s, layer, h));
        int const* const of = tables_.positions.data() + lane * index(tables_.capacity);
        made.insert(made.end(), of, of + tables_.counts[lane]);
        made.resize(made.size() + index(most - tables_.counts[lane]), -1);
      }
    }
    return made;
  }
  [[nodiscard]] int sequences() const { return sequences_; }
  [[nodiscard]] model_shape const& model() const { return model_; }
  /// The tokens that each sequence has received, dropped ones included.
  [[nodiscard]] std::vector<int> tokens() const {
    std::lock_guard const lock(busy_);
    return next_;
  }
  [[nodiscard]] std::string policy() const { return to_string(policy_); }

 private:
  static constexpr int limit = 0x7FFFFFFF;

  /// The memory of counts and positions, and a byte for each entry that stands for its keys or its values.
  struct tables {
    int capacity = 0;
    std::vector<int> counts;
    std::vector<int> positions;
    std::vector<std::byte> keys;
    std::vector<std::byte> values;
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i < 0 ? 0 : i); }
  [[nodiscard]] int lanes_of_sequence() const { return model_.sizes.layers * model_.sizes.kv_heads; }
  [[nodiscard]] int lane_of(int s, int layer, int head) const {
    return s * lanes_of_sequence() + layer * model_.sizes.kv_heads + head;
  }
  [[nodiscard]] int longest(int s) const {
    auto const first = tables_.counts.begin() + s * lanes_of_sequence();
    return *std::max_element(first, first + lanes_of_sequence());
  }

  void check_layer(char const* call, int layer) const {
    kv::expects(layer >= 0 && layer < model_.sizes.layers, call, "layer", layer,
                [&] { return "the model has " + std::to_string(model_.sizes.layers) + " layers"; });
  }

  void lay_out(int capacity, tables& to) const {
    std::size_t const lanes = index(sequences_) * index(lanes_of_sequence());
    to.capacity = capacity;
    to.counts.assign(lanes, 0);
    to.positions.assign(lanes * index(capacity), 0);
    to.keys.resize(lanes * index(capacity));
    to.values.resize(lanes * index(capacity));
  }

  /// The batch as a cache. A byte stands for each row, since the caller moves the rows themselves.
  [[nodiscard]] kv::cache cache_of(tables& of) const {
    std::int64_t const entries = of.capacity;
    std::int64_t const lanes = lanes_of_sequence();
    auto const plane = [&](std::vector<std::byte>& memory) {
      return kv::plane{.base = memory.data(),
                       .element = kv::codec::opaque,
                       .dims = 1,
                       .layer = entries * model_.sizes.kv_heads,
                       .unit = entries * lanes,
                       .token = 1,
                       .head = entries,
                       .dim = 1};
    };
    kv::cache made{.shape = model_.sizes,
                   .k = plane(of.keys),
                   .v = plane(of.values),
                   .where = kv::identity_map(of.capacity, sequences_)};
    made.lanes = {.sequences = sequences_,
                  .layer_end = model_.sizes.layers,
                  .heads = model_.sizes.kv_heads,
                  .bound = of.capacity,
                  .count = {of.counts.data(), lanes, model_.sizes.kv_heads, 1},
                  .position = {of.positions.data(), lanes * entries, model_.sizes.kv_heads * entries, entries}};
    return made;
  }

  /// The same cache as it would be with rows of the given size, for a budget in bytes. Its memory is not read.
  [[nodiscard]] kv::cache of_real_rows(kv::cache in, given_rows const& given) const {
    kv::codec const element = given.keys.empty() ? kv::codec::f32 : given.keys.front().element;
    for (auto const& [rows, dims] :
         {std::pair{&in.k, model_.sizes.head_dim}, std::pair{&in.v, model_.value_channels()}}) {
      std::int64_t const bytes = std::int64_t{dims} * kv::bytes_of(element);
      rows->element = element;
      rows->dims = dims;
      rows->dim = kv::bytes_of(element);
      for (std::int64_t* const stride : {&rows->layer, &rows->unit, &rows->token, &rows->head}) *stride *= bytes;
    }
    in.v.base = in.k.base + std::int64_t{sequences_} * in.k.unit;
    return in;
  }

  /// Makes room for longer sequences: every sequence moves to larger tables, with what was recorded of it.
  void grow(int capacity) {
    tables larger;
    lay_out(capacity, larger);
    kv::cache const from = cache_of(tables_);
    kv::cache to = cache_of(larger);
    auto made = kv::make_state(exec_, policy_, to);
    std::vector<std::byte> saved;
    for (int s = 0; s < sequences_; ++s) {
      if (next_[index(s)] == 0) continue;
      saved.resize(kv::saved_bytes(exec_, from, *state_, s, kv::rows::leave));
      kv::save(exec_, from, *state_, s, saved, kv::rows::leave);
      kv::load(exec_, to, made, s, saved, kv::rows::leave);
    }
    tables_ = std::move(larger);
    state_ = std::move(made);
    plan_.reset();
  }

  /// The positions of the last `count` tokens of each sequence; -1 before its new ones.
  /// `of_turn`: rows may be those of earlier appends, too.
  [[nodiscard]] std::vector<int> newest_positions(int count, bool of_turn = false) const {
    std::vector<int> made;
    for (int s = 0; s < sequences_; ++s) {
      for (int r = 0; r < count; ++r) {
        bool const padding = count - r > (of_turn ? next_ : newest_)[index(s)];
        made.push_back(padding ? -1 : next_[index(s)] - count + r);
      }
    }
    return made;
  }

  /// The query rows of a turn, of all layers, which `memory` holds afterwards.
  kv::query_view turn_rows(std::vector<rows> const& layers, std::vector<int>& positions,
                           std::vector<std::byte>& memory) const {
    kv::expects(std::ssize(layers) == model_.sizes.layers, "decide", "turn_queries", layers.size(),
                [&] { return "the model has " + std::to_string(model_.sizes.layers) + " layers"; });
    rows const& first = layers.front();
    kv::query_view made = query_rows("decide", "turn_queries", first, positions, true);
    made.row = first.channels * kv::bytes_of(first.element);
    made.head = first.count * made.row;
    made.sequence = first.heads * made.head;
    made.layer = first.sequences * made.sequence;
    memory.resize(layers.size() * static_cast<std::size_t>(made.layer));
    std::byte* to = memory.data();
    for (rows const& one : layers) {
      kv::expects(same_layout(one, first), "decide", "turn_queries", "another shape or layout",
                  "all layers have the shape, the element type and the strides of layer 0");
      for (std::int64_t s = 0; s < one.sequences; ++s) {
        for (std::int64_t h = 0; h < one.heads; ++h) {
          for (std::int64_t r = 0; r < one.count; ++r, to += made.row) {
            std::memcpy(to, one.data + s * one.sequence + h * one.head + r * one.row,
                        static_cast<std::size_t>(made.row));
          }
        }
      }
    }
    made.base = memory.data();
    return made;
  }

  /// The numbers of the last tokens of each sequence as a signal.
  kv::entry_numbers numbers(char const* call, std::string const& name, array const& from,
                            std::vector<int>& positions) const {
    kv::expects(
        from.ndim() == 3 && from.device_type() == nb::device::cpu::value, call, name + ".shape",
        [&] { return shape_text(from); }, "the axes are sequence, KV head and token, on the CPU");
    kv::expects(codec_of(call, name, from) == kv::codec::f32, call, name + ".dtype", "16 bits", "numbers are float32");
    check_batch(call, name.c_str(), static_cast<std::int64_t>(from.shape(0)), sequences_);
    kv::expects(
        static_cast<int>(from.shape(1)) == model_.sizes.kv_heads, call, name + ".shape",
        [&] { return shape_text(from); },
        [&] { return "the model has " + std::to_string(model_.sizes.kv_heads) + " KV heads"; });
    int const count = static_cast<int>(from.shape(2));
    positions = newest_positions(count);
    return {.base = static_cast<std::byte const*>(from.data()),
            .sequence = from.stride(0) * 4,
            .head = from.stride(1) * 4,
            .entry = from.stride(2) * 4,
            .entries = count,
            .position = {positions.data(), count, 0, 0}};
  }

  /// The last rows of each sequence as a signal. A sequence with fewer tokens than rows has padding in front.
  kv::query_view query_rows(char const* call, std::string const& name, rows const& from, std::vector<int>& positions,
                            bool of_turn = false) const {
    check_batch(call, name.c_str(), from.sequences, sequences_);
    kv::expects(from.heads == model_.sizes.query_heads, call, name + ".shape", std::to_string(from.heads) + " heads",
                [&] { return "the model has " + std::to_string(model_.sizes.query_heads) + " query heads"; });
    kv::expects(from.channels == model_.sizes.head_dim, call, name + ".shape",
                std::to_string(from.channels) + " channels",
                [&] { return "a row has " + std::to_string(model_.sizes.head_dim) + " channels"; });
    kv::expects(from.channels == 1 || from.channel == kv::bytes_of(from.element), call, name + ".strides", from.channel,
                "the channels of a query row are contiguous");
    int const count = static_cast<int>(from.count);
    positions = newest_positions(count, of_turn);
    kv::query_view made{};
    made.base = from.data;
    made.element = from.element;
    made.dims = model_.sizes.head_dim;
    made.sequence = from.sequence;
    made.head = from.head;
    made.row = from.row;
    made.heads = model_.sizes.query_heads;
    made.rows = count;
    made.position = {positions.data(), count, 0, 0};
    return made;
  }

  kv::any_policy policy_;
  kv::host_executor exec_;
  int sequences_;
  model_shape model_;
  tables tables_;
  std::vector<int> next_;    ///< the position of each sequence's next token
  std::vector<int> newest_;  ///< the tokens of each sequence in the latest `append`
  std::optional<kv::state<kv::host_executor>> state_;
  std::optional<kv::plan<kv::host_executor>> plan_;
  mutable std::mutex busy_;  ///< of one call at a time
};

}  // namespace kvpolicy_python
