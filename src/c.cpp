// The C interface: the calls of a type-erased policy, whose exceptions become codes and texts.
#include <kvpolicy/c/kvpolicy.h>

#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace kv = kvpolicy;

struct kvpolicy_policy {
  kv::any_policy value;
};

struct kvpolicy_state {
  std::unique_ptr<kv::host_executor> exec;
  kv::any_policy policy;
  kv::cache cache;
  kv::by_lane<int> list;
  kv::state<kv::host_executor> recorded;
  kv::plan<kv::host_executor> plan;
};

namespace {

thread_local std::string last_error;

/// The members and functions of C for those of C++ that errors name: whole names, beginnings and ends of names, and
/// pieces of the text behind the name.
using words = std::pair<std::string_view, std::string_view>;
constexpr words whole_names[] = {{"k", "cache.keys"},
                                 {"v", "cache.values"},
                                 {"k.dims", "cache.keys.channels"},
                                 {"v.dims", "cache.values.channels"},
                                 {"k and v", "cache.keys and cache.values"},
                                 {"keys", "cache.keys"},
                                 {"values", "cache.values"},
                                 {"count", "cache.counts"},
                                 {"lanes.count", "cache.counts"},
                                 {"lanes.position", "cache.positions"},
                                 {"lanes.bound", "cache.capacity"},
                                 {"lanes.heads", "cache.kv_heads"},
                                 {"lanes.layer_end", "cache.layers"},
                                 {"where.units", "cache.slot_count"},
                                 {"where.table", "cache.slots"},
                                 {"list", "cache.slots"},
                                 {"exec", "state"}};
constexpr words beginnings[] = {{"shape.", "cache."},
                                {"lanes", "cache"},
                                {"plan", "state"},
                                {"queries", "signals.queries"},
                                {"attention_mass", "signals.attention_mass"},
                                {"external", "signals.external"}};
constexpr words ends[] = {{".position", ".positions"},
                          {".sequence", ".sequence_stride"},
                          {".layer", ".layer_stride"},
                          {".head", ".head_stride"},
                          {".row", ".row_stride"}};
constexpr words pieces[] = {
    {"`bound`", "`capacity`"},
    {"the shape says", "the cache says"},
    {"decide comes before apply", "kvpolicy_decide comes before kvpolicy_apply"},
    {"but decide comes before", "but kvpolicy_decide comes before"},
    {"that decide was given", "that kvpolicy_decide was given"},
    {"make_state makes", "kvpolicy_make makes"},
    {"make_plan makes", "kvpolicy_make makes"},
    {"the plan", "the decision"},
    {"a plan", "a decision"},
    {" in slot ", " in sequence "},
    {"the slot holds the state", "the sequence holds the state"},
    {"reset it before the next one, or truncate to position 0",
     "kvpolicy_reset comes before the next one, or kvpolicy_truncate to position 0"},
    {"an executor serves one thread at a time: give each its own", "a state serves one thread at a time"},
    {": say their number where the tensor is described", ""}};

std::string name_in_c(std::string name) {
  for (auto const& [of_cpp, of_c] : whole_names) {
    if (name == of_cpp) return std::string(of_c);
  }
  for (auto const& [of_cpp, of_c] : beginnings) {
    if (!name.starts_with(of_cpp)) continue;
    name.replace(0, of_cpp.size(), of_c);
    for (auto const& [end, end_of_c] : ends) {
      if (name.ends_with(end)) return name.replace(name.size() - end.size(), end.size(), end_of_c);
    }
    return name;
  }
  return name;
}

/// The text of an error, "call: name = value, but rule", in the names of C.
std::string in_c(char const* call, std::string said) {
  std::size_t const begin = said.find(": ");
  std::size_t const end = begin == std::string::npos ? begin : said.find(" = ", begin);
  if (end == std::string::npos) return std::string(call) + ": " + said;
  std::string rest = said.substr(end);
  for (auto const& [of_cpp, of_c] : pieces) {
    std::size_t const at = rest.find(of_cpp);
    if (at != std::string::npos) rest.replace(at, of_cpp.size(), of_c);
  }
  return std::string(call) + ": " + name_in_c(said.substr(begin + 2, end - begin - 2)) + rest;
}

kvpolicy_status fails(kvpolicy_status with, char const* call, char const* text) noexcept {
  try {
    last_error = with == KVPOLICY_INVALID_ARGUMENT ? in_c(call, text) : std::string(text);
  } catch (std::bad_alloc const&) {
    last_error = "no memory";  // short enough to need none
  }
  return with;
}

/// Runs a call. No exception passes this function.
template <class Call>
kvpolicy_status guarded(char const* name, Call const& call) noexcept {
  try {
    call();
    return KVPOLICY_OK;
  } catch (kv::invalid_argument const& refused) {
    return fails(KVPOLICY_INVALID_ARGUMENT, name, refused.what());
  } catch (std::bad_alloc const&) {
    return fails(KVPOLICY_OUT_OF_MEMORY, name, "no memory");
  } catch (std::exception const& other) {
    return fails(KVPOLICY_FAILED, name, other.what());
  } catch (...) {
    return fails(KVPOLICY_FAILED, name, "an unknown exception");
  }
}

void given(void const* pointer, char const* call, char const* name) {
  kv::expects(pointer != nullptr, call, name, "null", "it points to an object");
}

kv::codec codec_of(kvpolicy_element element, char const* call, char const* name) {
  kv::expects(element >= KVPOLICY_F32 && element <= KVPOLICY_OPAQUE, call, name, static_cast<int>(element),
              "it is one of kvpolicy_element");
  return static_cast<kv::codec>(element);
}
static_assert(static_cast<int>(kv::codec::f32) == KVPOLICY_F32 && static_cast<int>(kv::codec::f16) == KVPOLICY_F16 &&
              static_cast<int>(kv::codec::bf16) == KVPOLICY_BF16 &&
              static_cast<int>(kv::codec::opaque) == KVPOLICY_OPAQUE);

kv::plane plane_of(kvpolicy_plane const& from, char const* name) {
  return {.base = static_cast<std::byte*>(from.data),
          .element = codec_of(from.element, "kvpolicy_make", name),
          .dims = from.channels,
          .layer = from.layer_stride,
          .unit = from.unit_stride,
          .token = from.token_stride,
          .head = from.head_stride,
          .dim = from.channel_stride};
}

/// A table [sequence][layer][KV head][width].
template <class T>
kv::by_lane<T> table_of(T* data, kv::shape const& model, int width) {
  std::int64_t const layer = std::int64_t{model.kv_heads} * width;
  return {data, layer * model.layers, layer, width};
}

kv::cache cache_of(kvpolicy_cache const& from) {
  char const* const call = "kvpolicy_make";
  kv::expects(from.capacity > 0, call, "cache.capacity", from.capacity, "a lane has room for at least one entry");
  std::int64_t const row = std::int64_t{from.kv_heads} * from.capacity;
  kv::expects(from.layers <= 0 || row <= std::numeric_limits<std::int64_t>::max() / from.layers, call, "cache.layers",
              from.layers, "the tables of a sequence have less than 2^63 numbers");
  kv::cache made;
  made.shape = {from.layers, from.query_heads, from.kv_heads, from.head_dim, from.value_dim};
  made.lanes.sequences = from.sequences;
  made.lanes.layer_end = from.layers;
  made.lanes.heads = from.kv_heads;
  made.lanes.bound = from.capacity;
  made.lanes.count = table_of(from.counts, made.shape, 1);
  made.lanes.position = table_of(from.positions, made.shape, from.capacity);
  made.k = plane_of(from.keys, "cache.keys.element");
  made.v = plane_of(from.values, "cache.values.element");
  if (from.slots == nullptr) {
    made.where = kv::identity_map(from.capacity, from.sequences);
  } else {
    made.where = kv::slot_map(table_of<int const>(from.slots, made.shape, from.capacity), from.slot_count);
  }
  return made;
}

/// The signals of a call, alive as long as the view of them.
class given_signals {
 public:
  given_signals(kvpolicy_state const& of, kvpolicy_signals const* from, char const* call)
      : keys_(kv::keys_of(of.cache)), values_(kv::values_of(of.cache)), view(of.cache.lanes) {
    view.add(keys_);
    view.add(values_);
    if (from == nullptr) return;
    kv::shape const& model = of.cache.shape;
    if (from->queries != nullptr) {
      kvpolicy_queries const& rows = *from->queries;
      queries_.base = static_cast<std::byte const*>(rows.data);
      queries_.element = codec_of(rows.element, call, "signals.queries.element");
      queries_.dims = model.head_dim;
      queries_.sequence = rows.sequence_stride;
      queries_.layer = rows.layer_stride;
      queries_.head = rows.head_stride;
      queries_.row = rows.row_stride;
      queries_.heads = model.query_heads;
      queries_.rows = rows.rows;
      queries_.position = {rows.positions, rows.rows, 0, 0};
      if (rows.valid_rows != nullptr) queries_.valid_rows = {rows.valid_rows, 1, 0, 0};
      view.add(queries_);
    }
    int const capacity = of.cache.lanes.bound;
    mass_.mass = table_of(from->attention_mass, model, capacity);
    external_.score = table_of(from->external, model, capacity);
    if (from->attention_mass != nullptr) view.add(mass_);
    if (from->external != nullptr) view.add(external_);
  }
  given_signals(given_signals const&) = delete;
  given_signals& operator=(given_signals const&) = delete;

 private:
  kv::keys keys_;
  kv::values values_;
  kv::queries queries_{};
  kv::attention_mass mass_{};
  kv::external_scores external_{};

 public:
  kv::any_signals view;
};

}  // namespace

extern "C" {

char const* kvpolicy_version() { return kv::version; }

char const* kvpolicy_last_error() { return last_error.c_str(); }

kvpolicy_status kvpolicy_parse(char const* text, kvpolicy_policy** policy) {
  return guarded("kvpolicy_parse", [&] {
    given(policy, "kvpolicy_parse", "policy");
    *policy = nullptr;
    given(text, "kvpolicy_parse", "text");
    *policy = new kvpolicy_policy{kv::parse(text)};
  });
}

kvpolicy_status kvpolicy_print(kvpolicy_policy const* policy, char* text, size_t size, size_t* length) {
  return guarded("kvpolicy_print", [&] {
    given(policy, "kvpolicy_print", "policy");
    if (size > 0) given(text, "kvpolicy_print", "text");
    std::string const whole = kv::to_string(policy->value);
    if (size > 0) {
      std::size_t const some = whole.size() < size ? whole.size() : size - 1;
      std::memcpy(text, whole.data(), some);
      text[some] = '\0';
    }
    if (length != nullptr) *length = whole.size();
  });
}

void kvpolicy_policy_destroy(kvpolicy_policy* policy) { delete policy; }

kvpolicy_status kvpolicy_make(kvpolicy_policy const* policy, kvpolicy_cache const* cache, int threads,
                              kvpolicy_state** state) {
  return guarded("kvpolicy_make", [&] {
    given(state, "kvpolicy_make", "state");
    *state = nullptr;
    given(policy, "kvpolicy_make", "policy");
    given(cache, "kvpolicy_make", "cache");
    kv::detail::refuse_needs_beyond("kvpolicy_make", policy->value,
                                    {"keys", "values", "queries", "attention_mass", "external"},
                                    "kvpolicy_signals does");
    kv::expects(
        policy->value.pick.what != kv::any_pick::kind::lowest_one, "kvpolicy_make", "policy",
        [&] { return kv::to_string(policy->value); },
        "lowest_one lists what is dropped, and kvpolicy_apply carries out what is kept");
    kv::cache const view = cache_of(*cache);
    kv::by_lane<int> const list = table_of(cache->slots, view.shape, cache->capacity);
    auto made = std::make_unique<kv::host_executor>(threads);
    kv::host_executor& exec = *made;
    auto recorded = kv::make_state(exec, policy->value, view);
    auto plan = cache->slots != nullptr ? kv::make_plan(exec, policy->value, view, kv::list_rewrite<>{.list = list})
                                        : kv::make_plan(exec, policy->value, view, kv::compact{});
    *state = new kvpolicy_state{std::move(made), policy->value, view, list, std::move(recorded), std::move(plan)};
  });
}

void kvpolicy_state_destroy(kvpolicy_state* state) { delete state; }

kvpolicy_status kvpolicy_append(kvpolicy_state* state, int sequence, int tokens, int position) {
  return guarded("kvpolicy_append", [&] {
    given(state, "kvpolicy_append", "state");
    kv::append(*state->exec, state->cache, state->recorded,
               {.sequence = sequence, .tokens = tokens, .position = position});
  });
}

kvpolicy_status kvpolicy_truncate(kvpolicy_state* state, int sequence, int position) {
  return guarded("kvpolicy_truncate", [&] {
    given(state, "kvpolicy_truncate", "state");
    kv::truncate(*state->exec, state->cache, state->recorded, sequence, position);
  });
}

kvpolicy_status kvpolicy_reset(kvpolicy_state* state, int sequence) {
  return guarded("kvpolicy_reset", [&] {
    given(state, "kvpolicy_reset", "state");
    kv::reset(*state->exec, state->cache, state->recorded, sequence);
  });
}

kvpolicy_status kvpolicy_observe(kvpolicy_state* state, kvpolicy_signals const* signals) {
  return guarded("kvpolicy_observe", [&] {
    given(state, "kvpolicy_observe", "state");
    given_signals const in(*state, signals, "kvpolicy_observe");
    kv::refuse_missed_rows("kvpolicy_observe", state->policy, in.view, state->recorded, true);
    kv::observe(*state->exec, state->policy, in.view, state->recorded);
  });
}

kvpolicy_status kvpolicy_decide(kvpolicy_state* state, kvpolicy_signals const* signals) {
  std::string unobserved;
  kvpolicy_status const done = guarded("kvpolicy_decide", [&] {
    char const* const call = "kvpolicy_decide";
    given(state, call, "state");
    given_signals const in(*state, signals, call);
    kv::refuse_missed_rows(call, state->policy, in.view, state->recorded, false);
    kv::decide(*state->exec, state->policy, in.view, state->recorded, state->plan);
    unobserved = kv::detail::why_unobserved(call, state->policy, state->plan.report());
  });
  return unobserved.empty() ? done : fails(KVPOLICY_UNOBSERVED, "kvpolicy_decide", unobserved.c_str());
}

kvpolicy_status kvpolicy_reported(kvpolicy_state const* state, kvpolicy_report* report) {
  return guarded("kvpolicy_reported", [&] {
    char const* const call = "kvpolicy_reported";
    given(state, call, "state");
    given(report, call, "report");
    state->plan.expects_decision(call);
    kv::report const& of = state->plan.report();
    *report = {of.nan_scores, of.forced_over_budget, of.triggered, of.unobserved, of.over_budget, of.emptied};
  });
}

kvpolicy_status kvpolicy_kept(kvpolicy_state const* state, int sequence, int layer, int kv_head, int const** ordinals,
                              int* count) {
  return guarded("kvpolicy_kept", [&] {
    char const* const call = "kvpolicy_kept";
    given(state, call, "state");
    given(ordinals, call, "ordinals");
    given(count, call, "count");
    state->plan.expects_decision(call);
    kv::lanes const& batch = state->cache.lanes;
    kv::expects(sequence >= 0 && sequence < batch.sequences, call, "sequence", sequence,
                [&] { return "there are " + std::to_string(batch.sequences) + " sequences"; });
    kv::expects(layer >= 0 && layer < batch.layer_end, call, "layer", layer,
                [&] { return "there are " + std::to_string(batch.layer_end) + " layers"; });
    kv::expects(kv_head >= 0 && kv_head < batch.heads, call, "kv_head", kv_head,
                [&] { return "there are " + std::to_string(batch.heads) + " KV heads"; });
    kv::keep_set const& keep = state->plan.keep();
    int const lane = keep.lanes.index({sequence, layer, kv_head});
    auto const kept = keep.listed(kv::segment_of(keep.lanes, keep.decides, lane));
    *ordinals = kept.data();
    *count = static_cast<int>(kept.size());
  });
}

kvpolicy_status kvpolicy_apply(kvpolicy_state* state, kvpolicy_stats* stats) {
  return guarded("kvpolicy_apply", [&] {
    given(state, "kvpolicy_apply", "state");
    kv::apply_stats counted;
    if (state->list.data != nullptr) {
      kv::apply(*state->exec, kv::list_rewrite<>{.list = state->list}, state->plan, state->cache, state->recorded,
                &counted);
    } else {
      kv::apply(*state->exec, kv::compact{}, state->plan, state->cache, state->recorded, &counted);
    }
    if (stats != nullptr) *stats = {counted.logical_kept, counted.physical_freed, counted.attended_length};
  });
}

}  // extern "C"
