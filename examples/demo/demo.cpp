// The main job: every policy at three budgets on a real decoder, on text that it never saw; what it costs and what it
// loses.
#include <fmt/core.h>

#include <chrono>
#include <cmath>

#include "checks.hpp"
#include "contenders.hpp"
#include "options.hpp"
#include "table.hpp"
#include "tasks.hpp"

namespace demo {
namespace {

std::uint8_t best(std::span<float const> logits) {
  return static_cast<std::uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Adds what a sequence cost to its row.
void count_costs(row& to, reader const& from) {
  to.live_entries += static_cast<double>(from.entries().live_entries());
  to.live_bytes += static_cast<double>(from.entries().live_bytes());
  ++to.measured;
  to.entries_read += static_cast<double>(from.counters().entries_read);
  to.decode_seconds += from.counters().model_seconds;
  to.steps += from.counters().steps;
  to.policy_seconds += from.counters().policy_seconds;
  ++to.prompts;
}

/// True if the greedy answer is right, byte by byte.
bool answers(reader& from, bytes const& answer) {
  auto logits = from.logits();
  for (std::size_t i = 0; i < answer.size(); ++i) {
    if (best(logits) != answer[i]) return false;
    if (i + 1 < answer.size()) logits = from.step(answer[i]);
  }
  return true;
}

class run {
 public:
  run(options const& with, stage const& on, bytes const& text)
      : with_(with), on_(on), tasks_(text, with.context, with.seed) {
    for (contender& one : all_contenders()) {
      bool const wanted = with.policies.empty() || std::count(with.policies.begin(), with.policies.end(), one.name) > 0;
      if (!wanted) continue;
      std::vector<int> const shares = one.name == "full" ? std::vector{1} : with.shares;
      for (int const share : shares) {
        entrants_.push_back(one);
        rows_.push_back({.policy = one.name, .share = share, .budget = with.context / share});
      }
    }
  }

  std::vector<row> const& rows() const { return rows_; }
  double prefill_seconds() const { return prefills_ > 0 ? prefill_seconds_ / prefills_ : 0; }

  void recall(progress_bar& bar) {
    for (int i = 0; i < with_.cases; ++i) {
      recall_case const one = tasks_.recall(with_.far ? i % 2 : i % 6);
      bytes asked = one.prompt;
      asked.insert(asked.end(), one.question.begin(), one.question.end());
      tinylm::prompt const inside = read(asked);
      tinylm::prompt const before = read(one.prompt);
      for (std::size_t e = 0; e < rows_.size(); ++e) {
        auto const in_prompt = entrants_[e].start(on_, inside, rows_[e].budget);
        rows_[e].right_inside += answers(*in_prompt, one.answer) ? 1 : 0;
        auto const later = entrants_[e].start(on_, before, rows_[e].budget);
        for (std::uint8_t const byte : one.question) later->step(byte);
        rows_[e].right_later += answers(*later, one.answer) ? 1 : 0;
        ++rows_[e].asked;
        if (with_.windows == 0) count_costs(rows_[e], *later);
        bar.advance(rows_[e].policy);
      }
    }
  }

  void continuations(progress_bar& bar) {
    for (int i = 0; i < with_.windows; ++i) {
      text_case const one = tasks_.continuation(with_.length);
      tinylm::prompt const from = read(one.prompt);
      bytes const greedy = greedy_text(from);
      for (std::size_t e = 0; e < rows_.size(); ++e) {
        auto const follows = entrants_[e].start(on_, from, rows_[e].budget);
        for (std::uint8_t const byte : one.continuation) {
          rows_[e].bits += tinylm::bits_of(follows->logits(), byte);
          follows->step(byte);
        }
        rows_[e].continued += with_.length;
        count_costs(rows_[e], *follows);
        agree(rows_[e], *entrants_[e].start(on_, from, rows_[e].budget), greedy);
        bar.advance(rows_[e].policy);
      }
    }
  }

 private:
  tinylm::prompt read(bytes const& text) {
    auto const begin = std::chrono::steady_clock::now();
    tinylm::prompt made = tinylm::read_prompt(on_.model, on_.exec, on_.pool, text, on_.bound);
    prefill_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++prefills_;
    return made;
  }

  /// What the full cache writes.
  bytes greedy_text(tinylm::prompt const& from) {
    tinylm::session full(on_.model, on_.exec, from, kv::policies::full(), {.bound = on_.bound});
    std::string const text = full.generate(with_.length);
    return {text.begin(), text.end()};
  }

  /// Follows the full cache's text and counts where the policy would have written the same byte.
  static void agree(row& to, reader& from, bytes const& greedy) {
    for (std::uint8_t const byte : greedy) {
      to.agreed += best(from.logits()) == byte ? 1 : 0;
      ++to.compared;
      from.step(byte);
    }
  }

  options const& with_;
  stage const& on_;
  task_maker tasks_;
  std::vector<contender> entrants_;
  std::vector<row> rows_;
  double prefill_seconds_ = 0;
  int prefills_ = 0;
};

int work(options const& with) {
  auto const least = static_cast<std::size_t>(with.context + with.length);
  bytes const text = read_text(with.text.empty() ? with.weights + "/held_out.txt" : with.text, least);
  kv::host_executor exec(with.threads);
  tinylm::model model(tinylm::read_weights(with.weights + "/weights.safetensors"));
  int const bound = with.context + with.length + 64;
  int const lanes = model.about().layers * model.about().kv_heads;
  tinylm::kv_pool pool(model.about().shape(), 4 * lanes * (bound / tinylm::kv_pool::page_tokens + 1));
  stage const on{model, exec, pool, bound};
  run all(with, on, text);
  {
    progress_bar bar(static_cast<int>(all.rows().size()) * (with.cases + with.windows));
    all.recall(bar);
    all.continuations(bar);
  }
  fmt::print(
      "tinylm, prompts of {} bytes, {} recall questions, {} stretches of {} bytes, {} threads; a prefill takes {:.0f} "
      "ms\n\n",
      with.context, with.cases, with.windows, with.length, with.threads, 1e3 * all.prefill_seconds());
  print_table(all.rows(), lanes);
  fmt::print("\n");
  for (contender const& one : all_contenders()) {
    bool const wanted = with.policies.empty() || std::count(with.policies.begin(), with.policies.end(), one.name) > 0;
    if (wanted) fmt::print("{:<14} {}\n", one.name, one.spell(with.context / with.shares.front()));
  }
  return with.check && !checks_pass(all.rows(), on, text, with.context, with.weights) ? 1 : 0;
}

}  // namespace
}  // namespace demo

int main(int count, char** arguments) {
  demo::options with;
  CLI::App app("kvpolicy's demo: what each policy keeps, costs and loses on a small decoder", "demo");
  demo::add_to(app, with);
  try {
    app.parse(count, arguments);
    demo::settle(with);
    return demo::work(with);
  } catch (CLI::CallForHelp const& help) {
    return app.exit(help);
  } catch (CLI::ParseError const& wrong) {
    fmt::print(stderr, "demo: {}\n", wrong.what());
    return 2;
  } catch (kvpolicy::invalid_argument const& wrong) {
    fmt::print(stderr, "{}\n", wrong.what());
    return 2;
  } catch (std::exception const& failed) {
    fmt::print(stderr, "demo: {}\n", failed.what());
    return 1;
  }
}
