// SPDX-License-Identifier: Apache-2.0
// Replays an admission over a trace, as an engine whose lanes have a window and pages.
#pragma once

#include "birth_numbers.hpp"
#include "dual_memory.hpp"
#include "gathered.hpp"
#include "named.hpp"
#include "query_profile.hpp"

namespace kvreplay {

/// What a table of the trace has, and who reads it: a number of each head an admission, of each head or layer a budget
/// or a pick, and a row of each head, a number of each query head or a sketch of keys a scorer.
enum class table_of { heads, layers, thresholds, rows, query_heads, sketch };

/// One number for every KV head of every layer, [L,Hkv], or for every layer, [L]; or a row of numbers, [L,Hkv,D], or of
/// those of the query heads of a KV head, [L,Hq], or a sketch, [L,Hkv,D,k], or one for all of them, [D,k].
class head_numbers {
 public:
  /// From a file with a single tensor or one named `retrieval`.
  head_numbers(std::string const& path, kv::shape const& model) : heads_(model.kv_heads) {
    tensors from(path);
    auto const& all = from.file().tensors();
    kv::expects(all.size() == 1 || from.has("retrieval"), "kvreplay", "--set retrieval", path,
                [&] { return "it has " + std::to_string(all.size()) + " tensors, none of which is retrieval"; });
    std::string const name = all.size() == 1 ? all.begin()->first : "retrieval";
    take(from.read(name, "LK"), name, model);
  }
  /// From the tensor `table.NAME` of the trace.
  head_numbers(trace const& of, std::string const& name, table_of what = table_of::heads)
      : heads_(of.shape().kv_heads),
        width_(what == table_of::rows          ? of.shape().head_dim
               : what == table_of::query_heads ? of.shape().group()
                                               : 1) {
    auto const found = of.table.find(name);
    char const* const reader = what == table_of::heads        ? "the admission reads it"
                               : what == table_of::layers     ? "the budget reads it"
                               : what == table_of::thresholds ? "the pick reads it"
                                                              : "the scorer reads it";
    if (found == of.table.end()) refuse("table." + name, "missing", reader);
    what == table_of::sketch ? take_sketch(found->second, of.shape())
                             : take(found->second, "table." + name, of.shape(), what);
  }

  [[nodiscard]] int width() const { return width_; }
  /// The numbers of some layers, which live as long as this object.
  [[nodiscard]] kv::by_lane<float const> table(std::vector<int> const& layers) {
    std::vector<float>& made = tables_.emplace_back();
    made.reserve(1);  // a table of no layers is one, too
    for (int const layer : layers) {
      auto const first = values_.begin() + std::ptrdiff_t{layer} * heads_ * width_;
      made.insert(made.end(), first, first + std::ptrdiff_t{heads_} * width_);
    }
    return {made.data(), 0, std::int64_t{heads_} * width_, width_};
  }

 private:
  void take(array const& table, std::string const& name, kv::shape const& model, table_of what = table_of::heads) {
    bool const of_queries = what == table_of::query_heads;
    std::vector<std::int64_t> wanted{model.layers, of_queries ? model.query_heads : model.kv_heads};
    if (what == table_of::rows) wanted.push_back(model.head_dim);
    bool const may_be_by_layer = what == table_of::layers || what == table_of::thresholds;
    bool const by_layer = may_be_by_layer && table.shape.size() == 1 && table.shape[0] == model.layers;
    if (!by_layer && !std::equal(table.shape.begin(), table.shape.end(), wanted.begin(), wanted.end())) {
      std::string shape;
      for (std::int64_t const each : table.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(each);
      refuse(name, "shape [" + shape + "]",
             "the trace has " + std::to_string(model.layers) + " layers of " + std::to_string(wanted[1]) +
                 (of_queries ? " query heads" : " KV heads") +
                 (what == table_of::rows ? " of " + std::to_string(width_) + " channels" : ""));
    }
    std::int64_t const wrong = table.first_not_finite(0, table.count());
    if (wrong >= 0) refuse(name, kv::to_string(table.value(wrong)), "it is finite");
    int const times = by_layer ? model.kv_heads : 1;
    for (std::int64_t i = 0; i < table.count(); ++i) values_.insert(values_.end(), size(times), table.value(i));
  }

  void take_sketch(array const& of, kv::shape const& model) {
    std::int64_t const wrong = of.first_not_finite(0, of.count());
    if (wrong >= 0) refuse("table.sketch", kv::to_string(of.value(wrong)), "it is finite");
    width_ = static_cast<int>(of.shape.back()) * model.head_dim;
    for (std::int64_t i = 0; i < std::int64_t{model.layers} * heads_ * width_; ++i)
      values_.push_back(of.value(i % of.count()));
  }

  int heads_;
  int width_ = 1;  ///< numbers of a head
  std::vector<float> values_;
  std::list<std::vector<float>> tables_;
};

/// Adds the forced entries and the cap of the command line to an admission.
[[nodiscard]] inline any_admission as_asked(any_admission const& from, options const& with) {
  any_admission asked = from;
  kv::any_protection const more = forced_by(with);
  asked.protect.add(more);
  asked.cap = count_of("--budget", with.budget, -1);
  return asked;
}

/// A policy and its fields, with the forced entries and the cap of the command line, in the style of a spec.
[[nodiscard]] inline std::string spell(std::string text, options const& with) {
  std::string const forced = kv::to_string(forced_by(with));
  if (!forced.empty()) text.append(" | ").append(forced);
  if (!with.budget.empty()) text.append(" | cap(").append(with.budget).append(")");
  return text;
}

/// Replays an admission: first call `run`, then `carry_out`, as for an eviction.
class admission_replay {
 public:
  admission_replay(options const& with, trace& of, any_admission const& policy, int page)
      : with_(with),
        trace_(of),
        policy_(policy),
        window_(std::min(policy.window, of.entries())),
        exec_(examples::make_executor(with.threads)),
        memory_(of, window_, page, std::clamp(policy.cap >= 0 ? policy.cap : of.entries(), 1, most(of.entries()))),
        both_(memory_.view()),
        left_(with, of, found_),
        admitted_(size(memory_.lanes())) {
    if (reads(kv::birth_score::name)) born_.read(of, policy_.score.field_text("name").value_or(""));
    profile_.look_at(of, policy_, policy_.score.signals());
    if (profile_.is_given()) ordinals_.resize(size(std::max(window_ + page, of.entries())));
    policy_.window = window_;  // at most as many rows as there are tokens
    state_.emplace(kv::make_state(exec_, policy_, both_));
    plans_.emplace(kv::make_plan(exec_, policy_, both_));
    found_.segments = memory_.lanes();
    found_.promoted.emplace();
  }

  /// Makes all decisions. It calls `step(done, of)` to report progress.
  template <class Step>
  results& run(Step const& step) {
    int const entries = trace_.entries();
    bool const prefill = with_.how == mode::prefill;
    if (!prefill) check_prefill(with_, entries);
    int const chunk = prefill ? entries : with_.prefill;
    if (chunk > 0) ingest(chunk, prefill ? -1 : chunk - 1);
    for (int t = chunk; t < entries; ++t) {
      decode(t);
      step(t + 1, entries);
    }
    settle();
    return found_;
  }

  template <class Visit, class Step>
  void carry_out(Visit const& visit, Step const& step) {
    left_.carry_out(visit, step);
  }
  [[nodiscard]] std::span<std::byte const> rows_left(bool keys, kv::lane this_lane) const {
    return left_.rows_left(keys, this_lane);
  }

 private:
  /// The largest number of entries that can have left a lane's window, at least one.
  [[nodiscard]] int most(int entries) const { return std::max(1, entries - window_); }

  /// Ingests the first `tokens` entries as one chunk.
  void ingest(int tokens, int event_step) {
    kv::cache const chunk = memory_.chunk(tokens);
    kv::state<executor> of_fresh = kv::make_state(exec_, policy_, chunk);
    kv::plan<executor> decided = kv::make_plan(exec_, policy_, chunk);
    stopwatch watch;
    observe(chunk.lanes, of_fresh, 0, tokens);
    with_signals(chunk.lanes, 0, [&](auto const& in) { kv::decide(exec_, policy_, in, of_fresh, decided); });
    examples::settle(exec_);
    found_.report = decided.report();
    found_.ms.decide += watch.lap();
    with_signals(both_.window.lanes, 0, [&](auto const& in) {
      kv::ingest(exec_, policy_, in, chunk, of_fresh, decided, both_, *state_, *plans_, &stats_);
    });
    examples::settle(exec_);
    arrived_ = tokens;
    note(stats_, 0, event_step);
    found_.ms.apply += watch.lap();
  }

  /// Appends entry t. The entry that it would overwrite leaves the window first.
  void decode(int t) {
    stopwatch watch;
    int const before = window_begin();
    with_signals(both_.window.lanes, before,
                 [&](auto const& in) { kv::promote(exec_, policy_, in, both_, *state_, *plans_, 1, &stats_); });
    examples::settle(exec_);
    found_.report = plans_->decided.report();
    kv::append(exec_, both_.window, state_->window, {.tokens = 1, .position = trace_.positions[size(t)]});
    examples::settle(exec_);
    dual_memory::write_newest(both_.window, t);
    arrived_ = t + 1;
    observe(both_.window.lanes, state_->window, t, t + 1);
    found_.ms.decide += watch.lap();
    note(stats_, before, t);
    found_.ms.apply += watch.lap();
  }

  /// Records the gates, or the numbers from birth, of the new entries [begin, end).
  void observe(kv::lanes const& batch, kv::state<executor>& to, int begin, int end) {
    if (reads(kv::birth_score::name)) {
      kv::observe(exec_, policy_, kv::signals{batch, kv::birth_score{born_.numbers(begin, end)}}, to);
    } else if (trace_.gate) {
      kv::observe(exec_, policy_, kv::signals{batch, kv::gate{numbers_of(trace_.gate, begin, end)}}, to);
    }
    examples::settle(exec_);
  }

  /// Calls `call` with the signals of a decision about entries that are those of the trace from `first` on: their keys
  /// and a profile of queries, for a policy that reads one; else none.
  template <class Call>
  void with_signals(kv::lanes const& batch, int first, Call const& call) {
    if (!profile_.is_given()) return call(kv::signals{batch});
    array const& from = trace_.keys;
    if (!from) refuse("keys", "missing", "the policy reads it");
    std::iota(ordinals_.begin(), ordinals_.end(), first);
    kv::plane const rows{.base = from.data,
                         .element = from.element,
                         .channels = trace_.shape().head_dim,
                         .layer_stride = from.stride(0),
                         .unit_stride = from.stride(2),
                         .head_stride = from.stride(1),
                         .channel_stride = kv::bytes_of(from.element)};
    kv::locator const where = kv::slot_map({ordinals_.data()}, trace_.entries());
    call(kv::signals{batch, kv::keys{{rows, where}, trace_.logits()}, profile_.model()});
  }

  /// True if the policy reads a signal that is told when an entry is written.
  [[nodiscard]] bool reads(char const* signal) const {
    std::vector<std::string> const all = policy_.score.signals();
    return std::find(all.begin(), all.end(), signal) != all.end();
  }

  /// The trace's ordinal of the oldest entry in the window.
  [[nodiscard]] int window_begin() const { return arrived_ - *both_.window.lanes.count.row({}); }

  /// Notes the entries from `before` on that have left the window: those in pages are admitted, the others are events.
  void note(kv::promotion_stats const& stats, int before, int event_step) {
    found_.promoted->promoted += stats.promoted;
    found_.promoted->over_cap += stats.over_cap;
    found_.promoted->pages += stats.pages;
    kv::cache const& pages = both_.pages.entries;
    for (int i = 0; i < memory_.lanes(); ++i) {
      kv::lane const this_lane = pages.lanes.at(i);
      std::vector<int>& kept = admitted_[size(i)];
      std::size_t next = kept.size();
      for (int e = static_cast<int>(next); e < *pages.lanes.count.row(this_lane); ++e) {
        kept.push_back(dual_memory::ordinal(pages, this_lane, e));
      }
      for (int j = before; j < window_begin() && event_step >= 0; ++j) {
        if (next < kept.size() && kept[next] == j) {
          ++next;
        } else {
          found_.events.insert(found_.events.end(), {event_step, i, j});
        }
      }
    }
  }

  /// Lists the entries that are left at the end: those of the pages, then those of the window, as they are in memory.
  void settle() {
    std::vector<std::vector<int>> windows(size(memory_.lanes()));
    for (int i = 0; i < memory_.lanes(); ++i) {
      kv::lane const this_lane = both_.window.lanes.at(i);
      for (int e = 0; e < *both_.window.lanes.count.row(this_lane); ++e) {
        windows[size(i)].push_back(dual_memory::ordinal(both_.window, this_lane, e));
      }
      admitted_[size(i)].insert(admitted_[size(i)].end(), windows[size(i)].begin(), windows[size(i)].end());
    }
    found_.keep.add(admitted_);
    found_.local.emplace().add(windows);
    auto const kept = std::ssize(found_.keep.ordinals);
    std::int64_t const all = std::int64_t{memory_.lanes()} * trace_.entries();
    std::int64_t const taken = with_.lay == layout::compact ? kept
                               : with_.lay == layout::mask  ? all
                                                            : memory_.room_taken();
    found_.stats = {kept, std::max<std::int64_t>(0, all - taken), kept};
    left_.hold(std::move(admitted_));
  }

  options const& with_;
  trace& trace_;
  any_admission policy_;
  int window_;
  executor exec_;
  dual_memory memory_;
  kv::dual_cache both_;
  results found_;
  gathered left_;
  std::vector<std::vector<int>> admitted_;  ///< entries of the trace in each lane's pages
  std::optional<kv::dual_state<executor>> state_;
  std::optional<kv::exit_plan<executor>> plans_;
  kv::promotion_stats stats_;  ///< the statistics of the last step
  birth_numbers born_;
  profile_of_queries profile_;
  std::vector<int> ordinals_;  ///< of the trace, of the entries about which is decided
  int arrived_ = 0;
};

}  // namespace kvreplay
