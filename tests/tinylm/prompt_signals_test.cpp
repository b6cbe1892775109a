// SPDX-License-Identifier: Apache-2.0
// What the decoder tells of a prompt to methods that decide once, at its end.
#include "tinylm/prompt_signals.hpp"

#include <doctest/doctest.h>

#include "fixture.hpp"

using namespace tinylm_test;

namespace {

float const* row_of(kv::query_view const& rows, int layer, int head, int row) {
  return reinterpret_cast<float const*>(rows.at({0, layer, 0}, head, row));
}

/// A text of so many bytes.
std::vector<std::uint8_t> text_of(int bytes) {
  std::vector<std::uint8_t> made = golden("text").text;
  while (std::ssize(made) < bytes) made.insert(made.end(), made.begin(), made.begin() + 50);
  made.resize(static_cast<std::size_t>(bytes));
  return made;
}

}  // namespace

TEST_SUITE("tinylm: signals of a prompt") {
  TEST_CASE("queries before RoPE turn to those of the prompt") {
    fixture& with = fixture::get();
    auto const read = tinylm::read_prompt(with.lm, with.exec, with.pool, text_of(40), 64);
    tinylm::prompt_signals const made(with.lm, with.exec, read);
    kv::pre_rope_queries const before = made.before_rope();
    kv::query_view const after = read.queries.signal();
    before.check("test", with.lm.about().shape());
    int const half = before.dims / 2;
    double worst = 0;
    for (int layer = 0; layer < with.lm.about().layers; ++layer) {
      for (int h = 0; h < before.heads; ++h) {
        for (int r = 0; r < before.rows; ++r) {
          float const *const from = row_of(before, layer, h, r), *const to = row_of(after, layer, h, r);
          for (int i = 0; i < half; ++i) {
            double const angle = r * std::pow(before.rope.theta, -1.0 * i / half);
            double const turned = double{from[i]} * std::cos(angle) - double{from[i + half]} * std::sin(angle);
            worst = std::max(worst, std::abs(turned - double{to[i]}));
          }
        }
      }
    }
    CHECK(worst < 1e-3);
  }

  TEST_CASE("the output projection is that of every layer") {
    fixture& with = fixture::get();
    auto const read = tinylm::read_prompt(with.lm, with.exec, with.pool, text_of(20), 64);
    tinylm::prompt_signals const made(with.lm, with.exec, read);
    kv::output_projection const of = made.output();
    of.check("test", with.lm.about().shape());
    auto const& blocks = with.lm.parameters().blocks;
    for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
      auto const* const first = reinterpret_cast<float const*>(of.base + static_cast<std::int64_t>(layer) * of.layer);
      CHECK(std::equal(blocks[layer].wo.begin(), blocks[layer].wo.end(), first));
    }
  }

  TEST_CASE("a chunk's rows are those of a run that goes on from the prompt with it") {
    fixture& with = fixture::get();
    constexpr int length = 300, chunk = tinylm::prompt_signals::chunk, request = tinylm::prompt_signals::request;
    auto const text = text_of(length);
    auto const read = tinylm::read_prompt(with.lm, with.exec, with.pool, text, length);
    int const free = with.pool.free_pages();
    tinylm::prompt_signals const made(with.lm, with.exec, read);
    CHECK(with.pool.free_pages() == free);
    kv::external_queries const rows = made.repeated();
    REQUIRE(rows.rows == length + 1 + request);
    rows.check("test", with.lm.about().shape());
    auto entries = read.entries.fork();
    rows.check_rows("test", entries.view().lanes);
    for (int r = 0; r < rows.rows; ++r) {
      CHECK(rows.spans.begin.data[r] == (r < chunk + 1 ? 0 : chunk));
      CHECK(rows.spans.end.data[r] == (r < chunk + 1 ? chunk : length));
    }
    // The last chunk, read after the prompt in one text.
    std::vector<std::uint8_t> all = text;
    all.insert(all.end(), text.begin() + chunk - request, text.end());
    auto const again = tinylm::read_prompt(with.lm, with.exec, with.pool, all, 512);
    auto whole = again.entries.fork();
    kv::cache const cache = whole.view();
    double worst = 0;
    for (int layer = 0; layer < with.lm.about().layers; ++layer) {
      for (int r = chunk + 1; r < rows.rows; ++r) {
        int const at = length + r - (chunk + 1);
        for (int d = 0; d < rows.dims; ++d) {
          for (int h = 0; h < rows.heads; ++h) {
            worst = std::max(
                worst, std::abs(double{row_of(rows, layer, h, r)[d]} - double{again.queries.row(layer, h, at)[d]}));
          }
          for (int h = 0; h < rows.spans.keys.heads; ++h) {
            auto const* const key =
                reinterpret_cast<float const*>(cache.k.row(layer, cache.where.at({0, layer, h}, at), h));
            worst = std::max(worst, std::abs(double{row_of(rows.spans.keys, layer, h, r)[d]} - double{key[d]}));
          }
        }
      }
    }
    CHECK(worst < 1e-3);
  }
}
