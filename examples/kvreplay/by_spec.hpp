// Replays the admission or the selection of a spec.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "admit.hpp"
#include "go_through.hpp"
#include "select.hpp"

namespace kvreplay {

/// Replays a selection, which prints as `text`.
inline void replay_selection(options const& with, trace& of, any_selection const& policy, std::string const& text,
                             stopwatch& whole) {
  auto const make = [&](trace& part, group_of_layers const& group) {
    any_selection now = policy;
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

/// The table of the importance of layers that the budget of a spec names; empty if it names none.
[[nodiscard]] inline std::string importance_in(std::string const& spec) {
  std::string table;
  bool by_importance = false;
  auto const sections = kv::split_sections(spec);
  for (kv::spec_part const& part : sections.front().parts) {
    if (part.name != kv::any_budget::name) continue;
    for (kv::spec_argument const& each : part.arguments) {
      if (each.name == "table") table = each.value;
      if (each.name == "by") by_importance = each.value == kv::to_string(kv::sharing::importance);
    }
  }
  return by_importance ? table : std::string();
}

inline void admit_by_spec(options const& with, trace& of, stopwatch& whole) {
  refuse_options(with, {});
  std::string const table = table_in(with.spec);
  std::optional<head_numbers> heads;
  if (!table.empty()) heads.emplace(of, table);
  auto const policy_of = [&](std::vector<int> const& layers) {
    registry known = kv::shipped<executor>();
    if (heads) known.table(table, heads->table(layers));
    return *kv::parse_cache_policy<executor>(with.spec, known).admit;
  };
  any_admission const policy = policy_of({});
  kv::expects(policy.score.name_inside() != kv::write_gate::name || of.gate, "kvreplay", "tensor gate", "missing",
              "write_gate admits by it");
  auto const make = [&](trace& part, group_of_layers const& group) {
    any_admission now = policy_of(group.layers);
    if (group.without_policy) now.window = part.entries();
    return std::make_unique<admission_replay>(with, part, now, wg_kv_fields{}.page);
  };
  go_through(with, of, {kv::to_string(policy)}, make, whole);
}

inline void select_by_spec(options const& with, trace& of, stopwatch& whole) {
  refuse_options(with, {});
  any_selection const policy = *kv::parse_cache_policy<executor>(with.spec).select;
  replay_selection(with, of, policy, kv::to_string(policy), whole);
}

}  // namespace kvreplay
