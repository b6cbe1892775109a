// SPDX-License-Identifier: Apache-2.0
// The evictor over the memory of an executor.
#pragma once

#include <algorithm>
#include <kvpolicy/kvpolicy.hpp>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "evictor.hpp"

namespace kvpolicy_python {

/// An evictor whose counts, positions and recorded signals are in the memory of `Executor`. The counts are known on the
/// host too: a device is waited for where a decision changes them, and nowhere else.
///
/// `enter()` is called at the begin of each call; what it returns lives until its end. It makes a device the current
/// one.
template <class Executor, class Enter>
class evictor_on final : public evictor {
 public:
  template <class... Arguments>
  evictor_on(evictor_options const& from, std::string device, Enter enter, Arguments&&... arguments)
      : device_(std::move(device)),
        enter_(std::move(enter)),
        policy_(kv::parse<Executor>(from.policy)),
        exec_(std::forward<Arguments>(arguments)...),
        sequences_(from.sequences),
        model_(from.model) {
    kv::expects(sequences_ > 0, "Evictor", "sequences", sequences_, "a batch has at least one sequence");
    kv::expects(from.capacity > 0, "Evictor", "capacity", from.capacity, "a sequence has room for at least one token");
    kv::expects(model_.sizes.layers > 0, "Evictor", "layers", model_.sizes.layers, "a model has at least one layer");
    kv::expects(model_.sizes.kv_heads > 0, "Evictor", "kv_heads", model_.sizes.kv_heads,
                "a model has at least one KV head");
    next_.assign(index(sequences_), 0);
    newest_ = next_;
    held_.assign(index(sequences_) * index(lanes_of_sequence()), 0);
    tables_.emplace(exec_, held_.size(), from.capacity);
    kv::detail::refuse_needs_beyond(
        "Evictor", policy_,
        {"keys", "values", "queries", "turn_queries", "log_beta", "birth_score", "external", "value_norms",
         "query_model", "pre_rope_keys", "external_queries", "output_projection"},
        "arrays do");
    for (std::string const& need : policy_.needs()) {
      kv::expects(need != "query_model", "Evictor", "policy", policy_.score.name_inside(),
                  "it reads the radii of a query_model, and arrays have its mean and its covariance alone");
    }
    state_.emplace(kv::make_state(exec_, policy_, cache_of(*tables_)));
  }

  void append(std::vector<int> const& tokens) override {
    auto const in_call = begin();
    check_numbers("append", tokens);
    int most = 0;
    for (int s = 0; s < sequences_; ++s) {
      int const more = tokens[index(s)];
      kv::expects(more >= 0, "append", "tokens", more, "a count cannot be negative");
      kv::expects(more <= limit - next_[index(s)], "append", "tokens", more, "positions fit into 32 bits");
      most = std::max(most, longest(s) + more);
    }
    if (most > tables_->capacity) grow(std::max(most, most <= limit / 2 ? 2 * tables_->capacity : most));
    kv::cache in = cache_of(*tables_);
    for (int s = 0; s < sequences_; ++s) {
      int const more = tokens[index(s)];
      kv::append(exec_, in, *state_, {.sequence = s, .tokens = more, .position = next_[index(s)]});
      next_[index(s)] += more;
      for (int& each : lanes_of(s)) each += more;
    }
    newest_ = tokens;
  }

  void remove_last(std::vector<int> const& tokens) override {
    auto const in_call = begin();
    check_numbers("remove_last", tokens);
    for (int s = 0; s < sequences_; ++s) {
      kv::expects(tokens[index(s)] >= 0 && tokens[index(s)] <= next_[index(s)], "remove_last", "tokens",
                  tokens[index(s)], [&] { return "the sequence has " + std::to_string(next_[index(s)]) + " tokens"; });
    }
    kv::cache in = cache_of(*tables_);
    for (int s = 0; s < sequences_; ++s) {
      if (tokens[index(s)] == 0) continue;
      next_[index(s)] -= tokens[index(s)];
      newest_[index(s)] = std::max(newest_[index(s)] - tokens[index(s)], 0);
      kv::truncate(exec_, in, *state_, s, next_[index(s)]);
    }
    fetch_counts();
  }

  void observe(int layer, shown_tokens const& shown, given_rows const& given) override {
    auto const in_call = begin();
    check_layer("observe", layer);
    check_devices("observe", shown, given);
    layer_signals<Executor> signals("observe", exec_, model_, given,
                                    cache_of(*tables_).lanes.layers_only(layer, layer + 1),
                                    longest_of_layers(layer, layer + 1));
    kv::queries newest;
    kv::turn_queries turn;
    kv::log_beta betas;
    kv::birth_score births;
    kv::any_signals& all = signals.all;
    if (shown.queries) {
      static_cast<kv::query_view&>(newest) = query_rows("observe", "queries", *shown.queries, signals.memory);
      all.add(newest);
    }
    if (shown.turn) {
      static_cast<kv::query_view&>(turn) = query_rows("observe", "turn_queries", *shown.turn, signals.memory, true);
      all.add(turn);
    }
    if (shown.log_beta) {
      static_cast<kv::entry_numbers&>(betas) = of_tokens("observe", "log_beta", *shown.log_beta, signals.memory);
      all.add(betas);
    }
    if (shown.birth_score) {
      static_cast<kv::entry_numbers&>(births) = of_tokens("observe", "birth_score", *shown.birth_score, signals.memory);
      all.add(births);
    }
    if constexpr (on_host) kv::refuse_missed_rows("observe", policy_, all, *state_, true);
    kv::observe(exec_, policy_, all, *state_);
  }

  decision decide(given_rows const& given) override {
    auto const in_call = begin();
    check_devices("decide", {}, given);
    kv::cache const in = cache_of(*tables_);
    layer_signals<Executor> signals("decide", exec_, model_, given, in.lanes,
                                    longest_of_layers(0, model_.sizes.layers));
    kv::turn_queries turn;
    std::optional<bytes> rows_of_turn;
    if (!given.turn.empty()) {
      static_cast<kv::query_view&>(turn) =
          rows_of_layers("decide", "turn_queries", given.turn, rows_of_turn, signals.memory, true);
      signals.all.add(turn);
    }
    kv::queries prompt;
    std::optional<bytes> rows_of_prompt;
    if (!given.queries.empty()) {
      static_cast<kv::query_view&>(prompt) =
          rows_of_layers("decide", "queries", given.queries, rows_of_prompt, signals.memory, true);
      signals.all.add(prompt);
    }
    if constexpr (on_host) kv::refuse_missed_rows("decide", policy_, signals.all, *state_, false);
    if (!plan_) plan_.emplace(kv::make_plan(exec_, policy_, of_real_rows(in, given), kv::compact{}));
    kv::decide(exec_, policy_, signals.all, *state_, *plan_);
    decision const made = listed(plan_->keep());
    std::string const why = kv::detail::why_unobserved("decide", policy_, made.report);
    if (why.empty()) return made;
    plan_->withdraw();
    throw kv::invalid_argument(why);
  }

  decision select(std::string const& spec, given_rows const& given, std::vector<rows> const& queries) override {
    auto const in_call = begin();
    check_devices("select", {}, given);
    for (rows const& one : queries) check_device("select", "queries", one.device);
    auto const parsed = kv::parse_cache_policy<Executor>(spec);
    kv::expects(parsed.select && !parsed.admit && !parsed.evict, "select", "policy", spec,
                "it has the section select: alone");
    kv::cache const in = cache_of(*tables_);
    layer_signals<Executor> signals("select", exec_, model_, given, in.lanes,
                                    longest_of_layers(0, model_.sizes.layers));
    kv::queries newest;
    std::optional<bytes> held;
    static_cast<kv::query_view&>(newest) = rows_of_layers("select", "queries", queries, held, signals.memory, false);
    signals.all.add(newest);
    auto state = kv::make_state(exec_, *parsed.select, in);
    auto plan = kv::make_plan(exec_, *parsed.select, of_real_rows(in, given));
    kv::observe(exec_, *parsed.select, signals.all, state);
    kv::select_pages(exec_, *parsed.select, signals.all, state, plan);
    return listed(plan.keep());
  }

  void apply() override {
    auto const in_call = begin();
    kv::expects(plan_.has_value(), "apply", "decision", "none", "decide comes before apply");
    kv::cache in = cache_of(*tables_);
    kv::apply(exec_, kv::compact{}, *plan_, in, *state_);
    fetch_counts();
  }

  [[nodiscard]] std::vector<int> counts() const override {
    std::lock_guard const lock(busy_);
    std::vector<int> made;
    for (int s = 0; s < sequences_; ++s) made.push_back(longest(s));
    return made;
  }
  [[nodiscard]] std::vector<int> lane_counts() const override {
    std::lock_guard const lock(busy_);
    return held_;
  }
  [[nodiscard]] std::vector<int> positions(int layer, int& most) const override {
    auto const in_call = begin();
    check_layer("positions", layer);
    std::vector<int> made;
    most = 0;
    for (int s = 0; s < sequences_; ++s) {
      for (int h = 0; h < model_.sizes.kv_heads; ++h) most = std::max(most, held_[index(lane_of(s, layer, h))]);
    }
    for (int s = 0; s < sequences_; ++s) {
      for (int h = 0; h < model_.sizes.kv_heads; ++h) {
        std::size_t const lane = index(lane_of(s, layer, h)), begin = made.size();
        made.resize(begin + index(most), -1);
        fetch(made.data() + begin, tables_->positions.data() + lane * index(tables_->capacity), index(held_[lane]));
      }
    }
    return made;
  }
  [[nodiscard]] int sequences() const override { return sequences_; }
  [[nodiscard]] model_shape const& model() const override { return model_; }
  [[nodiscard]] std::vector<int> tokens() const override {
    std::lock_guard const lock(busy_);
    return next_;
  }
  [[nodiscard]] std::string policy() const override { return to_string(policy_); }
  [[nodiscard]] std::string device() const override { return device_; }

 private:
  static constexpr int limit = 0x7FFFFFFF;
  static constexpr bool on_host = requires { requires Executor::backend::reads_on_host; };
  using bytes = typename Executor::template buffer<std::byte>;
  using memory_of_call = tables_of_call<Executor>;

  /// The memory of counts and positions, and a byte for each entry that stands for its keys or its values.
  struct tables {
    tables(Executor& exec, std::size_t lanes, int entries)
        : capacity(entries),
          counts(exec, lanes),
          positions(exec, lanes * index(entries)),
          keys(exec, lanes * index(entries)),
          values(exec, lanes * index(entries)) {}

    int capacity;
    typename Executor::template buffer<int> counts;
    typename Executor::template buffer<int> positions;
    bytes keys;
    bytes values;
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i < 0 ? 0 : i); }
  [[nodiscard]] int lanes_of_sequence() const { return model_.sizes.layers * model_.sizes.kv_heads; }
  [[nodiscard]] int lane_of(int s, int layer, int head) const {
    return s * lanes_of_sequence() + layer * model_.sizes.kv_heads + head;
  }
  [[nodiscard]] std::span<int> lanes_of(int s) {
    return std::span(held_).subspan(index(lane_of(s, 0, 0)), index(lanes_of_sequence()));
  }
  [[nodiscard]] int longest(int s) const {
    auto const first = held_.begin() + lane_of(s, 0, 0);
    return *std::max_element(first, first + lanes_of_sequence());
  }
  /// The entries of the longest head, [layer, sequence].
  [[nodiscard]] std::vector<int> longest_of_layers(int begin, int end) const {
    std::vector<int> made;
    for (int l = begin; l < end; ++l) {
      for (int s = 0; s < sequences_; ++s) {
        auto const first = held_.begin() + lane_of(s, l, 0);
        made.push_back(*std::max_element(first, first + model_.sizes.kv_heads));
      }
    }
    return made;
  }

  /// What a call holds until it ends.
  [[nodiscard]] auto begin() const { return std::pair(std::unique_lock(busy_), enter_()); }

  /// Copies from the memory of the executor, after its earlier work.
  template <class T>
  void fetch(T* to, T const* from, std::size_t count) const {
    if constexpr (on_host) {
      std::copy_n(from, count, to);
    } else {
      exec_.fetch(to, from, count);
    }
  }
  void fetch_counts() {
    if constexpr (!on_host) exec_.check();
    fetch(held_.data(), tables_->counts.data(), held_.size());
  }

  void check_numbers(char const* call, std::vector<int> const& tokens) const {
    kv::expects(std::ssize(tokens) == sequences_, call, "tokens", tokens.size(),
                [&] { return "the batch has " + std::to_string(sequences_) + " sequences"; });
  }
  void check_layer(char const* call, int layer) const {
    kv::expects(layer >= 0 && layer < model_.sizes.layers, call, "layer", layer,
                [&] { return "the model has " + std::to_string(model_.sizes.layers) + " layers"; });
  }
  void check_device(char const* call, char const* name, std::string const& device) const {
    kv::expects(device == device_, call, std::string(name) + ".device", device,
                [&] { return "this evictor decides about memory of " + device_; });
  }
  void check_devices(char const* call, shown_tokens const& shown, given_rows const& given) const {
    for (auto const& [name, one] : {std::pair{"queries", &shown.queries}, std::pair{"turn_queries", &shown.turn}}) {
      if (*one) check_device(call, name, (*one)->device);
    }
    for (auto const& [name, one] :
         {std::pair{"log_beta", &shown.log_beta}, std::pair{"birth_score", &shown.birth_score},
          std::pair{"scores", &given.scores}, std::pair{"value_norms", &given.value_norms}}) {
      if (*one) check_device(call, name, (*one)->device);
    }
    if (given.moments) check_device(call, "query_mean", given.moments->mean.device);
    if (given.moments && given.moments->square) check_device(call, "query_square", given.moments->square->device);
    for (auto const& [name, layers] :
         {std::pair{"keys", &given.keys}, std::pair{"values", &given.values}, std::pair{"turn_queries", &given.turn},
          std::pair{"queries", &given.queries}, std::pair{"pre_rope_keys", &given.pre_rope_keys}}) {
      for (rows const& one : *layers) check_device(call, name, one.device);
    }
    if (given.projection) check_device(call, "output_projection", given.projection->device);
    if (given.external) check_devices(call, *given.external);
  }
  void check_devices(char const* call, external_rows const& given) const {
    check_device(call, "external_queries", given.queries.device);
    if (given.keys) check_device(call, "external_keys", given.keys->device);
    if (given.hidden_norms) check_device(call, "external_hidden_norms", given.hidden_norms->device);
    if (given.log_sum_exps) check_device(call, "external_log_sum_exps", given.log_sum_exps->device);
  }

  /// The batch as a cache. A byte stands for each row, since the caller moves the rows themselves.
  [[nodiscard]] kv::cache cache_of(tables& of) const {
    std::int64_t const entries = of.capacity;
    std::int64_t const lanes = lanes_of_sequence();
    auto const plane = [&](bytes& memory) {
      return kv::plane{.base = memory.data(),
                       .element = kv::codec::opaque,
                       .channels = 1,
                       .layer_stride = entries * model_.sizes.kv_heads,
                       .unit_stride = entries * lanes,
                       .token_stride = 1,
                       .head_stride = entries,
                       .channel_stride = 1};
    };
    kv::cache made{.shape = model_.sizes,
                   .k = plane(of.keys),
                   .v = plane(of.values),
                   .where = kv::identity_map(of.capacity, sequences_)};
    made.lanes =
        kv::lanes{.sequences = sequences_,
                  .layer_end = model_.sizes.layers,
                  .heads = model_.sizes.kv_heads,
                  .capacity = of.capacity,
                  .count = {of.counts.data(), lanes, model_.sizes.kv_heads, 1},
                  .position = {of.positions.data(), lanes * entries, model_.sizes.kv_heads * entries, entries}};
    return made;
  }

  /// The same cache as it would be with rows of the given size, for a budget in bytes. Its memory is not read.
  [[nodiscard]] kv::cache of_real_rows(kv::cache in, given_rows const& given) const {
    kv::codec const element = given.keys.empty() ? kv::codec::f32 : given.keys.front().element;
    for (auto const& [plane, dims] :
         {std::pair{&in.k, model_.sizes.head_dim}, std::pair{&in.v, model_.value_channels()}}) {
      std::int64_t const width = std::int64_t{dims} * kv::bytes_of(element);
      plane->element = element;
      plane->channels = dims;
      plane->channel_stride = kv::bytes_of(element);
      for (std::int64_t* const stride :
           {&plane->layer_stride, &plane->unit_stride, &plane->token_stride, &plane->head_stride})
        *stride *= width;
    }
    in.v.base = in.k.base + std::int64_t{sequences_} * in.k.unit_stride;
    return in;
  }

  /// Makes room for longer sequences: every sequence moves to larger tables, with what was recorded of it.
  void grow(int capacity) {
    tables larger(exec_, held_.size(), capacity);
    kv::cache const from = cache_of(*tables_);
    kv::cache to = cache_of(larger);
    auto made = kv::make_state(exec_, policy_, to);
    for (int s = 0; s < sequences_; ++s) {
      if (next_[index(s)] == 0) continue;
      std::vector<std::byte> saved(kv::saved_bytes(exec_, from, *state_, s, kv::rows::leave));
      kv::save(exec_, from, *state_, s, saved, kv::rows::leave);
      kv::load(exec_, to, made, s, saved, kv::rows::leave);
    }
    tables_.emplace(std::move(larger));
    state_ = std::move(made);
    plan_.reset();
  }

  /// The lists of a keep set, one after another, in memory of their own.
  [[nodiscard]] decision listed(kv::keep_set const& keep) {
    std::vector<std::int64_t> offsets(index(keep.segments()) + 1);
    decision made;
    if constexpr (!on_host) exec_.check();
    fetch(offsets.data(), keep.indptr, offsets.size());
    fetch(&made.report, keep.report, 1);
    std::vector<std::pair<std::int64_t, std::int64_t>> runs;  // of the plan's list: first, count
    for (int i = 0; i < keep.lanes.size(); ++i) {
      std::size_t const segment = index(kv::segment_of(keep.lanes, keep.decides, i));
      std::int64_t const first = offsets[segment], count = offsets[segment + 1] - first;
      made.indptr.push_back(made.indptr.back() + count);
      if (!runs.empty() && runs.back().first + runs.back().second == first) {
        runs.back().second += count;
      } else {
        runs.emplace_back(first, count);
      }
    }
    using list = typename Executor::template buffer<std::int32_t>;
    auto const held = std::make_shared<list>(exec_, static_cast<std::size_t>(made.indptr.back()));
    std::int32_t* to = held->data();
    for (auto const& [first, count] : runs) {
      exec_.copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte const*>(keep.indices + first),
                 static_cast<std::size_t>(count) * sizeof(std::int32_t));
      to += count;
    }
    made.indices = std::shared_ptr<std::int32_t>(held, held->data());
    return made;
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

  /// The query rows of all layers. Layers that are equally far apart are read where they are; of others `held` becomes
  /// a copy.
  [[nodiscard]] kv::query_view rows_of_layers(char const* call, char const* name, std::vector<rows> const& layers,
                                              std::optional<bytes>& held, memory_of_call& memory, bool of_turn) {
    kv::expects(std::ssize(layers) == model_.sizes.layers, call, name, layers.size(),
                [&] { return "the model has " + std::to_string(model_.sizes.layers) + " layers"; });
    rows const& first = layers.front();
    kv::query_view made = query_rows(call, name, first, memory, of_turn);
    std::int64_t const apart = layers.size() > 1 ? layers[1].data - first.data : 0;
    bool together = true;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      kv::expects(same_layout(layers[l], first), call, name, "another shape or layout",
                  "all layers have the shape, the element type and the strides of layer 0");
      together = together && layers[l].sequence == first.sequence &&
                 layers[l].data == first.data + static_cast<std::int64_t>(l) * apart;
    }
    made.layer = apart;
    if (together) return made;
    made.row = first.channels * kv::bytes_of(first.element);
    made.head = first.count * made.row;
    made.sequence = first.heads * made.head;
    made.layer = first.sequences * made.sequence;
    held.emplace(exec_, layers.size() * static_cast<std::size_t>(made.layer));
    std::byte* to = held->data();
    made.base = to;
    for (rows const& one : layers) {
      for (std::int64_t s = 0; s < one.sequences; ++s) {
        for (std::int64_t h = 0; h < one.heads; ++h) {
          for (std::int64_t r = 0; r < one.count; ++r, to += made.row) {
            exec_.copy(to, one.data + s * one.sequence + h * one.head + r * one.row,
                       static_cast<std::size_t>(made.row));
          }
        }
      }
    }
    return made;
  }

  /// The numbers of the last tokens of each sequence as a signal.
  [[nodiscard]] kv::entry_numbers of_tokens(char const* call, std::string const& name, numbers const& from,
                                            memory_of_call& memory) const {
    kv::expects(
        from.size.size() == 3, call, name + ".shape", [&] { return from.shape(); },
        "the axes are sequence, KV head and token");
    check_batch(call, name.c_str(), from.size[0], sequences_);
    kv::expects(
        from.size[1] == model_.sizes.kv_heads, call, name + ".shape", [&] { return from.shape(); },
        [&] { return "the model has " + std::to_string(model_.sizes.kv_heads) + " KV heads"; });
    int const count = static_cast<int>(from.size[2]);
    constexpr std::int64_t width = sizeof(float);
    return {.base = reinterpret_cast<std::byte const*>(from.data),
            .sequence = from.stride[0] * width,
            .head = from.stride[1] * width,
            .entry = from.stride[2] * width,
            .entries = count,
            .position = {memory.put(newest_positions(count)), count, 0, 0}};
  }

  /// The last rows of each sequence as a signal. A sequence with fewer tokens than rows has padding in front.
  [[nodiscard]] kv::query_view query_rows(char const* call, std::string const& name, rows const& from,
                                          memory_of_call& memory, bool of_turn = false) const {
    check_batch(call, name.c_str(), from.sequences, sequences_);
    kv::expects(from.heads == model_.sizes.query_heads, call, name + ".shape", std::to_string(from.heads) + " heads",
                [&] { return "the model has " + std::to_string(model_.sizes.query_heads) + " query heads"; });
    kv::expects(from.channels == model_.sizes.head_dim, call, name + ".shape",
                std::to_string(from.channels) + " channels",
                [&] { return "a row has " + std::to_string(model_.sizes.head_dim) + " channels"; });
    kv::expects(from.channels == 1 || from.channel == kv::bytes_of(from.element), call, name + ".strides", from.channel,
                "the channels of a query row are contiguous");
    int const count = static_cast<int>(from.count);
    kv::query_view made{};
    made.base = from.data;
    made.element = from.element;
    made.dims = model_.sizes.head_dim;
    made.sequence = from.sequence;
    made.head = from.head;
    made.row = from.row;
    made.heads = model_.sizes.query_heads;
    made.rows = count;
    made.position = {memory.put(newest_positions(count, of_turn)), count, 0, 0};
    return made;
  }

  std::string device_;
  Enter enter_;
  kv::basic_any_policy<Executor> policy_;
  mutable Executor exec_;
  int sequences_;
  model_shape model_;
  mutable std::optional<tables> tables_;
  std::vector<int> next_;    ///< the position of each sequence's next token
  std::vector<int> newest_;  ///< the tokens of each sequence in the latest `append`
  std::vector<int> held_;    ///< the entries of each lane
  std::optional<kv::state<Executor>> state_;
  std::optional<kv::plan<Executor>> plan_;
  mutable std::mutex busy_;  ///< of one call at a time
};

}  // namespace kvpolicy_python
