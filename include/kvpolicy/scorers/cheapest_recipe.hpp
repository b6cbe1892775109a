// SPDX-License-Identifier: Apache-2.0
// FastGen: finds for each lane the cheapest of five recipes that keeps enough of the attention.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/radix_key.hpp>
#include <kvpolicy/ops/row_stats.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/sort_scores.hpp>
#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/recorders/record_attention_mass.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores the entries that a lane's recipe keeps 1 + the number of the recipe, and all others 0 (FastGen, Ge et al.
/// 2023, arXiv:2310.01801). It is for the pick `at_least(0.5)`, without a budget. A recipe keeps what the one before
/// keeps, and more:
///
///     0    entries of special tokens, whose class is 1
///     1    and of punctuation, whose class is 2
///     2    and the int(frequent N) entries that have received the most attention
///     3    and the last int(recent N) entries
///     4    and all others
///
/// A lane takes the first recipe whose entries have at least the part `recover` of the attention that its entries have
/// received: the sum over all rows and over the group's query heads. The engine has the class of every token: a row for
/// each sequence, one number for every position, as for `marks`. The plan has N + 5 floats more for each lane.
struct cheapest_recipe {
  static constexpr int special = 1, punctuation = 2;  ///< classes of tokens
  static constexpr int recipes = 5;

  double recover = 0.95;  ///< the part of the attention
  double recent = 0.3;    ///< parts of the entries
  double frequent = 0.3;
  by_lane<int const> classes{};

  static constexpr auto name = "cheapest_recipe";
  static constexpr auto fields() {
    return make_fields(field{"recover", &cheapest_recipe::recover}, field{"recent", &cheapest_recipe::recent},
                       field{"frequent", &cheapest_recipe::frequent});
  }
  using needs = kvpolicy::needs<attention_mass>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(recover >= 0 && recover <= 1, call, "cheapest_recipe.recover", recover, "a part of attention, 0 to 1");
    expects(recent >= 0 && recent <= 1, call, "cheapest_recipe.recent", recent, "a part of the entries, 0 to 1");
    expects(frequent >= 0 && frequent <= 1, call, "cheapest_recipe.frequent", frequent,
            "a part of the entries, 0 to 1");
    expects(classes.data != nullptr, call, "cheapest_recipe.classes", "null",
            "the engine has the class of every token");
  }
  /// A registry gives it the table "token_class".
  void use_classes(by_lane<int const> const& of) { classes = of; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_attention_mass{reduction::sum}}; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) {
    return rows_of_scores(batch, std::int64_t{recipes} * batch.size()) + batch.size();
  }

  /// The attention that an entry has received.
  struct mass_of_entry {
    by_lane<float const> mass;
    KVPOLICY_HD float operator()(float, entry at) const { return mass.row(at.lane)[at.ordinal]; }
  };

  /// The cheapest recipe that keeps an entry. `sorted` has the masses of each lane in descending order.
  struct recipe_of_entry {
    by_lane<float const> mass;
    by_lane<float> sorted;
    by_lane<int const> classes;
    double recent;
    double frequent;

    KVPOLICY_HD float operator()(float, entry at) const {
      int const found = classes.row(at.lane)[at.position];
      if (found == special) return 0;
      if (found == punctuation) return 1;
      if (is_frequent(at, detail::part_of(frequent, at.count))) return 2;
      return at.ordinal >= at.count - detail::part_of(recent, at.count) ? 3.0f : 4.0f;
    }

   private:
    /// True for the entries with the most mass, of which there are `places`. Of equal ones the lower ordinals are.
    /// Other entries are read only if equal ones do not all have a place.
    [[nodiscard]] KVPOLICY_HD bool is_frequent(entry at, int places) const {
      if (places <= 0 || places >= at.count) return places > 0;
      float const* const best = sorted.row(at.lane);
      float const* const all = mass.row(at.lane);
      std::uint32_t const mine = detail::radix_key(all[at.ordinal]), last = detail::radix_key(best[places - 1]);
      if (mine != last) return mine > last;
      if (detail::radix_key(best[places]) != last) return true;
      int left = places - above(best, places, last);
      for (int e = 0; e < at.ordinal && left > 0; ++e) left -= detail::radix_key(all[e]) == last ? 1 : 0;
      return left > 0;
    }
    /// How many of the best numbers are above one of them.
    [[nodiscard]] KVPOLICY_HD static int above(float const* best, int end, std::uint32_t than) {
      int begin = 0;
      while (begin < end) {
        int const middle = begin + (end - begin) / 2;
        bool const is_above = detail::radix_key(best[middle]) > than;
        (is_above ? begin : end) = is_above ? middle + 1 : middle;
      }
      return begin;
    }
  };
  /// True for the entries that a recipe keeps.
  struct kept_by {
    by_lane<float> recipe_of;
    int recipe;
    KVPOLICY_HD bool operator()(entry at) const {
      return recipe_of.row(at.lane)[at.ordinal] <= static_cast<float>(recipe);
    }
  };
  /// The score by the cheapest recipe that keeps an entry, and by the masses of what each recipe keeps.
  struct stays {
    by_lane<float> kept;
    double recover;
    KVPOLICY_HD float operator()(float recipe, entry at) const {
      float const* const of = kept.row(at.lane);
      auto const all = static_cast<double>(of[recipes - 1]);
      int chosen = 0;
      for (; chosen < recipes - 1; ++chosen) {
        double const part = all != 0 ? static_cast<double>(of[chosen]) / all : 0;
        if (part >= recover) break;
      }
      return recipe <= static_cast<float>(chosen) ? static_cast<float>(1 + chosen) : 0.0f;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    by_lane<float const> const mass = in.template get<attention_mass>().mass;
    by_lane<float> const kept = contiguous_scores(out.lanes, granularity::lane, out.spare, recipes).rows;
    float* const rest = out.spare + std::int64_t{rows_of_scores(out.lanes, std::int64_t{recipes} * out.lanes.size())} *
                                        out.lanes.capacity;
    score_view const masses = contiguous_scores(out.lanes, granularity::lane, rest, out.lanes.capacity);
    ops::map(exec, masses, mass_of_entry{mass});
    ops::sort_scores(exec, masses);
    ops::map(exec, out, recipe_of_entry{mass, masses.rows, classes, recent, frequent});
    ops::map(exec, masses, mass_of_entry{mass});
    for (int recipe = 0; recipe < recipes; ++recipe) {
      by_lane<float> to = kept;
      to.data += recipe;
      ops::row_stats(exec, masses, kept_by{out.rows, recipe}, statistic::sum, to);
    }
    ops::map(exec, out, stays{kept, recover});
  }

  friend bool operator==(cheapest_recipe const& a, cheapest_recipe const& b) {
    return a.recover == b.recover && a.recent == b.recent && a.frequent == b.frequent &&
           a.classes.data == b.classes.data;
  }
};

}  // namespace KVPOLICY_NAMESPACE
