// SPDX-License-Identifier: Apache-2.0
// Replays a policy over a trace, as an engine whose memory is the mapped file.
#pragma once

#include <algorithm>
#include <array>
#include <future>
#include <limits>
#include <optional>
#include <span>

#include "attend.hpp"
#include "journal.hpp"
#include "signals.hpp"

namespace kvreplay {

/// Replays an eviction: first call `run`, which makes all decisions, then `carry_out`, which leaves each layer in the
/// layout.
class replay {
 public:
  replay(options const& with, trace& of, any_policy const& policy)
      : with_(with),
        trace_(of),
        policy_(policy),
        exec_(examples::make_executor(with.threads)),
        memory_(with.lay, of, with.own),
        signals_(with, of, policy_, memory_),
        state_(kv::make_state(exec_, policy_, memory_.view(), with.own)),
        plan_(kv::make_plan(exec_, policy_, memory_.view())) {
    signals_.look_at(state_);
    found_.decides = policy_.decides();
    found_.segments = kv::segments(plan_.lanes(), found_.decides);
    journal_.emplace(with, policy_, found_.segments, of.entries(), found_);
    found_.warnings = signals_.warnings();
    kv::expects(with.lay != layout::compact_rerotated || with.how == mode::prefill, "kvreplay", "--layout",
                "compact_rerotated", "later rows of a trace are rotated at their own positions: prefill only");
    kv::expects(with.lay != layout::compact_rerotated || of.names_rope(), "kvreplay", "--layout", "compact_rerotated",
                "the trace does not say how its keys were rotated: its metadata has neither rope_theta nor "
                "rope_frequencies");
    if (with.attend) attention_.emplace(with, of, memory_);
    if (!deferred()) return;
    kv::cache const one = memory_.view_of_layer(0);
    layer_state_.emplace(kv::make_state(exec_, policy_, one));
    layer_plan_.emplace(kv::make_plan(exec_, policy_, one));
  }

  /// Chunks only: the last one is decided by another policy of the same recorders, and the last `local` entries of the
  /// trace come after it without a decision. A whole prompt is one chunk, and its decision no event.
  void end_with(any_policy const& last, int local) {
    last_ = last;
    local_ = local;
  }

  /// A prefill only: layers come one by one, and after each one all that are there are decided about.
  void cut_layers_again() {
    kv::expects(with_.lay != layout::compact_rerotated, "kvreplay", "--layout", "compact_rerotated",
                "layers that are cut again would turn their keys each time: there are compact, lane_pages and mask");
    again_ = true;
    signals_.take_recent_rows();
    journal_->keep_scores();
  }

  /// Makes all decisions. It calls `step(done, of)` to report progress.
  template <class Step>
  results& run(Step const& step) {
    if (with_.how == mode::chunks) {
      chunks(step);
    } else if (again_) {
      layers(step);
    } else if (with_.how == mode::prefill) {
      prefill(step);
    } else if (with_.how == mode::turns) {
      turns(step);
    } else {
      decode(step);
    }
    journal_->close();
    if (policy_.score.name_inside() == kv::lazy_layers::name) note_recipes();
    if (!found_.recipe.empty()) found_.scores.clear();  // they say no more
    found_.stats.logical_kept += std::int64_t{arrived_since_} * memory_.lanes();
    found_.stats.attended_length += std::int64_t{arrived_since_} * memory_.lanes();
    return found_;
  }

  /// Brings each layer into the layout, computes its attention, calls `visit(layer)`, and gives its memory back. On the
  /// host it works on the next layer during `visit`, so that copies of at most two layers are in memory.
  template <class Visit, class Step>
  void carry_out(Visit const& visit, Step const& step) {
    kv::shape const& model = trace_.shape();
    std::int64_t const row = std::int64_t{model.query_heads} * trace_.value_dim();
    if (deferred() && with_.lay == layout::compact_rerotated) refuse_ragged();
    if (attention_) found_.output.assign(size(model.layers * row), 0.0f);
    std::future<void> shown;
    auto const wait_for = [&](int layer) {
      stopwatch watch;
      shown.get();
      found_.ms.write += watch.lap();
      if (!deferred()) return;
      trace::release(trace_.keys, layer);
      trace::release(trace_.values, layer);
      found_.ms.apply += watch.lap();
      step(layer + 1, model.layers);
    };
    for (int layer = 0; layer < model.layers; ++layer) {
      if (deferred()) apply_layer(layer);
      stopwatch watch;
      if (attention_) attention_->layer(layer, found_.output.data() + layer * row);
      found_.ms.attend += watch.lap();
      if (layer > 0) wait_for(layer - 1);
      shown = std::async(beside, [&visit, layer] { visit(layer); });
    }
    wait_for(model.layers - 1);
    found_.stats.physical_freed = memory_.freed();
  }

  /// The rows of one lane that are left, in order, for layouts that make them adjacent.
  [[nodiscard]] std::span<std::byte const> rows_left(bool keys, kv::lane this_lane) const {
    kv::plane const& rows = memory_.plane(keys);
    return {rows.row(this_lane.layer, {}, this_lane.head), size(memory_.count(this_lane) * rows.token_stride)};
  }

 private:
  /// The host does not work on the next layer meanwhile if a device may be using the memory.
  static constexpr std::launch beside =
      std::same_as<executor, kv::host_executor> ? std::launch::async : std::launch::deferred;

  /// True if there is only one decision, which can be applied layer by layer.
  [[nodiscard]] bool deferred() const {
    return with_.how == mode::prefill && memory_.moves() && with_.lay != layout::own && !again_;
  }

  /// How many layers decide in one call. Layers that decide separately do so a few at a time, enough for every thread.
  [[nodiscard]] int layers_at_once() const {
    kv::shape const& model = trace_.shape();
    bool const pools_all = policy_.scope() == kv::budget_scope::sequence;
    bool const together = pools_all || policy_.budget.compares_layers();
    if (policy_.decides() == kv::granularity::sequence || together) return model.layers;
    int const lanes = policy_.decides() == kv::granularity::lane ? model.kv_heads : 1;
    return std::clamp((4 * with_.threads + lanes - 1) / lanes, 1, model.layers);
  }

  template <class Step>
  void prefill(Step const& step) {
    int const layers = trace_.shape().layers;
    append(0, trace_.entries());
    kv::any_signals in = offer(0, trace_.entries());
    for (int begin = 0; begin < layers;) {
      int const end = std::min(layers, begin + layers_at_once());
      in.lanes = memory_.view().lanes.layers_only(begin, end);
      observe(in);
      decide(in);
      journal_->note(exec_, plan_, -1);
      note_shares(in.lanes);
      if (policy_.score.name_inside() == kv::cheapest_recipe::name) note_recipes(in.lanes);
      if (!deferred()) apply();
      if (end < layers || !deferred()) step(end, layers);
      begin = end;
    }
  }

  /// Each layer is observed when it comes. Then the layers that are there are cut to their new shares.
  template <class Step>
  void layers(Step const& step) {
    int const layers = trace_.shape().layers;
    append(0, trace_.entries());
    kv::any_signals in = offer(0, trace_.entries());
    for (int there = 1; there <= layers; ++there) {
      in.lanes = memory_.view().lanes.layers_only(there - 1, there);
      observe(in);
      in.lanes = memory_.view().lanes.layers_only(0, there);
      decide(in);
      journal_->note(exec_, plan_, -1);
      apply();
      int const segments = kv::segments(in.lanes, found_.decides);
      note_least_shares(in.lanes);
      for (int s = 0; s < found_.segments; ++s)
        found_.layer_kept.push_back(s < segments ? std::ssize(journal_->held()[size(s)]) : 0);
      step(there, layers);
    }
    note_shares(in.lanes);
  }
  /// Notes the least share that each segment has had.
  void note_least_shares(kv::lanes const& batch) {
    least_shares_.resize(size(found_.segments), std::numeric_limits<int>::max());
    for (int s = 0; s < kv::segments(batch, found_.decides); ++s) {
      int const share = *plan_.shares().row(batch.at(kv::first_lane(batch, found_.decides, s)));
      least_shares_[size(s)] = std::min(least_shares_[size(s)], share);
    }
  }

  /// Notes what each segment of a budget that differs between layers may keep, unless nothing has to be dropped.
  void note_shares(kv::lanes const& batch) {
    kv::cache const all = memory_.view();
    auto const limit = policy_.budget.in_entries(all.shape, kv::entry_bytes(all));
    int const entries = trace_.entries();
    if (limit.by == kv::sharing::fixed || entries <= policy_.score.forces().ends.recent) return;
    std::vector<std::int64_t> shares;
    for (int s = 0; s < kv::segments(batch, found_.decides); ++s) {
      kv::lane const one = batch.at(kv::first_lane(batch, found_.decides, s));
      shares.push_back(again_                ? least_shares_[size(s)]
                       : limit.is_allotted() ? *plan_.shares().row(one)
                                             : limit(one, entries));
    }
    bool const is_whole = std::none_of(shares.begin(), shares.end(), [=](auto share) { return share < entries; });
    if (is_whole && entries <= limit.average_of({}, entries)) return;
    found_.shares.resize(size(found_.segments));
    std::copy(shares.begin(), shares.end(), found_.shares.begin() + journal::first_segment(found_.decides, batch));
    if (policy_.budget.lane_numbers() == kv::moments::lane_numbers) note_statistics(batch);
  }
  /// Notes the entropy, the variance and the preference of each layer, by which its share was found.
  void note_statistics(kv::lanes const& batch) {
    kv::by_lane<float> const numbers = kv::numbers_of_lanes(plan_.scores(batch), kv::moments::lane_numbers);
    for (int l = batch.layer_begin; l < batch.layer_end; ++l) {
      std::array<double, 2> sums{};
      for (int h = 0; h < batch.heads; ++h) {
        for (int i = 0; i < 2; ++i) sums[size(i)] += static_cast<double>(numbers.row({0, l, h})[i]);
      }
      for (double const sum : sums) found_.statistics.push_back(static_cast<float>(sum));
      found_.statistics.push_back(numbers.row({0, l, 0})[2]);
    }
  }

  /// Notes the recipe of each lane, which the scores of what it keeps say.
  void note_recipes(kv::lanes const& batch) {
    kv::score_view const scores = plan_.scores(batch);
    for (int s = 0; s < scores.segments(); ++s) {
      float const* const row = scores.row(s);
      found_.recipe.push_back(std::max(0, static_cast<int>(*std::max_element(row, row + trace_.entries())) - 1));
    }
  }
  /// Notes which segments are lazy: they have dropped entries.
  void note_recipes() {
    for (int s = 0; s < found_.segments; ++s) {
      std::int64_t const kept = found_.keep.offsets[size(s) + 1] - found_.keep.offsets[size(s)];
      found_.recipe.push_back(kept < trace_.entries() ? 1 : 0);
    }
  }

  template <class Step>
  void turns(Step const& step) {
    kv::expects(!trace_.turn_end.empty(), "kvreplay", "tensor turn_end", "missing", "turns are replayed by it");
    auto const turns = static_cast<int>(trace_.turn_end.size());
    for (int t = 0; t < turns; ++t) {
      forward(t == 0 ? 0 : trace_.turn_end[size(t) - 1], trace_.turn_end[size(t)], -1, true);
      found_.turns.add(journal_->held());
      step(t + 1, turns);
    }
    found_.memory.resize(state_.session_bytes() / sizeof(float));
    state_.save_session(exec_, 0, reinterpret_cast<std::byte*>(found_.memory.data()));
  }

  template <class Step>
  void decode(Step const& step) {
    int const entries = trace_.entries();
    kv::expects(!trace_.attention_mass, "kvreplay", "tensor attention_mass", "given",
                "while decoding attention depends on what was kept");
    check_prefill(with_, entries);
    if (with_.prefill > 0) forward(0, with_.prefill, with_.prefill - 1, true);
    bool const decodes = policy_.when == kv::phase::step;
    for (int t = with_.prefill; t < entries; ++t) {
      forward(t, t + 1, t, decodes);
      step(t + 1, entries);
    }
  }

  template <class Step>
  void chunks(Step const& step) {
    int const entries = trace_.entries();
    int const context = std::max(0, entries - local_);
    bool const is_prompt = with_.mode_name == "prefill";
    int const chunk = is_prompt ? std::max(1, context) : with_.chunk;
    for (int begin = 0; begin < context; begin += chunk) {
      int const end = std::min(context, begin + chunk);
      if (end == context && last_) policy_ = *last_;
      forward(begin, end, is_prompt ? -1 : end - 1, true);
      step(end, entries);
    }
    if (context < entries) forward(context, entries, -1, false);
  }

  /// Appends the entries [begin, end), lets the policy observe them, and lets it decide if `decides`.
  void forward(int begin, int end, int event_step, bool decides) {
    append(begin, end);
    kv::any_signals const in = offer(begin, end);
    observe(in);
    if (!decides) return;
    decide(in);
    journal_->note(exec_, plan_, event_step);
    apply();
  }

  void append(int begin, int end) {
    for (int from = begin; from < end;) {
      int to = from + 1;
      while (to < end && trace_.positions[size(to)] == trace_.positions[size(to - 1)] + 1) ++to;
      memory_.place(from, to);
      kv::cache now = memory_.view();
      kv::append(exec_, now, state_, {.tokens = to - from, .position = trace_.positions[size(from)]});
      examples::settle(exec_);
      journal_->arrived(exec_, from, to);
      arrived_since_ += to - from;
      from = to;
    }
  }

  kv::any_signals offer(int begin, int end) { return signals_.offer(begin, end, journal_->held()); }

  void observe(kv::any_signals const& in) {
    stopwatch watch;
    kv::observe(exec_, policy_, in, state_);
    examples::settle(exec_);
    found_.ms.decide += watch.lap();
  }

  void decide(kv::any_signals const& in) {
    stopwatch watch;
    kv::decide(exec_, policy_, in, state_, plan_);
    examples::settle(exec_);
    found_.ms.decide += watch.lap();
  }

  void apply() {
    kv::cache now = memory_.view();
    stopwatch watch;
    as_said_by("--layout", with_.layout_name, "", [&] {
      memory_.apply(exec_, plan_, now, state_, &stats_);
      examples::settle(exec_);
    });
    found_.ms.apply += watch.lap();
    if (with_.own.there()) expect_held(plan_.keep().lanes);
    add(stats_, plan_.keep().lanes.layer_begin == 0);
  }
  /// Refuses what an applier of a plugin has left, if it is not what the decision keeps.
  void expect_held(kv::lanes const& batch) const {
    int const first = journal::first_segment(policy_.decides(), batch);
    for (int i = 0; i < batch.size(); ++i) {
      int const segment = first + kv::segment_of(batch, policy_.decides(), i);
      memory_.expect_held(batch.at(i), journal_->held()[size(segment)]);
    }
  }

  void add(kv::apply_stats const& stats, bool begins) {
    if (begins) found_.stats = {};
    arrived_since_ = 0;
    found_.stats.logical_kept += stats.logical_kept;
    found_.stats.attended_length += stats.attended_length;
  }

  /// The keep set of some layers in the form of a plan. It lists the trace's ordinals of the entries that are held,
  /// which are also ordinals of the cache while no row has moved.
  kv::keep_set keep_of(kv::lanes const& batch, int first) {
    kv::keep_set made{.lanes = batch, .decides = policy_.decides(), .report = &layer_report_};
    layer_offset_.assign(1, 0);
    layer_ordinal_.clear();
    layer_ordinal_.reserve(1);  // an empty keep set has a list, unlike a plan without a decision
    layer_seen_.assign(size(made.segments()), trace_.entries());
    for (int s = 0; s < made.segments(); ++s) {
      std::vector<int> const& kept = journal_->held()[size(first + s)];
      layer_ordinal_.insert(layer_ordinal_.end(), kept.begin(), kept.end());
      layer_offset_.push_back(std::ssize(layer_ordinal_));
    }
    made.indptr = layer_offset_.data();
    made.indices = layer_ordinal_.data();
    made.entry_count = layer_seen_.data();
    made.capacity = std::ssize(layer_ordinal_);
    return made;
  }

  void apply_layer(int layer) {
    kv::cache now = memory_.view_of_layer(layer);
    int const first = journal::first_segment(policy_.decides(), now.lanes.layers_only(layer, layer + 1));
    layer_plan_->publish(keep_of(now.lanes, first));
    layer_state_->history().reset(0);  // the layer before had other keys
    stopwatch watch;
    as_said_by("--layout", with_.layout_name, "", [&] {
      memory_.apply(exec_, *layer_plan_, now, *layer_state_, &stats_);
      examples::settle(exec_);
    });
    found_.ms.apply += watch.lap();
    add(stats_, layer == 0);
  }

  void refuse_ragged() {
    kv::lanes const batch = memory_.view().lanes;
    as_said_by("--layout", with_.layout_name, "", [&] {
      kv::ops::refuse_ragged(exec_, batch, keep_of(batch, 0));
      examples::settle(exec_);
    });
  }

  options const& with_;
  trace& trace_;
  any_policy policy_;
  executor exec_;
  memory memory_;
  offers signals_;
  kv::state<executor> state_;
  kv::plan<executor> plan_;
  std::optional<kv::state<executor>> layer_state_;
  std::optional<kv::plan<executor>> layer_plan_;
  std::vector<std::int64_t> layer_offset_;
  std::vector<int> layer_ordinal_, layer_seen_;
  kv::report layer_report_;
  kv::apply_stats stats_;           ///< the statistics of the last decision
  std::vector<int> least_shares_;   ///< of `again_`
  bool again_ = false;              ///< layers that are there are cut again when the next one comes
  int arrived_since_ = 0;           ///< the entries of every lane that have arrived since
  std::optional<any_policy> last_;  ///< of the last chunk, if it is another one
  int local_ = 0;
  std::optional<attention<memory>> attention_;
  std::optional<journal> journal_;
  results found_;
};

}  // namespace kvreplay
