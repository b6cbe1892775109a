// SPDX-License-Identifier: Apache-2.0
// Between a store and a batch: rows land where they belong, other sequences are left alone, misfits are refused.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using state = kv::state<kv::host_executor>;

constexpr kv::shape model{.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 5};
constexpr kv::lanes batch{.sequences = 2, .layer_end = 3, .heads = 2, .capacity = 8};

/// A second thing kept for a session.
struct other_recorder {
  using needs = kv::needs<kv::turn_queries>;
  using provides = kv::query_memory;
  [[nodiscard]] static std::array<kv::column, 1> columns(kv::shape const&, int) {
    return {kv::column{"other", kv::column_extent::session, kv::on_move::stay, 4, 1}};
  }
  [[nodiscard]] static kv::query_memory view(kv::recorded_columns const&) { return {}; }
  bool operator==(other_recorder const&) const = default;
};

state memories(kv::host_executor& exec, kv::shape const& of = model, kv::lanes const& who = batch) {
  state made(exec, of, who);
  made.add(kv::record_query_memory{});
  return made;
}

/// The float of a sequence's memory in layer l, query head h, channel d, found by the lane that reads it.
float& at(state& held, int sequence, int l, int h, int d) {
  int const group = held.model().group();
  auto* const row = reinterpret_cast<float*>(held.columns()[0].rows.row({sequence, l, h / group}));
  return row[h % group * held.model().head_dim + d];
}

float code(int l, int h, int d) { return static_cast<float>(l * 100 + h * 10 + d); }

template <class Visit>
void each_float(Visit const& visit) {
  for (int l = 0; l < 3; ++l) {
    for (int h = 0; h < 4; ++h) {
      for (int d = 0; d < 5; ++d) visit(l, h, d);
    }
  }
}

}  // namespace

TEST_SUITE("session/keep") {
  TEST_CASE("a memory lies as layers, query heads, channels, and comes back into any sequence") {
    kv::host_executor exec;
    state held = memories(exec);
    kv::session_store store({3, 4, 5});
    kv::session_id const id = kv::session_id::named("a");
    each_float([&](int l, int h, int d) { at(held, 1, l, h, d) = code(l, h, d); });
    auto lease = store.take(id);
    kv::keep(exec, held, 1, lease);
    CHECK_FALSE(static_cast<bool>(lease));

    lease = store.take(id);
    each_float([&](int l, int h, int d) {
      CHECK(lease.floats()[as_size((l * 4 + h) * 5 + d)] == code(l, h, d));
      at(held, 1, l, h, d) = -7;
    });
    kv::restore(exec, held, 0, lease);
    each_float([&](int l, int h, int d) {
      CHECK(at(held, 0, l, h, d) == code(l, h, d));
      CHECK(at(held, 1, l, h, d) == -7);
    });
    CHECK(static_cast<bool>(lease));
  }

  TEST_CASE("a new session clears what the sequence before it in the batch remembered") {
    kv::host_executor exec;
    state held = memories(exec);
    kv::session_store store({3, 4, 5});
    each_float([&](int l, int h, int d) { at(held, 0, l, h, d) = 9; });
    kv::restore(exec, held, 0, store.take(kv::session_id::unmatched()));
    each_float([&](int l, int h, int d) { CHECK(at(held, 0, l, h, d) == 0); });
  }

  TEST_CASE("a memory that does not fit, or no memory, is refused by both and changes nothing") {
    kv::host_executor exec;
    state held = memories(exec);
    kv::session_store store({3, 4, 5}), others({3, 2, 10});
    kv::session_id const id = kv::session_id::named("a");
    each_float([&](int l, int h, int d) { at(held, 0, l, h, d) = code(l, h, d); });
    auto const refuses = [&](state& with, int sequence, kv::session_lease lease, std::string const& text) {
      CHECK(error_of([&] { kv::restore(exec, with, sequence, lease); }) == "restore: " + text);
      CHECK(error_of([&] { kv::keep(exec, with, sequence, lease); }) == "keep: " + text);
    };
    refuses(held, 0, {}, "lease = empty, but it holds the memory of a session");
    refuses(held, -1, store.take(id), "sequence = -1, but the state has 2");
    refuses(held, 2, store.take(id), "sequence = 2, but the state has 2");
    refuses(held, 0, others.take(id), "memory = [3, 2, 10], but the state's is [3, 4, 5]");
    state part = memories(exec, model, batch.layers_only(1, 3));
    refuses(part, 0, store.take(id), "memory = [3, 4, 5], but the state's is [2, 4, 5]");
    state none(exec, model, batch);
    refuses(none, 0, store.take(id),
            "state.session_bytes = 0, but a memory [3, 4, 5] and nothing else is kept of a session");
    state more = memories(exec);
    more.add(other_recorder{});
    refuses(more, 0, store.take(id),
            "state.session_bytes = 264, but a memory [3, 4, 5] and nothing else is kept of a session");
    CHECK(store.size() == 0);
    each_float([&](int l, int h, int d) { CHECK(at(held, 0, l, h, d) == code(l, h, d)); });
  }

  TEST_CASE("some layers of a model have sessions of their own") {
    kv::host_executor exec;
    state part = memories(exec, model, batch.layers_only(1, 3));
    kv::session_store store({2, 4, 5});
    for (int d = 0; d < 5; ++d) at(part, 1, 2, 3, d) = code(2, 3, d);
    auto lease = store.take(kv::session_id::named("a"));
    kv::keep(exec, part, 1, lease);
    lease = store.take(kv::session_id::named("a"));
    for (int d = 0; d < 5; ++d) CHECK(lease.floats()[as_size((1 * 4 + 3) * 5 + d)] == code(2, 3, d));
    kv::restore(exec, part, 0, lease);
    CHECK(at(part, 0, 2, 3, 4) == code(2, 3, 4));
  }

  TEST_CASE("a turn that ends in NaN is not kept, and the session remembers what it did") {
    kv::host_executor exec;
    state held = memories(exec);
    kv::session_store store({3, 4, 5});
    kv::session_id const id = kv::session_id::named("a");
    each_float([&](int l, int h, int d) { at(held, 0, l, h, d) = code(l, h, d); });
    auto lease = store.take(id);
    kv::keep(exec, held, 0, lease);
    at(held, 0, 1, 2, 3) = std::numeric_limits<float>::quiet_NaN();
    lease = store.take(id);
    CHECK(error_of([&] {
            kv::keep(exec, held, 0, lease);
          }).starts_with("session_lease::commit: float 33 = nan, but a memory is finite"));
    lease = {};
    kv::restore(exec, held, 0, store.take(id));
    CHECK(at(held, 0, 1, 2, 3) == code(1, 2, 3));
  }
}
