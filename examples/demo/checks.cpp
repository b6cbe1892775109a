// SPDX-License-Identifier: Apache-2.0
// Checks that the demo's figures are within the bounds in which its table is meaningful.
#include "checks.hpp"

#include <fmt/core.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine.hpp"
#include "progress.hpp"

namespace demo {
namespace {

/// The model's bits per byte with the full cache, in windows of 1280 bytes. Of each window the second half counts; of
/// the first window all bytes count.
double bits_per_byte(engine& on, bytes const& text, double seconds) {
  constexpr std::size_t window = 1280, stride = 640;
  tinylm::kv_pool pool(on.model().about().shape(), 2 * 8 * static_cast<int>(window) / tinylm::kv_pool::page_tokens);
  double bits = 0;
  std::size_t counted = 0;
  progress shown(static_cast<int>((text.size() - window) / stride) + 1, seconds);
  for (std::size_t begin = 0; begin + window <= text.size(); begin += stride) {
    shown.advance("check: bits per byte with the full cache", "bits per byte");
    tinylm::session reading(on.model(), on.exec(), pool, kvpolicy::policies::full(),
                            {.bound = static_cast<int>(window)});
    std::span<std::uint8_t const> const here(text.data() + begin, window);
    std::size_t const from = begin == 0 ? 1 : stride;
    reading.prefill(here, [&](int position, std::span<float const> rows) {
      for (std::size_t r = 0; r < rows.size() / 256; ++r) {
        std::size_t const next = static_cast<std::size_t>(position) + r + 1;
        if (next < from || next >= window) continue;
        bits += tinylm::bits_of(rows.subspan(r * 256, 256), here[next]);
        ++counted;
      }
    });
  }
  return bits / static_cast<double>(std::max<std::size_t>(1, counted));
}

/// The fraction of right answers with the full cache, for facts that are at least three quarters of a prompt of
/// `context` bytes away.
double far_recall(engine& on, bytes const& text, int context, int cases, std::uint64_t seed, double seconds) {
  progress shown(cases, seconds);
  task_maker tasks(text, context, seed);
  int right = 0;
  for (int i = 0; i < cases; ++i) {
    shown.advance("check: recall of far facts with the full cache", "far facts");
    recall_case const one = tasks.recall(i % 2);
    bytes asked = one.prompt;
    asked.insert(asked.end(), one.question.begin(), one.question.end());
    tinylm::prompt const read = tinylm::read_prompt(on.model(), on.exec(), on.pool(), asked, on.bound());
    tinylm::session full(on.model(), on.exec(), read, kvpolicy::policies::full(),
                         {.bound = on.bound(), .lay = on.lay()});
    std::string const said = full.generate(static_cast<int>(one.answer.size()));
    right += std::equal(said.begin(), said.end(), one.answer.begin(),
                        [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; });
  }
  return static_cast<double>(right) / cases;
}

}  // namespace

bool checks_pass(options const& with, std::vector<row> const& rows, bytes const& text) {
  auto const made = make_engine(read_model(with.weights), {.context = with.context,
                                                           .bound = with.context + with.length + 64,
                                                           .layout = with.layout,
                                                           .own = with.own,
                                                           .threads = with.threads});
  engine& on = *made;
  bool all = true;
  auto const line = [&](std::string const& what, double value, char const* sign, double bound) {
    bool const met = sign[0] == '>' ? value >= bound : value <= bound;
    all = all && met;
    fmt::print("{:<66} {:.3f} {} {:.3f} {}\n", what, value, sign, bound, met ? "met" : "MISSED");
  };
  fmt::print("\n");
  line("full cache: recall of 200 facts, three quarters of the prompt away",
       far_recall(on, text, with.context, 200, 2026, with.progress), ">=", 0.95);
  double full = 0;
  for (row const& one : rows) {
    std::string const what = fmt::format("{} at 1/{}: recall, question in the prompt", one.policy, one.share);
    if (one.policy == "full") full = one.recall_inside();
    if (one.share < 8) continue;
    if (one.policy == "snapkv") line(what, one.recall_inside(), ">=", 0.9 * full);
    if (one.policy == "streaming_llm" || one.policy == "random") line(what, one.recall_inside(), "<=", 0.5 * full);
    std::string const later = fmt::format("{} at 1/{}: recall, question later", one.policy, one.share);
    bool const trained = one.policy == "wg_kv" || (one.policy == "trim_kv" && one.share == 8);
    if (trained) line(later, one.recall_later(), ">=", 0.8 * full);
    if (one.policy == "local_attention") line(later, one.recall_later(), "<=", 0.5 * full);
  }
  std::ifstream file(with.weights + "/baselines.json");
  kvpolicy::expects(file.good(), "demo", "--weights", with.weights, "baselines.json is not there");
  kvpolicy::expects(text.size() >= 1280, "demo", "--text", text.size(), "bits per byte need 1280 bytes at least");
  auto const known = nlohmann::json::parse(file);
  double const baseline = std::min(known.at("gzip_9").get<double>(), known.at("ngram_5").get<double>());
  line("full cache: bits per byte, against the better of gzip and n-grams", bits_per_byte(on, text, with.progress),
       "<=", 0.85 * baseline);
  return all;
}

}  // namespace demo
