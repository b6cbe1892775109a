// SPDX-License-Identifier: Apache-2.0
// kvreplay's output: a JSON object, or a table with the same contents.
#pragma once

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "named.hpp"
#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// A policy's text, and its granularity.
struct policy_text {
  std::string spec;
  kv::granularity decides = kv::granularity::lane;
};

[[nodiscard]] inline nlohmann::json fields_set(options const& with) {
  nlohmann::json fields = nlohmann::json::object();
  for (policy_info const& one : all_policies(with)) {
    if (one.name != with.policy) continue;
    for (kv::field_info const& field : one.fields) fields[field.name] = field.value;
  }
  for (std::string const& set : with.set) fields[set.substr(0, set.find('='))] = set.substr(set.find('=') + 1);
  return fields;
}

[[nodiscard]] inline nlohmann::json summary(options const& with, trace const& of, policy_text const& policy,
                                            results const& found) {
  milliseconds const& ms = found.ms;
  nlohmann::json all = {
      {"policy", with.policy},
      {"spec", policy.spec},
      {"fields", fields_set(with)},
      {"mode", kv::to_string(with.how)},
      {"layout", with.layout_name},
      {"granularity", kv::to_string(policy.decides)},
      {"segments", found.segments},
      {"entries", of.entries()},
      {"logical_kept", found.stats.logical_kept},
      {"physical_freed", found.stats.physical_freed},
      {"attended_length", found.stats.attended_length},
      {"nan_scores", found.report.nan_scores},
      {"forced_over_budget", found.report.forced_over_budget},
      {"ms",
       {{"decide", ms.decide}, {"apply", ms.apply}, {"attend", ms.attend}, {"write", ms.write}, {"total", ms.total}}},
      {"warnings", found.warnings}};
  if (found.promoted) {
    all["admitted"] = found.promoted->promoted;
    all["over_cap"] = found.promoted->over_cap;
    all["pages"] = found.promoted->pages;
  }
  return all;
}

inline void print_summary(nlohmann::json const& of) {
  fmt::print("{}\n", of["spec"].get<std::string>());
  for (char const* const name : {"mode", "layout", "granularity", "segments", "entries", "logical_kept",
                                 "physical_freed", "attended_length", "nan_scores", "forced_over_budget"}) {
    fmt::print("{:<20} {}\n", name, of[name].is_string() ? of[name].get<std::string>() : of[name].dump());
  }
  for (char const* const name : {"admitted", "over_cap", "pages"}) {
    if (of.contains(name)) fmt::print("{:<20} {}\n", name, of[name].dump());
  }
  for (char const* const name : {"decide", "apply", "attend", "write", "total"}) {
    fmt::print("ms.{:<17} {:.3f}\n", name, of["ms"][name].get<double>());
  }
  for (nlohmann::json const& one : of["warnings"]) fmt::print("warning: {}\n", one.get<std::string>());
}

/// Lists every policy with its fields, defaults, signals, granularity and modes.
[[nodiscard]] inline nlohmann::json listing(options const& with) {
  nlohmann::json all = nlohmann::json::array();
  for (policy_info const& one : all_policies(with)) {
    nlohmann::json fields = nlohmann::json::array();
    for (kv::field_info const& each : one.fields) {
      fields.push_back({{"name", each.name}, {"type", each.type}, {"default", each.value}});
    }
    all.push_back({{"name", one.name},
                   {"fields", fields},
                   {"signals", one.signals},
                   {"granularity", kv::to_string(one.decides)},
                   {"modes", one.modes}});
  }
  return all;
}

inline void print_listing(nlohmann::json const& all) {
  for (nlohmann::json const& one : all) {
    auto const listed = [&](char const* of) {
      std::string text;
      for (nlohmann::json const& each : one[of]) text += (text.empty() ? "" : ", ") + each.get<std::string>();
      return text.empty() ? std::string("nothing") : text;
    };
    fmt::print("{}\n  decides by {}; needs {}; modes {}\n", one["name"].get<std::string>(),
               one["granularity"].get<std::string>(), listed("signals"), listed("modes"));
    for (nlohmann::json const& each : one["fields"]) {
      fmt::print("  {}={} ({})\n", each["name"].get<std::string>(), each["default"].get<std::string>(),
                 each["type"].get<std::string>());
    }
  }
}

[[nodiscard]] inline nlohmann::json description(trace const& of) {
  nlohmann::json tensors = nlohmann::json::object();
  for (auto const& [name, one] : of.file().tensors()) tensors[name] = {{"dtype", one.dtype}, {"shape", one.shape}};
  return {{"layers", of.shape().layers},
          {"query_heads", of.shape().query_heads},
          {"kv_heads", of.shape().kv_heads},
          {"head_dim", of.shape().head_dim},
          {"value_dim", of.value_dim()},
          {"entries", of.entries()},
          {"tensors", tensors},
          {"metadata", of.file().all_metadata()}};
}

}  // namespace kvreplay
