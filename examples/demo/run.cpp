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

/// True if every byte of the greedy answer is right.
bool answers(reader& from, bytes const& answer) {
  auto logits = from.logits();
  for (std::size_t i = 0; i < answer.size(); ++i) {
    if (best(logits) != answer[i]) return false;
    if (i + 1 < answer.size()) logits = from.step(answer[i]);
  }
  return true;
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
    if (one.map) maps_.push_back(std::move(*one.map));
    prefill_seconds_ += one.prefill_seconds;
    prefills_ += one.prefills;
  }
}

void run::work(std::shared_ptr<model_files const> const& files, std::vector<outcome>& outcomes,
               std::atomic<std::size_t>& next, progress& shown) const {
  auto const on = make_engine(
      files, {.context = with_.context, .bound = with_.context + with_.length + 64, .layout = with_.layout});
  for (std::size_t i = next++; i < cases_.size(); i = next++) outcomes[i] = run_case(*on, i, shown);
}

run::outcome run::run_case(engine& on, std::size_t which, progress& shown) const {
  outcome made{.rows = std::vector<row>(rows_.size())};
  if (auto const* const asks = std::get_if<recall_case>(&cases_[which])) {
    recall(on, *asks, which < mapped, made, shown, fmt::format("recall: question {} of {}", which + 1, with_.cases));
  } else {
    std::size_t const number = which + 1 - static_cast<std::size_t>(with_.cases);
    continuation(on, std::get<text_case>(cases_[which]), made, shown,
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
  mapped_prompt map{.about = one, .text = asked, .kept = {}, .right = {}};
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    row& mine = to.rows[e];
    auto const in_prompt = entrants_[e].start(on, *inside, rows_[e].budget);
    if (with_map) map.kept.push_back(keep_map(in_prompt->lanes(), with_.context));
    map.right.push_back(answers(*in_prompt, one.answer));
    mine.right_inside += map.right.back() ? 1 : 0;
    auto const later = entrants_[e].start(on, *before, rows_[e].budget);
    for (std::uint8_t const byte : one.question) later->step(byte);
    mine.right_later += answers(*later, one.answer) ? 1 : 0;
    ++mine.asked;
    if (with_.windows == 0) count_costs(mine, *later);
    shown.advance(what, rows_[e].policy);
  }
  if (with_map) to.map = std::move(map);
}

void run::continuation(engine& on, text_case const& one, outcome& to, progress& shown, std::string const& what) const {
  auto const from = read(on, one.prompt, to);
  bytes const greedy = greedy_text(on, *from, with_.length);
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    row& mine = to.rows[e];
    auto const follows = entrants_[e].start(on, *from, rows_[e].budget);
    for (std::uint8_t const byte : one.continuation) {
      mine.bits += tinylm::bits_of(follows->logits(), byte);
      follows->step(byte);
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
