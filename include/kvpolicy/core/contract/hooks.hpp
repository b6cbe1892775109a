// SPDX-License-Identifier: Apache-2.0
// Hooks: the members of user types that the library calls, and the texts of their compile errors.
#pragma once

#include <concepts>
#include <kvpolicy/core/config.hpp>
#include <type_traits>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// The form of a hook in a type. `absent` is not an error if the hook is optional.
enum class hook_form { absent, fits, data_member, not_const, not_static, other_parameters, other_result };

/// One struct for each hook: how to find and to call the member, and the texts of its errors.
namespace hook {

// `names` is true if the class has a member of this name, of any kind. It is found because a member of the same name in
// a second base class makes the name ambiguous. A final class cannot be a base class, so an overloaded member of it
// that cannot be called as the hook is not found.
#define KVPOLICY_HOOK(hook, whose, member, declaration, wanted)                                                       \
  struct hook {                                                                                                       \
    struct same_name {                                                                                                \
      declaration;                                                                                                    \
    };                                                                                                                \
    template <class T, bool Final = std::is_final_v<T>>                                                               \
    struct beside : T, same_name {};                                                                                  \
    template <class T>                                                                                                \
    struct beside<T, true> : same_name {};                                                                            \
    template <class T>                                                                                                \
    static constexpr bool names = std::is_final_v<T> ? requires { &T::member; } : !requires { &beside<T>::member; };  \
    template <class T>                                                                                                \
    static constexpr bool is_data =                                                                                   \
        requires { requires !std::is_function_v<std::remove_reference_t<decltype(T::member)>>; };                     \
    template <class T>                                                                                                \
    static constexpr bool is_own_data = requires { requires std::is_member_object_pointer_v<decltype(&T::member)>; }; \
    template <class T>                                                                                                \
    static constexpr bool is_one_function = requires { &T::member; };                                                 \
    template <class T, class... Args>                                                                                 \
    using result = decltype(std::declval<T>().member(std::declval<Args>()...));                                       \
    template <class Whose, hook_form Form>                                                                            \
    static consteval void refuse() {                                                                                  \
      static_assert(Form != hook_form::absent, "kvpolicy: this " whose " has no member `" #member "`, but " wanted);  \
      static_assert(Form != hook_form::data_member,                                                                   \
                    "kvpolicy: this " whose "'s member `" #member "` is a data member, but " wanted);                 \
      static_assert(Form != hook_form::not_const,                                                                     \
                    "kvpolicy: this " whose "'s member `" #member "` is not const, but " wanted);                     \
      static_assert(Form != hook_form::not_static,                                                                    \
                    "kvpolicy: this " whose "'s member `" #member "` is no static constant, but " wanted);            \
      static_assert(Form != hook_form::other_parameters, "kvpolicy: this " whose "'s member `" #member                \
                                                         "` takes other parameters, or is not public, but " wanted);  \
      static_assert(Form != hook_form::other_result,                                                                  \
                    "kvpolicy: this " whose "'s member `" #member "` has another type, or returns one, but " wanted); \
    }                                                                                                                 \
  };
#define KVPOLICY_LAW(hook, text)                                 \
  struct hook {                                                  \
    template <class Whose, hook_form Form>                       \
    static consteval void refuse() {                             \
      static_assert(Form == hook_form::fits, "kvpolicy: " text); \
    }                                                            \
  };

/// @cond
// clang-format off
KVPOLICY_LAW(budget_is_number, "this policy's budget is a number, but it must be a budget such as kvpolicy::per_lane{64}")
KVPOLICY_LAW(protect_is_number, "this policy's protect is a number, but it must be a protection such as kvpolicy::sinks{4}")
KVPOLICY_LAW(trigger_is_number, "this policy's trigger is a number, but it must be a trigger such as kvpolicy::over_budget{}")
KVPOLICY_LAW(pick_is_number, "this policy's pick is a number, but it must be a pick such as kvpolicy::at_least{0.5f}")
KVPOLICY_LAW(score_is_number, "this policy's score is a number, but it must be a scorer such as kvpolicy::snapkv{}")
KVPOLICY_LAW(is_value, "this part of a policy is no value, but a decision copies it: it must be default-constructible and copyable")
KVPOLICY_LAW(has_equality, "this part of a policy has no `operator==`, but parts are compared: friend bool operator==(T const&, T const&) = default")
KVPOLICY_LAW(fields_and_name, "this part of a policy has `fields()`, but no `static constexpr auto name`, a char const*, with which it prints")
KVPOLICY_LAW(own_equality, "this type inherits `operator==`, so what it adds is not compared, but a part of a policy has its own: hold the other part as a member, and write operator==, name and fields()")
KVPOLICY_LAW(own_fields, "this type inherits `fields()`, so what it adds is neither printed nor read, but a part of a policy has its own: hold the other part as a member, and write operator==, name and fields()")
KVPOLICY_HOOK(part_name, "part of a policy", name, int name, "printing reads `static constexpr auto name`, a char const*")
KVPOLICY_HOOK(part_fields, "part of a policy", fields, int fields, "printing calls `static constexpr auto fields()`, which returns kvpolicy::make_fields of its kvpolicy::field")

KVPOLICY_HOOK(scorer_needs, "scorer", needs, int needs, "a scorer says which signals it reads: `using needs = kvpolicy::needs<...>`")
KVPOLICY_HOOK(scorer_decides, "scorer", decides, int decides, "a scorer says who decides together: `static constexpr kvpolicy::granularity decides`")
KVPOLICY_HOOK(scorer_score, "scorer", score, int score, "a decision calls `score(exec, in, out) const`")
KVPOLICY_HOOK(scorer_forces, "scorer", forces, int forces, "a decision calls the hook `forces() const` (of a scorer that ranks candidates also `forces(in) const`), which returns a protection")
KVPOLICY_HOOK(scorer_triggers, "scorer", triggers, int triggers, "a decision calls the hook `triggers() const`, which returns a trigger")
KVPOLICY_HOOK(scorer_recorders, "scorer", recorders, int recorders, "make_state calls the hook `recorders() const`, which returns a std::tuple of recorders")
KVPOLICY_HOOK(scorer_ranks_candidates, "scorer", ranks_candidates, int ranks_candidates, "a decision reads `static constexpr bool ranks_candidates`")
KVPOLICY_HOOK(scorer_scores_of, "scorer", scores_of, int scores_of, "a decision reads `static constexpr kvpolicy::unit scores_of`")
KVPOLICY_HOOK(scorer_page, "scorer of pages", page, int page, "a selection reads `int page`, the entries of a page")
KVPOLICY_HOOK(scorer_check, "scorer", check, int check, "every call calls the hook `check(char const*) const`, or `check(char const*, kvpolicy::shape const&) const`")
KVPOLICY_HOOK(scorer_refuse, "scorer", refuse, int refuse, "a decision calls the hook `refuse(exec, in) const`")
KVPOLICY_HOOK(scorer_any_order, "scorer", any_order, int any_order, "a decision reads `static constexpr bool any_order`")
KVPOLICY_HOOK(scorer_entry_scores, "scorer", entry_scores, int entry_scores, "a decision calls the hook `entry_scores(in) const`, which returns a function `float operator()(float, kvpolicy::entry) const`")
KVPOLICY_HOOK(scorer_safe_across_ranks, "scorer", safe_across_ranks, int safe_across_ranks, "a decision calls the hook `safe_across_ranks() const`, which returns a bool")
KVPOLICY_HOOK(scorer_spare_rows, "scorer", spare_rows, int spare_rows, "make_plan calls the hook `spare_rows(kvpolicy::lanes const&, kvpolicy::shape const&) const`, which returns an int")

KVPOLICY_HOOK(budget_call, "budget", operator(), void operator()(), "a decision calls `operator()(kvpolicy::lane, int) const`, which returns an int")
KVPOLICY_HOOK(budget_scope_of, "budget", scope, int scope, "a decision calls the hook `scope() const`, which returns a kvpolicy::budget_scope")
KVPOLICY_HOOK(budget_floor, "budget", floor, int floor, "a decision calls the hook `floor(int) const`, which returns an int")
KVPOLICY_HOOK(budget_in_entries, "budget", in_entries, int in_entries, "a decision calls the hook `in_entries(kvpolicy::shape const&, std::int64_t) const`, which returns a budget")
KVPOLICY_HOOK(budget_allot, "budget", allot, int allot, "a decision calls the hook `allot(exec, in, kvpolicy::score_view const&, kvpolicy::by_lane<int> const&) const`")
KVPOLICY_HOOK(budget_check, "budget", check, int check, "every call calls the hook `check(char const*) const`")

KVPOLICY_HOOK(protection_call, "protection", operator(), void operator()(), "a decision calls `operator()(kvpolicy::entry) const`, which returns a bool")
KVPOLICY_HOOK(protection_candidates, "protection", candidates, int candidates, "a decision calls the hook `candidates(kvpolicy::lane_entries const&) const`, which returns a kvpolicy::ordinal_range")
KVPOLICY_HOOK(protection_pick, "protection", pick, int pick, "a decision calls the hook `pick(visit) const`, which hands a protection to `visit`")
KVPOLICY_HOOK(protection_visit, "protection", visit_protected, int visit_protected, "a decision on the host calls the hook `visit_protected(kvpolicy::lane_entries const&, visit) const`, which calls `visit(int)` for each protected entry")
KVPOLICY_HOOK(protection_check, "protection", check, int check, "every call calls the hook `check(char const*) const`")

KVPOLICY_HOOK(trigger_call, "trigger", operator(), void operator()(), "a decision calls `operator()(int count, int budget) const`, which returns a bool")
KVPOLICY_HOOK(trigger_check, "trigger", check, int check, "every call calls the hook `check(char const*) const`")
KVPOLICY_HOOK(pick_call, "pick", operator(), void operator()(), "a pick is kvpolicy::top, kvpolicy::lowest, kvpolicy::lowest_one, or has `operator()(float) const`, which returns a bool")
KVPOLICY_HOOK(pick_check, "pick", check, int check, "every call calls the hook `check(char const*) const`")

KVPOLICY_LAW(recorder_is_value, "this recorder is no regular value, but a state copies it and compares it: friend bool operator==(T const&, T const&) = default")
KVPOLICY_LAW(recorder_own_equality, "this recorder inherits `operator==`, so what it adds is not compared, but a state compares its recorders: hold the other recorder as a member, and write operator==")
KVPOLICY_HOOK(recorder_needs, "recorder", needs, int needs, "a recorder says which signals it reads: `using needs = kvpolicy::needs<...>`")
KVPOLICY_HOOK(recorder_provides, "recorder", provides, int provides, "a recorder says which signal it keeps: `using provides = ...`")
KVPOLICY_HOOK(recorder_columns, "recorder", columns, int columns, "make_state calls `columns(kvpolicy::shape const&, int bound) const`, which returns an array of kvpolicy::column")
KVPOLICY_HOOK(recorder_view, "recorder", view, int view, "a decision calls `view(kvpolicy::recorded_columns const&) const`, which returns the signal that it provides")
KVPOLICY_HOOK(recorder_observe, "recorder", observe, int observe, "observe calls `observe(exec, in, kvpolicy::recorded_columns const&) const`")
KVPOLICY_HOOK(recorder_forget, "recorder", forget, int forget, "truncate calls the hook `forget(exec, kvpolicy::lanes const&, kvpolicy::recorded_columns const&, int sequence, int position) const`")
KVPOLICY_HOOK(recorder_of_entries, "recorder", of_entries, int of_entries, "a cache policy reads `static constexpr bool of_entries`")
KVPOLICY_HOOK(recorder_refuse_part, "recorder", refuse_part, int refuse_part, "observe of a dual cache calls the hook `refuse_part(char const*, in) const`")
KVPOLICY_HOOK(recorder_known_at_append, "recorder", known_at_append, int known_at_append, "a cache policy reads `static constexpr bool known_at_append`")

KVPOLICY_HOOK(policy_score, "policy", score, int score, "a policy has a data member `score`, a scorer")
KVPOLICY_HOOK(policy_protect, "policy", protect, int protect, "a policy has a data member `protect`, a protection")
KVPOLICY_HOOK(policy_budget, "policy", budget, int budget, "a policy has a data member `budget`, a budget")
KVPOLICY_HOOK(policy_trigger, "policy", trigger, int trigger, "a policy has a data member `trigger`, a trigger")
KVPOLICY_HOOK(policy_pick, "policy", pick, int pick, "a decision reads the data member `pick`, a pick")
KVPOLICY_HOOK(policy_picks, "policy", picks, int picks, "a decision reads the data member `pick`")
KVPOLICY_LAW(policy_no_picks, "this policy has a member `picks`, but a decision reads the data member `pick`, a pick")
KVPOLICY_HOOK(policy_window, "admission policy", window, int window, "an admission reads the data member `window`, an int")
KVPOLICY_HOOK(policy_cap, "admission policy", cap, int cap, "an admission reads the data member `cap`, an int")
KVPOLICY_HOOK(policy_dense_layers, "selection policy", dense_layers, int dense_layers, "a selection reads the data member `dense_layers`, an int")
KVPOLICY_HOOK(policy_check, "policy", check, int check, "every call calls the hook `check(char const*) const`")
KVPOLICY_LAW(scores_tokens, "this policy's scorer scores pages, but an eviction or an admission needs one of tokens: pages are selected, by kvpolicy::selection")
KVPOLICY_LAW(scores_pages, "this policy's scorer scores tokens, but a selection needs one of pages: `static constexpr auto scores_of = kvpolicy::item::page` and `int page`")
KVPOLICY_LAW(scores_alone, "this policy's scorer ranks candidates or scores blocks, but an admission asks about each entry by itself")
KVPOLICY_LAW(picks_alone, "this policy's pick compares entries, but an admission asks about each by itself: `operator()(float) const`, which returns a bool, such as kvpolicy::at_least{0.5f}")

KVPOLICY_HOOK(rule_budget, "rule", budget, int budget, "the verb calls `budget(kvpolicy::lane, int) const`, which returns an int")
KVPOLICY_HOOK(rule_triggers, "rule", triggers, int triggers, "the verb calls `triggers(int count, int budget) const`, which returns a bool")
KVPOLICY_HOOK(rule_forces, "rule", forces, int forces, "the verb calls `forces(kvpolicy::entry) const`, which returns a bool")
KVPOLICY_HOOK(rule_picks, "rule", picks, int picks, "the verb calls `picks(float) const`, which returns a bool")
KVPOLICY_HOOK(rule_candidates, "rule", candidates, int candidates, "the verb calls the hook `candidates(kvpolicy::lane_entries const&) const`, which returns a kvpolicy::ordinal_range")
KVPOLICY_HOOK(rule_scope, "rule", scope, int scope, "the verb calls the hook `scope() const`, which returns a kvpolicy::budget_scope")
KVPOLICY_HOOK(rule_floor, "rule", floor, int floor, "the verb calls the hook `floor(int) const`, which returns an int")
KVPOLICY_HOOK(map_call, "function of ops::map", operator(), void operator()(), "the verb calls `operator()(float, kvpolicy::entry) const`, which returns a float")
KVPOLICY_HOOK(applier_name, "applier", name, int name, "errors and engines read `static constexpr auto name`, a char const*")
KVPOLICY_HOOK(applier_effects, "applier", effects, int effects, "engines read `static constexpr kvpolicy::applier_effects effects`")
KVPOLICY_HOOK(applier_refuse, "applier", refuse, int refuse, "apply calls `refuse(exec, kvpolicy::keep_set const&, kvpolicy::cache const&) const`, or the same with a `kvpolicy::state const&` behind")
KVPOLICY_HOOK(applier_edit, "applier", edit, int edit, "apply calls `edit(exec, kvpolicy::keep_set const&, kvpolicy::cache const&, state&, kvpolicy::apply_stats*) const`")
KVPOLICY_HOOK(applier_columns, "applier", columns, int columns, "make_state calls the hook `columns(kvpolicy::cache const&) const`, which returns a std::vector<kvpolicy::column>")
KVPOLICY_HOOK(applier_takes_dropped, "applier", takes_dropped, int takes_dropped, "apply reads `static constexpr bool takes_dropped`")
KVPOLICY_HOOK(signal_check, "signal", check, int check, "every call calls the hook `check(char const*, kvpolicy::shape const&) const`")
KVPOLICY_HOOK(signal_check_strides, "signal", check_strides, int check_strides, "every call calls the hook `check_strides(char const*, kvpolicy::lanes const&) const`")
KVPOLICY_HOOK(signal_check_rows, "signal", check_rows, int check_rows, "observe and decide call the hook `check_rows(char const*, kvpolicy::lanes const&) const`")
// clang-format on
/// @endcond
#undef KVPOLICY_LAW
#undef KVPOLICY_HOOK

}  // namespace hook

}  // namespace KVPOLICY_NAMESPACE::detail
