// SPDX-License-Identifier: Apache-2.0
// Policies by name: those that the library lists, and admissions and selections whose fields are listed here.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>

#include "options.hpp"

namespace kvreplay {

/// A file name as a field of a policy.
struct file_name {
  std::string text;
  friend bool operator==(file_name const&, file_name const&) = default;
};
[[nodiscard]] inline std::string print(file_name const& of) { return of.text; }
[[nodiscard]] inline std::string wanted_text(file_name const*) { return "a file"; }
[[nodiscard]] inline bool read_text(std::string_view text, file_name& to) {
  to.text = text;
  return true;
}

inline void check_window(int window) {
  kv::expects(window >= 1, "kvreplay", "--set window", window, "the newest token is always seen");
}
inline void check_page(int page) {
  kv::expects(page >= 1 && page <= 1 << 16, "kvreplay", "--set page", page, "a page holds 1 to 65536 entries");
}
inline void check_sinks(int sinks) {
  kv::expects(sinks >= 0, "kvreplay", "--set sinks", sinks, "a count cannot be negative");
}

/// The fields that `--set` may set of admissions and selections that read a file, have pages of their own or are no
/// system of the registry, with their defaults.
struct wg_kv_fields {
  int window = kv::policies::wg_kv_options{}.window;
  float threshold = kv::policies::wg_kv_options{}.threshold;
  bool strict = kv::policies::wg_kv_options{}.strict;
  int page = 16;
  static constexpr auto name = "wg_kv";
  static constexpr auto fields() {
    return kv::make_fields(kv::field{"window", &wg_kv_fields::window}, kv::field{"threshold", &wg_kv_fields::threshold},
                           kv::field{"strict", &wg_kv_fields::strict}, kv::field{"page", &wg_kv_fields::page});
  }
  void check() const {
    check_window(window);
    check_page(page);
    kv::expects(std::isfinite(threshold), "kvreplay", "--set threshold", kv::to_string(threshold),
                "gates are compared with it");
  }
};

struct local_attention_fields {
  int window = kv::policies::local_attention_options{}.window;
  int sinks = kv::policies::local_attention_options{}.sinks;
  static constexpr auto name = "local_attention";
  static constexpr auto fields() {
    return kv::make_fields(kv::field{"window", &local_attention_fields::window},
                           kv::field{"sinks", &local_attention_fields::sinks});
  }
  void check() const {
    check_window(window);
    check_sinks(sinks);
  }
};

struct duo_attention_fields {
  int window = kv::policies::duo_attention_options{}.window;
  int sinks = kv::policies::duo_attention_options{}.sinks;
  file_name retrieval;
  static constexpr auto name = "duo_attention";
  static constexpr auto fields() {
    return kv::make_fields(kv::field{"window", &duo_attention_fields::window},
                           kv::field{"sinks", &duo_attention_fields::sinks},
                           kv::field{"retrieval", &duo_attention_fields::retrieval});
  }
  void check() const {
    check_window(window);
    check_sinks(sinks);
    kv::expects(!retrieval.text.empty(), "kvreplay", "--set retrieval", "missing",
                "a safetensors file says which heads retrieve");
  }
};

inline void check_dense(int layers) {
  kv::expects(layers >= 0, "kvreplay", "--set dense_layers", layers, "a count cannot be negative");
}

struct quest_fields {
  int page = kv::policies::quest_options{}.score.page;
  int dense_layers = kv::policies::quest_options{}.dense_layers;
  kv::reduction group = kv::policies::quest_options{}.score.group;
  static constexpr auto name = "quest";
  static constexpr auto fields() {
    return kv::make_fields(kv::field{"page", &quest_fields::page},
                           kv::field{"dense_layers", &quest_fields::dense_layers},
                           kv::field{"group", &quest_fields::group});
  }
  void check() const {
    check_page(page);
    check_dense(dense_layers);
    kv::expects(group != kv::reduction::last, "kvreplay", "--set group", "last", "query heads have no order");
  }
  [[nodiscard]] kv::quest scorer() const { return {.page = page, .group = group}; }
};

struct page_gates_fields {
  kv::label gates{{"page_gates"}};
  int page = kv::page_gates{}.page;
  int dense_layers = 0;
  static constexpr auto name = "page_gates";
  static constexpr auto fields() {
    return kv::make_fields(kv::field{"name", &page_gates_fields::gates}, kv::field{"page", &page_gates_fields::page},
                           kv::field{"dense_layers", &page_gates_fields::dense_layers});
  }
  void check() const {
    check_page(page);
    check_dense(dense_layers);
  }
  [[nodiscard]] kv::page_gates scorer() const { return {.of = gates, .page = page}; }
};

/// Locret's fields: those of the library's spec, and how many entries at the end are appended without a decision.
struct locret_fields {
  kv::label of = kv::locret{}.of;
  int stabilizers = kv::locret{}.stabilizers;
  int local = 100;
  static constexpr auto name = kv::locret::name;
  static constexpr auto fields() {
    return kv::make_fields(kv::field{"name", &locret_fields::of}, kv::field{"stabilizers", &locret_fields::stabilizers},
                           kv::field{"local", &locret_fields::local});
  }
  void check(char const* call = "kvreplay", std::string const& owner = "--set ") const {
    kv::expects(stabilizers >= 0, call, owner + "stabilizers", stabilizers, "a count cannot be negative");
    kv::expects(local >= 0, call, owner + "local", local, "a count cannot be negative");
  }
};

/// The fields with the values of the command line.
template <class Fields>
[[nodiscard]] Fields fields_of(options const& with) {
  spelled text;
  text.add_fields(with.policy, with.set);
  kv::spec_part part{with.policy, 1, {}};
  std::size_t column = with.policy.size() + 2;
  for (std::string const& set : with.set) {
    std::size_t const equals = set.find('=');
    std::string_view const pair = set;
    std::size_t const begin = std::min(pair.find_first_not_of(' '), equals);
    part.arguments.push_back({pair.substr(begin, equals - begin), pair.substr(equals + 1),
                              static_cast<int>(column + begin), static_cast<int>(column + equals) + 1});
    column += set.size() + 2;
  }
  Fields made;
  text.read([&] { kv::detail::set_fields(made, part); });
  made.check();
  return made;
}

/// The description of a policy in a list.
struct policy_info {
  std::string name;
  std::vector<kv::field_info> fields;
  std::vector<std::string> signals, modes;
  kv::granularity decides = kv::granularity::lane;
};

/// The modes in which an eviction can be replayed.
[[nodiscard]] inline std::vector<std::string> modes_of(kv::scorer_info const& one) {
  if (one.decodes_only) return {"decode"};
  if (one.when == kv::phase::turn) return {"prefill", "turns"};
  if (one.when == kv::phase::chunk) return {"prefill", "chunks"};
  if (one.when == kv::phase::layer || one.prompts_only) return {"prefill", "layers"};
  return {"prefill", "decode", "turns", "chunks", "layers"};
}

/// True if a list of the registry has the policy.
[[nodiscard]] inline bool has_policy(std::vector<kv::scorer_info> const& among, options const& with) {
  return std::any_of(among.begin(), among.end(), [&](auto const& each) { return each.name == with.policy; });
}

[[nodiscard]] inline std::vector<policy_info> all_policies(options const& with) {
  std::vector<policy_info> all;
  registry const known = known_parts(with);
  for (kv::scorer_info const& one : known.list()) {
    all.push_back({one.name, one.fields, one.tensors, modes_of(one), one.decides});
    if (one.name == locret_fields::name) all.back().fields = kv::list_fields(locret_fields{});
  }
  auto const add = [&](auto const& fields, std::vector<std::string> signals, std::vector<std::string> modes) {
    all.push_back({fields.name, kv::list_fields(fields), std::move(signals), std::move(modes), kv::granularity::lane});
  };
  add(wg_kv_fields{}, {"gate"}, {"prefill", "decode"});
  for (kv::scorer_info const& one : known.list_admissions()) {
    all.push_back({one.name, one.fields, one.tensors, {"prefill", "decode"}, one.decides});
  }
  add(local_attention_fields{}, {}, {"prefill", "decode"});
  add(duo_attention_fields{}, {}, {"prefill", "decode"});
  add(quest_fields{}, {"keys", "queries"}, {"select"});
  add(page_gates_fields{}, {"page_gate.NAME"}, {"select"});
  for (kv::scorer_info const& one : known.list_selections()) {
    if (one.name == quest_fields::name || one.name == page_gates_fields::name) continue;
    all.push_back({one.name, one.fields, one.tensors, {"select"}, one.decides});
  }
  return all;
}

/// Checks that the replay of a section has the mode.
inline void check_section(options const& with) {
  bool const selects = with.section == "select";
  bool const has = selects ? with.how == mode::select : with.how == mode::prefill || with.how == mode::decode;
  kv::expects(has, "kvreplay", "--mode", with.mode_name,
              selects ? "a selection has the mode select" : "an admission has the modes prefill and decode");
}

/// Checks that the policy of the command line exists and has the mode.
inline void check_named(options const& with) {
  if (with.section != "evict") return check_section(with);
  std::vector<policy_info> const all = all_policies(with);
  auto const found = std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.name == with.policy; });
  if (found == all.end()) {
    std::vector<std::string> names;
    for (policy_info const& each : all) names.push_back(each.name);
    kv::expects(false, "kvreplay", "--policy", with.policy, kv::detail::accepted("there are", names, with.policy));
  }
  auto const& modes = found->modes;
  kv::expects(std::find(modes.begin(), modes.end(), with.mode_name) != modes.end(), "kvreplay", "--mode",
              with.mode_name, [&] {
                std::string const has = modes.size() == 1 ? " has the mode" : " has the modes";
                return kv::detail::accepted(with.policy + has, modes, "");
              });
}

/// Refuses the options that only evictions have. An option that a policy does not use is refused, not ignored.
inline void refuse_options(options const& with, std::vector<std::pair<char const*, std::string>> more) {
  more.insert(more.end(), {{"--budget-scope", with.scope == "lane" ? "" : with.scope},
                           {"--granularity", with.granularity == "lane" ? "" : with.granularity},
                           {"--floor", with.floor},
                           {"--slack", with.slack},
                           {"--reduce", with.reduce},
                           {"--recent", with.recent}});
  for (auto const& [option, value] : more) {
    kv::expects(value.empty(), "kvreplay", option, value, [&] { return with.policy + " has no use for it"; });
  }
  bool const carried = with.lay == layout::compact || with.lay == layout::lane_pages || with.lay == layout::mask;
  kv::expects(carried, "kvreplay", "--layout", with.layout_name,
              [&] { return "of " + with.policy + " there are compact, lane_pages and mask"; });
}

/// The entries that the command line forces.
[[nodiscard]] inline kv::any_protection forced_by(options const& with) {
  kv::any_protection all;
  if (!with.sinks.empty()) all.add(kv::sinks{count_of("--sinks", with.sinks, 0)});
  for (std::string const& range : with.protect) {
    kv::ordinal_range const span = range_of(range);
    all.add(kv::position_span{span.begin, span.end});
  }
  all.check("kvreplay");
  return all;
}

}  // namespace kvreplay
