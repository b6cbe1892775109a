// SPDX-License-Identifier: Apache-2.0
// The law of batches for a policy with an admission, an eviction and a selection: a request is served as if alone.

#include "support/dual_engine.hpp"

namespace {

using namespace kvpolicy_test;

auto wg_kv_and_quest() {
  return kv::cache_policy{
      .admit = kv::admission{.score = kv::write_gate{}, .window = 4, .pick = kv::at_least{0.5f}},
      .select = kv::selection{.score = kv::quest{.page = 4}, .budget = kv::per_lane{8}, .dense_layers = 0},
      .evict = kv::eviction{.score = kv::knorm{}, .protect = kv::sinks{1}, .budget = kv::per_lane{10}}};
}

struct request {
  int seed = 0;
  int tokens = 0;  ///< so far
  int slot = -1;
  std::vector<std::byte> saved{};
};

/// The rows, gates and queries of a request follow from its seed, the lane and the position.
float number_of(int seed, int kind, int layer, int head, int position, int which) {
  std::uint64_t const lane =
      static_cast<std::uint64_t>(seed * 8 + kind) * 64u + static_cast<std::uint64_t>(layer * 8 + head);
  return kvpolicy_test::number_of(lane * 100003u + static_cast<std::uint64_t>(position * 8 + which));
}

/// What must not depend on the batch: positions, rows and recorded columns of window and pages, and the pages read.
using image = std::vector<float>;

class admitting_engine {
 public:
  explicit admitting_engine(int slots, int threads)
      : how_{.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4},
             .sequences = slots,
             .rows = 8,
             .page = 4,
             .pages = 40 * slots},
        engine_(how_),
        exec_(threads),
        all(engine_.view()),
        state(kv::make_state(exec_, policy_, all)),
        plans_(kv::make_plan(exec_, policy_, all)),
        free_(engine_.free_pages()) {}

  [[nodiscard]] int held_pages() const { return free_ - engine_.free_pages(); }
  kv::host_executor& exec() { return exec_; }

  /// One step of one to three new tokens for each of these requests.
  std::vector<image> step(std::vector<request*> const& batch, std::vector<int> const& tokens) {
    std::vector<int> slots;
    for (request const* each : batch) slots.push_back(each->slot);
    kv::dual_cache active = kv::only(all, {.slots = slots.data(), .size = static_cast<int>(slots.size())});
    std::vector<kv::append_request> fresh;
    for (std::size_t s = 0; s < batch.size(); ++s) {
      fresh.push_back({static_cast<int>(s), tokens[s], batch[s]->tokens});
    }
    kv::step(exec_, policy_, kv::signals{active.window.lanes}, active, state, plans_,
             std::span<kv::append_request const>(fresh), [&] { forward(batch, tokens, active); });
    std::vector<image> images;
    for (std::size_t s = 0; s < batch.size(); ++s) {
      batch[s]->tokens += tokens[s];
      images.push_back(image_of(static_cast<int>(s), active));
    }
    return images;
  }

 private:
  void forward(std::vector<request*> const& batch, std::vector<int> const& tokens, kv::dual_cache const& active) {
    kv::shape const& model = how_.model;
    auto const sequences = batch.size();
    constexpr int most = 3;
    std::vector<float> gates(sequences * as_size(model.layers * model.kv_heads * most));
    std::vector<float> rows(sequences * as_size(model.layers * model.query_heads * model.head_dim));
    std::vector<int> positions(sequences);
    for (std::size_t s = 0; s < sequences; ++s) {
      request const& one = *batch[s];
      positions[s] = one.tokens + tokens[s] - 1;
      for (int layer = 0; layer < model.layers; ++layer) {
        for (int head = 0; head < model.kv_heads; ++head) {
          for (int t = 0; t < tokens[s]; ++t) {
            kv::lane const here{static_cast<int>(s), layer, head};
            int const at = one.tokens + t;
            int const ordinal = *active.window.lanes.count.row(here) - tokens[s] + t;
            for (kv::plane const* plane : {&active.window.k, &active.window.v}) {
              auto* const row =
                  reinterpret_cast<float*>(plane->row(layer, active.window.where.at(here, ordinal), head));
              for (int d = 0; d < 4; ++d)
                row[d] = number_of(one.seed, plane == &active.window.k ? 1 : 2, layer, head, at, d);
            }
            gates[((as_size(layer) * sequences + s) * as_size(model.kv_heads) + as_size(head)) * most + as_size(t)] =
                std::abs(number_of(one.seed, 3, layer, head, at, 0));
          }
        }
        for (int head = 0; head < model.query_heads; ++head) {
          for (int d = 0; d < 4; ++d) {
            rows[((as_size(layer) * sequences + s) * as_size(model.query_heads) + as_size(head)) * 4 + as_size(d)] =
                number_of(one.seed, 4, layer, head, positions[s], d);
          }
        }
      }
    }
    kv::row_batch const ragged{.sequences = static_cast<int>(sequences), .valid_rows = tokens.data()};
    kv::gate const gate{kv::entry_numbers_of(gates.data(), model, most, ragged)};
    kv::observe(exec_, policy_, kv::signals{active.window.lanes, gate}, state);
    auto const queries =
        kv::queries_of(rows.data(), model, 1, positions.data(), {.sequences = static_cast<int>(sequences)});
    kv::select_pages(exec_, policy_, kv::signals{active.pages.entries.lanes, queries}, state.pages, plans_);
  }

  [[nodiscard]] image image_of(int sequence, kv::dual_cache const& active) {
    image made;
    for (kv::lane const one : lanes_of(active.window.lanes)) {
      if (one.sequence != sequence) continue;
      for (kv::cache const* part : {&active.window, &active.pages.entries}) {
        int const count = *part->lanes.count.row(one);
        made.push_back(static_cast<float>(count));
        for (int e = 0; e < count; ++e) {
          made.push_back(static_cast<float>(part->lanes.position.row(one)[e]));
          for (kv::plane const* plane : {&part->k, &part->v}) {
            auto const* const row =
                reinterpret_cast<float const*>(plane->row(one.layer, part->where.at(one, e), one.head));
            made.insert(made.end(), row, row + 4);
          }
        }
        auto const& of = part == &active.window ? state.window : state.pages;
        for (std::size_t c = 0; c < of.columns().size(); ++c) {
          kv::recorded_column const each = of.columns_from(0, part->lanes)[static_cast<int>(c)];
          if (each.about.extent != kv::column_extent::lane_entry) continue;
          auto const* const numbers = reinterpret_cast<float const*>(each.rows.row(one));
          made.insert(made.end(), numbers, numbers + count);
        }
      }
      for (int const page : plans_.selection->keep().listed(active.pages.entries.lanes.index(one))) {
        made.push_back(static_cast<float>(page));
      }
    }
    return made;
  }

  dual_options how_;
  dual_engine engine_;
  kv::host_executor exec_;
  decltype(wg_kv_and_quest()) policy_ = wg_kv_and_quest();

 public:
  kv::dual_cache all;
  decltype(kv::make_state(exec_, policy_, all)) state;

 private:
  decltype(kv::make_plan(exec_, policy_, all)) plans_;
  int free_;
};

TEST_SUITE("batch invariance") {
  TEST_CASE("an admission, an eviction and a selection serve a request as if it were alone, in 100 schedules") {
    for (int seed = 1; seed <= 100; ++seed) {
      INFO("schedule " << seed);
      dice random(static_cast<std::uint64_t>(seed));
      int const slots = random.between(2, 4);
      admitting_engine engine(slots, random.chance(50) ? 1 : 3);
      std::map<int, std::vector<image>> alone;  // by the seed of a request
      std::map<int, std::vector<int>> chunks;
      auto const chunk_of = [&](int of, int number) {
        dice from(static_cast<std::uint64_t>(of * 100 + number));
        return from.between(1, 3);
      };
      auto const expected = [&](int of, int number) -> image const& {
        auto& images = alone[of];
        if (images.empty()) {
          admitting_engine one(1, 1);
          request made{.seed = of, .slot = 0};
          for (int i = 0; i < 10; ++i) images.push_back(one.step({&made}, {chunk_of(of, i)}).front());
        }
        return images[as_size(number)];
      };
      std::vector<request> requests;
      std::vector<int> done(64);
      auto const free_slot = [&] {
        for (int slot : random.permutation(slots)) {
          if (std::none_of(requests.begin(), requests.end(), [&](request const& one) { return one.slot == slot; }))
            return slot;
        }
        return -1;
      };
      int next_seed = seed * 64;
      std::map<int, int> steps;  // by the index in requests
      for (int round = 0; round < 9; ++round) {
        for (std::size_t i = 0; i < requests.size(); ++i) {
          request& one = requests[i];
          int const free = free_slot();
          if (one.slot >= 0 && random.chance(20)) {
            one.saved.assign(kv::saved_bytes(engine.exec(), engine.all, engine.state, one.slot), std::byte{});
            kv::save(engine.exec(), engine.all, engine.state, one.slot, one.saved);
            kv::reset(engine.exec(), engine.all, engine.state, one.slot);
            one.slot = -1;
          } else if (one.slot < 0 && free >= 0) {
            kv::load(engine.exec(), engine.all, engine.state, free, one.saved);
            one.slot = free;
          } else if (one.slot >= 0 && free >= 0 && random.chance(30)) {
            kv::move(engine.exec(), engine.all, engine.state, one.slot, free);
            one.slot = free;
          }
        }
        if (int const free = free_slot(); free >= 0 && random.chance(70)) {
          steps[static_cast<int>(requests.size())] = 0;
          requests.push_back({.seed = next_seed++, .slot = free});
        } else if (free >= 0 && !requests.empty() && requests.front().slot >= 0) {
          kv::fork(engine.exec(), engine.all, engine.state, requests.front().slot, free);
          steps[static_cast<int>(requests.size())] = steps[0];
          request copy = requests.front();
          copy.slot = free;
          requests.push_back(copy);
        }
        std::vector<request*> batch;
        std::vector<int> tokens;
        std::vector<int> which;
        for (int const i : random.permutation(static_cast<int>(requests.size()))) {
          if (requests[as_size(i)].slot < 0 || random.chance(25)) continue;
          batch.push_back(&requests[as_size(i)]);
          tokens.push_back(chunk_of(requests[as_size(i)].seed, steps[i]));
          which.push_back(i);
        }
        if (batch.empty()) continue;
        auto const images = engine.step(batch, tokens);
        for (std::size_t s = 0; s < batch.size(); ++s) {
          CHECK(images[s] == expected(batch[s]->seed, steps[which[s]]++));
        }
      }
      for (request const& one : requests) {
        if (one.slot >= 0) kv::reset(engine.exec(), engine.all, engine.state, one.slot);
      }
      CHECK(engine.held_pages() == 0);
    }
  }
}

}  // namespace
