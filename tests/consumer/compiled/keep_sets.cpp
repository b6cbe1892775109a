// SPDX-License-Identifier: Apache-2.0
// Built twice, from headers and with kvpolicy::compiled: what both print is the same, to the last bit of every score.
// The first line is the number that decode.c prints, of the same loop.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <kvpolicy/kvpolicy.hpp>
#include <vector>

namespace kv = kvpolicy;

namespace {

constexpr kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16};
constexpr int capacity = 96, prefill = 64, steps = 20, lanes = 4;

struct digest {
  std::uint64_t seen = 14695981039346656037u;
  void see(std::int64_t number) { seen = (seen ^ static_cast<std::uint64_t>(number)) * 1099511628211u; }
};

/// The memory of an engine, and a forward that is random.
struct engine {
  kv::codec element;
  std::vector<std::byte> k = std::vector<std::byte>(std::size_t{4} * capacity * lanes * 16), v = k;
  std::vector<float> queries = std::vector<float>(std::size_t{2} * prefill * 4 * 16);
  std::vector<int> counts = std::vector<int>(lanes), positions = std::vector<int>(lanes * capacity), slots = positions,
                   rows = std::vector<int>(prefill);
  std::uint32_t noise = 1;
  kv::cache cache{};

  engine(kv::codec of, bool in_slots) : element(of) {
    kv::contiguous_memory const memory{.k = k.data(),
                                       .v = v.data(),
                                       .element = of,
                                       .shape = model,
                                       .capacity = capacity,
                                       .counts = counts.data(),
                                       .positions = positions.data()};
    cache = in_slots ? kv::contiguous_cache_as_slots(memory, slots.data()) : kv::contiguous_cache(memory);
  }

  float next() {
    noise = noise * 69069u + 12345u;
    return static_cast<float>(noise >> 8) / 16777216.0f - 0.5f;
  }

  void store(std::byte* at, float value) const {
    if (element == kv::codec::f32) {
      std::memcpy(at, &value, 4);
    } else {
      std::uint16_t const bits = element == kv::codec::f16 ? kv::to_f16(value) : kv::to_bf16(value);
      std::memcpy(at, &bits, 2);
    }
  }

  void forward(int tokens, int position) {
    for (int i = 0; i < lanes; ++i) {
      kv::lane const one = cache.lanes.at(i);
      for (int t = 0; t < tokens; ++t) {
        kv::place const at = cache.where.at(one, counts[static_cast<std::size_t>(i)] + t);
        for (int d = 0; d < 16; ++d) {
          store(cache.k.row(one.layer, at, one.head) + d * cache.k.channel_stride, next());
          store(cache.v.row(one.layer, at, one.head) + d * cache.v.channel_stride, next());
        }
      }
    }
    for (std::size_t i = 0; i < std::size_t{2} * static_cast<unsigned>(tokens) * 4 * 16; ++i) queries[i] = next();
    for (int t = 0; t < tokens; ++t) rows[static_cast<std::size_t>(t)] = position + t;
  }
};

template <class Policy, class Applier>
void run(Policy const& policy, Applier const& how, engine& with, kv::host_executor& exec, digest& of, bool scores) {
  auto state = kv::make_state(exec, policy, with.cache);
  auto plan = kv::make_plan(exec, policy, with.cache, how);
  for (int i = 0, position = 0; i <= steps; ++i) {
    int const tokens = i == 0 ? prefill : 1;
    with.forward(tokens, position);
    kv::append(exec, with.cache, state, {.tokens = tokens, .position = position});
    position += tokens;
    kv::signals const in{with.cache.lanes, kv::keys_of(with.cache), kv::values_of(with.cache),
                         kv::queries_of(with.queries.data(), model, tokens, with.rows.data())};
    kv::observe(exec, policy, in, state);
    kv::decide(exec, policy, in, state, plan);
    kv::keep_set const& keep = plan.keep();
    for (int lane = 0; lane < lanes; ++lane) {
      int const segment = kv::segment_of(keep.lanes, keep.decides, lane);
      for (int const kept : keep.listed(segment)) of.see(kept);
      for (int e = 0; scores && e < keep.entry_count[segment]; ++e) of.see(std::bit_cast<int>(plan.score(segment, e)));
    }
    kv::apply_stats stats;
    kv::apply(exec, how, plan, with.cache, state, &stats);
    of.see(stats.logical_kept);
    of.see(stats.physical_freed);
    of.see(stats.attended_length);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      for (int e = 0; e < with.counts[lane]; ++e) of.see(with.positions[lane * capacity + static_cast<std::size_t>(e)]);
    }
  }
}

void as_in_c() {
  kv::host_executor exec(2);
  kv::any_policy const policy = kv::parse("snapkv(window=8, pool=max:3) | sinks(2) | budget(40)");
  digest all;
  engine contiguous(kv::codec::f32, false);
  run(policy, kv::compact{}, contiguous, exec, all, false);
  engine slots(kv::codec::f32, true);
  kv::list_rewrite<> const lists{.list = kv::list_of(slots.cache, slots.slots.data())};
  run(policy, lists, slots, exec, all, false);
  std::printf("decode %016llx, kvpolicy %s\n", static_cast<unsigned long long>(all.seen), kv::version);
}

void print(char const* name, kv::codec element, kv::isa set, digest const& of) {
  std::printf("%s, %s, instruction set %d: %016llx\n", name, kv::name_of(element), static_cast<int>(set),
              static_cast<unsigned long long>(of.seen));
}

}  // namespace

int main() {
  as_in_c();
  for (kv::isa const set : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512, kv::isa::avx512_bf16, kv::isa::amx}) {
    kv::host_executor exec(1, set);
    for (kv::codec const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (char const* text : {"snapkv(window=8) | budget(40, scope=layer, floor=0.2)", "streaming_llm | budget(40)",
                               "h2o | budget(40) | over_budget(4)", "tova | recent(3) | budget(ratio=0.3)",
                               "knorm | reduce_lanes(token, mean) | budget(40)", "random | sinks(4) | budget(33)"}) {
        digest named;
        engine with(element, false);
        run(kv::parse(text), kv::compact{}, with, exec, named, true);
        print(text, element, set, named);
      }
      digest typed;
      engine one(element, false);
      run(kv::policies::snapkv({.budget = 40, .sinks = 4}), kv::compact{}, one, exec, typed, true);
      print("snapkv as a type", element, set, typed);
      digest dropping;
      engine slots(element, true);
      kv::eviction<kv::knorm, kv::sinks, kv::per_lane, kv::lowest_one> const drops_one{.protect = {2}, .budget = {64}};
      run(drops_one, kv::overwrite{.list = kv::list_of(slots.cache, slots.slots.data())}, slots, exec, dropping, true);
      print("knorm that drops one", element, set, dropping);
    }
  }
}
