// SPDX-License-Identifier: Apache-2.0
// Type-erased scorers, which are chosen at run time.
#pragma once

#include <kvpolicy/by_name/scorer_model.hpp>
#include <kvpolicy/ops/host/page_bounds.hpp>
#include <kvpolicy/ops/host/page_scores.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/quest.hpp>
#include <memory>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The members of a type-erased scorer. It answers at run time what others say by their type, and it passes the calls
/// of a decision on.
template <executor Executor>
class erased_scorer {
 public:
  using erased = void;
  using forced_type = typename scorer_interface<Executor>::forced_type;
  using observed_type = typename scorer_interface<Executor>::observed_type;
  using needs = kvpolicy::needs<>;  // known at run time only: see `signals`
  granularity decides = granularity::lane;

  /// The names of the signals that the engine gives: those from which recorders record, in `observe`, and those that
  /// the scorer reads and no recorder keeps, in `decide`.
  [[nodiscard]] std::vector<std::string> signals() const {
    std::vector<std::string> names = inner_->recorders.signals();
    for (std::string const& each : text().given) names.push_back(each);
    return names;
  }
  /// The signals of a call, to be found by their names. They must outlive the result.
  template <class Given>
  [[nodiscard]] static any_signals by_name(Given const& in) {
    return any_signals(in);
  }
  /// What it reads, records and forces, by name.
  [[nodiscard]] scorer_text text() const { return inner_->text(); }

  // What a scorer says of itself: see `scorer`.
  void check(char const* call, shape const& model) const { inner_->check(call, &model); }
  void check(char const* call) const { inner_->check(call, nullptr); }
  [[nodiscard]] auto recorders() const { return std::tuple{inner_->recorders}; }
  [[nodiscard]] scorer_facts const& facts() const { return inner_->facts; }
  [[nodiscard]] int spare_rows(lanes const& batch, shape const& model) const {
    return inner_->spare_rows(batch, model);
  }
  [[nodiscard]] std::size_t scratch(shape const& model, lanes const& batch) const {
    return inner_->scratch(model, batch);
  }
  template <class Visit>
  void visit_kinds_of_rows(Visit const& visit) const {
    for (int kind = 0; kind < 3; ++kind) {
      if ((inner_->kinds_of_rows >> kind & 1) != 0) visit(kind);
    }
  }
  [[nodiscard]] any_trigger triggers() const { return inner_->trigger; }
  [[nodiscard]] forced_type forces() const { return inner_->forces(); }
  template <class SignalSet>
  [[nodiscard]] forced_type forces(SignalSet const& in) const {
    return inner_->forces(seen_by(in, given_in(in)));
  }
  /// If it puts entries first, this and `rest_scores` say how.
  [[nodiscard]] first_places places() const { return facts().first.value_or(first_places{}); }
  template <class SignalSet>
  [[nodiscard]] put_first_rest rest_scores(SignalSet const& in, score_view const& scores) const {
    return inner_->rest_scores(in.lanes, scores);
  }

  /// Refuses signals without one that the scorer reads and no recorder keeps, and rows that are not sound.
  template <class Given>
  void refuse_given(char const* call, Given const& in) const {
    inner_->refuse_given(call, any_signals(in));
  }
  template <class SignalSet>
  void refuse(Executor& exec, SignalSet const& in) const {
    inner_->refuse(exec, seen_by(in, given_in(in)));
  }
  template <class SignalSet>
  [[nodiscard]] observed_type observed(SignalSet const& in) const {
    return inner_->observed(seen_by(in, given_in(in)));
  }
  template <class SignalSet>
  void score(Executor& exec, SignalSet const& in, score_view const& out) const {
    inner_->score(exec, seen_by(in, given_in(in)), out);
  }
  /// If it ranks blocks again, this says so, and `rank_again` does it.
  [[nodiscard]] bool ranks_again() const { return facts().ranks_again; }
  template <class SignalSet>
  void rank_again(Executor& exec, SignalSet const& in, score_view const& competing, score_view const& scores,
                  score_view const& ranks, by_lane<int> const& kept) const {
    inner_->rank_again(exec, seen_by(in, given_in(in)), competing, scores, ranks, kept);
  }

  /// The scorer's name, or that of the scorer inside a stage.
  [[nodiscard]] std::string_view name_inside() const { return facts().name; }
  /// The text of a field of the scorer, or of the scorer inside a stage; nothing if there is no such field.
  [[nodiscard]] std::optional<std::string> field_text(std::string_view name) const { return inner_->field_text(name); }

 protected:
  erased_scorer(granularity who, std::shared_ptr<scorer_interface<Executor> const> inner)
      : decides(who), inner_(std::move(inner)) {}

  template <class Score>
  static erased_scorer holding(Score const& from) {
    return {decides_of(from), std::make_shared<scorer_model<Executor, Score>>(from)};
  }
  [[nodiscard]] bool equals(erased_scorer const& other) const {
    return decides == other.decides && inner_->equals(*other.inner_);
  }
  [[nodiscard]] std::string spell() const { return inner_->spell(); }

 private:
  /// The signals of a set: those that it refers to, or a view that lives as long as the expression.
  template <class SignalSet>
  [[nodiscard]] static decltype(auto) given_in(SignalSet const& in) {
    if constexpr (std::same_as<std::remove_cvref_t<decltype(in.given())>, any_signals>) {
      return (in.given());
    } else {
      return any_signals(in.given());
    }
  }
  template <class SignalSet>
  [[nodiscard]] seen_by_scorer<Executor> seen_by(SignalSet const& in, any_signals const& given) const {
    return {given, in.state(), in.first_column_of(inner_->recorders), in.lanes, in.allowed};
  }

  held<scorer_interface<Executor>> inner_;
};

}  // namespace detail

/// Any scorer of entries, type-erased, for one kind of executor. It is a scorer itself: an eviction, an admission or a
/// stage may have it in the place of a typed one, and then decides alike. It is a value; copies share an immutable
/// object.
///
///     kv::admission const policy{.score = kv::any_scorer(mine), .window = 64};
///
/// A stage around a typed scorer becomes the same stage around an erased one, so that scorers compare equal however
/// they were made.
template <executor Executor>
class basic_any_scorer : public detail::erased_scorer<Executor> {
 public:
  /// The full cache, which drops nothing.
  basic_any_scorer() : basic_any_scorer(full{}) {}

  template <class Score>
    requires(!std::derived_from<Score, basic_any_scorer>) && entry_scorer<Score>
  explicit basic_any_scorer(Score const& from) : detail::erased_scorer<Executor>(held(from)) {}

  friend bool operator==(basic_any_scorer const& a, basic_any_scorer const& b) { return a.equals(b); }
  friend std::string print(basic_any_scorer const& of) { return of.spell(); }

 private:
  template <class Score>
  static detail::erased_scorer<Executor> held(Score const& from) {
    if constexpr (detail::stage<Score> && requires(basic_any_scorer const& other) { from.around(other); }) {
      if constexpr (requires { from.changes_nothing(); }) {
        if (from.changes_nothing()) return basic_any_scorer(detail::inner_of(from));
      }
      if constexpr (!std::same_as<typename Score::wraps, basic_any_scorer>) {
        return basic_any_scorer::holding(from.around(basic_any_scorer(detail::inner_of(from))));
      }
    }
    return basic_any_scorer::holding(from);
  }
};

/// A type-erased scorer of entries for the host.
using any_scorer = basic_any_scorer<host_executor>;

/// The same for a scorer of pages, which a selection may have.
template <executor Executor>
class basic_any_page_scorer : public detail::erased_scorer<Executor> {
 public:
  static constexpr item scores_of = item::page;
  int page = 16;  ///< the entries of a page, as the scorer says

  basic_any_page_scorer() : basic_any_page_scorer(quest{}) {}

  template <class Score>
    requires(!std::derived_from<Score, basic_any_page_scorer>) && page_scorer<Score>
  explicit basic_any_page_scorer(Score const& from)
      : detail::erased_scorer<Executor>(basic_any_page_scorer::holding(from)), page(from.page) {}

  friend bool operator==(basic_any_page_scorer const& a, basic_any_page_scorer const& b) {
    return a.page == b.page && a.equals(b);
  }
  friend std::string print(basic_any_page_scorer const& of) { return of.spell(); }
};

/// A type-erased scorer of pages for the host.
using any_page_scorer = basic_any_page_scorer<host_executor>;

}  // namespace KVPOLICY_NAMESPACE
