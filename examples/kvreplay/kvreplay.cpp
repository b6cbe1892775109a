// Runs a policy on a recorded trace and writes its decisions.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "admit.hpp"
#include "groups.hpp"
#include "replay.hpp"
#include "report.hpp"
#include "select.hpp"
#include "write.hpp"

namespace kvreplay {
namespace {

/// Draws a progress bar on a terminal.
void show_progress(int done, int of) {
  static int shown = -1;
  int const percent = static_cast<int>(100LL * done / std::max(1, of));
  if (isatty(2) == 0 || percent == shown) return;
  shown = percent;
  fmt::print(stderr, "\r[{:=<{}}{:{}}] {:3}%{}", "", percent / 4, "", 25 - percent / 4, percent,
             done == of ? "\n" : "");
  std::fflush(stderr);
}

/// Sets the policy's buffer to its minimum: a prefill is one decision, which does not wait for a buffer to fill.
any_policy without_buffer(any_policy const& policy, registry const& known) {
  std::string spelt = kv::to_string(policy);
  std::size_t const at = spelt.find("buffer=");
  if (at == std::string::npos) return policy;
  spelt.replace(at, spelt.find_first_of(",)", at) - at, "buffer=1");
  return known.parse(spelt);
}

/// Replays each group of layers as `make(part, group)` says, writes and prints. The file of results gets its name when
/// everything has succeeded, printing included.
template <class Make>
void go_through(options const& with, trace& of, policy_text const& policy, Make const& make, stopwatch& whole) {
  using replay_of_part = typename decltype(make(of, group_of_layers{}))::element_type;
  std::optional<result_writer> out;
  if (!with.out.empty()) out.emplace(with, of);
  grouped_replay<replay_of_part> by(with, of, make);
  results& found = by.run(show_progress);
  bool begun = false;
  auto const write = [&](int layer) {
    if (out && !std::exchange(begun, true)) out->begin(found);
    if (out) out->layer(by, layer);
  };
  by.carry_out(write, show_progress);
  stopwatch watch;
  if (out) out->finish(found);
  found.ms.write += watch.lap();
  found.ms.total = whole.lap();
  auto const all = summary(with, of, policy, found);
  with.json ? fmt::print("{}\n", all.dump(1)) : print_summary(all);
  examples::flush_standard_output();
  if (out) out->commit();
}

/// What a group without a policy does beside others, whose lanes decide together as `decides` says: it keeps
/// everything.
any_policy keeping_everything(kv::granularity decides, registry const& known) {
  return known.parse(std::string("full | reduce_lanes(") + kv::to_string(decides) + ", sum)");
}

void evict(options const& with, trace& of, stopwatch& whole) {
  registry known = kv::shipped<executor>();
  known.set(kv::intent_kv{.residual = of.residual()});  // a spec cannot set the weights: they are in the trace
  spelled const spec = spec_of(with);
  any_policy const policy = spec.read([&] { return known.parse(spec.text()); });
  auto const make = [&](trace& part, group_of_layers const& group) {
    any_policy const now = group.without_policy        ? keeping_everything(policy.decides(), known)
                           : with.how == mode::prefill ? without_buffer(policy, known)
                                                       : policy;
    return std::make_unique<replay>(with, part, now);  // on the heap, because a device may read it
  };
  go_through(with, of, {kv::to_string(policy), policy.decides()}, make, whole);
}

/// Replays an admission. `policy_of(part, group)` makes that of a group of layers. A window as long as the trace keeps
/// everything.
template <class Fields, class PolicyOf>
void admit(options const& with, trace& of, Fields const& fields, PolicyOf const& policy_of, int page,
           stopwatch& whole) {
  refuse_options(with, {{"--ratio", with.ratio}, {"--rounding", with.rounding}});
  auto const make = [&](trace& part, group_of_layers const& group) {
    auto asked = as_asked(policy_of(group), with);
    if (group.without_policy) asked.window = part.entries();
    return std::make_unique<admission_replay<decltype(asked)>>(with, part, asked, page);
  };
  go_through(with, of, {spell(fields, with)}, make, whole);
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
  head_numbers heads(fields.retrieval.text, of.shape());
  auto const policy_of = [&](group_of_layers const& group) {
    return kv::policies::duo_attention(
        {.window = fields.window, .sinks = fields.sinks, .retrieval = heads.table(group.layers)});
  };
  admit(with, of, fields, policy_of, wg_kv_fields{}.page, whole);
}

void read_pages(options const& with, trace& of, stopwatch& whole) {
  auto const fields = fields_of<quest_fields>(with);
  refuse_options(with, {{"--sinks", with.sinks}, {"--protect", with.protect.empty() ? "" : with.protect.front()}});
  quest_selection const policy = selection_of(fields, with);
  auto const make = [&](trace& part, group_of_layers const& group) {
    quest_selection now = policy;
    if (group.without_policy) now.dense_layers = part.shape().layers;
    return std::make_unique<selection_replay>(with, part, now);
  };
  go_through(with, of, {kv::to_string(fields) + " | " + kv::to_string(policy.budget)}, make, whole);
}

int work(options const& with) {
  stopwatch whole;
  if (with.list) {
    auto const all = listing();
    with.json ? fmt::print("{}\n", all.dump(1)) : print_listing(all);
    return 0;
  }
  if (!with.describe) check_named(with);
  trace of(with.trace);
  if (with.describe) {
    fmt::print("{}\n", description(of).dump(with.json ? -1 : 1));
    return 0;
  }
  auto const by = with.policy == wg_kv_fields::name             ? admit_by_gate
                  : with.policy == local_attention_fields::name ? admit_by_position
                  : with.policy == duo_attention_fields::name   ? admit_by_head
                  : with.policy == quest_fields::name           ? read_pages
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
