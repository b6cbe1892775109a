// SPDX-License-Identifier: Apache-2.0
// The verbs that write a score an entry: pool, map, row_norm, fold.
#include "support/scores.hpp"

#include <kvpolicy/kvpolicy.hpp>
#include <sstream>

#include "fuzz/bytes.hpp"
#include "reference/methods.hpp"
#include "support/mock_batch.hpp"

namespace {

using namespace kvpolicy_fuzz;
using namespace kvpolicy_test;

reference::row as_row(std::span<float const> floats) { return {floats.begin(), floats.end()}; }

float any_score(bytes& from) {
  int const choice = from.below(32);
  if (choice == 1) return std::numeric_limits<float>::quiet_NaN();
  if (choice == 2) return std::numeric_limits<float>::infinity();
  if (choice == 3) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(choice - 16) / 4.0f;
}

void check_row(owned_scores& out, int segment, reference::row expected, char const* verb) {
  std::size_t const count = expected.size();
  std::ostringstream text;
  comparison const result = compare(out.row(segment, static_cast<int>(count)), expected, 8);
  text << verb << " of segment " << segment << " is the reference's: " << result;
  require(result.same, text.str());
}

void try_pool(bytes& from, kv::host_executor& exec, owned_scores& scores, kv::lanes const& batch) {
  int const kind = from.below(3);
  int const width = 2 * from.one_of({3, 0, 1, 2, 8, 40}) + 1;
  int const tail = from.one_of({0, 1, 5, 100});
  auto const by = kind == 0   ? kv::pooling(kv::max_pool{width})
                  : kind == 1 ? kv::pooling(kv::avg_pool{width})
                              : kv::pooling(kv::no_pool{});
  reference::pooling const how{kind == 0   ? reference::pool_kind::maximum
                               : kind == 1 ? reference::pool_kind::average
                                           : reference::pool_kind::none,
                               width};
  std::vector<reference::row> expected;
  for (int s = 0; s < scores.view().segments(); ++s) {
    int const count = batch.committed(scores.view().lane_of(s));
    reference::row const all = as_row(scores.row(s, scores.stride()));
    reference::row some(all.begin(), all.begin() + count);
    some = reference::pooled(some, how, std::min(tail, count));
    some.insert(some.end(), all.begin() + count, all.end());  // what stands behind is nobody's
    expected.push_back(some);
  }
  kv::ops::pool(exec, by, scores.view(), tail);
  for (int s = 0; s < scores.view().segments(); ++s) {
    check_row(scores, s, expected[static_cast<std::size_t>(s)], "pool");
  }
}

struct mixed {
  float operator()(float old, kv::entry at) const {
    return 2 * old + static_cast<float>(at.position - 3 * at.ordinal + at.count + 5 * at.lane.head + 7 * at.lane.layer);
  }
};

void try_map(kv::host_executor& exec, owned_scores& scores, kv::lanes const& batch) {
  std::vector<reference::row> expected;
  for (int s = 0; s < scores.view().segments(); ++s) {
    kv::lane const lane = scores.view().lane_of(s);
    reference::row all = as_row(scores.row(s, scores.stride()));
    for (int e = 0; e < batch.committed(lane); ++e) {
      int const position = batch.position.row(lane)[e];
      all[static_cast<std::size_t>(e)] = 2 * all[static_cast<std::size_t>(e)] + position - 3 * e +
                                         batch.committed(lane) + 5 * lane.head + 7 * lane.layer;
    }
    expected.push_back(all);
  }
  kv::ops::map(exec, scores.view(), mixed{});
  for (int s = 0; s < scores.view().segments(); ++s) {
    check_row(scores, s, expected[static_cast<std::size_t>(s)], "map");
  }
}

struct old_plus_twice {
  float operator()(float old, float norm) const { return old + 2 * norm; }
};

void try_row_norm(bytes& from, kv::host_executor& exec, owned_scores& scores, mock_cache& cache) {
  bool const of_keys = from.coin();
  std::vector<reference::row> expected;
  for (int s = 0; s < scores.view().segments(); ++s) {
    kv::lane const this_lane = cache.lane_at(s);
    reference::row all = as_row(scores.row(s, scores.stride()));
    auto const norms =
        reference::row_norms(cache.rows(of_keys ? of::keys : of::values, this_lane, cache.committed(this_lane)));
    for (std::size_t e = 0; e < norms.size(); ++e) all[e] += 2 * norms[e];
    expected.push_back(all);
  }
  kv::cache const view = cache.view();
  kv::row_view const rows = of_keys ? kv::row_view(kv::keys_of(view)) : kv::row_view(kv::values_of(view));
  kv::ops::row_norm(exec, rows, old_plus_twice{}, scores.view());
  for (int s = 0; s < scores.view().segments(); ++s) {
    check_row(scores, s, expected[static_cast<std::size_t>(s)], "row_norm");
  }
}

void try_fold(bytes& from, kv::host_executor& exec, owned_scores& fine, kv::lanes const& batch) {
  auto const decides = from.one_of({kv::granularity::layer, kv::granularity::sequence});
  auto const how = static_cast<kv::reduction>(from.below(3));
  owned_scores coarse(batch, decides);
  int const together = fine.view().segments() / coarse.view().segments();
  kv::ops::fold_step const step{how, true, how == kv::reduction::mean ? together : 1};
  kv::ops::fold(exec, fine.view(), step, coarse.view());
  for (int s = 0; s < coarse.view().segments(); ++s) {
    int const count = batch.committed(coarse.view().lane_of(s));
    reference::matrix rows;
    for (int i = s * together; i < (s + 1) * together; ++i) rows.push_back(as_row(fine.row(i, count)));
    auto all = reference::reduced(rows, static_cast<reference::reduction>(how), static_cast<std::size_t>(count));
    all.resize(static_cast<std::size_t>(coarse.stride()), 0.5);
    check_row(coarse, s, all, "fold");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  bytes from(data, size);
  kv::host_executor exec(1, any_isa(from));
  int const verb = from.below(4);
  bool const drafts = from.coin();
  mock_options shape = any_mock(from);
  shape.rows = from.one_of({content::smooth, content::few, content::troubled});
  shape.shared_entries = verb == 3;  // lanes that are folded hold equally many
  mock_cache cache(shape);
  fill(cache, drafts);
  auto const before = cache.save();
  kv::lanes const batch = cache.lanes();
  owned_scores scores(batch);
  for (float& each : scores.all()) each = any_score(from);
  exec.reserve(kv::implementation<kv::ops::pool_t, kv::host>::scratch(shape.model, shape.bound));
  if (verb == 0) try_pool(from, exec, scores, batch);
  if (verb == 1) try_map(exec, scores, batch);
  if (verb == 2) try_row_norm(from, exec, scores, cache);
  if (verb == 3) try_fold(from, exec, scores, batch);
  require(cache.save() == before, "the cache is only read");
  return 0;
}
