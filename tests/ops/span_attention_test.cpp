// SPDX-License-Identifier: Apache-2.0
// span_attention against the reference.

#include "reference/leverage.hpp"
#include "support/given_logits.hpp"
#include "support/spans.hpp"

namespace span_attention_test {

using namespace kvpolicy_test;

/// The first lane that differs from the reference.
comparison agrees(spans_case& of, given_logits const& logits, int sinks, kv::isa level, int threads = 1) {
  kv::host_executor exec(threads, level);
  owned_scores found(of.cache.lanes());
  of.attend(exec, logits.keys_of(of.cache.view()), sinks, found.view());
  for (int i = 0; i < of.cache.lane_count(); ++i) {
    kv::lane const one = of.cache.lane_at(i);
    reference::lane_attention lane = of.lane(one);
    logits.tell(one, lane);
    auto const expected = reference::span_attention(lane, of.spans_of(one), of.own_of(one), sinks);
    comparison const result = compare(found.row(i, of.cache.committed(one)), expected);
    if (!result) return result;
  }
  return {};
}

/// The first lane whose attention in chunks of entries differs from the reference.
comparison agrees(spans_case& of, given_logits const& logits, kv::entry_chunks const& chunks, kv::isa level) {
  kv::host_executor exec(1, level);
  std::vector<float> const found = of.attention_in(exec, logits.keys_of(of.cache.view()), chunks);
  for (int i = 0; i < of.cache.lane_count(); ++i) {
    kv::lane const one = of.cache.lane_at(i);
    reference::lane_attention lane = of.lane(one);
    logits.tell(one, lane);
    auto const expected = reference::chunk_attention(lane, as_size(chunks.size), as_size(chunks.first),
                                                     as_size(chunks.last), chunks.padded);
    int const stride = of.cache.options().bound + 3;
    std::span<float const> const row(found.data() + std::ptrdiff_t{i} * stride, expected.size());
    comparison const result = compare(row, expected, 1);
    if (!result) return result;
  }
  return {};
}

TEST_SUITE("ops/span_attention") {
  TEST_CASE("the most attention is the reference's, in every layout, element type and kind of logits") {
    holds("span_attention == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few, content::troubled}, 6);
      int const rows = *rc::gen::element(0, 1, 2, 5, 9, 33);
      spans_case of(shape, any_float(), rows, rows + *rc::gen::element(0, 0, 4));
      auto const any = [] { return any_bool(); };
      of.draw(*rc::gen::element(1, 3, 17, 100), any_float(), any());
      given_logits const logits(of.cache.random(), shape.model, any(), any(), any());
      int const sinks = *rc::gen::element(0, 1, 4, 100);
      auto const before = of.cache.save();
      for (kv::isa const level : every_isa) {
        assert_same(agrees(of, logits, sinks, std::min(level, kv::best_isa()), *rc::gen::element(1, 3)));
      }
      RC_ASSERT(of.cache.save() == before);
    });
  }

  TEST_CASE("chunks and rows around the sizes of tiles, blocks and stretches") {
    for (int const group : {1, 4, 8}) {
      for (int const entries : {23, 24, 25, 479, 481, 961}) {
        for (int const rows : {1, 7, 9, 65}) {
          for (bool const own : {false, true}) {
            mock_options const shape{.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = 8},
                                     .bound = entries + 7,
                                     .element = rows == 7   ? kv::codec::bf16
                                                : rows == 9 ? kv::codec::f16
                                                            : kv::codec::f32};
            spans_case of(shape, kv::codec::f32, rows + 2, rows + 2);
            of.cache.put({}, up_to(entries + 7));
            for (int r = 0; r < rows + 2; ++r)
              of.set(0, r, r < rows ? 5 : entries, r < rows ? 5 + entries : entries + 7);
            if (own) of.draw_keys(kv::codec::f32);
            given_logits const logits(of.cache.random(), shape.model, false, false, false);
            INFO("group ", group, ", entries ", entries, ", rows ", rows, ", own ", own);
            check_same(agrees(of, logits, 4, kv::best_isa()));
          }
        }
      }
    }
  }

  TEST_CASE("chunks for which blocks do not share memory, and whose stretches are longer") {
    for (int const entries : {4097, 31000}) {
      mock_options const shape{.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 4},
                               .bound = entries};
      spans_case of(shape, kv::codec::f32, 20, 20);
      of.cache.put({}, up_to(entries));
      for (int r = 0; r < 20; ++r) of.set(0, r, 0, entries);
      of.draw_keys(kv::codec::f16);
      given_logits const logits(of.cache.random(), shape.model, false, false, true);
      check_same(agrees(of, logits, 4, kv::best_isa()));
    }
  }

  TEST_CASE("more keys of rows than entries, and rows about everything") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 4}, .bound = 3};
    spans_case of(shape, kv::codec::f32, 1500, 1500);
    of.cache.put({}, {0, 1, 2});
    of.draw_keys(kv::codec::f32);
    given_logits const logits(of.cache.random(), shape.model, false, false, false);
    comparison const chunk = agrees(of, logits, 4, kv::best_isa());  // spans of 0 entries
    CHECK_MESSAGE(chunk.same, chunk);
    for (int r = 0; r < 1500; ++r) of.set(0, r, 0, 3);
    check_same(agrees(of, logits, 4, kv::best_isa()));
    kv::host_executor exec;
    auto const said = of.attention(exec, kv::keys_of(of.cache.view()), 4);
    of.say_spans(false);
    CHECK(of.attention(exec, kv::keys_of(of.cache.view()), 4) == said);
  }

  TEST_CASE("attention in chunks of entries is the reference's") {
    holds("span_attention in chunks == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few, content::troubled}, 6);
      int const rows = *rc::gen::element(0, 1, 9, 33, 50);
      spans_case of(shape, any_float(), rows, rows);
      auto const any = [] { return any_bool(); };
      given_logits const logits(of.cache.random(), shape.model, any(), any(), any());
      kv::entry_chunks const chunks{*rc::gen::element(1, 2, 7, 16, 33, 1000), *rc::gen::element(0, 1, 5, 60),
                                    *rc::gen::element(0, 1, 5, 60), any()};
      RC_LOG() << rows << " rows, chunks of " << chunks.size << " from " << chunks.first << " to " << chunks.last
               << (chunks.padded ? ", padded\n" : "\n");
      for (kv::isa const level : every_isa) {
        assert_same(agrees(of, logits, chunks, std::min(level, kv::best_isa())));
      }
    });
  }

  TEST_CASE("long chunks of entries, of one, four and eight heads") {
    for (int const group : {1, 4, 8}) {
      for (int const entries : {1, 31, 32, 33, 600}) {
        for (int const dims : {64, 80, 128}) {
          mock_options const shape{.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = dims},
                                   .bound = entries,
                                   .element = kv::codec::bf16};
          spans_case of(shape, kv::codec::bf16, entries, entries);
          of.cache.put({}, up_to(entries));
          given_logits const logits(of.cache.random(), shape.model, false, false, false);
          INFO("group ", group, ", entries ", entries, ", dims ", dims);
          for (bool const padded : {false, true}) {
            check_same(agrees(of, logits, {256, 8, 4, padded}, kv::best_isa()));
          }
        }
      }
    }
  }

  TEST_CASE("a wrong argument is named, and nothing is written") {
    mock_cache cache({});
    cache.put({}, {0});
    mock_queries queries(cache, kv::codec::f32, 1, 1);
    kv::host_executor exec;
    owned_scores out(cache.lanes()), shared(cache.lanes(), kv::granularity::sequence);
    int const zero = 0;
    auto const refused = [&](kv::query_view const& rows, kv::row_spans const& spans, int sinks,
                             kv::score_view const& to) {
      return error_of([&] { kv::ops::span_attention(exec, kv::keys_of(cache.view()), rows, spans, {sinks}, to); });
    };
    kv::query_view const rows = queries.view();
    kv::query_view wide = rows;
    wide.dims = 5;
    CHECK(refused(wide, {}, 0, out.view()) ==
          "span_attention: queries.dims = 5, but keys and queries have one head size");
    CHECK(refused(rows, {.begin = {&zero}}, 0, out.view()) ==
          "span_attention: spans.end = null, but a span has a begin and an end");
    CHECK(refused(rows, {.keys = wide}, 0, out.view()) ==
          "span_attention: spans.keys.dims = 5, but rows have 4 channels");
    wide.rows = 2;
    CHECK(refused(rows, {.keys = wide}, 0, out.view()) ==
          "span_attention: spans.keys.rows = 2, but each of 1 rows has a key");
    CHECK(refused(rows, {}, -1, out.view()) == "span_attention: sinks = -1, but a count cannot be negative");
    CHECK(refused(rows, {}, 0, shared.view()) == "span_attention: out.decides = 2, but keys belong to lanes");
    auto const chunked = [&](kv::row_spans const& spans, kv::span_attention_options const& how) {
      return error_of([&] { kv::ops::span_attention(exec, kv::keys_of(cache.view()), rows, spans, how, out.view()); });
    };
    CHECK(chunked({}, {.chunks = {-1}}) == "span_attention: chunks.size = -1, but a count cannot be negative");
    CHECK(chunked({}, {.chunks = {1, -1}}) == "span_attention: chunks.first = -1, but a count cannot be negative");
    CHECK(chunked({}, {.chunks = {1, 0, -1}}) == "span_attention: chunks.last = -1, but a count cannot be negative");
    CHECK(chunked({}, {.sinks = 1, .chunks = {1}}) ==
          "span_attention: sinks = 1, but rows about chunks of entries see nothing else");
    CHECK(chunked({.begin = {&zero}, .end = {&zero}}, {.chunks = {1}}) ==
          "span_attention: spans = given, but chunks of entries say what rows are about");
    for (float const each : out.all()) CHECK(each == 0.5f);
  }
}

}  // namespace span_attention_test
