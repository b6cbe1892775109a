// SPDX-License-Identifier: Apache-2.0
// Replays the admission or the selection of a spec.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admit.hpp"
#include "go_through.hpp"
#include "select.hpp"

namespace kvreplay {

/// Replays a selection, which prints as `text`. `policy_of(layers)` makes that of some layers.
template <class PolicyOf>
void replay_selection(options const& with, trace& of, PolicyOf const& policy_of, std::string const& text,
                      stopwatch& whole) {
  auto const make = [&](trace& part, group_of_layers const& group) {
    any_selection now = policy_of(group.layers);
    if (group.without_policy) now.dense_layers = part.shape().layers;
    return std::make_unique<selection_replay>(with, part, now);
  };
  go_through(with, of, {text}, make, whole);
}

/// The table that the scorer of a spec names; empty if it names none.
[[nodiscard]] inline std::string table_in(std::string const& spec) {
  auto const sections = kv::split_sections(spec);
  for (kv::spec_part const& each : sections.front().parts) {
    if (each.name == kv::head_table::name && !each.arguments.empty()) return std::string(each.arguments.front().value);
  }
  return {};
}

/// The thresholds of heads or of layers by which a spec picks, if it has such a pick.
class thresholds_of_spec {
 public:
  /// Reads them if there are any.
  thresholds_of_spec(trace const& of, std::string const& spec) : name_(named_in(spec)) {
    if (name_.empty()) return;
    kv::expects(std::same_as<executor, kv::host_executor>, "kvreplay", "--spec", kv::at_least_table::name,
                "the table that it reads is in the host's memory");
    numbers_.emplace(of, name_, table_of::thresholds);
  }
  /// Gives a registry the thresholds of some layers, which live as long as this object.
  void join(registry& known, std::vector<int> const& layers) {
    if (numbers_) known.table(name_, numbers_->table(layers));
  }

 private:
  static std::string named_in(std::string const& spec) {
    auto const sections = kv::split_sections(spec);
    for (kv::spec_part const& each : sections.front().parts) {
      if (each.name != kv::at_least_table::name) continue;
      if (auto const* const table = kv::detail::argument_of<kv::at_least_table>(each, "table"); table != nullptr)
        return std::string(table->value);
    }
    return {};
  }

  std::string name_;
  std::optional<head_numbers> numbers_;
};

/// The table of numbers of layers that the system of a spec shares a budget out by. CompressKV shares out by one if the
/// trace has it.
[[nodiscard]] inline std::string importance_of_system(kv::spec_part const& system, trace const& from) {
  kv::epi_cache drifts;
  if (system.name == drifts.name) {
    kv::detail::set_fields(drifts, system);
    return kv::to_string(drifts.table);
  }
  kv::compress_kv fields;
  if (system.name != fields.name) return {};
  kv::detail::set_fields(fields, system);
  std::string const table = kv::to_string(fields.importance);
  return from.table.count(table) != 0 ? table : std::string();
}

/// The table of numbers of layers that the budget of a spec names; empty if it names none.
[[nodiscard]] inline std::string importance_in(std::string const& spec, trace const& from) {
  std::string table;
  bool by_importance = false;
  auto const sections = kv::split_sections(spec);
  for (kv::spec_part const& part : sections.front().parts) {
    if (part.name != kv::any_budget::name) continue;
    for (kv::spec_argument const& each : part.arguments) {
      if (each.name == "table") table = each.value;
      if (each.name == "by") {
        by_importance = each.value == kv::to_string(kv::sharing::importance) || each.value == kv::table_power::name;
      }
    }
  }
  return by_importance ? table : importance_of_system(sections.front().parts.front(), from);
}

/// The table of rows of heads, or of numbers of query heads, that the scorer or the system of a spec reads, or the
/// sketch of keys if the trace has one.
class rows_of_spec {
 public:
  /// Reads it if there is one.
  rows_of_spec(trace const& of, std::string const& spec, registry const& known) : name_(named_in(spec, known)) {
    if (what_ == table_of::sketch && of.table.count(name_) == 0) name_.clear();
    if (!name_.empty()) expect_host(spec);
    if (!name_.empty()) rows_.emplace(of, name_, what_);
  }
  /// Gives a registry the rows of some layers, which live as long as this object.
  void join(registry& known, std::vector<int> const& layers) {
    if (rows_) known.table(name_, kv::rows_of_heads{rows_->table(layers), rows_->width()});
  }

 private:
  std::string named_in(std::string const& spec, registry const& known);
  static void expect_host(std::string const& spec) {
    kv::expects(std::same_as<executor, kv::host_executor>, "kvreplay", "--policy",
                kv::split_sections(spec).front().parts.front().name, "the table that it reads is in the host's memory");
  }

  table_of what_ = table_of::rows;
  std::string name_;
  std::optional<head_numbers> rows_;
};

inline std::string rows_of_spec::named_in(std::string const& spec, registry const& known) {
  auto const sections = kv::split_sections(spec);
  kv::spec_part const& scorer = sections.front().parts.front();
  auto all = known.list();
  for (kv::scorer_info const& each : known.list_admissions()) all.push_back(each);
  auto const found = std::find_if(all.begin(), all.end(), [&](auto const& one) { return one.name == scorer.name; });
  bool const sketched = scorer.name == kv::leverage::name || scorer.name == kv::compactor::name;
  if (sketched) what_ = table_of::sketch;
  if (sketched) return "sketch";
  if (found == all.end() || found->rows_field.empty()) return {};
  if (found->rows_field != "table") what_ = table_of::query_heads;
  for (std::size_t i = 0; i < found->fields.size(); ++i) {
    if (found->fields[i].name != found->rows_field) continue;
    for (std::size_t a = 0; a < scorer.arguments.size(); ++a) {
      kv::spec_argument const& each = scorer.arguments[a];
      if (each.name.empty() ? a == i : each.name == found->rows_field) return std::string(each.value);
    }
    return found->fields[i].value;
  }
  return {};
}

/// True for a system or a scorer that goes by the classes of tokens.
[[nodiscard]] inline bool goes_by_classes(std::string_view name) {
  return name == kv::fastgen::name || name == kv::cheapest_recipe::name;
}

/// Where the prompt ends and the classes of tokens, by position, which the parts `prompt` and `marks` of a spec read,
/// and FastGen.
class token_tables {
 public:
  /// Gives a registry those that a spec reads, and refuses a spec that reads one that the trace does not have. They
  /// must outlive the policy.
  void join(registry& known, trace const& of, std::string const& spec) {
    for (kv::spec_section const& each : kv::split_sections(spec)) {
      for (kv::spec_part const& part : each.parts) {
        if (part.name == kv::prompt::name) join_prompt(known, of);
        if (goes_by_classes(part.name) || part.name == kv::marks::name) join_classes(known, of, part.name);
      }
    }
  }

 private:
  static void expect_host(std::string_view part) {
    kv::expects(std::same_as<executor, kv::host_executor>, "kvreplay", "--spec", part,
                "the tables of tokens are in the host's memory");
  }
  void join_prompt(registry& known, trace const& of) {
    expect_host(kv::prompt::name);
    if (of.prompt_end.empty()) refuse("prompt_end", "missing", "prompt protects by it");
    int const entries = of.prompt_end.front();
    prompt_end_ = entries == 0 ? 0 : of.positions[size(entries - 1)] + 1;
    known.table("prompt_end", kv::by_lane<int const>{&prompt_end_});
  }
  void join_classes(registry& known, trace const& of, std::string_view by) {
    expect_host(by);
    if (of.token_class.empty()) refuse("token_class", "missing", std::string(by) + " goes by it");
    if (of.positions.back() >= 2LL * of.entries() + (1 << 20)) {
      refuse("positions", std::to_string(of.positions.back()), "a row of classes would be far longer than the trace");
    }
    classes_.assign(size(of.positions.back()) + 1, 0);
    for (int e = 0; e < of.entries(); ++e) classes_[size(of.positions[size(e)])] = of.token_class[size(e)];
    known.table("token_class", kv::by_lane<int const>{classes_.data()});
  }

  int prompt_end_ = 0;
  std::vector<int> classes_;
};

/// Replays the admission of a spec, or a system of the registry with the options of the command line.
inline void admit_by_spec(options const& with, trace& of, stopwatch& whole) {
  refuse_options(with, {{"--ratio", with.ratio}, {"--rounding", with.rounding}});
  spelled const own = with.spec.empty() ? admission_spec_of(with) : spelled();
  std::string const text = with.spec.empty() ? own.text() : with.spec;
  std::string const table = own.read([&] { return table_in(text); });
  std::optional<head_numbers> heads;
  if (!table.empty()) heads.emplace(of, table);
  token_tables tokens;
  auto const sections = kv::split_sections(text);
  registry known = known_parts(with);
  rows_of_spec rows(of, text, known);
  std::optional<thresholds_of_spec> thresholds;
  own.read([&] { thresholds.emplace(of, text); });
  auto const policy_of = [&](std::vector<int> const& layers) {
    tokens.join(known, of, text);
    if (heads) known.table(table, heads->table(layers));
    thresholds->join(known, layers);
    rows.join(known, layers);
    return own.read([&] { return known.admission_of(sections.front().parts); });
  };
  any_admission const policy = policy_of({});
  kv::expects(policy.score.name_inside() != kv::write_gate::name || of.gate, "kvreplay", "tensor gate", "missing",
              [&] { return with.policy + " admits by it"; });
  auto const make = [&](trace& part, group_of_layers const& group) {
    any_admission now = policy_of(group.layers);
    if (group.without_policy) now.window = part.entries();
    return std::make_unique<admission_replay>(with, part, now, wg_kv_fields{}.page);
  };
  std::string const says =
      with.spec.empty() ? spell(known.spell_admission(sections.front().parts.front()), with) : kv::to_string(policy);
  go_through(with, of, {says}, make, whole);
}

inline void select_by_spec(options const& with, trace& of, stopwatch& whole) {
  refuse_options(with, {});
  registry known = known_parts(with);
  token_tables tokens;
  tokens.join(known, of, with.spec);
  thresholds_of_spec thresholds(of, with.spec);
  auto const policy_of = [&](std::vector<int> const& layers) {
    thresholds.join(known, layers);
    return *kv::parse_cache_policy<executor>(with.spec, known).select;
  };
  replay_selection(with, of, policy_of, kv::to_string(policy_of({})), whole);
}

/// Replays a selection by a scorer of pages of the registry, with the options of the command line.
inline void select_by_name(options const& with, trace& of, stopwatch& whole) {
  refuse_options(with, {{"--sinks", with.sinks}, {"--protect", with.protect.empty() ? "" : with.protect.front()}});
  spelled scorer;
  scorer.add_fields(with.policy, with.set);
  std::string const text = scorer.text();
  any_selection policy = scorer.read([&] { return known_parts(with).selection_of(kv::split_spec(text)); });
  policy.budget = tokens_read(with);
  replay_selection(with, of, [&](std::vector<int> const&) { return policy; }, kv::to_string(policy), whole);
}

}  // namespace kvreplay
