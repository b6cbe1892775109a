// SPDX-License-Identifier: Apache-2.0
// Replays sessions of agents, turn by turn, on one pool with a prefix cache. It measures the answers of each policy,
// the tokens that it keeps, and its costs.
#include <fmt/core.h>

#include <demo/progress.hpp>
#include <filesystem>
#include <kvpolicy/io/residual_file.hpp>
#include <optional>

#include "engine.hpp"
#include "options.hpp"
#include "report.hpp"
#include "table.hpp"

namespace agent_replay {
namespace {

std::string layout_of(cache_options const& how) {
  if (how.lay == substrate::dead_slot) return how.allow_holes ? "dead slot" : "dead slot, no holes";
  return how.prefix > 0 ? "compact, spared" : "compact";
}

std::vector<contender> chosen(options const& with, kv::residual_head const& residual) {
  contest const how{.budget = with.budget,
                    .prefix = static_cast<int>(conversation_maker::system.size()),
                    .bound = conversation_maker::length(with.turns),
                    .allow_holes = !with.no_holes,
                    .intent = {.lambda = with.lambda,
                               .normalize_encoding = with.normalize,
                               .cross_attention = !with.no_cross_attention,
                               .residual = residual}};
  std::vector<contender> all = all_contenders(how);
  std::erase_if(all, [&](contender const& one) { return !one.name.starts_with(with.only); });
  kv::expects(!all.empty(), "agent_replay", "--only", with.only, "no policy's name begins so");
  return all;
}

/// Measures all contenders on the same conversations.
std::vector<metrics> measure(options const& with, stage const& on, bytes const& text,
                             std::vector<contender> const& all) {
  std::vector<metrics> rows;
  for (contender const& one : all) {
    rows.push_back({.name = one.name, .layout = layout_of(one.cache), .policy = one.policy});
  }
  demo::progress bar(with.rounds * static_cast<int>(all.size()), 5);
  conversation_maker maker(text, with.seed);
  for (int round = 0; round < with.rounds; ++round) {
    std::vector<conversation> talks;
    for (int s = 0; s < with.sessions; ++s) talks.push_back(maker.make(with.turns));
    for (std::size_t i = 0; i < all.size(); ++i) {
      run_side_by_side(on, all[i], talks, rows[i]);
      bar.advance(fmt::format("round {} of {}", round + 1, with.rounds), all[i].name);
    }
  }
  return rows;
}

nlohmann::json whole_run(options const& with, std::vector<metrics> const& rows, std::string const& skipped) {
  nlohmann::json all{{"sessions", with.sessions * with.rounds},
                     {"side_by_side", with.sessions},
                     {"turns", with.turns},
                     {"budget", with.budget},
                     {"read_cost", with.read_cost},
                     {"slots", with.slots},
                     {"span", with.span},
                     {"holes", !with.no_holes},
                     {"lambda", with.lambda},
                     {"normalize_encoding", with.normalize},
                     {"cross_attention", !with.no_cross_attention},
                     {"seed", with.seed},
                     {"threads", with.threads},
                     {"rows", nlohmann::json::array()}};
  if (!skipped.empty()) all["skipped"] = skipped;
  for (metrics const& one : rows) {
    nlohmann::json row = as_json(one);
    kv::served_tokens const served{one.sent - one.found, 1, static_cast<double>(one.effective_reads)};
    row["prefill_token_equivalents"] = kv::prefill_token_equivalents({&served, 1}, with.read_cost);
    all["rows"].push_back(std::move(row));
  }
  return all;
}

void print_run(options const& with, std::vector<metrics> const& rows, std::string const& skipped) {
  if (with.json) return fmt::print("{}\n", whole_run(with, rows, skipped).dump(1));
  fmt::print(
      "tinylm, {} sessions of {} turns, {} side by side, {} bytes each at the end; budget {} tokens, {} threads\n\n",
      with.sessions * with.rounds, with.turns, with.sessions, conversation_maker::length(with.turns), with.budget,
      with.threads);
  print_table(rows);
  if (!skipped.empty()) fmt::print("\n{}\n", skipped);
}

int work(options const& with) {
  bytes const text = read_text(with);
  std::optional<examples::output_file> page;  // created first, so that a bad path is refused before the work
  if (!with.html.empty()) page.emplace(with.html, "agent_replay", "--html");
  executor exec(with.threads);
  tinylm::model model(tinylm::read_weights(with.weights + "/weights.safetensors"));
  std::optional<kv::residual_weights> residual;
  std::string skipped;
  if (std::filesystem::exists(with.residual)) {
    residual.emplace(kv::safetensors_reader(with.residual));
  } else {
    skipped = fmt::format("intent_kv learnable is left out: {} is not there", with.residual);
  }
  auto const all = chosen(with, residual ? residual->head() : kv::residual_head{});
  stage const on{model, exec, with.slots, with.span == "message"};
  auto const rows = measure(with, on, text, all);
  if (page) write_report(**page, with, rows);
  print_run(with, rows, skipped);
  examples::flush_standard_output();
  if (page) (*page)->commit();
  return 0;
}

}  // namespace
}  // namespace agent_replay

int main(int count, char** arguments) {
  agent_replay::options with;
  CLI::App app("Agents' sessions on one pool with a prefix cache: what each policy answers, keeps and costs",
               "agent_replay");
  agent_replay::add_to(app, with);
  return examples::run_program(app, count, arguments, [&] {
    agent_replay::settle(with);
    return agent_replay::work(with);
  });
}
