// SPDX-License-Identifier: Apache-2.0
// Measures the decode step of a model of llama.cpp with a long cache, full and cut by a policy. docs/llama_cpp.md
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "llama_engine.hpp"
#include "model_file.hpp"
#include "random_gguf.hpp"

namespace {

namespace kv = kvpolicy;

struct options {
  std::vector<int> contexts{8192, 16384, 32768};
  std::string policy = "snapkv(window=16, pool=max:15) | budget(ratio=0.9375)";
  std::string write;
  int layers = 16;
  int repeat = 9;
  int rounds = 2;
  int window = 64;
  int threads = 0;
};

/// Times of one kind, in seconds.
struct times {
  std::vector<double> all;
  [[nodiscard]] double best() const { return *std::min_element(all.begin(), all.end()); }
  [[nodiscard]] double median() const {
    std::vector<double> sorted = all;
    std::nth_element(sorted.begin(), sorted.begin() + std::ssize(sorted) / 2, sorted.end());
    return sorted[sorted.size() / 2];
  }
};

struct measured {
  int context = 0;
  int kept = 0;
  times full, cut, decide, apply, cells;
};

using engine_type = llama_cpp::engine<kv::any_policy>;

/// Rows of normal random numbers in float16, for keys and values that no model has computed.
class random_rows {
 public:
  random_rows() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int i = 0; i < (1 << 20); ++i) numbers_.push_back(ggml_fp32_to_fp16(normal(random)));
  }
  void fill(kv::cache const& cache) {
    for (int i = 0; i < cache.lanes.size(); ++i) {
      kv::lane const lane = cache.lanes.at(i);
      for (int entry = 0; entry < *cache.lanes.count.row(lane); ++entry) {
        kv::place const place = cache.where.at(lane, entry);
        copy(cache.k.row(lane.layer, place, lane.head), cache.k.channels);
        copy(cache.v.row(lane.layer, place, lane.head), cache.v.channels);
      }
    }
  }

 private:
  void copy(std::byte* to, int dims) {
    at_ = (at_ * 1664525u + 1013904223u);
    std::size_t const from = (at_ >> 8) % (numbers_.size() - static_cast<std::size_t>(dims));
    std::memcpy(to, numbers_.data() + from, static_cast<std::size_t>(dims) * sizeof(ggml_fp16_t));
  }
  std::vector<ggml_fp16_t> numbers_;
  std::uint32_t at_ = 1;
};

/// Decodes some tokens, one at a time.
void decode(engine_type& engine, int tokens, times& to) {
  for (int i = 0; i < tokens; ++i) {
    llama_token const token = 'a' + i % 26;
    auto const begin = std::chrono::steady_clock::now();
    static_cast<void>(engine.step(0, {.tokens = {&token, 1}}));
    to.all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
}

measured measure(llama_model* model, int context, options const& with) {
  engine_type engine(model, kv::parse(with.policy),
                     {.context = {.cells = context + with.repeat, .chunk = 512, .threads = with.threads},
                      .decide = llama_cpp::when::by_hand,
                      .observe_steps = false,
                      .policy_threads = static_cast<int>(std::thread::hardware_concurrency())});
  random_rows random;
  measured made;
  made.context = context;
  for (int round = 0; round < with.rounds; ++round) {
    engine.reset(0);
    engine.adopt(0, context - with.window, [&](kv::cache const& cache) { random.fill(cache); });
    std::vector<llama_token> last;
    for (int i = 0; i < with.window; ++i) last.push_back('a' + i % 26);
    static_cast<void>(engine.prefill(0, {.tokens = last}));
    decode(engine, with.repeat, made.full);
    engine.truncate(0, context);
    engine.evict(0);
    made.kept = engine.count(0);
    made.decide.all.push_back(engine.seconds().decide);
    made.apply.all.push_back(engine.seconds().apply);
    made.cells.all.push_back(engine.seconds().cells);
    decode(engine, with.repeat, made.cut);
  }
  return made;
}

void print_head(options const& with) {
  fmt::print(
      "{} layers of 32 query heads, 8 KV heads and 64 channels, random weights in q8_0, cache in float16, flash "
      "attention\n{}\n\n"
      "No prompt is read: the cache gets random rows, then the model reads the last {} tokens over them, and the "
      "policy "
      "sees\ntheir query rows. Milliseconds; of steps the best and (the median) of {}, of the others the best of "
      "{}.\n\n",
      with.layers, to_string(kv::parse(with.policy)), with.window, with.repeat * with.rounds, with.rounds);
  fmt::print("{:>7}  {:>6}  {:>17}  {:>17}  {:>9}  {:>7}  {:>6}  {:>6}  {:>15}\n", "context", "kept", "full step",
             "cut step", "cut/full", "decide", "apply", "cells", "all three/full");
}

void print(measured const& one) {
  auto const ms = [](double seconds) { return seconds * 1000; };
  auto const step = [&](times const& of) { return fmt::format("{:.1f} ({:.1f})", ms(of.best()), ms(of.median())); };
  double const eviction = one.decide.best() + one.apply.best() + one.cells.best();
  fmt::print("{:>7}  {:>6}  {:>17}  {:>17}  {:>9.2f}  {:>7.1f}  {:>6.1f}  {:>6.1f}  {:>15.2f}\n", one.context, one.kept,
             step(one.full), step(one.cut), one.cut.best() / one.full.best(), ms(one.decide.best()),
             ms(one.apply.best()), ms(one.cells.best()), eviction / one.full.best());
  std::fflush(stdout);
}

void run(options const& with) {
  static_cast<void>(kv::parse(with.policy));
  for (int const context : with.contexts) {
    kv::expects(context > with.window, "long_context", "--context", context,
                [&] { return "the model reads the last " + std::to_string(with.window) + " tokens itself"; });
  }
  auto const sizes = llama_cpp::sizes_of_1b(with.layers);
  if (!with.write.empty()) {
    llama_cpp::write_random_gguf(with.write, sizes);
    fmt::print("{} has random weights\n", with.write);
    return;
  }
  auto const model = llama_cpp::load_written(
      "long_context", [&](std::filesystem::path const& file) { llama_cpp::write_random_gguf(file, sizes); });
  print_head(with);
  for (int const context : with.contexts) print(measure(model.get(), context, with));
}

}  // namespace

int main(int argc, char** argv) {
  options with;
  CLI::App app("Times the decode step of a model of a 1B shape with a long cache, full and cut by a policy");
  app.add_option("--context", with.contexts, "tokens in the cache; repeatable")->check(CLI::Range(128, 1 << 20));
  app.add_option("--layers", with.layers, "layers of the model")->check(CLI::Range(1, 16));
  app.add_option("--policy", with.policy, "the policy that cuts the cache");
  app.add_option("--repeat", with.repeat, "decoded tokens of each kind and round")->check(CLI::Range(1, 1000));
  app.add_option("--rounds", with.rounds, "how often the cache is filled and cut")->check(CLI::Range(1, 1000));
  app.add_option("--window", with.window, "last tokens that the model reads itself")->check(CLI::Range(1, 512));
  app.add_option("-t,--threads", with.threads, "threads of llama.cpp")->check(CLI::Range(0, 1024));
  app.add_option("--write", with.write, "write the model to this GGUF file, and end");
  CLI11_PARSE(app, argc, argv);
  llama_cpp::be_quiet();
  try {
    run(with);
  } catch (std::exception const& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
