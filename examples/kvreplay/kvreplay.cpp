// SPDX-License-Identifier: Apache-2.0
// Runs a policy on a recorded trace and writes its decisions.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "admit.hpp"
#include "by_spec.hpp"
#include "go_through.hpp"
#include "locret.hpp"
#include "replay.hpp"
#include "report.hpp"
#include "select.hpp"
#include "shares.hpp"

namespace kvreplay {
namespace {

/// Sets the policy's buffer to its minimum, and drops its interval: a prefill is one decision, which waits for nothing.
any_policy without_buffer(any_policy policy, registry const& known) {
  if (policy.trigger.what == kv::any_trigger::kind::every) policy.trigger = {};
  std::string spelt = kv::to_string(policy);
  std::size_t const at = spelt.find("buffer=");
  if (at == std::string::npos) return policy;
  spelt.replace(at, spelt.find_first_of(",)", at) - at, "buffer=1");
  return known.parse(spelt);
}

/// Sets the window of a method to the number of query rows there are, if they are fewer.
std::vector<std::string> with_rows_there(options const& with, trace const& of, registry const& known) {
  std::vector<std::string> set = with.set;
  auto const all = known.list();
  auto const info = std::find_if(all.begin(), all.end(), [&](auto const& one) { return one.name == with.policy; });
  if (info == all.end() || !info->prompts_only || of.queries || !of.recent_queries) return set;
  auto const rows = static_cast<int>(of.recent_queries.shape[2]);
  int window = 0;
  for (kv::field_info const& each : info->fields) {
    if (each.name == "window") kv::detail::read_value(std::string_view(each.value), window);
  }
  auto const given =
      std::find_if(set.begin(), set.end(), [](auto const& each) { return each.rfind("window=", 0) == 0; });
  if (given != set.end()) kv::detail::read_value(std::string_view(*given).substr(7), window);
  if (window <= rows) return set;
  if (given != set.end()) set.erase(given);
  set.push_back("window=" + std::to_string(rows));
  return set;
}

/// True if a ratio is one of all entries of the trace, although there are several decisions.
bool counts_all_entries(std::string const& policy) { return policy == kv::locret::name || policy == kv::sir_llm::name; }

/// Makes a ratio of all entries a number of them.
void count_once(options& with, int entries) {
  kv::drop_ratio of{.round = kv::rounding::exact};
  if (with.ratio.empty() || !with.budget.empty() || !kv::detail::read_value(with.ratio, of.drop)) return;
  if (!with.rounding.empty() && !kv::detail::read_value(with.rounding, of.round)) return;
  as_said_by("--ratio", with.ratio, "budget.ratio", [&] { of.check("kvreplay"); });
  with.budget = std::to_string(of({}, entries));
  with.ratio = with.rounding = "";
}

/// Sets what the command line leaves to a policy's published settings: its slack, where it decides more than once (a
/// prompt is one decision, which waits for nothing), and whether it keeps the prompt and has a budget.
void set_published(options& of, trace const& from, registry const& known) {
  if (of.how == mode::prefill) of.slack = "";
  for (kv::scorer_info const& one : known.list()) {
    if (one.name != of.policy || !of.spec.empty()) continue;
    of.has_no_budget = one.has_no_budget;
    of.keeps_prompt = one.keeps_prompts && !from.prompt_end.empty();
    if (of.how != mode::prefill && of.slack.empty() && one.slack > 0) of.slack = std::to_string(one.slack);
  }
}

/// A policy for a prompt whose layers come one by one: its scorer scores each layer once, when that comes, and its
/// budget is shared out among the layers that are there. None if layers are not cut again: the policy decides once, or
/// its shares do not go by layers.
std::optional<any_policy> layer_by_layer(options const& with, any_policy const& policy, trace const& of,
                                         registry const& known) {
  if (with.mode_name != "layers" || (!with.spec.empty() && policy.when != kv::phase::layer)) return {};
  if (policy.budget.by != kv::sharing::allotted) return {};
  kv::any_allotter const shares = policy.budget.sharer.one_by_one(of.shape().layers);
  if (!shares.there()) return {};
  std::string text = kv::to_string(policy);
  if (text.find(" | frozen") == std::string::npos) text.insert(text.find(" | "), " | frozen");
  any_policy made = known.parse(text);
  if (made.budget.of == kv::any_budget::amount::ratio) {  // of what a lane had before it was cut
    made.budget.tokens = made.budget.average_of({}, of.entries());
    made.budget.of = kv::any_budget::amount::tokens;
  }
  made.budget.share(made.budget.sharer.one_by_one(of.shape().layers));
  return made;
}

/// The fields of LU-KV, if that is the policy.
std::optional<kv::lu_kv> lu_kv_of(options const& with, spelled const& spec) {
  if (with.policy != kv::lu_kv::name || !with.spec.empty()) return {};
  kv::expects(std::same_as<executor, kv::host_executor>, "kvreplay", "--device", with.device,
              "the table of lu_kv is in the host's memory");
  kv::lu_kv fields;
  spec.read([&] {
    kv::detail::set_fields(fields, kv::split_spec(spec.text()).front());
    kv::detail::check_parsed(fields, 1);
  });
  return fields;
}

/// What a group without a policy does beside others, whose lanes decide together as `decides` says: it keeps
/// everything.
any_policy keeping_everything(kv::granularity decides, registry const& known) {
  return known.parse(std::string("full | reduce_lanes(") + kv::to_string(decides) + ", sum)");
}

void evict(options const& with, trace& of, stopwatch& whole) {
  registry known = known_parts(with);
  known.set(kv::intent_kv{.residual = of.residual()});  // a spec cannot set the weights: they are in the trace
  options asked = with;
  asked.set = with_rows_there(with, of, known);
  set_published(asked, of, known);
  std::optional<locret> special;
  if (with.policy == kv::locret::name) special.emplace(asked);
  if (with.spec.empty() && counts_all_entries(with.policy)) count_once(asked, of.entries());
  spelled const spec = with.spec.empty() ? spec_of(asked) : spelled();
  std::optional<kv::lu_kv> const shared = lu_kv_of(with, spec);
  std::optional<pruned_shares> shares;
  if (shared) shares.emplace(of, with, kv::to_string(shared->table));
  token_tables tokens;
  bool const reads_tokens = asked.keeps_prompt || goes_by_classes(with.policy);
  if (!with.spec.empty() || reads_tokens) tokens.join(known, of, with.spec.empty() ? spec.text() : with.spec);
  std::string const important = importance_in(with.spec.empty() ? spec.text() : with.spec, of);
  std::optional<head_numbers> importance;
  if (!important.empty()) importance.emplace(of, important, table_of::layers);
  std::string const text = with.spec.empty() ? spec.text() : special ? special->text() : with.spec;
  rows_of_spec rows(of, text, known);
  thresholds_of_spec thresholds(of, text);
  auto const policy_of = [&](std::vector<int> const& layers) {
    thresholds.join(known, layers);
    if (shares) known.table(kv::to_string(shared->table), shares->table(layers));
    if (importance) known.table(important, importance->table(layers));
    rows.join(known, layers);
    return with.spec.empty() ? spec.read([&] { return known.parse(spec.text()); }) : known.parse(text);
  };
  any_policy const policy = policy_of({});
  kv::expects(policy.pick.what != kv::any_pick::kind::lowest_one, "kvreplay", "--spec", with.spec,
              "lowest_one lists what is dropped, and kvreplay carries out what is kept");
  auto const last_policy = [&] {
    return known.parse(locret::last_of(text));
  };  // with the tables of `policy_of`'s layers
  if (special) asked.how = mode::chunks;
  auto const make = [&](trace& part, group_of_layers const& group) {
    any_policy const now = group.without_policy        ? keeping_everything(policy.decides(), known)
                           : with.how == mode::prefill ? without_buffer(policy_of(group.layers), known)
                                                       : policy_of(group.layers);
    auto const again = layer_by_layer(with, now, part, known);
    auto made = std::make_unique<replay>(asked, part, again.value_or(now));  // on the heap: a device may read it
    if (again) made->cut_layers_again();
    if (special) made->end_with(group.without_policy ? now : last_policy(), special->local());
    return made;
  };
  go_through(with, of, {special ? special->print(last_policy()) : kv::to_string(policy), policy.decides()}, make,
             whole);
}

/// Replays an admission. `policy_of(group)` makes that of a group of layers. A window as long as the trace keeps
/// everything.
template <class Fields, class PolicyOf>
void admit(options const& with, trace& of, Fields const& fields, PolicyOf const& policy_of, int page,
           stopwatch& whole) {
  refuse_options(with, {{"--ratio", with.ratio}, {"--rounding", with.rounding}});
  auto const make = [&](trace& part, group_of_layers const& group) {
    any_admission asked = as_asked(policy_of(group), with);
    if (group.without_policy) asked.window = part.entries();
    return std::make_unique<admission_replay>(with, part, asked, page);
  };
  go_through(with, of, {spell(kv::to_string(fields), with)}, make, whole);
}

void admit_by_gate(options const& with, trace& of, stopwatch& whole) {
  auto const fields = fields_of<wg_kv_fields>(with);
  kv::expects(static_cast<bool>(of.gate), "kvreplay", "tensor gate", "missing", "wg_kv admits by it");
  auto policy = kv::policies::wg_kv(
      {.window = fields.window, .threshold = fields.threshold, .strict = fields.strict, .gate_type = of.gate.element});
  policy.pick.unbounded = true;  // a threshold above 1 admits nothing, and one of 0 or less everything
  admit(with, of, fields, [&](group_of_layers const&) { return policy; }, fields.page, whole);
}

void admit_by_position(options const& with, trace& of, stopwatch& whole) {
  auto const fields = fields_of<local_attention_fields>(with);
  auto const policy = kv::policies::local_attention({.window = fields.window, .sinks = fields.sinks});
  admit(with, of, fields, [&](group_of_layers const&) { return policy; }, wg_kv_fields{}.page, whole);
}

void admit_by_head(options const& with, trace& of, stopwatch& whole) {
  auto const fields = fields_of<duo_attention_fields>(with);
  examples::expect_no_input("kvreplay", "--out", with.out, {fields.retrieval.text});
  examples::expect_no_input("kvreplay", "--html", with.html, {fields.retrieval.text});
  head_numbers heads(fields.retrieval.text, of.shape());
  auto const policy_of = [&](group_of_layers const& group) {
    return kv::policies::duo_attention(
        {.window = fields.window, .sinks = fields.sinks, .retrieval = heads.table(group.layers)});
  };
  admit(with, of, fields, policy_of, wg_kv_fields{}.page, whole);
}

template <class Fields>
void read_pages_by(options const& with, trace& of, stopwatch& whole) {
  auto const fields = fields_of<Fields>(with);
  refuse_options(with, {{"--sinks", with.sinks}, {"--protect", with.protect.empty() ? "" : with.protect.front()}});
  any_selection const policy(kv::selection{fields.scorer(), tokens_read(with), fields.dense_layers});
  replay_selection(
      with, of, [&](std::vector<int> const&) { return policy; },
      kv::to_string(fields) + " | " + kv::to_string(policy.budget), whole);
}

int work(options const& with) {
  stopwatch whole;
  if (with.list) {
    auto const all = listing(with);
    with.json ? fmt::print("{}\n", all.dump(1)) : print_listing(all);
    return 0;
  }
  if (!with.describe) check_named(with);
  trace of(with.trace);
  if (with.describe) {
    fmt::print("{}\n", description(of).dump(with.json ? -1 : 1));
    return 0;
  }
  if (!with.spec.empty()) {
    auto const by = with.section == "admit" ? admit_by_spec : with.section == "select" ? select_by_spec : evict;
    return by(with, of, whole), 0;
  }
  registry const known = known_parts(with);
  auto const by = with.policy == wg_kv_fields::name             ? admit_by_gate
                  : with.policy == local_attention_fields::name ? admit_by_position
                  : with.policy == duo_attention_fields::name   ? admit_by_head
                  : with.policy == quest_fields::name           ? read_pages_by<quest_fields>
                  : with.policy == page_gates_fields::name      ? read_pages_by<page_gates_fields>
                  : has_policy(known.list_admissions(), with)   ? admit_by_spec
                  : has_policy(known.list_selections(), with)   ? select_by_name
                                                                : evict;
  by(with, of, whole);
  return 0;
}

/// Replaces this process by the program that was built for a GPU, in the same folder. Returns if there is none.
void become_cuda(char** arguments) {
  std::error_code none;
  auto const self = std::filesystem::read_symlink("/proc/self/exe", none);
  auto const other = (self.parent_path() / "kvreplay_cuda").string();
  ::execv(other.c_str(), arguments);
}

}  // namespace
}  // namespace kvreplay

int main(int count, char** arguments) {
  kvreplay::options with;
  CLI::App app("Runs a KV-cache policy on a recorded trace", "kvreplay");
  kvreplay::add_to(app, with);
  return examples::run_program(app, count, arguments, [&] {
    if (with.device == "cuda" && with.device != examples::device_name) kvreplay::become_cuda(arguments);
    kvreplay::settle(with);
    return kvreplay::work(with);
  });
}
