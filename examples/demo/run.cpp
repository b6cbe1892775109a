// SPDX-License-Identifier: Apache-2.0
// Runs every case under every policy and budget.
#include "run.hpp"

#include "../tinylm/sampling.hpp"

namespace demo {
namespace {

std::uint8_t best(std::span<float const> logits) {
  return static_cast<std::uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Adds the costs of a sequence to its row.
void count_costs(row& to, reader const& from) {
  costs const spent = from.spent();
  to.live_entries += static_cast<double>(from.live_entries());
  to.live_bytes += static_cast<double>(from.live_bytes());
  ++to.measured;
  to.entries_read += static_cast<double>(spent.entries_read);
  to.decode_seconds += spent.model_seconds;
  to.steps += spent.steps;
  to.policy_seconds += spent.policy_seconds;
  ++to.prompts;
}

/// Decodes greedily until `said` has so many bytes. The last one is not read.
void say(watcher& from, std::size_t count, bytes& said) {
  while (said.size() < count) {
    if (!said.empty()) from.step(said.back());
    said.push_back(best(from.logits()));
  }
}

/// True if every byte of the greedy answer is right. It ends at the first wrong one.
bool answers(watcher& from, bytes const& answer, bytes& said) {
  for (std::size_t i = 0; i < answer.size(); ++i) {
    say(from, i + 1, said);
    if (said[i] != answer[i]) return false;
  }
  return true;
}

/// The page's text of a recall question, which comes with the prompt or later.
mapped_text text_of(recall_case const& one, bool later) {
  std::string const question(one.question.begin() + 1, one.question.end());
  int const asks = static_cast<int>(one.question.size());
  int const known = static_cast<int>(one.prompt.size()) + asks;
  int const answered = static_cast<int>(one.answer.size()) - 1;  // its last byte is not read
  mapped_text made{.name = fmt::format("{} {}, about fact {} of {}, {} bytes back", question,
                                       later ? "asked later" : "asked in the prompt", one.asked + 1, one.facts.size(),
                                       known - one.facts[static_cast<std::size_t>(one.asked)]),
                   .text = one.prompt,
                   .prompt = later ? known - asks : known,
                   .steps = later ? asks + answered : answered};
  made.text.insert(made.text.end(), one.question.begin(), one.question.end());
  mark(made, one);
  return made;
}

/// Reads the text of the full cache, and counts the bytes at which the policy would have chosen the same one.
void agree(row& to, reader& from, bytes const& greedy) {
  for (std::uint8_t const byte : greedy) {
    to.agreed += best(from.logits()) == byte ? 1 : 0;
    ++to.compared;
    from.step(byte);
  }
}

}  // namespace

run::run(options const& with, std::vector<contender> const& contenders, bytes const& text) : with_(with) {
  for (contender const& one : contenders) {
    for (int const share : one.budgeted ? with.shares : std::vector{1}) {
      entrants_.push_back(one);
      rows_.push_back({.policy = one.name,
                       .title = one.title,
                       .decides = one.decides,
                       .share = share,
                       .budget = with.context / share,
                       .own = one.own_budget});
    }
  }
  task_maker tasks(text, with.context, with.seed);
  for (int i = 0; i < with.cases; ++i) cases_.emplace_back(tasks.recall(with.far ? i % 2 : i % 6));
  for (int i = 0; i < with.windows; ++i) cases_.emplace_back(tasks.continuation(with.length));
}

void run::measure(std::shared_ptr<model_files const> const& files) {
  progress shown(static_cast<int>(rows_.size() * cases_.size()), with_.progress);
  shown.say(fmt::format("demo: {} recall questions and {} stretches of text, each under {} rows", with_.cases,
                        with_.windows, rows_.size()));
  std::vector<outcome> outcomes(cases_.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> failed(std::min(static_cast<std::size_t>(with_.threads), cases_.size()));
  std::vector<std::thread> workers;
  for (std::exception_ptr& failure : failed) {
    workers.emplace_back([&] {
      try {
        work(files, outcomes, next, shown);
      } catch (...) {
        failure = std::current_exception();
        next = cases_.size();  // the others stop after their cases
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  for (std::exception_ptr const& failure : failed) {
    if (failure) std::rethrow_exception(failure);
  }
  for (outcome& one : outcomes) {
    for (std::size_t e = 0; e < rows_.size(); ++e) rows_[e].add(one.rows[e]);
    for (mapped_text& map : one.maps) maps_.push_back(std::move(map));
    prefill_seconds_ += one.prefill_seconds;
    prefills_ += one.prefills;
  }
}

void run::work(std::shared_ptr<model_files const> const& files, std::vector<outcome>& outcomes,
               std::atomic<std::size_t>& next, progress& shown) const {
  auto const on = make_engine(
      files,
      {.context = with_.context, .bound = with_.context + with_.length + 64, .layout = with_.layout, .own = with_.own});
  for (std::size_t i = next++; i < cases_.size(); i = next++) outcomes[i] = run_case(*on, i, shown);
}

run::outcome run::run_case(engine& on, std::size_t which, progress& shown) const {
  outcome made{.rows = std::vector<row>(rows_.size())};
  if (auto const* const asks = std::get_if<recall_case>(&cases_[which])) {
    recall(on, *asks, which < mapped, made, shown, fmt::format("recall: question {} of {}", which + 1, with_.cases));
  } else {
    std::size_t const number = which + 1 - static_cast<std::size_t>(with_.cases);
    continuation(on, std::get<text_case>(cases_[which]), number <= mapped_stretches, made, shown,
                 fmt::format("text: stretch {} of {}", number, with_.windows));
  }
  return made;
}

void run::recall(engine& on, recall_case const& one, bool with_map, outcome& to, progress& shown,
                 std::string const& what) const {
  bytes asked = one.prompt;
  asked.insert(asked.end(), one.question.begin(), one.question.end());
  auto const inside = read(on, asked, to);
  auto const before = read(on, one.prompt, to);
  if (with_map) {
    for (bool const later : {false, true}) to.maps.push_back(text_of(one, later));
  }
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    row& mine = to.rows[e];
    auto const ask = [&](reader& from, bool is_later) {
      mapped_text* const map = with_map ? &to.maps[is_later ? 1 : 0] : nullptr;
      watcher watched(from, map);
      for (std::size_t i = 0; is_later && i < one.question.size(); ++i) watched.step(one.question[i]);
      bytes said;
      bool const right = answers(watched, one.answer, said);
      if (is_later && with_.windows == 0) count_costs(mine, from);
      if (map == nullptr) return right;
      say(watched, one.answer.size(), said);
      map->rows.back().said = said;
      map->rows.back().right = right;
      return right;
    };
    auto const in_prompt = entrants_[e].start(on, *inside, rows_[e].budget);
    mine.right_inside += ask(*in_prompt, false) ? 1 : 0;
    auto const later = entrants_[e].start(on, *before, rows_[e].budget);
    mine.right_later += ask(*later, true) ? 1 : 0;
    ++mine.asked;
    shown.advance(what, rows_[e].policy);
  }
}

void run::continuation(engine& on, text_case const& one, bool with_map, outcome& to, progress& shown,
                       std::string const& what) const {
  auto const from = read(on, one.prompt, to);
  bytes const greedy = greedy_text(on, *from, with_.length);
  if (with_map) {
    to.maps.push_back({.name = fmt::format("a text without a question, and {} bytes that follow", with_.length),
                       .text = one.prompt,
                       .prompt = static_cast<int>(one.prompt.size()),
                       .steps = with_.length});
    to.maps.back().text.insert(to.maps.back().text.end(), one.continuation.begin(), one.continuation.end());
  }
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    row& mine = to.rows[e];
    auto const follows = entrants_[e].start(on, *from, rows_[e].budget);
    watcher watched(*follows, with_map ? &to.maps.front() : nullptr);
    for (std::uint8_t const byte : one.continuation) {
      mine.bits += tinylm::bits_of(watched.logits(), byte);
      watched.step(byte);
    }
    mine.continued += with_.length;
    count_costs(mine, *follows);
    agree(mine, *entrants_[e].start(on, *from, rows_[e].budget), greedy);
    shown.advance(what, rows_[e].policy);
  }
}

std::shared_ptr<reading> run::read(engine& on, bytes const& text, outcome& to) const {
  auto const begin = std::chrono::steady_clock::now();
  auto made = read_whole(on, text);
  to.prefill_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++to.prefills;
  return made;
}

}  // namespace demo
