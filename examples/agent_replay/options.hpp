// SPDX-License-Identifier: Apache-2.0
// The replay's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <kvpolicy/core/contract/error.hpp>
#include <string>

#include "../program.hpp"
#include "conversation.hpp"

namespace agent_replay {

struct options {
  bool quick = false;
  bool json = false;
  bool no_holes = false;
  std::string html;
  std::string only;  ///< run only the rows whose policy's name begins with this
  std::string weights = TINYLM_WEIGHTS_DIR;
  std::string text;
  std::string residual;
  std::string span = "message";
  float lambda = 0.5f;
  bool normalize = false;
  bool no_cross_attention = false;
  double read_cost = 0.01;
  int budget = 320;
  int sessions = -1;
  int turns = -1;
  int rounds = -1;  ///< how often the sessions run side by side, each time with new conversations
  int slots = 6144;
  int threads = 2;
  std::uint64_t seed = 7;
};

inline void add_to(CLI::App& app, options& to) {
  app.add_flag("--quick", to.quick, "fewer and shorter sessions: under a minute on two cores");
  app.add_flag("--json", to.json, "print one JSON object instead of the table");
  app.add_flag("--no-holes", to.no_holes, "maps with holes do not go into the prefix tree");
  examples::add_output_option(app, "--html", to.html, "write the live tokens over the turns into this HTML file");
  app.add_option("--only", to.only, "only policies whose name begins so");
  app.add_option("--weights", to.weights, "folder with weights.safetensors and held_out.txt");
  app.add_option("--text", to.text, "take the tools' output from this file instead of the held-out text");
  app.add_option("--residual", to.residual, "the trained head of intent_kv learnable");
  app.add_option("--span", to.span, "the actionable span is the turn's whole message, or its question");
  app.add_option("--lambda", to.lambda, "how fast intent_kv's memory fades");
  app.add_flag("--normalize", to.normalize, "intent_kv adds unit vectors to its memory");
  app.add_flag("--no-cross-attention", to.no_cross_attention, "intent_kv learnable goes without its context");
  app.add_option("--budget", to.budget, "tokens of a session after its turn's decision");
  app.add_option("--read-cost", to.read_cost,
                 "the cost of reading an entry, of prefilling a token: for the JSON's PTE");
  app.add_option("--sessions", to.sessions, "sessions side by side");
  app.add_option("--turns", to.turns, "turns of a session, of 100 bytes each");
  app.add_option("--rounds", to.rounds, "times that so many sessions run, with new conversations each time");
  app.add_option("--slots", to.slots, "slots of the pool, one of them the dead one");
  app.add_option("--threads", to.threads, "threads of the model and of the policies");
  app.add_option("--seed", to.seed, "which conversations");
}

/// Sets the defaults that depend on other options, and makes all checks that need no work.
inline void settle(options& with) {
  constexpr char call[] = "agent_replay";
  if (with.rounds < 0) with.rounds = with.quick ? 1 : 3;
  if (with.sessions < 0) with.sessions = with.quick ? 2 : 4;
  if (with.turns < 0) with.turns = with.quick ? 10 : 12;
  if (with.residual.empty()) {
    with.residual = (std::filesystem::path(with.weights).parent_path().parent_path() / "agent_replay/weights" /
                     "residual.safetensors")
                        .string();
  }
  kv::expects(with.turns >= 1 && conversation_maker::length(with.turns) <= 1280, call, "--turns", with.turns,
              "the model was trained on contexts of up to 1280 bytes: 1 to 12 turns");
  kv::expects(with.sessions >= 1 && with.sessions <= 64, call, "--sessions", with.sessions, "1 to 64 sessions");
  kv::expects(with.rounds >= 1 && with.rounds <= 1000, call, "--rounds", with.rounds, "1 to 1000 rounds");
  kv::expects(with.budget >= 1, call, "--budget", with.budget, "a session keeps at least one token");
  kv::expects(with.read_cost >= 0 && std::isfinite(with.read_cost), call, "--read-cost", with.read_cost,
              "it is at least 0, and finite");
  kv::expects(with.slots >= 2 && with.slots <= 1'000'000, call, "--slots", with.slots, "2 to 1000000 slots");
  kv::expects(with.threads >= 1 && with.threads <= 256, call, "--threads", with.threads, "1 to 256 threads");
  kv::expects(with.span == "message" || with.span == "question", call, "--span", with.span,
              "it is message or question");
  examples::expect_no_input(
      call, "--html", with.html,
      {with.weights + "/weights.safetensors", with.weights + "/held_out.txt", with.text, with.residual});
}

/// Reads the whole text. An error names its file.
inline bytes read_text(options const& with) {
  std::string const path = with.text.empty() ? with.weights + "/held_out.txt" : with.text;
  std::ifstream file(path, std::ios::binary);
  kv::expects(file.good(), "agent_replay", "--text", path, "it cannot be read");
  bytes const all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  kv::expects(std::ssize(all) >= conversation_maker::turn_bytes, "agent_replay", "--text", path,
              "a turn takes 100 bytes of it");
  return all;
}

}  // namespace agent_replay
