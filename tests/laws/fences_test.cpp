// SPDX-License-Identifier: Apache-2.0
// No verb reads or writes a byte beside its arrays, or writes an input: every array ends, or begins, at a page that
// nobody may touch, and inputs lie on pages that may only be read. A law that breaks here ends the program.

#include "laws/subjects.hpp"
#include "support/fenced.hpp"

namespace {

using namespace kvpolicy_test;

enum class order { nhd, hnd };

struct fenced_options {
  int entries = 1;
  int head_dim = 64;
  kv::codec element = kv::codec::f32;
  fence at = fence::behind;
  order rows = order::nhd;
  bool slots = false;  ///< a list of slots, or a row a sequence
  kv::isa most = kv::isa::portable;
  int query_rows = 3;
};

std::string print(fenced_options const& how) {
  char const* const names[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
  std::string text = std::to_string(how.entries);
  text += " entries of ";
  text += std::to_string(how.head_dim);
  text += std::string(" ") + kv::name_of(how.element) + (how.at == fence::behind ? ", end" : ", begin");
  text += std::string(how.rows == order::nhd ? ", nhd" : ", hnd") + (how.slots ? ", slots, " : ", ");
  return text + names[static_cast<int>(how.most)];
}

/// One sequence, one layer, two KV heads with two query heads each; lanes are full, so that their last rows are the
/// last of memory.
struct fenced_batch {
  static constexpr int heads = 2, group = 2, first_position = 40;

  explicit fenced_batch(fenced_options const& with)
      : how(with),
        n(as_size(with.entries)),
        places(n + (with.slots ? 1 : 0)),
        k(places * heads * row_bytes(), with.at),
        v(places * heads * row_bytes(), with.at),
        count(heads, with.at, with.entries),
        position(n * heads, with.at),
        in_flight(1, with.at),
        list(n * heads, with.at),
        map(n * heads + 2 * first_position, with.at, with.entries),
        queries(as_size(with.query_rows * heads * group) * row_bytes(), with.at),
        query_position(as_size(with.query_rows), with.at),
        lse(as_size(with.query_rows * heads * group), with.at, 3.0f),
        exec(1, with.most) {
    for (fenced<std::byte>* plane : {&k, &v, &queries}) {
      auto const width = as_size(kv::bytes_of(how.element));
      unsigned state = 12345;
      for (std::size_t i = 0; i < plane->size() / width; ++i) {
        state = state * 1664525u + 1013904223u;
        kv::store(how.element, static_cast<float>(state >> 16 & 255) / 128.0f - 1.0f, plane->data() + i * width);
      }
    }
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t e = 0; e < n; ++e) {
        position[h * n + e] = first_position + static_cast<int>(e);
        list[h * n + e] = 1 + static_cast<int>((e + 1) % n);
      }
    }
    for (int r = 0; r < how.query_rows; ++r) {
      query_position[as_size(r)] = first_position + how.entries - how.query_rows + r;
    }
    exec.reserve(scratch_of_every_verb<kv::host>(view()));
  }

  [[nodiscard]] std::size_t row_bytes() const { return as_size(how.head_dim * kv::bytes_of(how.element)); }
  kv::by_lane<int> table(fenced<int>& of, std::int64_t row) { return {of.data(), heads * row, heads * row, row}; }
  template <class T>
  static kv::by_lane<T const> read(kv::by_lane<T> const& of) {
    return {of.data, of.sequence, of.layer, of.head};
  }

  kv::lanes who() {
    return {.sequences = 1,
            .layer_begin = 0,
            .layer_end = 1,
            .heads = heads,
            .capacity = how.entries,
            .count = table(count, 1),
            .position = table(position, how.entries),
            .in_flight = in_flight.data()};
  }
  kv::cache view() {
    auto const row = static_cast<std::int64_t>(row_bytes());
    bool const nhd = how.rows == order::nhd;
    std::int64_t const token = nhd ? heads * row : row;
    std::int64_t const head = nhd ? row : static_cast<std::int64_t>(places) * row;
    std::int64_t const whole = static_cast<std::int64_t>(places) * heads * row;
    auto const plane = [&](fenced<std::byte>& of) {
      return kv::plane{of.data(),
                       how.element,
                       how.head_dim,
                       whole,
                       how.slots ? token : whole,
                       how.slots ? row : token,
                       head,
                       kv::bytes_of(how.element)};
    };
    auto const pool = static_cast<std::int64_t>(places);
    kv::locator const where =
        how.slots ? kv::slot_map(read(table(list, how.entries)), pool) : kv::identity_map(how.entries);
    return {{1, heads * group, heads, how.head_dim, 0}, who(), plane(k), plane(v), where};
  }
  kv::query_view rows(bool with_lse = false) {
    auto const row = static_cast<std::int64_t>(row_bytes());
    std::int64_t const all = row * heads * group * how.query_rows;
    kv::query_view made{queries.data(),
                        how.element,
                        how.head_dim,
                        all,
                        all,
                        row,
                        row * heads * group,
                        heads * group,
                        how.query_rows,
                        {query_position.data(), 0, 0, 0},
                        {}};
    std::int64_t const lanes = std::int64_t{heads} * group * how.query_rows;
    if (with_lse) made.lse = {lse.data(), lanes, lanes, how.query_rows};
    return made;
  }

  void seal(bool sealed = true) {
    for (auto* each : {&k, &v, &queries}) sealed ? each->seal() : each->open();
    for (auto* each : {&count, &position, &in_flight, &list, &map, &query_position})
      sealed ? each->seal() : each->open();
    sealed ? lse.seal() : lse.open();
  }
  [[nodiscard]] bool is_whole() const {
    bool whole = k.is_whole() && v.is_whole() && queries.is_whole() && lse.is_whole();
    for (auto const* each : {&count, &position, &in_flight, &list, &map, &query_position})
      whole = whole && each->is_whole();
    return whole;
  }

  fenced_options how;
  std::size_t n;       ///< entries of a lane
  std::size_t places;  ///< rows of memory of a lane: slot 0 is nobody's
  fenced<std::byte> k, v;
  fenced<int> count, position, in_flight, list, map;
  fenced<std::byte> queries;
  fenced<int> query_position;
  fenced<float> lse;
  kv::host_executor exec;
};

/// Scores of segments, exactly as long as they must be.
struct fenced_scores {
  fenced_scores(fenced_batch& of, kv::granularity decides)
      : memory(of.n * as_size(kv::segments(of.who(), decides)), of.how.at, 0.25f),
        view(kv::contiguous_scores(of.who(), decides, memory.data(), of.how.entries)) {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i * 2654435761u % 97) - 48.0f;
  }
  fenced<float> memory;
  kv::score_view view;
};

/// A keep set with no ordinal to spare, of all entries but every third.
struct fenced_keep {
  fenced_keep(fenced_batch& of, kv::granularity decides)
      : segments(as_size(kv::segments(of.who(), decides))),
        offset(segments + 1, of.how.at),
        ordinal(segments * of.n, of.how.at),
        seen(segments, of.how.at, of.how.entries),
        counted(1, of.how.at),
        view{of.who(),      decides,        kv::item::token, kv::side::kept,
             offset.data(), ordinal.data(), seen.data(),     static_cast<std::int64_t>(ordinal.size()),
             counted.data()} {
    std::size_t at = 0;
    for (std::size_t s = 0; s < segments; ++s) {
      for (std::size_t e = 0; e < of.n; ++e) {
        if (e % 3 != 1) ordinal[at++] = static_cast<int>(e);
      }
      offset[s + 1] = static_cast<std::int64_t>(at);
    }
  }
  void seal() {
    offset.seal();
    ordinal.seal();
    seen.seal();
  }
  [[nodiscard]] bool is_whole() const {
    return offset.is_whole() && ordinal.is_whole() && seen.is_whole() && counted.is_whole();
  }
  std::size_t segments;
  fenced<std::int64_t> offset;
  fenced<int> ordinal, seen;
  fenced<kv::report> counted;
  kv::keep_set view;
};

/// Every combination that a vector could stumble over.
template <class Visit>
void for_each_batch(Visit const& visit) {
  int const step = under_address_sanitizer ? 2 : 1;
  for (int most = static_cast<int>(kv::best_isa()); most >= 0; most -= step) {
    for (fence const at : {fence::behind, fence::before}) {
      for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
        for (int const entries : {1, 31, 32, 33, 4097}) {
          for (int const head_dim : {64, 80, 128, 256}) {
            if (entries == 4097 && head_dim != 80) continue;
            bool const odd = (entries + head_dim / 16) % 2 == 1;
            for (order const rows : {order::nhd, order::hnd}) {
              if (entries == 4097 && (rows == order::nhd) == (at == fence::before)) continue;
              visit({entries, head_dim, element, at, rows, odd == (rows == order::nhd), static_cast<kv::isa>(most),
                     entries == 4097 ? 5
                     : odd           ? 33
                                     : 3});
            }
          }
        }
      }
    }
  }
}

/// The same with portable instructions, to compare with.
fenced_options portable(fenced_options how) {
  how.most = kv::isa::portable;
  return how;
}

bool same(fenced<float>& a, fenced<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!close(static_cast<double>(a[i]), static_cast<double>(b[i]), 1.0)) return false;
  }
  return true;
}

std::vector<kv::attention_mass_options> masses() {
  using kv::reduction;
  using kv::reduction_order;
  return {{},
          {.rows = reduction::max, .group = reduction::max, .order = reduction_order::group_then_rows},
          {.rows = reduction::mean, .order = reduction_order::group_on_logits, .last_rows = 2},
          {.domain = kv::key_domain::past, .rows = reduction::last, .accumulate = true}};
}

}  // namespace

TEST_SUITE("laws/fences") {
  TEST_CASE("a fenced array knows when something beside it was written") {
    for (fence const at : {fence::behind, fence::before}) {
      fenced<int> numbers(3, at, 7);
      CHECK(numbers.is_whole());
      CHECK(numbers[2] == 7);
      (at == fence::behind ? numbers.data()[-1] : numbers.data()[3]) = 0;
      CHECK(!numbers.is_whole());
    }
  }

  TEST_CASE("compute_attention_mass reads keys, rows and their LSE, and nothing around them") {
    for_each_batch([](fenced_options const& how) {
      INFO(print(how));
      fenced_batch now(how);
      fenced_batch plain(portable(how));
      for (fenced_batch* each : {&now, &plain}) each->seal();
      for (bool const with_lse : {false, true}) {
        for (kv::attention_mass_options const& options : masses()) {
          fenced_scores out(now, kv::granularity::lane);
          kv::ops::compute_attention_mass(now.exec, kv::keys_of(now.view()), now.rows(with_lse), options, out.view);
          CHECK(out.memory.is_whole());
          if (how.most == kv::isa::portable) continue;
          fenced_scores expected(plain, kv::granularity::lane);
          kv::ops::compute_attention_mass(plain.exec, kv::keys_of(plain.view()), plain.rows(with_lse), options,
                                          expected.view);
          CHECK(same(out.memory, expected.memory));
        }
      }
    });
  }

  TEST_CASE("verbs over scores touch the scores of entries, and read the rest") {
    for_each_batch([](fenced_options const& how) {
      if (how.head_dim > 80) return;  // rows are not read
      INFO(print(how));
      fenced_batch now(how);
      fenced_scores out(now, kv::granularity::lane);
      fenced_scores coarse(now, kv::granularity::sequence);
      now.seal();
      for (kv::pooling const by : {kv::pooling(kv::max_pool{7}), kv::pooling(kv::avg_pool{5})}) {
        for (int const tail : {0, 3}) kv::ops::pool(now.exec, by, out.view, tail);
      }
      kv::ops::map(now.exec, out.view, [](float old, kv::entry at) { return old + static_cast<float>(at.position); });
      out.memory.seal();
      kv::ops::fold_step const step{kv::reduction::mean, true, 2};
      kv::ops::fold(now.exec, out.view, step, coarse.view);
      for (int const k : {0, 1, how.entries / 2, how.entries}) {
        for (kv::granularity const decides : {kv::granularity::lane, kv::granularity::sequence}) {
          fenced_keep keep(now, decides);
          kv::ops::top_k(now.exec, decides == kv::granularity::lane ? out.view : coarse.view, kv::plain_top_k{k},
                         keep.view);
          CHECK(keep.is_whole());
          CHECK(keep.offset[1] == k);
        }
        fenced_keep keep(now, kv::granularity::lane);
        kv::detail::decision_rule const pooled{kv::nothing{}, kv::sinks{fenced_batch::first_position + 2},
                                               kv::per_sequence{k, 0.2}, kv::over_budget{}};
        kv::ops::top_k(now.exec, out.view, pooled, keep.view);
        CHECK(keep.is_whole());
      }
      CHECK(out.memory.is_whole());
      CHECK(coarse.memory.is_whole());
    });
  }

  TEST_CASE("row_norm reads the rows of entries, and nothing around them") {
    for_each_batch([](fenced_options const& how) {
      INFO(print(how));
      fenced_batch now(how);
      fenced_scores out(now, kv::granularity::lane);
      now.seal();
      kv::cache const view = now.view();
      kv::ops::row_norm(now.exec, kv::keys_of(view), kv::replaced{}, out.view);
      kv::ops::row_norm(now.exec, kv::values_of(view), kv::multiplied{}, out.view);
      CHECK(out.memory.is_whole());
    });
  }

  TEST_CASE("policies over rows of any width read nothing around them, on every instruction set") {
    dice random(77);
    for (int most = static_cast<int>(kv::best_isa()); most >= 0; --most) {
      for (int round = 0; round < (under_address_sanitizer ? 10 : 40); ++round) {
        fenced_options const how{
            .entries = random.between(1, 90),
            .head_dim = random.between(1, 200),
            .element = std::array{kv::codec::f32, kv::codec::f16, kv::codec::bf16}[as_size(random.below(3))],
            .at = random.chance(50) ? fence::behind : fence::before,
            .rows = random.chance(50) ? order::nhd : order::hnd,
            .slots = random.chance(50),
            .most = static_cast<kv::isa>(most),
            .query_rows = random.between(1, 33)};
        INFO(print(how));
        fenced_batch now(how);
        kv::cache const view = now.view();
        kv::queries asked{now.rows()};
        if (how.query_rows > how.entries + fenced_batch::first_position) continue;
        now.seal();
        kv::signals const in{view.lanes, kv::keys_of(view), kv::values_of(view), asked};
        auto const decides = [&](auto const& policy) {
          auto [state, plan] = state_and_plan(now.exec, policy, view);
          observe_and_decide(now.exec, policy, in, state, plan);
        };
        int const budget = std::max(1, how.entries / 2);
        decides(kv::eviction<kv::snapkv>{.score = {.window = 4}, .budget = {budget}});
        decides(kv::eviction<kv::h2o>{.budget = {budget}});
        decides(kv::eviction<kv::tova>{.budget = {budget}});
        decides(kv::eviction<kv::knorm>{.budget = {budget}});
        decides(kv::eviction<kv::recorded_knorm>{.budget = {budget}});
        kv::selection<kv::quest> const pages{.score = {.page = 16}};
        auto [state, plan] = state_and_plan(now.exec, pages, view);
        kv::observe(now.exec, pages, in, state);
        kv::select_pages(now.exec, pages, in, state, plan);
        CHECK(now.is_whole());
      }
    }
  }

  TEST_CASE("verbs that move rows write the lane's memory, and nothing around it") {
    for_each_batch([](fenced_options const& how) {
      INFO(print(how));
      fenced_batch now(how);
      fenced_keep keep(now, kv::granularity::lane);
      fenced<std::byte> odd(now.n * 2 * 3, how.at, std::byte{1});
      std::int64_t const row = 3 * static_cast<std::int64_t>(now.n);
      kv::recorded_column const column{{"odd", kv::column_extent::lane_entry, kv::on_move::permute, 3},
                                       {odd.data(), 2 * row, 2 * row, row}};
      std::vector<kv::recorded_column> const columns{column};
      keep.seal();
      for (auto* each : {&now.count, &now.in_flight, &now.list}) each->seal();
      kv::cache const view = now.view();
      kv::ops::gather_rows(now.exec, keep.view, view, std::span<kv::recorded_column const>(columns));
      now.v.seal();
      for (kv::rope_style const style : {kv::rope_style::neox, kv::rope_style::gptj}) {
        kv::ops::rerotate(now.exec, view.lanes, view, kv::rope{.style = style});
        for (int& each : now.position.all()) each += 3;
        kv::ops::rerotate(now.exec, view.lanes, view, kv::rope{.style = style, .dims = how.head_dim / 2});
      }
      CHECK(now.is_whole());
      CHECK(keep.is_whole());
      CHECK(odd.is_whole());
    });
  }

  TEST_CASE("ring_append reads query rows, and writes the ring") {
    for_each_batch([](fenced_options const& how) {
      if (how.entries == 4097) return;
      INFO(print(how));
      fenced_batch now(how);
      constexpr int capacity = 5, heads = fenced_batch::heads, group = fenced_batch::group;
      std::int64_t const row = std::int64_t{capacity} * group * how.head_dim;
      fenced<float> rows(as_size(row * heads), how.at);
      fenced<int> positions(capacity * heads, how.at), cursors(2 * heads, how.at);
      kv::query_ring_view const ring{capacity,
                                     group,
                                     how.head_dim,
                                     {rows.data(), heads * row, heads * row, row},
                                     now.table(positions, capacity),
                                     now.table(cursors, 2)};
      now.seal();
      for (int times = 0; times < 2; ++times) kv::ops::ring_append(now.exec, now.who(), now.rows(), ring);
      kv::ops::ring_truncate(now.exec, now.who(), ring, 0, fenced_batch::first_position);
      CHECK(rows.is_whole());
      CHECK(positions.is_whole());
      CHECK(cursors.is_whole());
    });
  }

  TEST_CASE("appliers of tables write tables, positions and counts; rows are read-only") {
    for_each_batch([](fenced_options how) {
      if (how.head_dim > 80) return;  // rows are not read
      how.slots = true;
      INFO(print(how));
      for (int by = 0; by < 5; ++by) {
        fenced_batch now(how);
        kv::cache view = now.view();
        kv::eviction<kv::streaming_llm> const policy{.score = {2}, .budget = {std::max(0, how.entries - 3)}};
        auto [state, plan] = state_and_plan(now.exec, policy, view);
        fenced<int> freed(now.n * 2, how.at), freed_count(2, how.at);
        fenced<std::byte> bits((now.places + 7) / 8 * 2, how.at, std::byte{0xFF});
        auto const row = static_cast<std::int64_t>((now.places + 7) / 8);
        kv::by_lane<int> const list = now.table(now.list, how.entries);
        kv::unit_list const back{now.table(freed, how.entries), now.table(freed_count, 1)};
        for (std::size_t e = 0; e < now.n; ++e) {
          for (std::size_t h = 0; h < 2; ++h) {
            now.map[h * (now.map.size() / 2) + fenced_batch::first_position + e] = now.list[h * now.n + e];
          }
        }
        kv::apply_stats stats;
        now.seal();
        kv::decide(now.exec, policy, kv::signals{view.lanes}, state, plan);
        for (auto* each : {&now.count, &now.position, &now.list, &now.map}) each->open();
        if (by == 0) {
          kv::apply(now.exec, kv::list_rewrite<>{.list = list, .freed = back}, plan, view, state, &stats);
        } else if (by == 1) {
          kv::mask_rows const rows{{bits.data(), 2 * row, 2 * row, row}, kv::mask_form::bits, how.entries + 1};
          kv::apply(now.exec, kv::mask{list, rows}, plan, view, state, &stats);
          kv::show(now.exec, kv::mask{list, rows}, view);
        } else if (by == 2) {
          now.k.open();
          now.v.open();
          kv::apply(now.exec, kv::overwrite{list}, plan, view, state, &stats);
        } else if (by == 3) {
          view.where.kind = kv::locating::block_table;
          kv::apply(now.exec, kv::drop_blocks{list, back}, plan, view, state, &stats);
        } else {
          kv::dead_slot<> const layout{.list = list,
                                       .map = now.table(now.map, static_cast<std::int64_t>(now.map.size() / 2)),
                                       .dead = 0,
                                       .freed = back};
          kv::apply(now.exec, layout, plan, view, state, &stats);
        }
        CHECK(stats.logical_kept == 2 * std::max(0, how.entries - 3));  // no sink is left at these positions
        CHECK(now.is_whole());
        CHECK(freed.is_whole());
        CHECK(freed_count.is_whole());
        CHECK(bits.is_whole());
      }
    });
  }

  TEST_CASE("append, commit and truncate write positions and counts, and read no row") {
    for (fence const at : {fence::behind, fence::before}) {
      for (int const entries : {1, 31, 33}) {
        fenced_batch now({.entries = entries, .at = at});
        kv::cache view = now.view();
        kv::eviction<kv::h2o> const policy{};
        auto state = kv::make_state(now.exec, policy, view);
        now.k.seal();
        now.v.seal();
        kv::truncate(now.exec, view, state, 0, 0);
        kv::append(now.exec, view, state, {.tokens = entries, .position = 5, .in_flight = true});
        kv::commit(now.exec, view, 0, entries);
        kv::truncate(now.exec, view, state, 0, 6);
        CHECK(now.count[1] == 1);
        CHECK(now.is_whole());
      }
    }
  }

  TEST_CASE_TEMPLATE_DEFINE("observe and decide only read what the engine tells", Scorer, read_only_law) {
    for (int most = 0; most <= static_cast<int>(kv::best_isa()); ++most) {
      for (fence const at : {fence::behind, fence::before}) {
        for (int const entries : {1, 31, 33}) {
          fenced_options const how{entries, 80, kv::codec::bf16, at, order::hnd, true, static_cast<kv::isa>(most), 3};
          INFO(print(how));
          fenced_batch now(how);
          kv::cache const view = now.view();
          kv::eviction<Scorer> const policy{.budget = {entries / 2}};
          auto [state, plan] = state_and_plan(now.exec, policy, view);
          now.seal();
          kv::signals const in{view.lanes, kv::keys_of(view), kv::values_of(view), kv::queries{now.rows()}};
          observe_and_decide(now.exec, policy, in, state, plan);
          CHECK(plan.keep().segments() >= 1);
          CHECK(now.is_whole());
        }
      }
    }
  }
  TEST_CASE_TEMPLATE_APPLY(read_only_law, every_scorer);
}
