// SPDX-License-Identifier: Apache-2.0
// Sessions under cache policies: with everything admitted they are the full cache, with nothing the sliding window; a
// prefill in chunks is one at once; parts together keep what each promises.

#include "tinylm/cache_session.hpp"

#include "fixture.hpp"
#include "support/test.hpp"

namespace {

namespace kv = kvpolicy;
using namespace tinylm_test;

/// Gates of 8 hidden units with random weights: their answers are spread around one half, log beta around log 0.5.
struct random_gates {
  kv::shape model = fixture::get().lm.about().shape();
  int width = fixture::get().lm.about().width;
  std::mt19937 random{5};
  std::vector<float> write[6], retention[4];

  std::vector<float> const& fill(std::vector<float>& to, int count, float spread, float around = 0) {
    std::normal_distribution<float> normal;
    for (int i = 0; i < count; ++i) to.push_back(around + spread * normal(random));
    return to;
  }
  tinylm::gate_weights weights() {
    constexpr int hidden = 8;
    int const lanes = model.layers * model.kv_heads, dims = model.head_dim;
    return {.write = {.layers = model.layers,
                      .heads = model.kv_heads,
                      .dims = dims,
                      .hidden = hidden,
                      .pre_norm = fill(write[0], model.layers * dims, 0, 1).data(),
                      .post_norm = fill(write[1], model.layers * dims, 0, 1).data(),
                      .fc1 = fill(write[2], lanes * hidden * 2 * dims, 0.3f).data(),
                      .fc1_bias = fill(write[3], lanes * hidden, 0.1f).data(),
                      .fc2 = fill(write[4], lanes * hidden, 0.5f).data(),
                      .fc2_bias = fill(write[5], lanes, 0.1f).data()},
            .retention = {.layers = model.layers,
                          .heads = model.kv_heads,
                          .width = width,
                          .hidden = hidden,
                          .fc1 = fill(retention[0], model.layers * hidden * width, 0.2f).data(),
                          .fc1_bias = fill(retention[1], model.layers * hidden, 0.1f).data(),
                          .fc2 = fill(retention[2], lanes * hidden, 0.5f).data(),
                          .fc2_bias = fill(retention[3], lanes, 0.1f).data()}};
  }
};
tinylm::gate_weights gates() {
  static random_gates one;
  static tinylm::gate_weights const all = one.weights();
  return all;
}

constexpr int everything = 1 << 20;

auto triple(float threshold, int read = everything, int keep = everything) {
  return kv::cache_policy{.admit = kv::policies::wg_kv({.window = 16, .threshold = threshold}),
                          .select = kv::policies::quest({.budget = read, .dense_layers = 0}),
                          .evict = kv::policies::trim_kv({.budget = keep})};
}

constexpr int prefilled = 60;

std::span<std::uint8_t const> text() {
  static golden const from("text");
  return std::span(from.text).first(80);
}

template <class Policy>
tinylm::cache_session<Policy> session_of(Policy const& policy, int chunk = prefilled) {
  fixture& with = fixture::get();
  return tinylm::cache_session<Policy>(with.lm, with.exec, policy, {.bound = 256, .chunk = chunk, .gates = gates()});
}

/// All logits of the text, whose first bytes are a prefill.
template <class Session>
std::vector<float> read(Session& one) {
  std::vector<float> all;
  auto const add = [&](std::span<float const> rows) { all.insert(all.end(), rows.begin(), rows.end()); };
  one.prefill(text().first(prefilled), [&](int, std::span<float const> rows) { add(rows); });
  for (std::uint8_t const byte : text().subspan(prefilled)) add(one.step(byte));
  return all;
}

/// Of the difference, as a part of the second's length.
double apart(std::span<float const> a, std::span<float const> b) {
  double difference = 0, length = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return a.size() == b.size() ? std::sqrt(difference / length) : HUGE_VAL;
}

template <class Session>
std::vector<std::vector<int>> held_by(Session& one) {
  std::vector<std::vector<int>> all;
  for (kv::lanes const& part : one.lanes()) {
    for (auto& each : positions_of({.lanes = part})) all.push_back(std::move(each));
  }
  return all;
}

/// Reads the text and checks after every step that no lane has more in pages than `keep` nor sees more than `see`, that
/// it sees the newest, and positions in order.
template <class Policy>
tinylm::session_counters stays_within(Policy const& policy, int keep, int see) {
  auto one = session_of(policy, 33);
  one.prefill(text().first(prefilled));
  for (int t = 0; t < 30; ++t) {
    one.step(text()[static_cast<std::size_t>(t)]);
    for (auto const& each : positions_of({.lanes = one.lanes().front()})) CHECK(std::ssize(each) <= keep);
    for (auto const& each : positions_of({.lanes = one.seen()})) {
      CHECK(std::ssize(each) <= see);
      CHECK(each.back() == one.length() - 1);
      CHECK(std::adjacent_find(each.begin(), each.end(), std::greater_equal<>{}) == each.end());
    }
  }
  return one.counters();
}

/// What retention keeps of a lane's entries [0, entries), all of them there at once: the best of (newest - p) log beta.
std::vector<int> best_kept(tinylm::fresh_tokens& rows, kv::lane this_lane, int entries, int budget) {
  auto const log_beta = rows.signals(rows.view().lanes).get<kv::log_beta>();
  std::vector<std::pair<double, int>> scored;
  for (int p = 0; p < entries; ++p) {
    auto const one = static_cast<double>(*reinterpret_cast<float const*>(log_beta.at(this_lane, p)));
    scored.emplace_back(-(entries - 1 - p) * one, p);
  }
  std::sort(scored.begin(), scored.end());
  std::vector<int> kept;
  for (int i = 0; i < budget; ++i) kept.push_back(scored[static_cast<std::size_t>(i)].second);
  std::sort(kept.begin(), kept.end());
  return kept;
}

/// Numbers of a gate's lane, its biases, and what it is shown.
struct layer_of_gate {
  float const* matrix;
  float const* bias;
  int inputs;
  double operator()(int unit, std::vector<double> const& x) const {
    double sum = static_cast<double>(bias[unit]);
    for (int i = 0; i < inputs; ++i)
      sum += static_cast<double>(matrix[unit * inputs + i]) * x[static_cast<std::size_t>(i)];
    return sum;
  }
};

/// The write gate of a token, from its definition; norms have weight 1.
double gate_of(kv::write_gate_weights const& of, kv::lane this_lane, std::vector<float> const& before,
               std::vector<float> const& after) {
  std::vector<double> x;
  for (auto const* keys : {&before, &after}) {
    double square = 0;
    for (float const one : *keys) square += static_cast<double>(one) * static_cast<double>(one);
    double const rms = std::sqrt(square / of.dims + 1e-6);
    for (float const one : *keys) x.push_back(static_cast<double>(one) / rms);
  }
  int const lane = this_lane.layer * of.heads + this_lane.head;
  layer_of_gate const first{of.fc1 + lane * of.hidden * 2 * of.dims, of.fc1_bias + lane * of.hidden, 2 * of.dims};
  double sum = static_cast<double>(of.fc2_bias[lane]);
  for (int e = 0; e < of.hidden; ++e) {
    double const z = first(e, x);
    sum += static_cast<double>(of.fc2[lane * of.hidden + e]) * z * 0.5 * (1 + std::erf(z / std::sqrt(2.0)));
  }
  return 1 / (1 + std::exp(-sum));
}

std::vector<float> row_of(kv::row_view const& rows, kv::lane this_lane, int token) {
  auto const* const row = reinterpret_cast<float const*>(rows.row(this_lane, token));
  return {row, row + rows.rows.channels};
}

TEST_SUITE("tinylm") {
  TEST_CASE("model: before its attention a layer shows keys before and after RoPE, and gates hear both") {
    fixture& with = fixture::get();
    kv::shape const model = with.lm.about().shape();
    int const tokens = static_cast<int>(text().size());
    tinylm::fresh_tokens fresh(with.exec, model, tokens, gates());
    tinylm::row_list rows(model, tokens);
    tinylm::query_rows queries(model, tokens);
    fresh.begin(tokens, 0);
    for (int i = 0; i < fresh.view().lanes.size(); ++i) rows.add(fresh.view(), fresh.view().lanes.at(i));
    double worst = 0;
    auto const look = [&](tinylm::layer_rows const& shown) {
      fresh.hear(with.exec, shown);
      for (int head = 0; head < model.kv_heads; ++head) {
        kv::lane const this_lane{0, shown.layer, head};
        CHECK(row_of(shown.keys_before, this_lane, 0) ==
              row_of(shown.keys_after, this_lane, 0));  // position 0 does not turn
        auto const before = row_of(shown.keys_before, this_lane, tokens - 1);
        auto const after = row_of(shown.keys_after, this_lane, tokens - 1);
        CHECK(before != after);
        CHECK(after == row_of(kv::keys_of(rows.view()), this_lane, tokens - 1));
        auto const told = fresh.signals(fresh.view().lanes).get<kv::gate>();
        auto const got = static_cast<double>(*reinterpret_cast<float const*>(told.at(this_lane, tokens - 1)));
        worst = std::max(worst, std::abs(got - gate_of(gates().write, this_lane, before, after)));
      }
    };
    with.lm.forward(with.exec, text(), tokens, rows.view(), queries, {.before_attention = look});
    CHECK(worst < 1e-5);
  }

  TEST_CASE("cache_session: of a text that was read retention keeps the best, of pages and without a window") {
    fixture& with = fixture::get();
    auto const check = [&](auto const& policy, int entries) {
      using session = tinylm::cache_session<std::remove_cvref_t<decltype(policy)>>;
      tinylm::read_text from = session::read_once(with.lm, with.exec, text(), policy, gates());
      session one(with.lm, with.exec, from, policy, {.bound = 256, .chunk = 1, .gates = gates()});
      kv::lanes const pages = one.lanes().front();
      for (int i = 0; i < pages.size(); ++i) {
        int const* const position = pages.position.row(pages.at(i));
        std::vector<int> const held(position, position + *pages.count.row(pages.at(i)));
        CHECK(held == best_kept(from.rows, pages.at(i), entries, 24));
      }
    };
    auto const all = triple(0, everything, 24);
    int const tokens = static_cast<int>(text().size());
    check(all, tokens - 16);
    check(kv::cache_policy{.select = all.select, .evict = all.evict}, tokens);
  }

  TEST_CASE("cache_session: everything admitted, read and kept is the full cache") {
    fixture& with = fixture::get();
    tinylm::session whole(with.lm, with.exec, with.pool, kv::policies::full(), {.bound = 256, .chunk = 33});
    std::vector<float> const full = read(whole);
    auto all = session_of(triple(0), 33);
    CHECK(apart(read(all), full) < 1e-6);
    auto plain = session_of(kv::cache_policy{.select = triple(0).select, .evict = triple(0).evict}, 33);
    CHECK(apart(read(plain), full) < 1e-6);
    CHECK(all.counters().entries_read == plain.counters().entries_read);
    CHECK(all.live_entries() == 8 * std::ssize(text()));
  }

  TEST_CASE("cache_session: nothing admitted is the sliding window") {
    fixture& with = fixture::get();
    auto none = session_of(triple(1), 33);
    std::vector<float> const got = read(none);
    std::vector<std::uint8_t> below(256);  // byte by byte, everything below the window hidden
    tinylm::session slides(with.lm, with.exec, with.pool, kv::policies::full(),
                           {.bound = 256, .hidden = {below.data(), 0, 0, 0}});
    std::vector<float> want;
    for (std::size_t t = 0; t < text().size(); ++t) {
      if (t >= 16) below[t - 16] = 1;
      auto const row = slides.step(text()[t]);
      want.insert(want.end(), row.begin(), row.end());
    }
    CHECK(apart(got, want) < 1e-6);
    CHECK(none.live_entries() == 8 * 16);
    CHECK(none.counters().entries_read == 8 * 16 * none.counters().steps);
  }

  TEST_CASE("cache_session: chunks, one chunk and a text that was read before are the same") {
    fixture& with = fixture::get();
    auto const policy = triple(0.5f);
    using session = tinylm::cache_session<std::remove_const_t<decltype(policy)>>;
    auto chunks = session_of(policy, 13);
    auto whole = session_of(policy);
    std::vector<float> const logits = read(chunks);
    CHECK(apart(read(whole), logits) < 1e-6);
    CHECK(held_by(whole) == held_by(chunks));
    auto at_once = session_of(policy, 80);
    at_once.prefill(text());
    CHECK(held_by(at_once) == held_by(chunks));  // what was written in steps too
    tinylm::read_text from = session::read_once(with.lm, with.exec, text().first(prefilled), policy, gates());
    session heir(with.lm, with.exec, from, policy, {.bound = 256, .chunk = 1, .gates = gates()});
    for (std::uint8_t const byte : text().subspan(prefilled)) heir.step(byte);
    CHECK(apart(heir.logits(), std::span(logits).last(256)) < 1e-6);
    CHECK(held_by(heir) == held_by(chunks));
    CHECK(chunks.live_entries() > 8 * 24);  // some were admitted,
    CHECK(chunks.live_entries() < 8 * 70);  // and some were not
  }

  TEST_CASE("cache_session: parts together keep and read what each promises") {
    auto const all = triple(0.5f, 32, 24);
    auto const three = stays_within(all, 24, 16 + 32);
    // What a step promotes is seen in it, and only then evicted.
    auto const kept = stays_within(kv::cache_policy{.admit = all.admit, .evict = all.evict}, 24, 16 + 24 + 1);
    auto const read = stays_within(kv::cache_policy{.admit = all.admit, .select = all.select}, 256, 16 + 32);
    auto const plain = stays_within(kv::cache_policy{.select = all.select, .evict = triple(0, 0, 40).evict}, 40, 32);
    CHECK(three.entries_read <= kept.entries_read);
    CHECK(three.entries_read <= read.entries_read);
    CHECK(plain.entries_read <= 30 * 8 * 32);
  }

  TEST_CASE("cache_session: a gate that is not there is missed before anything is read") {
    fixture& with = fixture::get();
    auto const made = [&] { tinylm::cache_session<decltype(triple(0))> one(with.lm, with.exec, triple(0)); };
    CHECK_THROWS_WITH_AS(made(), "cache_session: gates.write = none, but the policy admits by it",
                         kv::invalid_argument);
  }
}

}  // namespace
