// SPDX-License-Identifier: Apache-2.0
// The gates against plain loops in double precision.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

constexpr float untouched = -77;

double at(std::vector<float> const& values, int i) { return static_cast<double>(values[as_size(i)]); }

/// Rows of elements that each lie a few bytes from the next, found by pages in any order. A lane has its own pages.
struct paged_rows {
  static constexpr int page = 4;
  kv::codec element;
  int dims, step, pages;
  std::vector<std::byte> memory;
  std::vector<int> table;

  paged_rows(dice& from, kv::codec type, int channels, int lanes, int bound, double size)
      : element(type),
        dims(channels),
        step((from.chance(30) ? 2 : 1) * kv::bytes_of(type)),
        pages((bound + page - 1) / page),
        memory(as_size(lanes * pages * page * row_bytes())),
        table(from.permutation(lanes * pages)) {
    for (int i = 0; i < lanes * pages * page * (row_bytes() / step); ++i)
      encode(element, from.real(size), memory.data() + i * step);
  }
  [[nodiscard]] int row_bytes() const { return dims * step; }
  [[nodiscard]] std::byte* row(int lane, int entry) {
    int const unit = table[as_size(lane * pages + entry / page)];
    return memory.data() + (unit * page + entry % page) * row_bytes();
  }
  [[nodiscard]] kv::row_view view(int heads) {
    kv::plane const rows{.base = memory.data(),
                         .element = element,
                         .channels = dims,
                         .unit_stride = std::int64_t{page} * row_bytes(),
                         .token_stride = row_bytes(),
                         .channel_stride = step};
    return {rows, kv::block_table({table.data(), 0, std::int64_t{heads} * pages, pages}, page, std::ssize(table))};
  }
  [[nodiscard]] std::vector<double> decoded_row(int lane, int entry) {
    std::vector<double> made;
    for (int d = 0; d < dims; ++d) made.push_back(decoded(element, row(lane, entry) + d * step));
    return made;
  }
};

/// One sequence: counts of its lanes, and a row of room for each.
struct some_lanes {
  std::vector<int> count;
  std::vector<float> out;
  kv::lanes lanes;
  kv::by_lane<float> rows;

  some_lanes(int layers, int heads, int bound)
      : count(as_size(layers * heads), bound), out(as_size(layers * heads * (bound + 1)), untouched) {
    lanes = {.layer_end = layers, .heads = heads, .capacity = bound, .count = {count.data(), 0, heads, 1}};
    rows = {out.data(), 0, std::int64_t{heads} * (bound + 1), bound + 1};
  }
  [[nodiscard]] float result(int lane, int entry) const { return out[as_size(lane * (lanes.capacity + 1) + entry)]; }
};

struct write_gate {
  int layers, heads, dims, hidden;
  std::vector<float> pre_norm, post_norm, fc1, bias, fc2, last;

  write_gate(dice& from, int l, int h, int d, int e)
      : layers(l),
        heads(h),
        dims(d),
        hidden(e),
        pre_norm(drawn(from, l * d, 1.5)),
        post_norm(drawn(from, l * d, 1.5)),
        fc1(drawn(from, l * h * e * 2 * d, 2 / std::sqrt(2.0 * d))),
        bias(drawn(from, l * h * e, 1)),
        fc2(drawn(from, l * h * e, 2 / std::sqrt(1.0 * e))),
        last(drawn(from, l * h, 1)) {}

  [[nodiscard]] kv::write_gate_weights view() const {
    return {layers,           heads,      dims,        hidden,     pre_norm.data(),
            post_norm.data(), fc1.data(), bias.data(), fc2.data(), last.data()};
  }
  [[nodiscard]] double gate(int lane, std::vector<double> const& pre, std::vector<double> const& post) const {
    std::vector<double> x;
    add_normed(x, pre, pre_norm, lane / heads * dims);
    add_normed(x, post, post_norm, lane / heads * dims);
    double z = at(last, lane);
    for (int u = lane * hidden; u < (lane + 1) * hidden; ++u) {
      double v = at(bias, u);
      for (int i = 0; i < 2 * dims; ++i) v += at(fc1, u * 2 * dims + i) * x[as_size(i)];
      z += at(fc2, u) * v * (1 + std::erf(v / std::sqrt(2.0))) / 2;
    }
    return 1 / (1 + std::exp(-z));
  }

 private:
  static void add_normed(std::vector<double>& x, std::vector<double> const& row, std::vector<float> const& by,
                         int first) {
    double squares = 0;
    for (double const each : row) squares += each * each;
    for (double const each : row)
      x.push_back(each / std::sqrt(squares / static_cast<double>(row.size()) + 1e-6) * at(by, first++));
  }
};

struct retention_gate {
  int layers, heads, width, hidden;
  std::vector<float> fc1, bias, fc2, last;

  retention_gate(dice& from, int l, int h, int d, int e)
      : layers(l),
        heads(h),
        width(d),
        hidden(e),
        fc1(drawn(from, l * e * d, 2 / std::sqrt(1.0 * d))),
        bias(drawn(from, l * e, 1)),
        fc2(drawn(from, l * h * e, 2 / std::sqrt(1.0 * e))),
        last(drawn(from, l * h, 4)) {}

  [[nodiscard]] kv::retention_gate_weights view() const {
    return {layers, heads, width, hidden, fc1.data(), bias.data(), fc2.data(), last.data()};
  }
  [[nodiscard]] double log_beta(int lane, std::vector<double> const& x) const {
    double z = at(last, lane);
    for (int u = 0; u < hidden; ++u) {
      int const unit = lane / heads * hidden + u;
      double v = at(bias, unit);
      for (int d = 0; d < width; ++d) v += at(fc1, unit * width + d) * x[as_size(d)];
      z += at(fc2, lane * hidden + u) * v / (1 + std::exp(-v));
    }
    return z < 0 ? z - std::log1p(std::exp(z)) : -std::log1p(std::exp(-z));
  }
};

/// Compares the layers that were asked for, and finds the others and what lies behind the counts untouched.
template <class Expected>
void compare(some_lanes const& among, kv::lanes const& asked, Expected const& expected) {
  for (int lane = 0; lane < std::ssize(among.count); ++lane) {
    int const layer = lane / among.lanes.heads;
    bool const is_asked = layer >= asked.layer_begin && layer < asked.layer_end;
    for (int e = 0; e <= among.lanes.capacity; ++e) {
      auto const is = static_cast<double>(among.result(lane, e));
      bool const there = is_asked && e < among.count[as_size(lane)];
      double const should = there ? expected(lane, e) : static_cast<double>(untouched);
      INFO("lane ", lane, ", e ", e);
      REQUIRE(is == doctest::Approx(should).epsilon(1e-5));
    }
  }
}

struct gate_case {
  int layers, heads, dims, hidden, bound, threads;
  kv::codec element;
  gate_case(dice& from, int i)
      : layers(from.between(1, 3)),
        heads(from.between(1, 3)),
        dims(from.one_of<int>({8, 16, 20, 33, 64, 128, 256})),
        hidden(from.one_of<int>({1, 3, 31, 32, 33, 64, 96, 192})),
        bound(from.one_of<int>({1, 4, 5, 31, 33})),
        threads(from.one_of<int>({1, 3})),
        element(from.one_of<kv::codec>({kv::codec::f32, kv::codec::f16, kv::codec::bf16})) {
    if (dims * hidden > 6000) layers = heads = 1, bound = from.one_of<int>({1, 5, 31});
    if (i == 39) dims = 8, hidden = 3, bound = 1000;  // more than a task takes
  }
};

/// Ragged counts, none of a lane perhaps, and some of the layers.
kv::lanes shuffled(dice& from, some_lanes& among) {
  if (among.lanes.capacity > 33) return among.lanes;
  for (int& each : among.count)
    each = from.one_of<int>({0, among.lanes.capacity, from.below(among.lanes.capacity + 1)});
  int const begin = from.below(among.lanes.layer_end);
  return among.lanes.layers_only(begin, from.between(begin + 1, among.lanes.layer_end));
}

/// What other verbs may have left there.
void poison(kv::host_executor& exec) {
  for (int worker = 0; worker < exec.threads(); ++worker) {
    for (std::byte& each : exec.scratch(worker)) each = std::byte{0xFF};  // NaN
  }
}

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

}  // namespace

TEST_SUITE("ops/write_gates") {
  TEST_CASE("the gates are those of the equations, for any shape, element type and instruction set") {
    dice from(11);
    for (int i = 0; i < 40; ++i) {
      gate_case const one(from, i);
      write_gate const gate(from, one.layers, one.heads, one.dims, one.hidden);
      paged_rows pre(from, one.element, one.dims, one.layers * one.heads, one.bound, 3);
      paged_rows post(from, one.element, one.dims, one.layers * one.heads, one.bound, 3);
      some_lanes among(one.layers, one.heads, one.bound);
      kv::lanes const asked = shuffled(from, among);
      kv::host_executor exec(one.threads, every_isa[i % 4]);
      kv::ops::write_gates.reserve(exec, gate.view());
      poison(exec);
      kv::row_view const before = pre.view(one.heads);
      kv::row_view const after = post.view(one.heads);
      REQUIRE(allocations_in([&] { kv::ops::write_gates(exec, asked, before, after, gate.view(), among.rows); }) == 0);
      compare(among, asked,
              [&](int lane, int e) { return gate.gate(lane, pre.decoded_row(lane, e), post.decoded_row(lane, e)); });
    }
  }

  TEST_CASE("entries that come one by one have the gates that they have together, bit for bit") {
    dice from(12);
    constexpr int entries = 31;
    for (int const dims : {20, 21, 64}) {
      write_gate const gate(from, 1, 1, dims, 40 + dims);
      paged_rows pre(from, kv::codec::bf16, dims, 1, entries, 3);
      for (kv::isa const simd_level : every_isa) {
        kv::host_executor exec(1, simd_level);
        kv::ops::write_gates.reserve(exec, gate.view());
        kv::row_view rows = pre.view(1);
        some_lanes together(1, 1, entries);
        kv::ops::write_gates(exec, together.lanes, rows, rows, gate.view(), together.rows);
        for (int e = 0; e < entries; ++e) {
          rows.rows.base = pre.row(0, e);
          rows.where = kv::identity_map(1);
          some_lanes alone(1, 1, 1);
          kv::ops::write_gates(exec, alone.lanes, rows, rows, gate.view(), alone.rows);
          REQUIRE(alone.result(0, 0) == together.result(0, e));
        }
      }
    }
  }

  TEST_CASE("a saturated gate is 0 or 1, a row that is not finite has NaN, and its neighbours have none") {
    dice from(13);
    write_gate gate(from, 1, 1, 8, 4);
    paged_rows rows(from, kv::codec::f32, 8, 1, 5, 1);
    encode(kv::codec::f32, nothing, rows.row(0, 1) + 3 * rows.step);
    encode(kv::codec::f32, -infinite, rows.row(0, 3));
    std::fill(gate.fc2.begin(), gate.fc2.end(), 0.0f);
    kv::row_view const view = rows.view(1);
    for (kv::isa const simd_level : every_isa) {
      for (float const z : {100.0f, -100.0f, 0.0f}) {
        gate.last[0] = z;
        kv::host_executor exec(1, simd_level);
        kv::ops::write_gates.reserve(exec, gate.view());
        some_lanes among(1, 1, 5);
        kv::ops::write_gates(exec, among.lanes, view, view, gate.view(), among.rows);
        CHECK(std::isnan(among.result(0, 1)));
        CHECK(std::isnan(among.result(0, 3)));
        for (int const e : {0, 2, 4}) CHECK(among.result(0, e) == (z == 100 ? 1.0f : z == 0 ? 0.5f : std::exp(z)));
      }
    }
  }

  TEST_CASE("a row of zeros is no division by zero") {
    dice from(14);
    write_gate const gate(from, 1, 1, 8, 4);
    paged_rows rows(from, kv::codec::f16, 8, 1, 1, 0);
    kv::row_view const view = rows.view(1);
    kv::host_executor exec;
    kv::ops::write_gates.reserve(exec, gate.view());
    some_lanes among(1, 1, 1);
    kv::ops::write_gates(exec, among.lanes, view, view, gate.view(), among.rows);
    std::vector<double> const zeros(8, 0.0);
    CHECK(static_cast<double>(among.result(0, 0)) == doctest::Approx(gate.gate(0, zeros, zeros)).epsilon(1e-6));
  }

  TEST_CASE("what does not fit is refused before anything is written") {
    dice from(15);
    write_gate const gate(from, 2, 3, 8, 4);
    paged_rows rows(from, kv::codec::f32, 8, 6, 4, 1);
    some_lanes among(2, 3, 4);
    kv::host_executor exec;
    auto const refused = [&](auto const& bend) {
      kv::row_view pre = rows.view(3);
      kv::row_view post = pre;
      kv::lanes batch = among.lanes;
      kv::write_gate_weights weights = gate.view();
      kv::by_lane<float> out = among.rows;
      bend(pre, post, batch, weights, out);
      return error_of([&] { kv::ops::write_gates(exec, batch, pre, post, weights, out); });
    };
    auto const nothing_bent = [](auto&...) {};
    CHECK(refused(nothing_bent) ==
          "write_gates: exec = an executor without scratch for these weights, but write_gates.reserve comes first");
    kv::ops::write_gates.reserve(exec, gate.view());
    CHECK(refused([](auto& pre, auto&...) { pre.rows.base = nullptr; }) ==
          "write_gates: pre = null, but a signal is the engine's memory");
    CHECK(refused([](auto&, auto& post, auto&...) { post.rows.element = kv::codec::opaque; }) ==
          "write_gates: post = opaque rows, but only their engine can read them");
    CHECK(refused([](auto&, auto& post, auto&...) { post.rows.channels = 4; }) ==
          "write_gates: post.dims = 4, but the gate is of 8 channels");
    CHECK(refused([](auto&, auto&, auto& batch, auto&...) { batch.heads = 2; }) ==
          "write_gates: lanes.heads = 2, but the gate has 3 heads");
    CHECK(refused([](auto&, auto&, auto& batch, auto&...) { batch.layer_end = 3; }) ==
          "write_gates: lanes.layer_end = 3, but the gate has 2 layers");
    CHECK(refused([](auto&, auto&, auto&, auto& weights, auto&) { weights.fc2 = nullptr; }) ==
          "write_gates: write gate = null, but a gate has six tensors");
    CHECK(refused([](auto&, auto&, auto&, auto& weights, auto&) { weights.hidden = 0; }) ==
          "write_gates: write gate.hidden = 0, but there is at least one hidden unit");
    CHECK(refused([](auto&, auto&, auto&, auto&, auto& out) { out.data = nullptr; }) ==
          "write_gates: out = null, but every lane has a row to be written to");
    for (float const each : among.out) CHECK(each == untouched);
    CHECK(refused(nothing_bent).empty());
    CHECK(error_of([&] { gate.view().check("make", {2, 6, 3, 16}); }) ==
          "make: write gate.dims = 8, but the shape says 16 channels");
    CHECK(error_of([&] { gate.view().check("make", {3, 6, 3, 8}); }) ==
          "make: write gate.layers = 2, but the model has 3 layers");
    CHECK(error_of([&] { gate.view().check("make", {2, 6, 2, 8}); }) ==
          "make: write gate.heads = 3, but the model has 2 KV heads");
    CHECK(kv::write_gate_weights::parameters(8, 128, 512) == 1'057'032);
    CHECK(kv::write_gate_weights::parameters(8, 128, 192) == 396'552);
  }
}

TEST_SUITE("ops/retention_gates") {
  TEST_CASE("log beta is that of the equations, for any shape, element type and instruction set") {
    dice from(21);
    for (int i = 0; i < 40; ++i) {
      gate_case const one(from, i);
      int const width = i % 10 == 8 ? 521 : one.dims;  // panels of 256 channels
      int const hidden = i % 10 == 8 ? 40 : one.hidden;
      int const heads = i == 37 ? 35 : one.heads;  // blocks of 32 outputs
      retention_gate const gate(from, one.layers, heads, width, hidden);
      paged_rows rows(from, one.element, width, one.layers, one.bound, 2);
      rows.step = kv::bytes_of(one.element);
      kv::hidden_rows const given{.base = rows.memory.data(),
                                  .element = one.element,
                                  .dims = width,
                                  .layer = std::int64_t{one.bound} * rows.row_bytes(),
                                  .row = rows.row_bytes()};
      some_lanes among(one.layers, heads, one.bound);
      kv::lanes const asked = shuffled(from, among);
      kv::host_executor exec(one.threads, every_isa[i % 4]);
      kv::ops::retention_gates.reserve(exec, gate.view());
      poison(exec);
      REQUIRE(allocations_in([&] { kv::ops::retention_gates(exec, asked, given, gate.view(), among.rows); }) == 0);
      compare(among, asked, [&](int lane, int e) {
        std::vector<double> x;
        for (int d = 0; d < width; ++d)
          x.push_back(decoded(one.element, given.at(0, lane / heads, e) + d * kv::bytes_of(one.element)));
        return gate.log_beta(lane, x);
      });
    }
  }

  TEST_CASE("rows that come one by one have the log beta that they have together, bit for bit") {
    dice from(22);
    constexpr int entries = 31;
    for (int const width : {300, 521, 23}) {
      retention_gate const gate(from, 1, 2, width, 40 + width % 50);
      std::vector<float> const rows = drawn(from, entries * width, 2);
      for (kv::isa const simd_level : every_isa) {
        kv::host_executor exec(1, simd_level);
        kv::ops::retention_gates.reserve(exec, gate.view());
        kv::hidden_rows given{
            .base = reinterpret_cast<std::byte const*>(rows.data()), .dims = width, .row = 4 * std::int64_t{width}};
        some_lanes together(1, 2, entries);
        kv::ops::retention_gates(exec, together.lanes, given, gate.view(), together.rows);
        for (int e = 0; e < entries; ++e) {
          some_lanes alone(1, 2, 1);
          kv::ops::retention_gates(exec, alone.lanes, given, gate.view(), alone.rows);
          for (int lane = 0; lane < 2; ++lane) REQUIRE(alone.result(lane, 0) == together.result(lane, e));
          given.base += given.row;
        }
      }
    }
  }

  TEST_CASE("a logsigmoid is never the logarithm of a rounded sigmoid") {
    retention_gate gate = [] {
      dice from(23);
      return retention_gate(from, 1, 1, 4, 3);
    }();
    std::fill(gate.fc2.begin(), gate.fc2.end(), 0.0f);
    float rows[] = {1, 2, 3, 4, 1, std::numeric_limits<float>::quiet_NaN(), 3, 4, -1, -2, -3, -4};
    kv::hidden_rows const given{.base = reinterpret_cast<std::byte const*>(rows), .dims = 4, .row = 16};
    auto const of = [&](float z) {
      gate.last[0] = z;
      kv::host_executor exec;
      kv::ops::retention_gates.reserve(exec, gate.view());
      some_lanes among(1, 1, 3);
      kv::ops::retention_gates(exec, among.lanes, given, gate.view(), among.rows);
      CHECK(std::isnan(among.result(0, 1)));
      CHECK(among.result(0, 2) == among.result(0, 0));
      return static_cast<double>(among.result(0, 0));
    };
    CHECK(of(8) == doctest::Approx(-3.354064e-4).epsilon(1e-6).scale(0));
    CHECK(of(10) == doctest::Approx(-4.539890e-5).epsilon(1e-6).scale(0));
    CHECK(of(-3) == doctest::Approx(-3.048587).epsilon(1e-6).scale(0));
    CHECK(of(-100) == -100);
    CHECK(of(100) <= 0);
    CHECK(of(100) > -1e-40);
  }

  TEST_CASE("what does not fit is refused before anything is written") {
    dice from(24);
    retention_gate const gate(from, 2, 3, 8, 4);
    std::vector<float> const rows = drawn(from, 8 * 8, 1);
    some_lanes among(2, 3, 4);
    kv::host_executor exec;
    auto const refused = [&](auto const& bend) {
      kv::hidden_rows given{
          .base = reinterpret_cast<std::byte const*>(rows.data()), .dims = 8, .layer = 128, .row = 32};
      kv::lanes batch = among.lanes;
      kv::retention_gate_weights weights = gate.view();
      kv::by_lane<float> out = among.rows;
      bend(given, batch, weights, out);
      return error_of([&] { kv::ops::retention_gates(exec, batch, given, weights, out); });
    };
    auto const nothing_bent = [](auto&...) {};
    CHECK(refused(nothing_bent) ==
          "retention_gates: exec = an executor without scratch for these weights, but retention_gates.reserve comes "
          "first");
    kv::ops::retention_gates.reserve(exec, gate.view());
    CHECK(refused([](auto& given, auto&...) { given.base = nullptr; }) ==
          "retention_gates: hidden = null, but a signal is the engine's memory");
    CHECK(refused([](auto& given, auto&...) { given.element = kv::codec::opaque; }) ==
          "retention_gates: hidden = opaque rows, but only their engine can read them");
    CHECK(refused([](auto& given, auto&...) { given.dims = 9; }) ==
          "retention_gates: hidden.dims = 9, but the gate is of 8 channels");
    CHECK(refused([](auto&, auto& batch, auto&...) { batch.heads = 4; }) ==
          "retention_gates: lanes.heads = 4, but the gate has 3 heads");
    CHECK(refused([](auto&, auto& batch, auto&...) { batch.layer_begin = -1; }) ==
          "retention_gates: lanes.layer_begin = -1, but layers are a range");
    CHECK(refused([](auto&, auto&, auto& weights, auto&) { weights.fc1_bias = nullptr; }) ==
          "retention_gates: retention gate = null, but a gate has four tensors");
    CHECK(refused([](auto&, auto&, auto& weights, auto&) { weights.width = 0; }) ==
          "retention_gates: retention gate.width = 0, but a hidden row has at least one channel");
    CHECK(refused([](auto&, auto&, auto&, auto& out) { out.data = nullptr; }) ==
          "retention_gates: out = null, but every lane has a row to be written to");
    for (float const each : among.out) CHECK(each == untouched);
    CHECK(refused(nothing_bent).empty());
    CHECK(error_of([&] { gate.view().check("make", {3, 6, 3, 8}); }) ==
          "make: retention gate.layers = 2, but the model has 3 layers");
    CHECK(error_of([&] { gate.view().check("make", {2, 6, 2, 8}); }) ==
          "make: retention gate.heads = 3, but the model has 2 KV heads");
    CHECK(kv::retention_gate_weights::parameters(8, 2560, 512) == 1'315'336);
  }
}
