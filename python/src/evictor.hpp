// An eviction by name about a batch of sequences, with its state, for a caller that keeps keys and values itself.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"

namespace kvpolicy_python {

/// The model of an `evictor`.
struct model_shape {
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;
  std::optional<float> scale{};  ///< the factor of q.k; empty: 1 / sqrt(head_dim)
  float soft_cap = 0;
};

/// Keys and values of a call, one array [sequence, KV head, row, channel] for each layer.
struct given_rows {
  std::vector<rows> keys;
  std::vector<rows> values;
  std::vector<array> scores;  ///< at most one: [layer, sequence, KV head, entry]
};

/// What each lane keeps. Lanes are in the order of sequence, layer, head.
struct decision {
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;
  kv::report report{};
};

/// What a policy reads, found out from the columns that it records and the signals that its scorer needs.
struct policy_facts {
  std::string text;
  std::string scorer;
  kv::granularity decides = kv::granularity::lane;
  std::vector<std::string> needs;
  int window_rows = 0;     ///< how many last query rows it records
  bool every_row = false;  ///< whether it reads the query rows of every forward
  bool session = false;    ///< whether it keeps something between turns
};

inline policy_facts facts_of(std::string const& spec) {
  kv::any_policy const policy = kv::parse(spec);
  policy_facts made{.text = to_string(policy), .scorer = {}, .decides = policy.decides(), .needs = {}};
  made.scorer = made.text.substr(0, made.text.find_first_of(" (|"));
  for (kv::scorer_info const& one : kv::shipped().list()) {
    if (one.name == made.scorer) made.needs = one.needs;
  }
  // The smallest cache that a policy can be asked about.
  kv::host_executor exec;
  std::vector<float> memory(4);
  std::vector<int> numbers(2);
  kv::shape const model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 2};
  kv::cache const in = kv::contiguous_cache(memory.data(), memory.data() + 2, model, 1, numbers.data(), &numbers[1]);
  auto const state = kv::make_state(exec, policy, in);
  for (kv::recorded_column const& each : state.columns()) {
    if (each.about.one == kv::per::window_row) made.window_rows = std::max(made.window_rows, each.about.units);
    if (each.about.one == kv::per::session) made.session = true;
    if (each.about.name == std::string("attention_mass")) made.every_row = true;
  }
  return made;
}

/// Counts, positions and recorded signals of a batch under one policy, and its decisions. The caller keeps keys and
/// values, tells how many tokens each sequence received, and moves rows as `decide` says.
///
/// All lanes of a sequence hold equally many entries: `apply` refuses a decision that would end that.
class evictor {
 public:
  evictor(std::string const& spec, model_shape const& model, int sequences, int capacity, int threads)
      : policy_(kv::parse(spec)), exec_(threads), sequences_(sequences), model_(model) {
    kv::expects(sequences > 0, "Evictor", "sequences", sequences, "a batch has at least one sequence");
    kv::expects(capacity > 0, "Evictor", "capacity", capacity, "a sequence has room for at least one token");
    next_.assign(index(sequences), 0);
    newest_ = next_;
    shape_ = {model.layers, model.query_heads, model.kv_heads, model.head_dim, model.value_dim};
    kv::detail::check_shape("Evictor", shape_);
    lay_out(capacity, tables_);
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
      most = std::max(most, count(s) + more);
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

  /// Shows the query rows of one layer to the policy: those of the latest `append`, or the last of them. The last row
  /// is that of a sequence's last token. Rows before a sequence's new tokens are padding.
  void observe(int layer, rows const& queries, given_rows const& given) {
    std::lock_guard const lock(busy_);
    check_layer("observe", layer);
    kv::cache const in = cache_of(tables_);
    kv::lanes const lanes = in.lanes.layers_only(layer, layer + 1);
    layer_signals const signals(*this, "observe", given, 1, lanes);
    std::vector<int> positions;
    kv::queries const newest = query_rows("observe", queries, positions);
    kv::any_signals all = signals.all;
    all.add(newest);
    kv::observe(exec_, policy_, all, *state_);
  }

  /// Decides what every lane keeps. Until `apply` nothing is changed.
  decision decide(given_rows const& given) {
    std::lock_guard const lock(busy_);
    kv::cache const in = cache_of(tables_);
    layer_signals const signals(*this, "decide", given, model_.layers, in.lanes);
    if (!plan_) plan_.emplace(kv::make_plan(exec_, policy_, of_real_rows(in, given), kv::compact{}));
    kv::decide(exec_, policy_, signals.all, *state_, *plan_);
    decision made;
    made.report = plan_->report();
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

  /// The entries of each sequence's first lane. All lanes of a sequence have equally many, unless a budget that lanes
  /// share was applied.
  [[nodiscard]] std::vector<int> counts() const {
    std::vector<int> made;
    for (int s = 0; s < sequences_; ++s) made.push_back(count(s));
    return made;
  }
  /// The tokens that each sequence has received, dropped ones included.
  [[nodiscard]] std::vector<int> const& tokens() const { return next_; }
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

  /// The signals of a call, and the tables that they point to.
  struct layer_signals {
    layer_signals(evictor const& of, char const* call, given_rows const& given, int layers, kv::lanes const& lanes)
        : all(lanes) {
      add(of, call, "keys", given.keys, layers, of.shape_.head_dim, key_rows, [&](kv::row_view const& view) {
        keys = {view, {.scale = of.model_.scale, .soft_cap = of.model_.soft_cap}};
        all.add(keys);
      });
      int const dims = of.shape_.value_dim != 0 ? of.shape_.value_dim : of.shape_.head_dim;
      add(of, call, "values", given.values, layers, dims, value_rows, [&](kv::row_view const& view) {
        values = {view};
        all.add(values);
      });
      if (!given.scores.empty()) add_scores(of, call, given.scores.front(), layers);
    }
    layer_signals(layer_signals const&) = delete;
    layer_signals& operator=(layer_signals const&) = delete;

    template <class Offer>
    void add(evictor const& of, char const* call, char const* name, std::vector<rows> const& given, int layers,
             int channels, std::unique_ptr<layer_rows>& to, Offer const& offer) {
      if (given.empty()) return;
      kv::expects(std::ssize(given) == layers, call, name, std::to_string(given.size()) + " layers",
                  [&] { return "there are " + std::to_string(layers); });
      rows const& first = given.front();
      of.check_batch(call, name, first.sequences);
      kv::expects(first.heads == of.shape_.kv_heads, call, std::string(name) + ".shape",
                  std::to_string(first.heads) + " heads",
                  [&] { return "the model has " + std::to_string(of.shape_.kv_heads) + " KV heads"; });
      kv::expects(first.channels == channels, call, std::string(name) + ".shape",
                  std::to_string(first.channels) + " channels",
                  [&] { return "a row has " + std::to_string(channels) + " channels"; });
      to = std::make_unique<layer_rows>(call, name, given, of.counts());
      offer(to->view());
    }

    void add_scores(evictor const& of, char const* call, array const& from, int layers) {
      kv::expects(
          from.ndim() == 4 && from.device_type() == nb::device::cpu::value, call, "scores.shape",
          [&] { return shape_text(from); }, "the axes are layer, sequence, KV head and entry, on the CPU");
      kv::expects(codec_of(call, "scores", from) == kv::codec::f32, call, "scores.dtype", "16 bits",
                  "scores are float32");
      of.check_batch(call, "scores", static_cast<std::int64_t>(from.shape(1)));
      std::vector<int> const counts = of.counts();
      int const most = *std::max_element(counts.begin(), counts.end());
      kv::expects(
          static_cast<int>(from.shape(0)) == layers && static_cast<int>(from.shape(2)) == of.shape_.kv_heads &&
              static_cast<std::int64_t>(from.shape(3)) >= most && from.stride(3) == 1,
          call, "scores.shape", [&] { return shape_text(from); },
          [&] {
            return "it is " + std::to_string(layers) + " layers, the sequences, " + std::to_string(of.shape_.kv_heads) +
                   " KV heads and at least " + std::to_string(most) + " contiguous entries";
          });
      scores = {{static_cast<float const*>(from.data()), from.stride(1), from.stride(0), from.stride(2)}};
      all.add(scores);
    }

    std::unique_ptr<layer_rows> key_rows;
    std::unique_ptr<layer_rows> value_rows;
    kv::keys keys{};
    kv::values values{};
    kv::external_scores scores{};
    kv::any_signals all;
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i < 0 ? 0 : i); }
  [[nodiscard]] int lanes_of_sequence() const { return shape_.layers * shape_.kv_heads; }
  [[nodiscard]] int count(int s) const { return tables_.counts[index(s) * index(lanes_of_sequence())]; }

  void check_layer(char const* call, int layer) const {
    kv::expects(layer >= 0 && layer < shape_.layers, call, "layer", layer,
                [&] { return "the model has " + std::to_string(shape_.layers) + " layers"; });
  }
  void check_batch(char const* call, char const* name, std::int64_t sequences) const {
    kv::expects(sequences == sequences_, call, std::string(name) + ".shape", std::to_string(sequences) + " sequences",
                [&] { return "the batch has " + std::to_string(sequences_); });
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
                       .layer = entries * shape_.kv_heads,
                       .unit = entries * lanes,
                       .token = 1,
                       .head = entries,
                       .dim = 1};
    };
    kv::cache made{.shape = shape_,
                   .k = plane(of.keys),
                   .v = plane(of.values),
                   .where = kv::identity_map(of.capacity, sequences_)};
    made.lanes = {.sequences = sequences_,
                  .layer_end = shape_.layers,
                  .heads = shape_.kv_heads,
                  .bound = of.capacity,
                  .count = {of.counts.data(), lanes, shape_.kv_heads, 1},
                  .position = {of.positions.data(), lanes * entries, shape_.kv_heads * entries, entries}};
    return made;
  }

  /// The same cache as it would be with rows of the given size, for a budget in bytes. Its memory is not read.
  [[nodiscard]] kv::cache of_real_rows(kv::cache in, given_rows const& given) const {
    kv::codec const element = given.keys.empty() ? kv::codec::f32 : given.keys.front().element;
    int const values = shape_.value_dim != 0 ? shape_.value_dim : shape_.head_dim;
    for (auto const& [rows, dims] : {std::pair{&in.k, shape_.head_dim}, std::pair{&in.v, values}}) {
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

  /// The last rows of each sequence as a signal. A sequence with fewer tokens than rows has padding in front.
  kv::queries query_rows(char const* call, rows const& from, std::vector<int>& positions) const {
    check_batch(call, "queries", from.sequences);
    kv::expects(from.heads == shape_.query_heads, call, "queries.shape", std::to_string(from.heads) + " heads",
                [&] { return "the model has " + std::to_string(shape_.query_heads) + " query heads"; });
    kv::expects(from.channels == shape_.head_dim, call, "queries.shape", std::to_string(from.channels) + " channels",
                [&] { return "a row has " + std::to_string(shape_.head_dim) + " channels"; });
    kv::expects(from.channels == 1 || from.channel == kv::bytes_of(from.element), call, "queries.strides", from.channel,
                "the channels of a query row are contiguous");
    int const count = static_cast<int>(from.count);
    for (int s = 0; s < sequences_; ++s) {
      for (int r = 0; r < count; ++r) {
        bool const padding = count - r > newest_[index(s)];
        positions.push_back(padding ? -1 : next_[index(s)] - count + r);
      }
    }
    kv::queries made{};
    made.base = from.data;
    made.element = from.element;
    made.dims = shape_.head_dim;
    made.sequence = from.sequence;
    made.head = from.head;
    made.row = from.row;
    made.heads = shape_.query_heads;
    made.rows = count;
    made.position = {positions.data(), count, 0, 0};
    return made;
  }

  kv::any_policy policy_;
  kv::host_executor exec_;
  int sequences_;
  model_shape model_;
  kv::shape shape_{};
  tables tables_;
  std::vector<int> next_;    ///< the position of each sequence's next token
  std::vector<int> newest_;  ///< the tokens of each sequence in the latest `append`
  std::optional<kv::state<kv::host_executor>> state_;
  std::optional<kv::plan<kv::host_executor>> plan_;
  std::mutex busy_;
};

}  // namespace kvpolicy_python
