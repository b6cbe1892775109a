// SPDX-License-Identifier: Apache-2.0
// Verbs on 1, 2, 3 and 8 threads write the same bytes. Small, so that the thread sanitizer can watch all of them.

#include "layout/slot_cache.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

template <class T>
void put(std::vector<std::byte>& into, T const* from, std::size_t count) {
  auto const* const first = reinterpret_cast<std::byte const*>(from);
  into.insert(into.end(), first, first + count * sizeof(T));
}

mock_options batch_of(kv::codec element, arrangement memory, bool shared) {
  return {.model = {.layers = 3, .query_heads = 6, .kv_heads = 3, .head_dim = 80},
          .sequences = 3,
          .bound = 65,
          .element = element,
          .memory = memory,
          .where = kv::locating::block_table,
          .shared_entries = shared,
          .rows = content::smooth};
}

/// Every verb that works on lanes in parallel, one after the other, and all that they wrote.
std::vector<std::byte> all_verbs(int threads, kv::codec element, arrangement memory) {
  filled_cache cache(batch_of(element, memory, true));
  current_queries queries(cache, element, 9, 11);
  kv::host_executor exec(threads);
  kv::cache const view = cache.view();
  exec.reserve(scratch_of_every_verb<kv::host>(view));
  std::vector<std::byte> written;
  kv::lanes const batch = cache.lanes();
  for (auto const order : {kv::reduction_order::rows_then_group, kv::reduction_order::group_then_rows,
                           kv::reduction_order::group_on_logits}) {
    for (auto const decides : {kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence}) {
      owned_scores mass(batch, decides);
      kv::ops::compute_attention_mass(exec, kv::keys_of(view), queries.view(), {.order = order}, mass.view());
      kv::ops::pool(exec, kv::avg_pool{5}, mass.view(), 3);
      kv::ops::map(exec, mass.view(), [](float old, kv::entry at) { return old * static_cast<float>(at.position); });
      owned_keep keep(mass.view());
      kv::ops::top_k(exec, mass.view(), kv::plain_top_k{20}, keep.view());
      put(written, mass.all().data(), mass.all().size());
      for (int s = 0; s < mass.view().segments(); ++s) put(written, keep.kept(s).data(), keep.kept(s).size());
    }
  }
  owned_scores norms(batch), folded(batch, kv::granularity::sequence);
  kv::ops::row_norm(exec, kv::keys_of(view), kv::replaced{}, norms.view());
  kv::ops::row_norm(exec, kv::values_of(view), kv::multiplied{}, norms.view());
  kv::ops::fold_step const mean{kv::reduction::mean, true, 9};
  kv::ops::fold(exec, norms.view(), mean, folded.view());
  put(written, norms.all().data(), norms.all().size());
  put(written, folded.all().data(), folded.all().size());
  owned_keep pooled(norms.view());
  kv::detail::decision_rule const rule{kv::nothing{}, kv::sinks{2}, kv::per_sequence{20, 0.2}, kv::over_budget{}};
  kv::ops::top_k(exec, norms.view(), rule, pooled.view());
  for (int s = 0; s < norms.view().segments(); ++s) put(written, pooled.kept(s).data(), pooled.kept(s).size());
  put(written, &pooled.report(), 1);

  owned_keep keep(folded.view());
  kv::ops::top_k(exec, folded.view(), kv::plain_top_k{20}, keep.view());
  kv::ops::gather_rows(exec, keep.view(), view, std::span<kv::recorded_column const>());
  kv::ops::set_counts(exec, batch, keep.view());
  kv::ops::rerotate(exec, batch, view, kv::rope{});
  auto const after = cache.save();
  put(written, after.memory.data(), after.memory.size());
  put(written, after.position.data(), after.position.size());
  return written;
}

/// A policy with a ring of rows, step by step, carried out by an applier of tables.
template <class Layout>
std::vector<std::byte> history(int threads, Layout const& layout_of) {
  slot_cache cache({.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
                    .sequences = 3,
                    .bound = 33,
                    .by_lane = true,
                    .element = kv::codec::f16});
  std::vector<std::byte> hidden(as_size(cache.rows * cache.units), std::byte{1});
  kv::host_executor exec(threads);
  kv::cache view = cache.view();
  kv::eviction<kv::snapkv> const policy{.score = {.window = 4}, .budget = {12}};
  auto [state, plan] = state_and_plan(exec, policy, view);
  std::vector<float> rows(std::size_t{3} * 2 * 4 * 4 * 16);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * 7919 % 101) / 50.0f - 1.0f;
  std::vector<std::byte> written;
  kv::apply_stats stats;
  for (int step = 0; step < 3; ++step) {
    std::vector<int> positions;
    for (int s = 0; s < 3; ++s) {
      for (int t = 0; t < 20; ++t) {
        cache.write_token(s, 20 * step + t, 100 * s + 20 * step + t);
        kv::append(exec, view, state, {s, 1, 20 * step + t});
      }
      for (int r = 0; r < 4; ++r) positions.push_back(20 * step + 16 + r);
    }
    kv::query_view const queries{reinterpret_cast<std::byte const*>(rows.data()),
                                 kv::codec::f32,
                                 16,
                                 2048,
                                 1024,
                                 64,
                                 256,
                                 4,
                                 4,
                                 {positions.data(), 4, 0, 0},
                                 {}};
    kv::signals const in{view.lanes, kv::keys_of(view), kv::queries{queries}};
    observe_and_decide(exec, policy, in, state, plan);
    kv::apply(exec, layout_of(cache, hidden), plan, view, state, &stats);
    put(written, &stats, 1);
  }
  auto const after = cache.save();
  put(written, after.memory.data(), after.memory.size());
  for (auto const& each : after.tables) put(written, each.data(), each.size());
  put(written, hidden.data(), hidden.size());
  return written;
}

template <class Layout>
void same_on_all_threads(Layout const& layout_of) {
  auto const alone = history(1, layout_of);
  for (int const threads : {2, 3, 8}) CHECK(history(threads, layout_of) == alone);
}

}  // namespace

TEST_SUITE("threads") {
  TEST_CASE("verbs write the same bytes on 1, 2, 3 and 8 threads") {
    for (auto const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (auto const memory : {arrangement::nhd, arrangement::hnd, arrangement::transposed_v}) {
        auto const alone = all_verbs(1, element, memory);
        for (int const threads : {2, 3, 8}) CHECK(all_verbs(threads, element, memory) == alone);
      }
    }
  }

  TEST_CASE("so do observe, decide and every applier") {
    same_on_all_threads([](slot_cache&, auto&) { return kv::compact{}; });
    same_on_all_threads(
        [](slot_cache& of, auto&) { return kv::list_rewrite<>{.list = of.list_table(), .freed = of.freed_list()}; });
    same_on_all_threads([](slot_cache& of, auto&) { return of.redirecting(); });
    same_on_all_threads([](slot_cache& of, auto&) { return kv::overwrite{of.list_table()}; });
    same_on_all_threads([](slot_cache& of, std::vector<std::byte>& hidden) {
      auto const like = of.table(of.count, 1);
      std::int64_t const row = of.units;
      return kv::mask{
          of.list_table(),
          {{hidden.data(), like.sequence * row, like.layer * row, like.head * row}, kv::mask_form::boolean, row}};
    });
  }

  TEST_CASE("an executor is made, used and ended again and again") {
    for (int round = 0; round < 50; ++round) {
      kv::host_executor exec(1 + round % 8);
      std::vector<int> seen(as_size(round), 0);
      exec.for_each(round, [&](int i, int) { seen[as_size(i)] += 1; });
      exec.for_each(round, [&](int i, int) { seen[as_size(i)] += 1; });
      CHECK(seen == std::vector<int>(as_size(round), 2));
    }
  }
}
