// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "laws/served_requests.hpp"

namespace kvpolicy_test {

/// The policies of the law: every shipped eviction.
template <class Executor>
std::vector<kv::basic_any_policy<Executor>> evictions_of_the_law() {
  using any = kv::basic_any_policy<Executor>;
  kv::intent_kv turn{};
  return {any(kv::eviction{.score = kv::streaming_llm{2}, .budget = kv::per_lane{7}}),
          any(kv::eviction{.score = kv::snapkv{.window = 3, .pool = kv::max_pool{3}}, .budget = kv::per_lane{6}}),
          any(kv::eviction{.score = kv::h2o{}, .protect = kv::sinks{1}, .budget = kv::per_lane{6}}),
          any(kv::eviction{.score = kv::tova{}, .budget = kv::per_lane{5}}),
          any(kv::eviction{.score = kv::knorm{}, .budget = kv::per_layer{5}}),
          any(kv::eviction{.score = kv::random_scores{}, .protect = kv::recent{2}, .budget = kv::per_lane{6}}),
          any(kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_sequence{5}}),
          any(kv::eviction{.score = turn, .budget = kv::per_lane{8}})};
}

/// Runs a random schedule of requests, and checks each against the same request alone.
template <class Executor>
class random_schedule {
 public:
  random_schedule(std::uint64_t seed, std::vector<kv::basic_any_policy<Executor>> const& policies)
      : random_(seed), policy_(random_.one_of(policies)) {
    how_.model = {.layers = random_.between(1, 3), .query_heads = 2, .kv_heads = 2, .head_dim = 4};
    if (random_.chance(40)) how_.model.query_heads = 4;
    how_.bound = 24;
    how_.memory = random_.one_of(std::vector{arrangement::nhd, arrangement::hnd, arrangement::packed_rows,
                                             arrangement::transposed_v, arrangement::latent, arrangement::latent_view});
    if (how_.memory == arrangement::latent || how_.memory == arrangement::latent_view) how_.model.value_dim = 3;
    how_.element = random_.one_of(std::vector{kv::codec::f32, kv::codec::bf16, kv::codec::e4m3});
    how_.where = random_.one_of(std::vector{kv::locating::identity, kv::locating::slot_map, kv::locating::block_table});
    how_.shared_table = false;
    how_.seed = seed;
    how_.rows = content::smooth;
  }

  void run(int steps) {
    mock_options how = how_;
    how.sequences = random_.between(2, 5);
    kv::at_once const size{.sequences = random_.chance(50) ? 1 : 0};
    engine_.emplace(how, policy_, random_.chance(50) ? 1 : 3, size, random_.below(1000));
    for (int step = 0; step < steps; ++step) {
      begin_some();
      change_places();
      forward_some();
    }
  }

 private:
  struct request {
    request_script script;
    std::vector<request_image> alone;  ///< after each chunk
    int slot = -1;                     ///< -1: swapped out
    int chunk = 0;
    int position = 0;
    std::vector<std::byte> saved;
  };

  void begin_some() {
    for (int slot = 0; slot < engine_->slots(); ++slot) {
      if (at_slot(slot) != nullptr || !random_.chance(60)) continue;
      request made;
      made.script.seed = static_cast<std::uint64_t>(random_.below(1 << 30));
      made.script.number = random_.below(3);
      int const chunks = random_.between(2, 6);
      for (int c = 0; c < chunks; ++c)
        made.script.chunks.push_back(c == 0 ? random_.between(3, 12) : random_.between(1, 4));
      made.slot = slot;
      made.alone = served_alone(made.script);
      engine_->begin(slot, made.script);
      requests_.push_back(std::move(made));
    }
  }

  [[nodiscard]] std::vector<request_image> served_alone(request_script const& script) {
    mock_options how = how_;
    how.sequences = 1;
    serving_engine<Executor> engine(how, policy_, 1, {}, 5);
    engine.begin(0, script);
    std::vector<request_image> images;
    int position = 0;
    for (int const tokens : script.chunks) {
      engine.forward({{0, &script, position, tokens}});
      position += tokens;
      images.push_back(engine.image(0));
    }
    return images;
  }

  /// Swaps requests out and in, moves and forks them, ends some early.
  void change_places() {
    auto const [exec, all, state] = parts();
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      request& one = requests_[i];
      int const free = free_slot();
      if (one.slot >= 0 && random_.chance(15)) {
        one.saved.assign(kv::saved_bytes(exec, all, state, one.slot), std::byte{});
        kv::save(exec, all, state, one.slot, one.saved);
        kv::reset(exec, all, state, one.slot);
        one.slot = -1;
      } else if (one.slot < 0 && free >= 0) {
        engine_->begin(free, one.script);
        kv::load(exec, all, state, free, one.saved);
        one.slot = free;
      } else if (one.slot >= 0 && free >= 0 && random_.chance(15)) {
        engine_->begin(free, one.script);
        kv::move(exec, all, state, one.slot, free);
        one.slot = free;
      } else if (one.slot >= 0 && free >= 0 && random_.chance(15)) {
        engine_->begin(free, one.script);
        kv::fork(exec, all, state, one.slot, free);
        request copy = one;
        copy.slot = free;
        requests_.push_back(std::move(copy));
      }
    }
    if (random_.chance(10)) {
      std::vector<int> const order = random_.permutation(engine_->slots());
      kv::reorder(exec, all, state, order);
      std::vector<int> const before = order;
      for (request& one : requests_) {
        if (one.slot < 0) continue;
        one.slot = static_cast<int>(std::find(before.begin(), before.end(), one.slot) - before.begin());
        engine_->set_number(one.slot, one.script.number);
      }
    }
  }

  void forward_some() {
    std::vector<typename serving_engine<Executor>::turn> batch;
    std::vector<request*> those;
    std::vector<int> padded;
    for (int const i : random_.permutation(static_cast<int>(requests_.size()))) {
      request& one = requests_[as_size(i)];
      if (one.slot < 0) continue;
      if (random_.chance(30)) {
        if (one.chunk > 0 && random_.chance(50)) padded.push_back(one.slot);
        continue;
      }
      batch.push_back({one.slot, &one.script, one.position, one.script.chunks[as_size(one.chunk)]});
      those.push_back(&one);
    }
    if (batch.empty()) return;
    engine_->forward(batch, padded);
    for (request* one : those) {
      one->position += one->script.chunks[as_size(one->chunk)];
      INFO("slot " << one->slot << " after chunk " << one->chunk << " of " << kv::to_string(policy_));
      CHECK(engine_->image(one->slot) == one->alone[as_size(one->chunk)]);
      ++one->chunk;
    }
    for (std::size_t i = 0; i < requests_.size();) {
      bool const ends = requests_[i].chunk == static_cast<int>(requests_[i].script.chunks.size()) || random_.chance(3);
      if (ends) {
        requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  struct engine_parts {
    Executor& exec;
    kv::cache& all;
    kv::state<Executor>& state;
  };
  [[nodiscard]] engine_parts parts() { return {engine_->exec(), engine_->all(), engine_->state()}; }

  [[nodiscard]] request* at_slot(int slot) {
    for (request& one : requests_) {
      if (one.slot == slot) return &one;
    }
    return nullptr;
  }
  [[nodiscard]] int free_slot() {
    std::vector<int> free;
    for (int slot = 0; slot < engine_->slots(); ++slot) {
      if (at_slot(slot) == nullptr) free.push_back(slot);
    }
    return free.empty() ? -1 : random_.one_of(free);
  }

  dice random_;
  kv::basic_any_policy<Executor> policy_;
  mock_options how_;
  std::optional<serving_engine<Executor>> engine_;
  std::vector<request> requests_;
};

}  // namespace kvpolicy_test
