// SPDX-License-Identifier: Apache-2.0
// kvreplay's command line, and the spec that follows from it.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <concepts>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <vector>

#include "../executor.hpp"
#include "../plugins.hpp"
#include "../program.hpp"
#include "spelled.hpp"

namespace kvreplay {

namespace kv = kvpolicy;
using examples::executor;
using any_policy = kv::basic_any_policy<executor>;
using any_admission = kv::basic_any_admission<executor>;
using any_selection = kv::basic_any_selection<executor>;
using registry = kv::basic_registry<executor>;

/// The layouts of the program, and two of an applier that a plugin adds: on rows of lanes, and on lists of slots.
enum class layout { compact, compact_rerotated, dead_slot, mask, lane_pages, own, own_list };
[[nodiscard]] constexpr std::array<char const*, 5> names(layout) {
  return {"compact", "compact_rerotated", "dead_slot", "mask", "lane_pages"};
}

enum class mode { prefill, decode, turns, select, chunks, layers };
[[nodiscard]] constexpr std::array<char const*, 6> names(mode) {
  return {"prefill", "decode", "turns", "select", "chunks", "layers"};
}

struct options {
  std::string trace, policy, spec, out, html;
  std::string docs = "docs/kvreplay.md";  ///< where the page's link to the documentation leads
  std::string section = "evict";          ///< of the spec: admit, select or evict
  std::vector<std::string> set, protect, no_policy, plugins;
  std::string budget, ratio, rounding, scope, floor, slack, sinks, recent, granularity, reduce;
  std::string mode_name = "prefill", layout_name = "compact", device = examples::device_name;
  int prefill = 0;
  int chunk = 0;
  int threads = 1;
  bool list = false, describe = false, json = false, attend = false;
  bool keeps_prompt = false;   ///< the policy's published settings protect it, and the trace says where it ends
  bool has_no_budget = false;  ///< the policy says itself how many entries stay
  mode how = mode::prefill;
  layout lay = layout::compact;
  kv::basic_any_applier<executor> own;  ///< of the layouts of a plugin
};

inline void add_to(CLI::App& app, options& to) {
  app.add_option("trace", to.trace, "a safetensors file");
  app.add_flag("--list", to.list, "every policy: fields, types, defaults, signals, granularity, modes");
  app.add_flag("--describe", to.describe, "what the trace holds");
  app.add_option("--plugin", to.plugins, "a shared library with parts of your own; repeatable");
  app.add_option("--policy", to.policy, "its name, as --list prints it");
  app.add_option("--spec", to.spec,
                 "a whole policy, such as 'snapkv | budget(64)', instead of --policy and its options");
  app.add_option("--set", to.set, "FIELD=VALUE of that policy; repeatable");
  app.add_option("--budget", to.budget,
                 "entries kept a lane, forced ones included; of quest: read; of an admission: admitted");
  app.add_option("--ratio", to.ratio, "the fraction to drop, instead of a budget");
  app.add_option("--rounding", to.rounding, "of a ratio: exact (the default), at_least_one, kvpress or kvpress_0_5_4");
  app.add_option("--budget-scope", to.scope, "lane, layer or global");
  app.add_option("--floor", to.floor, "the part of a shared budget that each lane keeps first");
  app.add_option("--slack", to.slack,
                 "after a prompt: how far a lane may be above its budget before it is cut down to it");
  app.add_option("--sinks", to.sinks, "first positions, forced");
  app.add_option("--recent", to.recent, "last entries, forced");
  app.add_option("--protect", to.protect, "positions A:B, forced; repeatable");
  app.add_option("--granularity", to.granularity, "who decides together: lane, layer or token");
  app.add_option("--reduce", to.reduce, "how lanes become one: sum, mean or max");
  app.add_option("--no-policy", to.no_policy, "a group of the tensor layer_group that keeps everything; repeatable");
  app.add_option("--mode", to.mode_name, "prefill, decode, turns, chunks, layers or select");
  app.add_option("--chunk", to.chunk, "chunks: entries that arrive at a time");
  app.add_option("--prefill", to.prefill, "decode: entries that are there at the start");
  app.add_option("--layout", to.layout_name, "compact, compact_rerotated, dead_slot, mask, lane_pages or a plugin's");
  app.add_flag("--attend", to.attend, "also the attention of the last query row over what is left");
  app.add_option("--threads", to.threads, "threads of the decisions");
  app.add_option("--device", to.device, "cpu or cuda");
  examples::add_output_option(app, "--out", to.out, "write the results into this safetensors file");
  examples::add_output_option(app, "--html", to.html, "write what every lane held, step by step, into this HTML file");
  app.add_option("--docs", to.docs, "where the link of that page to the documentation leads");
  app.add_flag("--json", to.json, "print one JSON object");
}

/// What the library ships, and the parts of plugins.
[[nodiscard]] inline registry known_parts(options const& with) {
  registry known = kv::shipped<executor>();
  examples::load_plugins("kvreplay", with.plugins, known);
  for (auto const& each : known.appliers()) {
    layout lay{};
    kv::expects(!kv::detail::read_value(each.name(), lay), "kvreplay", "--plugin", with.plugins.back(),
                [&] { return "it adds an applier " + std::string(each.name()) + ", which is a layout already"; });
  }
  return known;
}

/// H2O's budget if only its two parts are given: their sum.
[[nodiscard]] inline std::string heavy_and_recent(std::vector<std::string> const& set) {
  kv::h2o with;
  for (std::string const& one : set) {
    if (one.rfind("heavy=", 0) == 0) kv::detail::read_value(std::string_view(one).substr(6), with.heavy);
    if (one.rfind("recent=", 0) == 0) kv::detail::read_value(std::string_view(one).substr(7), with.recent);
  }
  return with.heavy < 0 || with.recent < 0 ? "" : std::to_string(std::int64_t{with.heavy} + with.recent);
}

/// The count that an option gives, or `otherwise` if it is not set.
[[nodiscard]] inline int count_of(char const* option, std::string const& text, int otherwise) {
  if (text.empty()) return otherwise;
  int made = 0;
  kv::expects(kv::detail::read_value(text, made) && made >= 0, "kvreplay", option, text, "it is a count, 0 or more");
  return made;
}

/// Runs `work`. An error of it that contains `about` becomes an error of the option.
template <class Work>
decltype(auto) as_said_by(char const* option, std::string const& value, char const* about, Work const& work) {
  try {
    return work();
  } catch (kv::invalid_argument const& wrong) {
    if (std::string_view(wrong.what()).find(about) == std::string_view::npos) throw;
    throw kv::invalid_argument(std::string("kvreplay: ") + option + " = " + value + ", but " + wrong.what());
  }
}

/// The entries that `--protect A:B` protects.
[[nodiscard]] inline kv::ordinal_range range_of(std::string const& text) {
  std::size_t const colon = text.find(':');
  kv::ordinal_range made;
  bool const there = colon != std::string::npos &&
                     kv::detail::read_value(std::string_view(text).substr(0, colon), made.begin) &&
                     kv::detail::read_value(std::string_view(text).substr(colon + 1), made.end);
  kv::expects(there && made.begin >= 0 && made.begin <= made.end, "kvreplay", "--protect", text,
              "it is A:B, half open, 0 <= A <= B");
  return made;
}

/// Adds the positions that `--protect` protects.
inline void add_spans(spelled& text, options const& with) {
  for (std::string const& range : with.protect) {
    kv::ordinal_range const span = range_of(range);
    text.add("--protect", range, " | span(" + std::to_string(span.begin) + ", " + std::to_string(span.end) + ")");
  }
}

/// A system of an admission as a spec, so that its values are checked where those of specs are.
[[nodiscard]] inline spelled admission_spec_of(options const& with) {
  spelled text;
  text.add_fields(with.policy, with.set);
  for (auto const& [option, value] : {std::pair{"--budget", with.budget}, {"--sinks", with.sinks}}) {
    (void)count_of(option, value, 0);
  }
  if (!with.sinks.empty()) text.add("--sinks", with.sinks, " | sinks(" + with.sinks + ")");
  add_spans(text, with);
  if (!with.budget.empty()) text.add("--budget", with.budget, " | cap(" + with.budget + ")");
  return text;
}

/// The policy as a spec, so that all values are checked in one place.
[[nodiscard]] inline spelled spec_of(options const& with) {
  spelled text;
  text.add_fields(with.policy, with.set);
  auto lowered = kv::granularity::lane;
  kv::expects(with.granularity.empty() || kv::detail::read_value(with.granularity, lowered), "kvreplay",
              "--granularity", with.granularity, "there are lane, layer and token");
  for (auto const& [option, value] : {std::pair{"--budget", with.budget},
                                      {"--slack", with.slack},
                                      {"--sinks", with.sinks},
                                      {"--recent", with.recent}}) {
    (void)count_of(option, value, 0);
  }
  if (!with.granularity.empty() || !with.reduce.empty()) {
    std::string const decides = with.granularity.empty() ? "token" : with.granularity;
    std::string const how = with.reduce.empty() ? "sum" : with.reduce;
    text.add("--granularity", decides, " | reduce_lanes(" + decides);
    text.add("--reduce", how, ", " + how + ")");
  }
  if (!with.sinks.empty()) text.add("--sinks", with.sinks, " | sinks(" + with.sinks + ")");
  if (with.keeps_prompt) text.add(" | prompt");
  if (!with.recent.empty()) text.add("--recent", with.recent, " | recent(" + with.recent + ")");
  add_spans(text, with);
  kv::expects(with.budget.empty() || with.ratio.empty(), "kvreplay", "--ratio", with.ratio, "there is a --budget");
  std::string const budget = with.budget.empty() && with.policy == "h2o" ? heavy_and_recent(with.set) : with.budget;
  if (budget.empty() && with.ratio.empty()) {
    kv::expects(with.has_no_budget || with.policy == "full", "kvreplay", "--budget", "missing",
                "it says how many entries a lane keeps");
    return text;
  }
  if (with.policy == "full") return text;  // its budget is ignored
  if (with.ratio.empty()) text.add("--budget", budget, " | budget(" + budget);
  if (!with.ratio.empty()) text.add("--ratio", with.ratio, " | budget(ratio=" + with.ratio);
  if (!with.scope.empty()) text.add("--budget-scope", with.scope, ", scope=" + with.scope);
  if (!with.floor.empty()) text.add("--floor", with.floor, ", floor=" + with.floor);
  if (!with.rounding.empty()) text.add("--rounding", with.rounding, ", rounding=" + with.rounding);
  if (!with.ratio.empty()) text.add(with.rounding.empty() ? ", rounding=exact, held=true" : ", held=true");
  text.add(")");
  if (!with.slack.empty()) text.add("--slack", with.slack, " | over_budget(" + with.slack + ")");
  return text;
}

/// Refuses options that are parts of a spec beside a spec.
inline void check_spec_alone(options const& with) {
  std::pair<char const*, std::string> const parts[] = {{"--policy", with.policy},
                                                       {"--set", with.set.empty() ? "" : with.set.front()},
                                                       {"--budget", with.budget},
                                                       {"--ratio", with.ratio},
                                                       {"--rounding", with.rounding},
                                                       {"--budget-scope", with.scope},
                                                       {"--floor", with.floor},
                                                       {"--slack", with.slack},
                                                       {"--sinks", with.sinks},
                                                       {"--recent", with.recent},
                                                       {"--protect", with.protect.empty() ? "" : with.protect.front()},
                                                       {"--reduce", with.reduce},
                                                       {"--granularity", with.granularity}};
  for (auto const& [option, value] : parts) {
    kv::expects(value.empty(), "kvreplay", option, value, "--spec says the whole policy");
  }
}

/// Reads `--layout`: a name of the program, or of an applier that a plugin adds.
inline void settle_layout(options& with) {
  if (kv::detail::read_value(with.layout_name, with.lay)) return;
  registry const known = known_parts(with);
  with.own = known.applier_of(with.layout_name);
  kv::expects(with.own.there(), "kvreplay", "--layout", with.layout_name, [&] {
    std::string added;
    for (auto const& each : known.appliers()) added += " and " + std::string(each.name());
    return "there are compact, compact_rerotated, dead_slot, mask and lane_pages" + added;
  });
  kv::applier_effects const does = with.own.effects();
  bool const has_memory = !does.redirects && !does.masks && !does.drops_blocks && !does.rotates_keys;
  kv::expects(has_memory && (!does.edits_list || with.own.takes_list()), "kvreplay", "--layout", with.layout_name,
              "an applier of a plugin gets rows of lanes, or lists of slots as its member `list`");
  with.lay = with.own.takes_list() ? layout::own_list : layout::own;
}

/// Reads the named values, and makes all checks that do not need the trace.
inline void settle(options& with) {
  kv::expects(kv::detail::read_value(with.mode_name, with.how), "kvreplay", "--mode", with.mode_name,
              "there are prefill, decode, turns, select, chunks and layers");
  if (with.how == mode::layers) with.how = mode::prefill;  // as one decision, but where layers are cut again
  settle_layout(with);
  kv::expects(with.device == examples::device_name, "kvreplay", "--device", with.device,
              [] { return std::string("this build has ") + examples::device_name; });
  kv::expects(with.threads >= 1 && with.threads <= 1024, "kvreplay", "--threads", with.threads, "1 to 1024");
  kv::expects(with.prefill >= 0, "kvreplay", "--prefill", with.prefill, "a count cannot be negative");
  kv::expects(with.chunk >= 0, "kvreplay", "--chunk", with.chunk, "a count cannot be negative");
  kv::expects(with.how != mode::chunks || with.chunk >= 1, "kvreplay", "--chunk", with.chunk,
              "the mode chunks says how many entries arrive at a time");
  kv::expects(with.how == mode::chunks || with.chunk == 0, "kvreplay", "--chunk", with.chunk,
              "only the mode chunks has it");
  if (with.list) return;
  kv::expects(!with.trace.empty(), "kvreplay", "trace", "missing", "a safetensors file is replayed");
  if (!with.spec.empty()) {
    check_spec_alone(with);
    auto const sections = kv::split_sections(with.spec);
    kv::expects(sections.size() == 1, "kvreplay", "--spec", with.spec,
                "one section is replayed: admit, select or evict");
    with.section = sections.front().name;
    with.policy = sections.front().parts.front().name;
  }
  kv::expects(with.describe || !with.policy.empty(), "kvreplay", "--policy", "missing", "--list prints their names");
  std::vector<std::string> inputs = with.plugins;
  inputs.push_back(with.trace);
  examples::expect_no_input("kvreplay", "--out", with.out, inputs);
  examples::expect_no_input("kvreplay", "--html", with.html, inputs);
  bool const apart = with.html.empty() || with.out.empty() || !kv::same_file(with.html, with.out);
  kv::expects(apart && (with.html.empty() || with.html != with.out), "kvreplay", "--html", with.html,
              "the results of --out are written there");
}

/// Checks that the trace has the entries with which decoding begins.
inline void check_prefill(options const& with, int entries) {
  kv::expects(with.prefill <= entries, "kvreplay", "--prefill", with.prefill,
              [&] { return "the trace has " + std::to_string(entries) + " entries"; });
}

}  // namespace kvreplay
