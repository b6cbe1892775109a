// SPDX-License-Identifier: Apache-2.0
// write_gates and retention_gates of a prefill, a layer at a time: the whole verb against Eigen's product of the same
// rows and weights alone, and against the peak of the multiply-add; and a decode step's rows against reading the
// weights.
#include <cmath>
#include <kvpolicy/ops/host/retention_gates.hpp>
#include <kvpolicy/ops/host/write_gates.hpp>

#include "distributions.hpp"
#include "measure.hpp"
#include "model.hpp"
#include "peers.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int hidden_units = 512;

std::vector<float> drawn(std::int64_t count, double size, std::uint64_t seed) {
  std::vector<float> made(static_cast<std::size_t>(count));
  bench::noise from(seed);
  for (float& each : made) each = static_cast<float>(size * (2 * static_cast<double>(from.uniform()) - 1));
  return made;
}

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

double dot(float const* weights, std::vector<double> const& x) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(weights[i]) * x[i];
  return sum;
}

/// Counts and a row of room for every lane of some layers.
struct lanes_of_rows {
  lanes_of_rows(int layers, int heads, int rows)
      : count(static_cast<std::size_t>(layers * heads), rows),
        out(static_cast<std::size_t>(layers * heads) * static_cast<std::size_t>(rows)) {
    lanes = {.layer_end = layers, .heads = heads, .capacity = rows, .count = {count.data(), 0, heads, 1}};
    rows_out = {out.data(), 0, std::int64_t{heads} * rows, rows};
  }
  std::vector<int> count;
  std::vector<float> out;
  kv::lanes lanes;
  kv::by_lane<float> rows_out;
};

/// The weights of write gates, and a prefill's keys: those after RoPE stand in the values' place.
class write_side {
 public:
  write_side(int layers, int entries, kv::codec element)
      : model_(bench::one_layer),
        norm_(drawn(std::int64_t{layers} * model_.head_dim, 1, 1)),
        fc1_(drawn(std::int64_t{layers} * units() * columns(), 0.1, 2)),
        bias_(drawn(std::int64_t{layers} * units(), 0.5, 3)),
        fc2_(drawn(std::int64_t{layers} * units(), 0.2, 4)),
        keys_(shape_of(layers), entries, element),
        view_(keys_.view()),
        among_(layers, model_.kv_heads, entries) {
    weights_ = {layers,       model_.kv_heads, model_.head_dim, hidden_units, norm_.data(),
                norm_.data(), fc1_.data(),     bias_.data(),    fc2_.data(),  bias_.data()};
  }
  void run(kv::host_executor& exec) {
    kv::row_view const pre{view_.k, view_.where};
    kv::row_view const post{view_.v, view_.where};
    kv::ops::write_gates(exec, among_.lanes, pre, post, weights_, among_.rows_out);
  }
  void reserve(kv::host_executor& exec) const { kv::ops::write_gates.reserve(exec, weights_); }

  [[nodiscard]] bool is_right() const {
    for (kv::lane const this_lane : {kv::lane{}, kv::lane{0, weights_.layers - 1, weights_.heads - 1}}) {
      for (int const e : {0, among_.lanes.capacity - 1}) {
        double const is = static_cast<double>(among_.rows_out.row(this_lane)[e]);
        if (!(std::abs(is - expected(this_lane, e)) < 1e-5)) return false;
      }
    }
    return true;
  }
  [[nodiscard]] int columns() const { return 2 * model_.head_dim; }
  [[nodiscard]] std::vector<float> const& fc1() const { return fc1_; }
  /// Operations of the hidden units: a multiplication and an addition are two.
  [[nodiscard]] double operations() const {
    return 2.0 * among_.lanes.capacity * columns() * hidden_units * among_.lanes.size();
  }

 private:
  [[nodiscard]] int units() const { return hidden_units * model_.kv_heads; }
  [[nodiscard]] static kv::shape shape_of(int layers) {
    kv::shape made = bench::one_layer;
    made.layers = layers;
    return made;
  }
  [[nodiscard]] double expected(kv::lane this_lane, int e) const {
    std::vector<double> x;
    for (kv::plane const* const rows : {&view_.k, &view_.v}) {
      std::byte const* const row = rows->row(this_lane.layer, view_.where.at(this_lane, e), this_lane.head);
      double sum = 0;
      for (int d = 0; d < rows->channels; ++d) {
        x.push_back(static_cast<double>(kv::load(rows->element, row + d * rows->channel_stride)));
        sum += x.back() * x.back();
      }
      for (int d = 0; d < rows->channels; ++d) {
        double& each = x[x.size() - static_cast<std::size_t>(rows->channels - d)];
        each *= static_cast<double>(norm_[static_cast<std::size_t>(this_lane.layer * rows->channels + d)]) /
                std::sqrt(sum / rows->channels + 1e-6);
      }
    }
    std::int64_t const lane = this_lane.layer * weights_.heads + this_lane.head;
    double z = static_cast<double>(bias_[static_cast<std::size_t>(lane)]);
    for (std::int64_t u = lane * hidden_units; u < (lane + 1) * hidden_units; ++u) {
      double const v = static_cast<double>(bias_[static_cast<std::size_t>(u)]) + dot(&fc1_[0] + u * columns(), x);
      z += static_cast<double>(fc2_[static_cast<std::size_t>(u)]) * v * (1 + std::erf(v / std::sqrt(2.0))) / 2;
    }
    return sigmoid(z);
  }

  kv::shape model_;
  std::vector<float> norm_, fc1_, bias_, fc2_;
  bench::model_cache keys_;
  kv::cache view_;
  lanes_of_rows among_;
  kv::write_gate_weights weights_;
};

/// The weights of retention gates, and a prefill's hidden rows of one layer, which stand for those of all.
class retention_side {
 public:
  static constexpr int heads = 8;

  retention_side(int layers, int entries, int width, kv::codec element)
      : width_(width),
        fc1_(drawn(std::int64_t{layers} * hidden_units * width, 0.05, 2)),
        bias_(drawn(std::int64_t{layers} * hidden_units, 0.5, 3)),
        fc2_(drawn(std::int64_t{layers} * heads * hidden_units, 0.1, 4)),
        rows_(static_cast<std::size_t>(entries) * static_cast<std::size_t>(width * kv::bytes_of(element))),
        among_(layers, heads, entries) {
    bench::fill_elements(rows_, element, 1, 5);
    std::int64_t const row = std::int64_t{width} * kv::bytes_of(element);
    hidden_ = {.base = rows_.data(), .element = element, .dims = width, .row = row};
    weights_ = {layers, heads, width, hidden_units, fc1_.data(), bias_.data(), fc2_.data(), bias_.data()};
  }
  void run(kv::host_executor& exec) {
    kv::ops::retention_gates(exec, among_.lanes, hidden_, weights_, among_.rows_out);
  }
  void reserve(kv::host_executor& exec) const { kv::ops::retention_gates.reserve(exec, weights_); }

  [[nodiscard]] bool is_right() const {
    for (kv::lane const this_lane : {kv::lane{}, kv::lane{0, weights_.layers - 1, heads - 1}}) {
      for (int const e : {0, among_.lanes.capacity - 1}) {
        double const should = expected(this_lane, e);
        double const is = static_cast<double>(among_.rows_out.row(this_lane)[e]);
        if (!(std::abs(is - should) < 1e-5 * (1 + std::abs(should)))) return false;
      }
    }
    return true;
  }
  [[nodiscard]] std::vector<float> const& fc1() const { return fc1_; }
  [[nodiscard]] double operations() const {
    return 2.0 * among_.lanes.capacity * width_ * hidden_units * among_.lanes.layers();
  }

 private:
  [[nodiscard]] double expected(kv::lane this_lane, int e) const {
    std::vector<double> x;
    for (int d = 0; d < width_; ++d) {
      x.push_back(static_cast<double>(
          kv::load(hidden_.element, hidden_.at(0, this_lane.layer, e) + d * kv::bytes_of(hidden_.element))));
    }
    std::int64_t const lane = this_lane.layer * heads + this_lane.head;
    double z = static_cast<double>(bias_[static_cast<std::size_t>(lane)]);
    for (std::int64_t u = 0; u < hidden_units; ++u) {
      std::int64_t const unit = std::int64_t{this_lane.layer} * hidden_units + u;
      double const v = static_cast<double>(bias_[static_cast<std::size_t>(unit)]) + dot(&fc1_[0] + unit * width_, x);
      z += static_cast<double>(fc2_[static_cast<std::size_t>(lane * hidden_units + u)]) * v * sigmoid(v);
    }
    return z < 0 ? z - std::log1p(std::exp(z)) : -std::log1p(std::exp(-z));
  }

  int width_;
  std::vector<float> fc1_, bias_, fc2_;
  bench::memory rows_;
  lanes_of_rows among_;
  kv::hidden_rows hidden_;
  kv::retention_gate_weights weights_;
};

/// Eigen's product of as many rows of floats, shared evenly by the threads.
class eigen_product {
 public:
  eigen_product(int rows, int columns) : rows_(rows), columns_(columns), x_(drawn(std::int64_t{rows} * columns, 1, 9)) {
    out_.resize(static_cast<std::size_t>(rows) * hidden_units);
  }
  void run(kv::host_executor& exec, float const* fc1) {
    int const parts = exec.threads();
    exec.for_each(parts, [&](int part, int) {
      std::int64_t const begin = std::int64_t{rows_} * part / parts;
      std::int64_t const end = std::int64_t{rows_} * (part + 1) / parts;
      bench::peers::eigen_product(x_.data() + begin * columns_, fc1, static_cast<int>(end - begin), columns_,
                                  hidden_units, out_.data() + begin * hidden_units);
    });
    bench::floors::keep(out_[0]);
  }
  /// True if the last row's last unit is what a plain sum makes of it.
  [[nodiscard]] bool is_right(float const* fc1) const {
    std::vector<double> const row(x_.end() - columns_, x_.end());
    double const should = dot(fc1 + std::int64_t{hidden_units - 1} * columns_, row);
    return std::abs(static_cast<double>(out_.back()) - should) < 1e-3;
  }

 private:
  int rows_;
  int columns_;
  std::vector<float> x_;
  std::vector<float> out_;
};

/// `lanes`: how many products Eigen makes, one after the other, as the verb does.
template <class Side>
void against_eigen(benchmark::State& state, Side& side, int lanes, int columns) {
  int const entries = static_cast<int>(state.range(0));
  kv::host_executor exec(static_cast<int>(state.range(2)));
  side.reserve(exec);
  side.run(exec);
  if (!side.is_right()) return state.SkipWithError("wrong result");
  eigen_product eigen(entries, columns);
  eigen.run(exec, side.fc1().data());
  if (!eigen.is_right(side.fc1().data())) return state.SkipWithError("Eigen finds something else");
  auto const peak = bench::floors::peak_of(exec.simd_level(), kv::codec::f32);
  auto const taken = bench::in_turn(
      state, [&] { side.run(exec); },
      [&] {
        for (int i = 0; i < lanes; ++i) {
          eigen.run(exec, side.fc1().data() + static_cast<std::int64_t>(i) * hidden_units * columns);
        }
      },
      [&] { bench::floors::peak_pass(exec, peak, side.operations()); });
  state.SetLabel(kv::name_of(static_cast<kv::codec>(state.range(1))));
  state.counters["of_eigen"] = taken.ratio(1, 0);
  state.counters["of_peak"] = taken.ratio(2, 0);
  bench::report_share(state, taken, 0, 2);
  state.counters["GFLOP/s"] = side.operations() / taken.seconds(0) / 1e9;
  state.counters["eigen_GFLOP/s"] = side.operations() / taken.seconds(1) / 1e9;
}

void write_gates(benchmark::State& state) {
  write_side side(1, static_cast<int>(state.range(0)), static_cast<kv::codec>(state.range(1)));
  against_eigen(state, side, bench::one_layer.kv_heads, side.columns());
}
BENCHMARK(write_gates)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void retention_gates(benchmark::State& state) {
  constexpr int width = 2560;
  retention_side side(1, static_cast<int>(state.range(0)), width, static_cast<kv::codec>(state.range(1)));
  against_eigen(state, side, 1, width);
}
BENCHMARK(retention_gates)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0, 2}, {1, 2}})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// A decode step: one row a lane of a whole model, against reading the weights once.
template <class Side>
void against_weights(benchmark::State& state, Side& side) {
  kv::host_executor exec(static_cast<int>(state.range(0)));
  side.reserve(exec);
  side.run(exec);
  if (!side.is_right()) return state.SkipWithError("wrong result");
  std::size_t const bytes = side.fc1().size() * sizeof(float);
  auto const taken = bench::in_turn(
      state, [&] { side.run(exec); },
      [&] { bench::floors::read_pass(exec, reinterpret_cast<std::byte const*>(side.fc1().data()), bytes); });
  state.counters["over_read"] = taken.ratio(0, 1);
  bench::report_share(state, taken, 0, 1);
  bench::report_rate(state, static_cast<double>(bytes), taken.seconds(0), exec.threads());
}

void write_gates_step(benchmark::State& state) {
  write_side side(36, 1, kv::codec::bf16);
  against_weights(state, side);
}
BENCHMARK(write_gates_step)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Unit(benchmark::kMillisecond);

void retention_gates_step(benchmark::State& state) {
  retention_side side(36, 1, 2560, kv::codec::bf16);
  against_weights(state, side);
}
BENCHMARK(retention_gates_step)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
