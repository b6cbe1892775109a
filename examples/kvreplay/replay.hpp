// A policy over a trace: an engine whose memory is the mapped file, and which only carries out what the library says.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "options.hpp"
#include "trace.hpp"

namespace kvreplay {

/// Ragged lists of ordinals into the trace, one segment after another.
struct ragged {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int64_t> ordinals;
};

/// What a replay has found; kvreplay writes it.
struct results {
  ragged keep;
  ragged turns;
  std::vector<float> scores;         ///< [segments][entries]; empty: nothing was ranked
  std::vector<std::int64_t> events;  ///< (step, segment, ordinal)
  std::vector<float> output;         ///< [L][Hq][Dv]
  int segments = 0;
  kv::tally told;
  kv::report report;
  double decide_ms = 0;
  double apply_ms = 0;
};

class replay {
 public:
  replay(options const& with, trace& of, kv::any_policy const& policy)
      : with_(with),
        trace_(of),
        policy_(policy),
        exec_(with.threads),
        lanes_(of.shape().layers * of.shape().kv_heads),
        shared_(with.lay == layout::dead_slot),
        listed_(with.lay == layout::dead_slot || with.lay == layout::mask),
        rows_(shared_ ? 1 : lanes_),
        count_(static_cast<std::size_t>(rows_)),
        position_(static_cast<std::size_t>(rows_) * size(of.entries())) {
    make_planes();
    make_tables();
    state_ = std::make_unique<kv::state<kv::host_executor>>(kv::make_state(exec_, policy_, view()));
    plan_ = std::make_unique<kv::plan<kv::host_executor>>(kv::make_plan(exec_, policy_, view()));
    found_.segments = kv::segments(plan_->who(), policy_.decides());
    held_.resize(size(found_.segments));
    kv::expects(with.lay != layout::compact_rerotated || with.how == mode::prefill, "kvreplay", "--layout",
                "compact_rerotated", "later rows of a trace are rotated at their own positions: prefill only");
  }

  /// `step(done, of)` is called as the work goes on.
  template <class Step>
  results run(Step const& step) {
    int const entries = trace_.entries();
    if (with_.how == mode::prefill) {
      append(0, entries);
      observe(0, entries);
      decide(-1);
    } else if (with_.how == mode::turns) {
      kv::expects(!trace_.turn_end.empty(), "kvreplay", "tensor turn_end", "missing", "turns are replayed by it");
      int begin = 0;
      for (std::size_t t = 0; t < trace_.turn_end.size(); ++t) {
        int const end = trace_.turn_end[t];
        append(begin, end);
        observe(begin, end);
        decide(-1);
        list_entries(found_.turns);
        begin = end;
        step(static_cast<int>(t) + 1, static_cast<int>(trace_.turn_end.size()));
      }
    } else {
      decode(step);
    }
    list_entries(found_.keep);
    if (with_.attend) attend();
    return std::move(found_);
  }

  /// Rows of keys or values that a compacting layout has kept, lane by lane.
  template <class Visit>
  void for_each_kept_row(bool of_keys, Visit const& visit) {
    kv::cache const now = view();
    kv::plane const& rows = of_keys ? k_ : v_;
    for (int i = 0; i < lanes_; ++i) {
      kv::lane const who = now.who.at(i);
      for (int e = 0; e < *now.who.count.row(who); ++e) visit(rows.row(who.layer, now.where.at(who, e), who.head));
    }
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  using clock = std::chrono::steady_clock;
  static double since(clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(clock::now() - begin).count();
  }

  /// K and V where the trace has them; bytes that nobody reads where it has none.
  void make_planes() {
    auto const plane_of = [&](array const& from, int dims) {
      if (!from) return kv::plane{.element = kv::codec::opaque, .dims = 1};
      return kv::plane{.base = from.data,
                       .element = from.element,
                       .dims = dims,
                       .layer = from.stride(0),
                       .token = from.stride(2),
                       .head = from.stride(1),
                       .dim = kv::bytes_of(from.element)};
    };
    k_ = plane_of(trace_.keys, trace_.shape().head_dim);
    v_ = plane_of(trace_.values, trace_.value_dim());
    for (kv::plane* const rows : {&k_, &v_}) {
      if (rows->base != nullptr) continue;
      std::vector<std::byte>& made = nothing_.emplace_back(size(std::int64_t{lanes_} * trace_.entries()));
      rows->base = made.data();
      rows->token = 1;
      rows->dim = 1;
      rows->head = trace_.entries();
      rows->layer = std::int64_t{trace_.entries()} * trace_.shape().kv_heads;
    }
  }

  void make_tables() {
    int const entries = trace_.entries();
    if (!listed_) return;
    list_.resize(size(rows_) * size(entries));
    if (with_.lay == layout::mask) mask_.assign(size(lanes_) * size((entries + 7) / 8), std::byte{0xFF});
    if (!shared_) return;
    map_.resize(size(entries));
    freed_.resize(size(entries));
    kv::expects(trace_.positions.back() < 2 * entries + (1 << 20), "kvreplay", "tensor positions",
                trace_.positions.back(), "a map of positions would be far longer than the trace");
    map_.assign(size(trace_.positions.back()) + 1, entries);
  }

  [[nodiscard]] std::int64_t layer_rows() const { return shared_ ? 0 : trace_.shape().kv_heads; }
  [[nodiscard]] std::int64_t head_rows() const { return shared_ ? 0 : 1; }

  /// The cache as appliers edit it. A dead slot is one more than the trace has rows: its planes are only named, never
  /// read.
  kv::cache view() {
    std::int64_t const entries = trace_.entries();
    kv::cache made{.shape = trace_.shape(),
                   .who = {.layer_end = trace_.shape().layers,
                           .heads = trace_.shape().kv_heads,
                           .bound = trace_.entries(),
                           .count = {count_.data(), 0, layer_rows(), head_rows()},
                           .position = {position_.data(), 0, entries * layer_rows(), entries * head_rows()}},
                   .k = k_,
                   .v = v_,
                   .where = kv::identity(trace_.entries())};
    if (!listed_) return made;
    made.where = kv::slot_map({list_.data(), 0, entries * layer_rows(), entries * head_rows()}, entries);
    for (kv::plane* const rows : {&made.k, &made.v}) rows->unit = std::exchange(rows->token, 0);
    if (shared_) ++made.where.units;
    if (shared_) name_only(made);
    return made;
  }

  /// Planes with one slot more than the trace has rows, which the appliers of lists check and never read.
  static void name_only(kv::cache& of) {
    static std::byte nothing[2];
    for (int i = 0; i < 2; ++i) {
      kv::plane& rows = i == 0 ? of.k : of.v;
      std::int64_t const row = 2 * std::int64_t{rows.dims} * kv::bytes_of(rows.element);
      static std::byte* bases[2] = {&nothing[0], &nothing[1]};
      rows = {.element = rows.element,
              .dims = rows.dims,
              .layer = row * of.where.units * of.shape.kv_heads,
              .unit = row,
              .head = row * of.where.units,
              .dim = kv::bytes_of(rows.element),
              .bases = {&bases[i]}};
    }
  }

  /// Entries [begin, end) of the trace arrive. Their rows are in the file; a lane that is shorter takes them to its
  /// end.
  void append(int begin, int end) {
    for (int from = begin; from < end;) {
      int to = from + 1;
      while (to < end && trace_.positions[size(to)] == trace_.positions[size(to - 1)] + 1) ++to;
      place(from, to);
      kv::cache now = view();
      kv::append(exec_, now, *state_, {.tokens = to - from, .position = trace_.positions[size(from)]});
      for (std::vector<int>& each : held_) {
        for (int e = from; e < to; ++e) each.push_back(e);
      }
      from = to;
    }
  }

  void place(int from, int to) {
    kv::cache const now = view();
    for (int row = 0; row < rows_; ++row) {
      int const count = count_[size(row)];
      for (int e = from; e < to; ++e) {
        if (listed_) list_[size(row) * size(trace_.entries()) + size(count + e - from)] = e;
        if (shared_) map_[size(trace_.positions[size(e)])] = e;
        if (listed_ || count + e - from == e) continue;
        kv::lane const who = now.who.at(row);
        copy_row(k_, who, e, count + e - from);
        copy_row(v_, who, e, count + e - from);
      }
    }
  }

  static void copy_row(kv::plane const& rows, kv::lane who, int from, int to) {
    std::memcpy(rows.row(who.layer, {0, to}, who.head), rows.row(who.layer, {0, from}, who.head),
                size(std::int64_t{rows.dims} * kv::bytes_of(rows.element)));
  }

  /// Every signal that the trace has. Rows [begin, end) of the queries are this forward's.
  struct signals_of {
    kv::keys keys;
    kv::values values;
    kv::queries queries;
    kv::recent_queries recent;
    kv::attention_mass mass;
    kv::external_scores external;
  };

  kv::query_view rows_of(array const& from, int first, int rows, int const* positions) const {
    return {from.data + first * from.stride(2),
            from.element,
            trace_.shape().head_dim,
            0,
            from.stride(0),
            from.stride(1),
            from.stride(2),
            trace_.shape().query_heads,
            rows,
            {positions}};
  }

  kv::any_signals offer(signals_of& to, int begin, int end) {
    kv::cache const now = view();
    kv::any_signals all(now.who);
    kv::locator const where = now.where;
    auto const as_signal = [&](kv::plane rows) {
      if (listed_) rows.unit = std::exchange(rows.token, 0);
      return kv::row_view{rows, where};
    };
    if (trace_.keys) all.add(to.keys = kv::keys{as_signal(k_)});
    if (trace_.values) all.add(to.values = kv::values{as_signal(v_)});
    bool const given_mass = trace_.attention_mass && with_.how == mode::prefill;
    if (trace_.queries && !given_mass) {
      to.queries = {rows_of(trace_.queries, begin, end - begin, trace_.positions.data() + begin)};
      all.add(to.queries);
    }
    int const last = trace_.entries();
    if (trace_.recent_queries && !trace_.queries && end == last) {
      int const rows = static_cast<int>(trace_.recent_queries.shape[2]);
      to.recent = {rows_of(trace_.recent_queries, 0, rows, trace_.positions.data() + (last - rows))};
      all.add(to.recent);
    } else if (trace_.queries && given_mass) {  // rows are still what a window looks with
      int const rows = std::min(last, 4096);
      to.recent = {rows_of(trace_.queries, last - rows, rows, trace_.positions.data() + (last - rows))};
      all.add(to.recent);
    }
    if (given_mass) all.add(to.mass = {lane_mass()});
    if (array const* const scores = external_of(); scores != nullptr) all.add(to.external = {lane_external(*scores)});
    return all;
  }

  /// Attention mass by lane and ordinal; of query heads their sum.
  kv::by_lane<float const> lane_mass() {
    int const entries = trace_.entries();
    int const heads = static_cast<int>(trace_.attention_mass.shape[1]);
    int const group = heads / trace_.shape().kv_heads;
    lane_values_.assign(size(lanes_) * size(entries), 0.0f);
    for (int i = 0; i < lanes_ * group; ++i) {
      float* const to = lane_values_.data() + size(i / group) * size(entries);
      for (int e = 0; e < entries; ++e) to[e] += trace_.attention_mass.value(std::int64_t{i} * entries + e);
    }
    return {lane_values_.data(), 0, std::int64_t{entries} * trace_.shape().kv_heads, entries};
  }

  array const* external_of() const {
    std::string const spelt = kv::to_string(policy_);
    if (spelt.rfind("external(name=", 0) != 0) return nullptr;
    std::string const name = spelt.substr(14, spelt.find(')') - 14);
    auto const found = trace_.external.find(name);
    kv::expects(found != trace_.external.end(), "kvreplay", "tensor external." + name, "missing",
                "the policy is told by it: --set name=");
    return &found->second;
  }

  /// An external score by lane and ordinal: it goes with its entry, wherever that is now.
  kv::by_lane<float const> lane_external(array const& from) {
    kv::cache const now = view();
    std::int64_t const entries = trace_.entries();
    lane_values_.assign(size(lanes_) * size(entries), 0.0f);
    for (int i = 0; i < lanes_; ++i) {
      std::int64_t const row = from.shape.size() == 1 ? 0 : i * entries;
      std::vector<int> const& held = held_[size(kv::segment_of(now.who, policy_.decides(), i))];
      for (std::size_t e = 0; e < held.size(); ++e) lane_values_[size(i * entries) + e] = from.value(row + held[e]);
    }
    return {lane_values_.data(), 0, entries * trace_.shape().kv_heads, entries};
  }

  void observe(int begin, int end) {
    signals_of held;
    auto const in = offer(held, begin, end);
    auto const started = clock::now();
    kv::observe(exec_, policy_, in, *state_);
    found_.decide_ms += since(started);
    begin_ = begin;
    end_ = end;
  }

  void decide(int event_step) {
    signals_of held;
    auto const in = offer(held, begin_, end_);
    auto started = clock::now();
    kv::decide(exec_, policy_, in, *state_, *plan_);
    found_.decide_ms += since(started);
    found_.report = plan_->report();
    if (plan_->report().triggered > 0) note_scores();
    follow(event_step);
    kv::cache now = view();
    started = clock::now();
    apply(now);
    found_.apply_ms += since(started);
  }

  void apply(kv::cache& now) {
    std::int64_t const entries = trace_.entries();
    kv::by_lane<int> const list{list_.data(), 0, entries * layer_rows(), entries * head_rows()};
    switch (with_.lay) {
      case layout::compact:
      case layout::lane_pages:
        return kv::apply(exec_, kv::compact{}, *plan_, now, *state_, &found_.told);
      case layout::compact_rerotated:
        return kv::apply(exec_, kv::compact_rerotated{trace_.rope()}, *plan_, now, *state_, &found_.told);
      case layout::dead_slot:
        return kv::apply(exec_,
                         kv::dead_slot<>{.list = list,
                                         .map = {map_.data()},
                                         .dead = trace_.entries(),
                                         .freed = {{freed_.data()}, {&freed_count_}}},
                         *plan_, now, *state_, &found_.told);
      case layout::mask:
        std::int64_t const row = (entries + 7) / 8;
        kv::mask_rows const rows{{mask_.data(), 0, row * trace_.shape().kv_heads, row}, kv::mask_form::bits, entries};
        return kv::apply(exec_, kv::mask{list, rows}, *plan_, now, *state_, &found_.told);
    }
  }

  void note_scores() {
    kv::keep_set const& keep = plan_->keep();
    kv::score_view const scores = plan_->scores(keep.who);
    found_.scores.assign(size(found_.segments) * size(trace_.entries()), -std::numeric_limits<float>::infinity());
    bool const all = plan_->report().triggered == found_.segments;
    bool any = false;
    for (int s = 0; s < found_.segments; ++s) {
      int const count = keep.seen[s];
      if (!all && std::ssize(keep.listed(s)) == count) continue;
      for (int e = 0; e < count; ++e) {
        if (policy_.forces(*plan_, s, e)) continue;
        found_.scores[size(s) * size(trace_.entries()) + size(held_[size(s)][size(e)])] = scores.row(s)[e];
        any = true;
      }
    }
    if (!any) found_.scores.clear();
  }

  /// Forgets what the plan drops, and notes it as events of a step, if that is not negative.
  void follow(int event_step) {
    kv::keep_set const& keep = plan_->keep();
    for (int s = 0; s < found_.segments; ++s) {
      std::vector<int>& held = held_[size(s)];
      auto const kept = keep.listed(s);
      auto next = kept.begin();
      std::size_t to = 0;
      for (int e = 0; e < keep.seen[s]; ++e) {
        if (next != kept.end() && *next == e) {
          ++next;
          held[to++] = held[size(e)];
        } else if (event_step >= 0) {
          for (std::int64_t const value : {event_step, s, held[size(e)]}) found_.events.push_back(value);
        }
      }
      held.resize(to);
    }
  }

  void list_entries(ragged& to) const {
    for (std::vector<int> const& held : held_) {
      to.ordinals.insert(to.ordinals.end(), held.begin(), held.end());
      to.offsets.push_back(std::ssize(to.ordinals));
    }
  }

  template <class Step>
  void decode(Step const& step) {
    int const entries = trace_.entries();
    kv::expects(!trace_.attention_mass, "kvreplay", "tensor attention_mass", "given",
                "while decoding attention depends on what was kept");
    kv::expects(with_.prefill <= entries, "kvreplay", "--prefill", with_.prefill,
                [&] { return "the trace has " + std::to_string(entries) + " entries"; });
    if (with_.prefill > 0) {
      append(0, with_.prefill);
      observe(0, with_.prefill);
      decide(with_.prefill - 1);
    }
    for (int t = with_.prefill; t < entries; ++t) {
      append(t, t + 1);
      observe(t, t + 1);
      if (decides_while_decoding(with_.policy)) decide(t);
      step(t + 1, entries);
    }
  }

  /// softmax(q k / sqrt(D)) v of the last query row over what the layout leaves, in double.
  void attend() {
    array const& from = trace_.queries ? trace_.queries : trace_.recent_queries;
    kv::expects(static_cast<bool>(from), "kvreplay", "--attend", "without queries", "the last query row attends");
    kv::expects(trace_.keys && trace_.values, "kvreplay", "--attend", "without keys or values", "it reads both");
    kv::shape const& model = trace_.shape();
    kv::cache const now = view();
    found_.output.assign(size(model.layers) * size(model.query_heads) * size(trace_.value_dim()), 0.0f);
    for (int i = 0; i < model.layers * model.query_heads; ++i) {
      kv::lane const who{0, i / model.query_heads, i % model.query_heads / model.group()};
      std::vector<double> query;
      std::byte const* const row = from.data + (std::int64_t{i} * from.shape[2] + from.shape[2] - 1) * from.stride(2);
      for (int d = 0; d < model.head_dim; ++d) {
        query.push_back(static_cast<double>(kv::load(from.element, row + d * kv::bytes_of(from.element))));
      }
      attend_one(now, who, turned(query, *now.who.count.row(who) - 1),
                 found_.output.data() + size(i) * size(trace_.value_dim()));
    }
  }

  /// With re-rotated keys the query too goes to the position after which nothing stands.
  std::vector<double> turned(std::vector<double> query, int position) const {
    if (with_.lay != layout::compact_rerotated) return query;
    kv::rope const how = trace_.rope();
    int const step = position - trace_.positions.back();
    std::size_t const pairs = query.size() / 2;
    for (std::size_t p = 0; p < pairs; ++p) {
      bool const halves = how.style == kv::rope_style::neox;
      std::size_t const a = halves ? p : 2 * p;
      std::size_t const b = halves ? p + pairs : 2 * p + 1;
      double const angle =
          step * std::pow(how.theta, -2.0 * static_cast<double>(p) / static_cast<double>(query.size()));
      double const x = query[a], y = query[b];
      query[a] = x * std::cos(angle) - y * std::sin(angle);
      query[b] = y * std::cos(angle) + x * std::sin(angle);
    }
    return query;
  }

  void attend_one(kv::cache const& now, kv::lane who, std::vector<double> const& query, float* out) const {
    int const count = *now.who.count.row(who);
    std::vector<double> weight;
    auto const row_of = [&](kv::plane const& rows, int e) {
      kv::place const at = now.where.at(who, e);
      return rows.row(who.layer, {0, listed_ ? static_cast<int>(at.unit) : at.token}, who.head);
    };
    double highest = -std::numeric_limits<double>::infinity();
    for (int e = 0; e < count; ++e) {
      double logit = 0;
      for (std::size_t d = 0; d < query.size(); ++d) {
        logit +=
            query[d] * static_cast<double>(kv::load(k_.element, row_of(k_, e) + static_cast<std::int64_t>(d) * k_.dim));
      }
      weight.push_back(logit / std::sqrt(static_cast<double>(query.size())));
      highest = std::max(highest, weight.back());
    }
    double sum = 0;
    for (double& each : weight) sum += each = std::exp(each - highest);
    std::vector<double> made(size(v_.dims), 0.0);
    for (int e = 0; e < count; ++e) {
      for (int d = 0; d < v_.dims; ++d) {
        made[size(d)] += weight[size(e)] / sum * static_cast<double>(kv::load(v_.element, row_of(v_, e) + d * v_.dim));
      }
    }
    for (int d = 0; d < v_.dims; ++d) out[d] = static_cast<float>(made[size(d)]);
  }

  options const& with_;
  trace& trace_;
  kv::any_policy policy_;
  kv::host_executor exec_;
  int lanes_;
  bool shared_;  ///< one list for all lanes
  bool listed_;
  int rows_;
  std::vector<int> count_, position_;
  std::vector<std::vector<int>> held_;  ///< [segments], ordinals into the trace
  std::vector<int> list_, map_, freed_;
  int freed_count_ = 0;
  std::vector<std::byte> mask_;
  std::list<std::vector<std::byte>> nothing_;
  std::vector<float> lane_values_;
  kv::plane k_, v_;
  std::unique_ptr<kv::state<kv::host_executor>> state_;
  std::unique_ptr<kv::plan<kv::host_executor>> plan_;
  int begin_ = 0, end_ = 0;
  results found_;
};

}  // namespace kvreplay
