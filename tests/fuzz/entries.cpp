// SPDX-License-Identifier: Apache-2.0
// What comes and goes at a lane's end: append, commit and truncate as a machine of states, and the ring of query rows
// that forgets what was rolled back. A call that is refused changes nothing.
#include <deque>
#include <kvpolicy/kvpolicy.hpp>

#include "fuzz/bytes.hpp"
#include "support/mock_batch.hpp"

namespace {

using namespace kvpolicy_fuzz;
using namespace kvpolicy_test;

constexpr int ring_rows = 4;
using ring = std::deque<std::pair<int, reference::row>>;  // positions, and the first head's numbers

/// A batch in the library's hands, and what its lanes must hold.
struct machine {
  mock_cache cache;
  kv::host_executor exec;
  kv::cache view;
  kv::state<kv::host_executor> state;
  std::vector<std::vector<int>> positions;  ///< of each lane
  std::vector<int> drafts;
  std::vector<ring> rings;

  machine(mock_options const& shape, int threads, kv::isa most)
      : cache(shape),
        exec(threads, most),
        view(cache.view()),
        state(exec, view.shape, view.lanes),
        positions(static_cast<std::size_t>(cache.lane_count())),
        drafts(static_cast<std::size_t>(shape.sequences), 0),
        rings(positions.size()) {
    state.add(kv::record_attention_mass{});
    state.add(kv::query_ring{ring_rows});
  }

  [[nodiscard]] std::vector<int>& of_lane(int i) { return positions[static_cast<std::size_t>(i)]; }
  [[nodiscard]] float* mass(int i) { return reinterpret_cast<float*>(state.columns()[0].rows.row(cache.lane_at(i))); }
  template <class Visit>
  void each_lane(int sequence, Visit const& visit) {
    for (int i = 0; i < cache.lane_count(); ++i) {
      if (cache.lane_at(i).sequence == sequence) visit(i);
    }
  }

  [[nodiscard]] std::vector<std::byte> columns() const {
    std::vector<std::byte> all;
    for (kv::recorded_column const& each : state.columns()) {
      std::byte const* const first = each.rows.row({0, 0, 0});
      all.insert(all.end(), first, first + each.rows.sequence * cache.options().sequences);
    }
    return all;
  }

  /// True if the library took the call; else nothing may have changed.
  template <class Call>
  bool takes(Call const& call) {
    auto const before = cache.save();
    auto const columns_before = columns();
    try {
      call();
      return true;
    } catch (kv::invalid_argument const&) {
      require(cache.save() == before && columns() == columns_before, "a refused call changes nothing");
      return false;
    }
  }

  void append(bytes& from) {
    int const s = from.below(cache.options().sequences);
    int last = -1, most = 0;
    each_lane(s, [&](int i) {
      if (!of_lane(i).empty()) last = std::max(last, of_lane(i).back());
      most = std::max(most, static_cast<int>(of_lane(i).size()));
    });
    int const tokens = from.below(6);
    int const position = last + from.below(4);  // 0 more is one too few
    bool const in_flight = from.coin();
    int& flying = drafts[static_cast<std::size_t>(s)];
    bool const sound = position > last && most + tokens <= cache.options().bound && (in_flight || flying == 0);
    each_lane(s, [&](int i) {
      for (int e = static_cast<int>(of_lane(i).size()); e < cache.options().bound; ++e) mass(i)[e] = 7;
    });
    if (position == 0) state.history().reset(s);  // as an engine does before the first token of a request
    bool const taken = takes([&] { kv::append(exec, view, state, {s, tokens, position, in_flight}); });
    require(taken == sound, "append takes what fits, ascends, and stands behind no draft");
    if (!taken) return;
    flying += in_flight ? tokens : 0;
    each_lane(s, [&](int i) {
      for (int t = 0; t < tokens; ++t) {
        of_lane(i).push_back(position + t);
        require(mass(i)[of_lane(i).size() - 1] == 0, "columns of new entries start at zero");
        mass(i)[of_lane(i).size() - 1] = static_cast<float>(position + t);
      }
    });
  }

  void truncate(bytes& from) {
    int const s = from.below(cache.options().sequences);
    int const position = from.below(40) - 1;
    bool const taken = takes([&] { kv::truncate(exec, view, state, s, position); });
    require(taken == (position >= 0), "truncate takes every position that there may be");
    if (!taken) return;
    int gone_everywhere = cache.options().bound;
    each_lane(s, [&](int i) {
      auto& list = of_lane(i);
      auto const cut = std::lower_bound(list.begin(), list.end(), position);
      gone_everywhere = std::min(gone_everywhere, static_cast<int>(list.end() - cut));
      list.erase(cut, list.end());
      auto& remembered = rings[static_cast<std::size_t>(i)];
      while (!remembered.empty() && remembered.back().first >= position) remembered.pop_back();
    });
    int& flying = drafts[static_cast<std::size_t>(s)];
    flying -= std::min(flying, gone_everywhere);
  }

  /// As an eviction would: one committed entry of one lane is gone, so that lanes of a sequence hold unequal numbers.
  void thin(bytes& from) {
    int const i = from.below(cache.lane_count());
    kv::lane const this_lane = cache.lane_at(i);
    if (cache.options().shared_entries || cache.committed(this_lane) == 0) return;
    auto& list = of_lane(i);
    list.erase(list.begin() + from.below(cache.committed(this_lane)));
    cache.put(this_lane, list);
    for (std::size_t e = 0; e < list.size(); ++e) mass(i)[e] = static_cast<float>(list[e]);
  }

  void commit(bytes& from) {
    int const s = from.below(cache.options().sequences);
    int const tokens = from.below(6) - 1;
    int& flying = drafts[static_cast<std::size_t>(s)];
    bool const taken = takes([&] { kv::commit(exec, view, s, tokens); });
    require(taken == (tokens >= 0 && tokens <= flying), "commit takes as many drafts as there are");
    if (taken) flying -= tokens;
  }

  /// Query rows at any ascending positions; those of tokens that are not committed stay out.
  void show_rows(bytes& from) {
    int const rows = from.below(7);
    mock_queries queries(cache, from.one_of({kv::codec::f32, kv::codec::bf16}), rows, rows + from.below(3));
    fill(queries, cache, content::smooth);
    for (int s = 0; s < cache.options().sequences; ++s) {
      int position = from.below(8) - 1;
      for (int r = 0; r < rows; ++r) queries.set_position(s, r, position += 1 + from.below(3));
    }
    auto const columns_of = [&] { return state.columns_from(1); };
    kv::ops::ring_append(exec, view.lanes, queries.view(), ring_view(columns_of()));
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      auto& list = rings[static_cast<std::size_t>(i)];
      int const committed = cache.committed(this_lane);
      for (int r = 0; r < rows && committed > 0; ++r) {
        int const position = queries.position(this_lane.sequence, r);
        if (position > of_lane(i)[static_cast<std::size_t>(committed - 1)]) break;
        while (!list.empty() && list.back().first >= position) list.pop_back();
        list.emplace_back(position,
                          queries.row(this_lane.sequence, this_lane.layer, this_lane.head * cache.model().group(), r));
        if (list.size() > ring_rows) list.pop_front();
      }
    }
  }

  [[nodiscard]] kv::query_ring_view ring_view(kv::recorded_columns const& recorded) const {
    return {ring_rows,
            cache.model().group(),
            cache.model().head_dim,
            recorded.table<float>(0),
            recorded.table<int>(1),
            recorded.table<int>(2)};
  }

  void check() {
    kv::query_ring_view const rows = ring_view(state.columns_from(1));
    for (int s = 0; s < cache.options().sequences; ++s) {
      require(cache.drafts(s) == drafts[static_cast<std::size_t>(s)], "drafts are counted");
    }
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      require(cache.count(this_lane) == static_cast<int>(of_lane(i).size()), "counts are the model's");
      require(cache.positions(this_lane, cache.count(this_lane)) == of_lane(i), "positions are the model's");
      for (std::size_t e = 0; e < of_lane(i).size(); ++e) {
        require(mass(i)[e] == static_cast<float>(of_lane(i)[e]), "columns of older entries stay");
      }
      auto const& list = rings[static_cast<std::size_t>(i)];
      int const* const cursor = rows.cursor.row(this_lane);
      require(cursor[1] == static_cast<int>(list.size()), "the ring holds as many rows as the model");
      for (int r = 0; r < cursor[1]; ++r) {
        int const at = (cursor[0] + r) % ring_rows;
        auto const& wanted = list[static_cast<std::size_t>(r)];
        float const* const first = rows.rows.row(this_lane) + at * rows.dims;
        require(rows.position.row(this_lane)[at] == wanted.first, "the ring's positions are the model's");
        require(reference::row(first, first + rows.dims) == wanted.second, "the ring's rows are the model's");
      }
    }
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  bytes from(data, size);
  mock_options shape;
  kv::isa const most = any_isa(from);
  int const threads = from.one_of({1, 1, 1, 2});
  shape.model = {.layers = from.between(1, 2), .query_heads = 2, .kv_heads = from.between(1, 2), .head_dim = 4};
  shape.model.head_dim = from.one_of({4, 1, 33});
  shape.sequences = from.between(1, 2);
  shape.bound = from.one_of({12, 1, 33});
  shape.shared_entries = from.coin();
  machine now(shape, threads, most);
  for (int step = 0; step < 40 && !from.empty(); ++step) {
    int const what = from.one_of({0, 0, 1, 2, 3, 4});
    if (what == 0) now.append(from);
    if (what == 1) now.truncate(from);
    if (what == 2) now.commit(from);
    if (what == 3) now.show_rows(from);
    if (what == 4) now.thin(from);
    now.check();
  }
  return 0;
}
