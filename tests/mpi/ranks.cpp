// SPDX-License-Identifier: Apache-2.0
// The ranks of mpi_executor, which mpirun starts: what they sum, how they refuse, and that random models decide on any
// number of ranks as one process does. Every rank runs all tests, and computes the whole model beside its own heads.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <kvpolicy/kvpolicy.hpp>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "mpi/check_ranks.hpp"
#include "mpi/mpi_executor.hpp"
#include "support/dice.hpp"
#include "support/error_of.hpp"

namespace {

namespace kv = kvpolicy;
using examples::mpi_executor;
using kvpolicy_test::dice;
using kvpolicy_test::error_of;

int ranks_of_world() {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}
int rank_in_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Counts what is reduced.
class counting_executor : public mpi_executor {
 public:
  using mpi_executor::mpi_executor;
  int reductions = 0;
  void all_reduce(float* data, std::size_t count) {
    ++reductions;
    mpi_executor::all_reduce(data, count);
  }
  void all_reduce_max(float* data, std::size_t count) {
    ++reductions;
    mpi_executor::all_reduce_max(data, count);
  }
};

/// A model's dimensions, and how its keys are: real numbers, or norms of a few integers, which are often equal and
/// whose sums are exact in any order.
struct model_shape {
  int layers = 1, kv_heads = 1, group = 1, head_dim = 8, sequences = 1, capacity = 32;
  bool integer_norms = false;
  std::uint64_t seed = 1;
  bool in_turns = false;  ///< decides about one sequence after another
};

/// A number in [-1, 1) that depends on its place in the model only.
float number_at(model_shape const& of, std::initializer_list<int> place) {
  std::uint64_t x = of.seed;
  for (int const each : place) x = kv::random_scores::uniform::mix(x ^ static_cast<std::uint64_t>(each));
  return static_cast<float>(x >> 40) * 1.1920928955078125e-7f - 1.0f;
}

/// The part of the heads that a rank computes.
struct head_part {
  int first;        ///< the first KV head
  int heads;        ///< KV heads
  int first_query;  ///< the first query head
};

/// Some heads of a model, with a cache, a state and a plan of their own.
template <class Executor, class Policy>
class part_of_model {
 public:
  part_of_model(Executor& on, Policy const& how, model_shape const& model, head_part const& mine)
      : exec(on),
        policy(how),
        of(model),
        first(mine.first),
        first_query(mine.first_query),
        shape{model.layers, mine.heads * model.group, mine.heads, model.head_dim},
        k(at(std::int64_t{model.layers} * model.sequences * model.capacity * mine.heads * model.head_dim)),
        v(k.size()),
        counts(at(std::int64_t{model.sequences} * model.layers * mine.heads)),
        positions(counts.size() * at(model.capacity)),
        length(at(model.sequences)),
        cache(kv::contiguous_cache({.k = k.data(),
                                    .v = v.data(),
                                    .shape = shape,
                                    .sequences = model.sequences,
                                    .capacity = model.capacity,
                                    .counts = counts.data(),
                                    .positions = positions.data()})),
        state(kv::make_state(exec, policy, cache)),
        plan(kv::make_plan(exec, policy, cache, kv::at_once{.sequences = model.in_turns ? 1 : model.sequences},
                           kv::compact{})) {}

  /// Every sequence gets new tokens, and decides.
  void turn(std::vector<int> const& new_tokens) {
    append(new_tokens);
    observe();
    if (of.in_turns) return evict();
    decide();
    kv::apply(exec, kv::compact{}, plan, cache, state);
  }

  void append(std::vector<int> const& new_tokens) {
    rows = std::max(1, *std::max_element(new_tokens.begin(), new_tokens.end()));
    valid_rows = new_tokens;
    row_positions.assign(at(rows * of.sequences), 0);
    queries.assign(at(std::int64_t{of.layers} * of.sequences * rows * shape.query_heads * of.head_dim), 0.0f);
    span_begin.assign(at(of.sequences), 0);
    span_end = new_tokens;
    for (int s = 0; s < of.sequences; ++s) {
      int const tokens = new_tokens[at(s)], begin = length[at(s)];
      if (tokens == 0) continue;
      kv::append(exec, cache, state, {.sequence = s, .tokens = tokens, .position = begin});
      span_begin[at(s)] = tokens / 2;
      length[at(s)] += tokens;
      for (int t = 0; t < tokens; ++t) write_token(s, t, begin + t);
    }
  }

  void observe() {
    kv::queries const shown = queries_now();
    kv::turn_queries const asked{shown, span_begin.data(), span_end.data()};
    kv::signals const in{cache.lanes, kv::keys_of(cache), shown, asked};
    together([&] { kv::observe(exec, policy, in, state); });
  }
  void decide(bool fail = false) {
    kv::queries const shown = queries_now();
    kv::turn_queries const asked{shown, span_begin.data(), span_end.data()};
    kv::signals const in{cache.lanes, kv::keys_of(cache), shown, asked};
    together([&] {
      if (fail) throw std::out_of_range("the engine has lost a block");
      kv::decide(exec, policy, in, state, plan);
    });
  }

  [[nodiscard]] std::vector<int> kept(kv::lane one) const {
    int const* const row = cache.lanes.position.row(one);
    return {row, row + *cache.lanes.count.row(one)};
  }
  [[nodiscard]] float const* key(kv::lane one, int entry) const {
    return k.data() + ((std::int64_t{one.layer} * of.sequences + one.sequence) * of.capacity + entry) * row_size() +
           one.head * of.head_dim;
  }

  Executor& exec;
  Policy policy;
  model_shape of;
  int first, first_query;
  kv::shape shape;
  std::vector<float> k, v, queries;
  std::vector<int> counts, positions, length, valid_rows, row_positions, span_begin, span_end;
  int rows = 0;
  kv::cache cache;
  kv::state<Executor> state;
  kv::plan<Executor> plan;

 private:
  void evict() {
    kv::queries const shown = queries_now();
    kv::turn_queries const asked{shown, span_begin.data(), span_end.data()};
    kv::signals const in{cache.lanes, kv::keys_of(cache), shown, asked};
    together([&] { kv::evict(exec, policy, in, kv::compact{}, cache, state, plan); });
  }
  template <class Call>
  void together(Call const& call) {
    if constexpr (requires { exec.together(call); }) {
      exec.together(call);
    } else {
      call();
    }
  }
  [[nodiscard]] kv::queries queries_now() const {
    return kv::queries_of(queries.data(), shape, rows, row_positions.data(),
                          {.sequences = of.sequences, .valid_rows = valid_rows.data()});
  }
  [[nodiscard]] std::int64_t row_size() const { return std::int64_t{shape.kv_heads} * of.head_dim; }

  void write_token(int s, int t, int position) {
    row_positions[at(s * rows + t)] = position;
    for (int layer = 0; layer < of.layers; ++layer) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        int const entry = *cache.lanes.count.row({s, layer, head}) - valid_rows[at(s)] + t;
        auto* const to = const_cast<float*>(key({s, layer, head}, entry));
        for (int d = 0; d < of.head_dim; ++d) to[d] = key_number(s, layer, first + head, position, d);
        v[at(to - k.data())] = number_at(of, {2, s, layer, first + head, position});
      }
      for (int head = 0; head < shape.query_heads; ++head) {
        std::int64_t const row = ((std::int64_t{layer} * of.sequences + s) * rows + t) * shape.query_heads + head;
        for (int d = 0; d < of.head_dim; ++d) {
          queries[at(row * of.head_dim + d)] = 3 * number_at(of, {3, s, layer, first_query + head, position, d});
        }
      }
    }
  }
  [[nodiscard]] float key_number(int s, int layer, int head, int position, int d) const {
    if (!of.integer_norms) return 2 * number_at(of, {1, s, layer, head, position, d});
    return d == 0 ? std::floor(2 * number_at(of, {1, s, layer, head, position})) : 0.0f;  // -2, -1, 0 or 1
  }
};

/// True if a lane of this rank has the positions and the keys that it has in the whole model.
template <class Part, class Whole>
bool same_lane(Part const& part, Whole const& whole, kv::lane mine) {
  kv::lane const there{mine.sequence, mine.layer, part.first + mine.head};
  std::vector<int> const kept = part.kept(mine);
  if (kept != whole.kept(there)) return false;
  for (int e = 0; e < static_cast<int>(kept.size()); ++e) {
    float const* const key = part.key(mine, e);
    if (!std::equal(key, key + part.of.head_dim, whole.key(there, e))) return false;
  }
  return true;
}

constexpr int rounds_of_every_change = 5;

int rounds() {
  char const* const steps = std::getenv("KVPOLICY_MPI_ROUNDS");
  return steps != nullptr ? std::atoi(steps) : rounds_of_every_change;
}

/// The same turns on all ranks and in one process: every lane of this rank must keep the same tokens and the same keys.
template <class Policy>
void expect_same(Policy const& policy, model_shape const& of_part, head_part const& mine, model_shape const& model,
                 int turns, dice& random) {
  int const threads = rounds() > rounds_of_every_change ? random.between(1, 2) : 1;  // on few cores two take long
  counting_executor ranks(MPI_COMM_WORLD, threads, kv::isa::portable);
  kv::host_executor alone(1, kv::isa::portable);
  part_of_model part(ranks, policy, of_part, mine);
  part_of_model whole(alone, policy, model, {0, model.kv_heads, 0});
  examples::check_ranks(ranks, policy, part.cache);
  for (int turn = 0; turn < turns; ++turn) {
    std::vector<int> new_tokens;
    for (int s = 0; s < model.sequences; ++s) {
      int const fullest = *std::max_element(whole.counts.begin(), whole.counts.end());
      new_tokens.push_back(random.below(std::min(24, model.capacity - fullest) + 1));
    }
    part.turn(new_tokens);
    whole.turn(new_tokens);
    int same = 1;
    for (int i = 0; i < part.cache.lanes.size(); ++i) {
      if (!same_lane(part, whole, part.cache.lanes.at(i))) same = 0;
    }
    CHECK(same == 1);
    std::vector<int> of_ranks(at(ranks.ranks()));
    ranks.all_gather(&same, sizeof same, of_ranks.data());
    if (std::count(of_ranks.begin(), of_ranks.end(), 0) > 0) return;  // all ranks leave together
    if (policy.score.decides == kv::granularity::sequence) examples::check_tokens(ranks, part.cache.lanes);
  }
  CHECK((ranks.reductions > 0) == (policy.score.decides != kv::granularity::lane));
}
/// The same, where every rank has an equal part of the KV heads.
template <class Policy>
void expect_same(Policy const& policy, model_shape const& model, int turns, dice& random) {
  int const heads = model.kv_heads / ranks_of_world(), first = rank_in_world() * heads;
  expect_same(policy, model, {first, heads, first * model.group}, model, turns, random);
}

/// A residual head of random weights.
class random_head {
 public:
  random_head(int dims, dice& random) : dims_(dims), weights_(at(kv::residual_head::parameters(dims, 8, 12))) {
    for (float& each : weights_) each = static_cast<float>(random.real(0.3));
  }
  [[nodiscard]] kv::residual_head view() const {
    float const* next = weights_.data();
    int const phi = 3 * dims_ + 1;
    int const sizes[] = {8 * phi, 8, 8 * dims_, 8, 8 * dims_, 8, 12 * (phi + 8), 12, 12, 1, 1};
    int part = 0;
    return kv::residual_head::named(dims_, 8, 12, [&](char const*) {
      float const* const here = next;
      next += sizes[part++];
      return here;
    });
  }

 private:
  int dims_;
  std::vector<float> weights_;
};

model_shape random_model(dice& random) {
  return {.layers = random.between(1, 3),
          .kv_heads = ranks_of_world() * random.between(1, 3),
          .group = random.between(1, 3),
          .head_dim = 2 * random.between(1, 12),
          .sequences = random.between(1, 3),
          .capacity = random.between(30, 90),
          .integer_norms = false,
          .seed = static_cast<std::uint64_t>(random.below(1 << 30)),
          .in_turns = random.chance(30)};
}

/// 0, 1, all that fits, or a number between.
int random_budget(dice& random, int capacity) {
  return random.one_of<int>({0, 1, capacity, random.between(2, capacity - 1), random.between(2, capacity / 2)});
}

kv::eviction<kv::intent_kv> random_intent_kv(dice& random, random_head const& head, int capacity) {
  kv::intent_kv score{.mode = random.one_of<kv::intent_mode>(
                          {kv::intent_mode::query, kv::intent_mode::memory, kv::intent_mode::learnable}),
                      .prefix = random.below(4),
                      .tail = random.between(1, 6),
                      .normalize_encoding = random.chance(50)};
  if (score.mode == kv::intent_mode::learnable) score.residual = head.view();
  return {.score = score, .budget = {random_budget(random, capacity)}};
}

}  // namespace

TEST_SUITE("mpi") {
  TEST_CASE("a sum is that of all ranks in their order, in any number of pieces, with the same bits on every rank") {
    mpi_executor exec(MPI_COMM_WORLD);
    model_shape const numbers;
    for (int const count : {0, 1, 65535, 65536, 65537, 200003}) {
      std::vector<float> mine(at(count)), expected(at(count));
      for (int i = 0; i < count; ++i) {
        for (int rank = 0; rank < exec.ranks(); ++rank) {
          float const part = number_at(numbers, {rank, i});
          expected[at(i)] = rank == 0 ? part : expected[at(i)] + part;
          if (rank == exec.rank()) mine[at(i)] = part;
        }
      }
      exec.all_reduce(mine.data(), mine.size());
      CHECK(mine == expected);
    }
    float special[] = {-std::numeric_limits<float>::infinity(), exec.rank() == 0 ? NAN : 1.0f};
    exec.all_reduce(special, 2);
    CHECK(special[0] == -std::numeric_limits<float>::infinity());
    CHECK(std::isnan(special[1]));
  }

  TEST_CASE("a maximum is that of all ranks in any number of pieces, and NaN on one rank is NaN on every rank") {
    mpi_executor exec(MPI_COMM_WORLD);
    model_shape const numbers;
    for (int const count : {0, 1, 65536, 65537, 200003}) {
      std::vector<float> mine(at(count)), expected(at(count));
      for (int i = 0; i < count; ++i) {
        for (int rank = 0; rank < exec.ranks(); ++rank) {
          float const part = number_at(numbers, {rank, i});
          expected[at(i)] = rank == 0 ? part : std::max(expected[at(i)], part);
          if (rank == exec.rank()) mine[at(i)] = part;
        }
      }
      exec.all_reduce_max(mine.data(), mine.size());
      CHECK(mine == expected);
    }
    for (int nan_on = 0; nan_on < exec.ranks(); ++nan_on) {
      float const lowest = -std::numeric_limits<float>::infinity();
      float special[] = {lowest, exec.rank() == nan_on ? NAN : 1.0f, exec.rank() == nan_on ? -2.0f : lowest};
      exec.all_reduce_max(special, 3);
      CHECK(special[0] == lowest);
      CHECK(std::isnan(special[1]));
      CHECK(special[2] == -2.0f);
    }
  }

  TEST_CASE("ranks that reduce different counts all throw the same line, and no number has changed") {
    mpi_executor exec(MPI_COMM_WORLD);
    if (exec.ranks() == 1) return;
    int const last = exec.ranks() - 1;
    std::vector<float> numbers(12, 3);
    std::size_t const count = exec.rank() == last ? 12 : 8;
    CHECK(error_of([&] { exec.all_reduce(numbers.data(), count); }) ==
          "all_reduce: count = 8 on rank 0 and 12 on rank " + std::to_string(last) +
              ", but all ranks exchange equally many numbers");
    CHECK(numbers == std::vector<float>(12, 3));
    exec.all_reduce(numbers.data(), 12);  // and they can go on
    CHECK(numbers == std::vector<float>(12, 3.0f * static_cast<float>(exec.ranks())));
  }

  TEST_CASE("a call that throws on one rank throws on every rank, wherever the others are") {
    mpi_executor exec(MPI_COMM_WORLD);
    int const last = exec.ranks() - 1;
    for (int const reduced_before : {0, 1}) {
      for (int const reduced_by_others : {1, 0}) {
        float number = 1;
        auto const call = [&] {
          if (reduced_before == 1) exec.all_reduce(&number, 1);
          if (exec.rank() == last) throw std::out_of_range("the engine has lost a block");
          if (reduced_by_others == 1) exec.all_reduce(&number, 1);
        };
        std::string text;
        try {
          exec.together(call);
        } catch (std::out_of_range const& error) {
          CHECK(exec.rank() == last);
          text = "together: rank " + std::to_string(last) + " threw: " + error.what();
        } catch (examples::ranks_disagree const& error) {
          CHECK(exec.rank() != last);
          text = error.what();
        }
        CHECK(text == "together: rank " + std::to_string(last) + " threw: the engine has lost a block");
      }
    }
    bool called = false;
    exec.together([&] { exec.together([&] { called = true; }); });
    CHECK(called);
  }

  TEST_CASE("a rank that returns while others reduce is refused on every rank") {
    mpi_executor exec(MPI_COMM_WORLD);
    if (exec.ranks() == 1) return;
    float number = 1;
    CHECK(error_of([&] {
            exec.together([&] {
              if (exec.rank() > 0) exec.all_reduce(&number, 1);
            });
          }).find(": count = none on rank 0 and 1 on rank 1, but all ranks exchange equally many numbers") !=
          std::string::npos);
    CHECK(number == 1);
  }

  TEST_CASE("a decision that fails on one rank leaves cache and state of all ranks as they were") {
    model_shape const model{1, 2 * ranks_of_world(), 2, 8, 1, 40, false, 5};
    auto const policy = kv::policies::intent_kv({.budget = 10});
    mpi_executor exec(MPI_COMM_WORLD);
    part_of_model part(exec, policy, model, {2 * exec.rank(), 2, 4 * exec.rank()});
    part.turn({20});
    part.append({10});
    auto const counts = part.counts, positions = part.positions;
    auto const k = part.k;
    part.observe();
    bool const fails = exec.rank() == exec.ranks() - 1;
    std::string const reason = "the engine has lost a block";
    std::string const line = "together: rank " + std::to_string(exec.ranks() - 1) + " threw: " + reason;
    CHECK_THROWS_WITH(part.decide(fails), (fails ? reason : line).c_str());
    CHECK(part.counts == counts);
    CHECK(part.positions == positions);
    CHECK(part.k == k);
    // A count that is wrong on one rank is found there, in the middle of a decision, and reported everywhere.
    if (exec.rank() == 0) part.counts[0] = 41;
    std::string const error = error_of([&] { part.decide(); });
    CHECK(error.find("41") != std::string::npos);
    CHECK(error.find('\n') == std::string::npos);
    part.counts = counts;
    part.decide();
    CHECK(part.plan.keep().listed(0).size() == 10);
  }

  TEST_CASE("ranks with different shapes or policies are refused on every rank in the same line") {
    mpi_executor exec(MPI_COMM_WORLD);
    if (exec.ranks() == 1) return;
    int const last = exec.ranks() - 1, more = exec.rank() == last ? 1 : 0;
    std::string const where = " on rank " + std::to_string(last) + ", but ";
    struct refusal {
      model_shape model;
      std::string line;
    };
    std::vector<refusal> const refusals{
        {{2 + more, 2, 2, 8, 1, 32, false, 1},
         "shape.layers = 2 on rank 0 and 3" + where + "all ranks compute one model"},
        {{2, 2, 2 + more, 8, 1, 32, false, 1},
         "shape.query_heads = 4 on rank 0 and 6" + where + "every rank computes equally many heads"},
        {{2, 2 + more, 2, 8, 1, 32, false, 1},
         "shape.query_heads = 4 on rank 0 and 6" + where + "every rank computes equally many heads"},
        {{2, 2, 2, 8 + more, 1, 32, false, 1},
         "shape.head_dim = 8 on rank 0 and 9" + where + "all ranks compute one model"},
        {{2, 2, 2, 8, 1 + more, 32, false, 1},
         "lanes.sequences = 1 on rank 0 and 2" + where + "all ranks have the same sequences"},
        {{2, 2, 2, 8, 1, 32 + more, false, 1},
         "lanes.capacity = 32 on rank 0 and 33" + where + "all ranks have the same sequences"}};
    kv::eviction const policy{.score = kv::reduce_lanes{.score_of = kv::knorm{}, .decides = kv::granularity::sequence},
                              .budget = kv::per_lane{8}};
    for (refusal const& each : refusals) {
      part_of_model part(exec, policy, each.model, {0, each.model.kv_heads, 0});
      CHECK(error_of([&] { examples::check_ranks(exec, policy, part.cache); }) == "check_ranks: " + each.line);
    }
    part_of_model part(exec, policy, model_shape{2, 2, 2, 8, 1, 32, false, 1}, {0, 2, 0});
    auto other = policy;
    other.budget.tokens = 8 + more;
    CHECK(error_of([&] { examples::check_ranks(exec, other, part.cache); }) ==
          "check_ranks: policy = different on rank 0 and rank " + std::to_string(last) +
              ", but all ranks decide by one policy");
  }

  TEST_CASE("without the check a decision of different shapes is refused on every rank, and no rank waits") {
    mpi_executor exec(MPI_COMM_WORLD);
    if (exec.ranks() == 1) return;
    int const more = exec.rank() == 1 ? 5 : 0;
    auto const policy = kv::policies::intent_kv({.budget = 10});
    part_of_model part(exec, policy, model_shape{2, 2, 1, 8, 1, 30 + more, false, 1}, {0, 2, 0});
    part.append({20});
    part.observe();
    auto const counts = part.counts;
    CHECK(error_of([&] { part.decide(); }) ==
          "all_reduce: count = 30 on rank 0 and 35 on rank 1, but all ranks exchange equally many numbers");
    CHECK(part.counts == counts);
  }

  TEST_CASE("ranks that hold different tokens are found") {
    mpi_executor exec(MPI_COMM_WORLD);
    if (exec.ranks() == 1) return;
    auto const policy = kv::policies::intent_kv({.budget = 10});
    part_of_model part(exec, policy, model_shape{2, 2, 1, 8, 2, 30, false, 1}, {0, 2, 0});
    part.append({6, 7});
    examples::check_tokens(exec, part.cache.lanes);
    if (exec.rank() == 1) part.cache.lanes.position.row({1, 0, 0})[6] = 9;
    CHECK(error_of([&] { examples::check_tokens(exec, part.cache.lanes); }) ==
          "check_tokens: positions = different on rank 0 and rank 1, but all ranks hold the same tokens of each "
          "sequence");
  }

  TEST_CASE("heads that decide together without a reduction over the ranks are refused") {
    mpi_executor exec(MPI_COMM_WORLD);
    if (exec.ranks() == 1) return;
    auto const expect_refused = [&](auto const& policy) {
      part_of_model part(exec, policy, model_shape{2, 2, 1, 8, 1, 30, false, 1}, {0, 2, 0});
      part.append({20});
      part.observe();
      CHECK(error_of([&] { part.decide(); }) ==
            "decide: score.decides = " + kv::to_string(kv::granularity{policy.score.decides}) + ", but heads of " +
                std::to_string(exec.ranks()) + " ranks decide, and the scorer does not reduce");
    };
    expect_refused(kv::policies::tova({.budget = 8}));
    expect_refused(kv::eviction{
        .score =
            kv::reduce_lanes{.score_of = kv::knorm{}, .decides = kv::granularity::sequence, .how = kv::reduction::mean},
        .budget = kv::per_lane{8}});
  }

  TEST_CASE("a budget that heads of several ranks share is refused") {
    mpi_executor exec(MPI_COMM_WORLD);
    if (exec.ranks() == 1) return;
    kv::eviction const policy{.score = kv::knorm{}, .budget = kv::per_layer{8}};
    part_of_model part(exec, policy, model_shape{2, 2, 1, 8, 1, 30, false, 1}, {0, 2, 0});
    part.append({20});
    CHECK(error_of([&] { part.decide(); }) == "decide: budget.scope = layer, but the heads that share it are on " +
                                                  std::to_string(exec.ranks()) + " ranks: gather first");
  }

  TEST_CASE("more threads than MPI was initialised for are refused") {
    int provided = 0;
    MPI_Query_thread(&provided);
    if (provided >= MPI_THREAD_FUNNELED) {
      mpi_executor const exec(MPI_COMM_WORLD, 2);
      CHECK(exec.threads() == 2);
    } else {
      CHECK(error_of([] { mpi_executor const exec(MPI_COMM_WORLD, 2); }) ==
            "mpi_executor: threads = 2, but MPI was initialised for one thread: call MPI_Init_thread with "
            "MPI_THREAD_FUNNELED");
    }
  }

  TEST_CASE("random models decide on all ranks as one process does") {
    dice random(2026);
    for (int round = 0; round < rounds(); ++round) {
      model_shape model = random_model(random);
      CAPTURE(round);
      random_head const head(model.head_dim, random);
      expect_same(random_intent_kv(random, head, model.capacity), model, 5, random);

      kv::per_lane const budget{random_budget(random, model.capacity)};
      auto const decides = random.one_of<kv::granularity>({kv::granularity::layer, kv::granularity::sequence});
      expect_same(kv::eviction{.score = kv::reduce_lanes{.score_of = kv::snapkv{.window = 4}, .decides = decides},
                               .budget = budget},
                  model, 5, random);
      expect_same(kv::eviction{.score = kv::reduce_lanes{.score_of = kv::snapkv{.window = 4},
                                                         .decides = decides,
                                                         .how = kv::reduction::max},
                               .budget = budget},
                  model, 5, random);
      expect_same(kv::policies::snapkv({.budget = budget.tokens, .score = {.window = 4}}), model, 5, random);
      model.integer_norms = true;  // many scores are equal: the lower ordinal must win on every rank
      expect_same(kv::eviction{.score = kv::reduce_lanes{.score_of = kv::knorm{}, .decides = decides},
                               .protect = kv::sinks{random.below(3)} | kv::recent{random.below(5)},
                               .budget = budget},
                  model, 5, random);
    }
  }

  TEST_CASE("where every rank has a copy of one KV head, IntentKV decides as one process does") {
    dice random(7);
    for (int round = 0; round < rounds(); ++round) {
      model_shape part = random_model(random);
      part.kv_heads = 1;
      model_shape whole = part;
      whole.group = part.group * ranks_of_world();
      CAPTURE(round);
      random_head const head(part.head_dim, random);
      head_part const mine{0, 1, rank_in_world() * part.group};
      expect_same(random_intent_kv(random, head, part.capacity), part, mine, whole, 5, random);
    }
  }
}

int main(int argc, char** argv) {
  int provided = 0;
  bool const alone = std::getenv("KVPOLICY_MPI_SINGLE") != nullptr;
  MPI_Init_thread(&argc, &argv, alone ? MPI_THREAD_SINGLE : MPI_THREAD_FUNNELED, &provided);
  doctest::Context context(argc, argv);
  context.setOption("no-colors", true);
  context.setOption("minimal", rank_in_world() != 0);  // the other ranks print failures only
  int const status = context.run();
  // A rank that has left a test early would never meet the others again.
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
