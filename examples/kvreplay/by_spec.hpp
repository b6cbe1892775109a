// Replays the admission or the selection of a spec.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "admit.hpp"
#include "go_through.hpp"
#include "select.hpp"

namespace kvreplay {

/// Replays a selection, which prints as `text`.
inline void replay_selection(options const& with, trace& of, kv::any_selection const& policy, std::string const& text,
                             stopwatch& whole) {
  policy.visit([&](auto const& typed) {
    auto const make = [&](trace& part, group_of_layers const& group) {
      auto now = typed;
      if (group.without_policy) now.dense_layers = part.shape().layers;
      return std::make_unique<selection_replay<decltype(now)>>(with, part, now);
    };
    go_through(with, of, {text}, make, whole);
  });
}

/// The table that the scorer of a spec names; empty if it names none.
[[nodiscard]] inline std::string table_in(std::string const& spec) {
  auto const sections = kv::split_sections(spec);
  for (kv::spec_part const& each : sections.front().parts) {
    if (each.name == kv::head_table::name && !each.arguments.empty()) return std::string(each.arguments.front().value);
  }
  return {};
}

inline void admit_by_spec(options const& with, trace& of, stopwatch& whole) {
  refuse_options(with, {});
  registry known = kv::shipped<executor>();
  std::string const table = table_in(with.spec);
  std::optional<head_numbers> heads;
  if (!table.empty()) heads.emplace(of, table);
  if (heads) known.table(table, heads->table({}));
  kv::any_admission const policy = *kv::parse_cache_policy<executor>(with.spec, known).admit;
  kv::expects(!std::holds_alternative<kv::write_gate>(policy.score) || of.gate, "kvreplay", "tensor gate", "missing",
              "write_gate admits by it");
  policy.visit([&](auto const& typed) {
    auto const make = [&](trace& part, group_of_layers const& group) {
      auto now = typed;
      if constexpr (requires { now.score.heads; }) {
        if (heads) now.score.heads = heads->table(group.layers);
      }
      if (group.without_policy) now.window = part.entries();
      return std::make_unique<admission_replay<decltype(now)>>(with, part, now, wg_kv_fields{}.page);
    };
    go_through(with, of, {kv::to_string(typed)}, make, whole);
  });
}

inline void select_by_spec(options const& with, trace& of, stopwatch& whole) {
  refuse_options(with, {});
  kv::any_selection const policy = *kv::parse_cache_policy<executor>(with.spec).select;
  replay_selection(with, of, policy, kv::to_string(policy), whole);
}

}  // namespace kvreplay
