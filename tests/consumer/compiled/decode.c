// SPDX-License-Identifier: Apache-2.0
/* A decode loop in C99, on a contiguous cache and on one with slots. It prints one number that depends on every keep
 * set, position and statistic; keep_sets.cpp prints the number of the same loop in C++. */
#include <kvpolicy/c/kvpolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, QUERY_HEADS = 4, KV_HEADS = 2, DIM = 16, CAPACITY = 96, PREFILL = 64, STEPS = 20 };
enum { LANES = LAYERS * KV_HEADS, ROW = LANES * DIM };

static char const* const policy_text = "snapkv(window=8, pool=max:3) | sinks(2) | budget(40)";

static float keys[CAPACITY * ROW], values[CAPACITY * ROW], queries[LAYERS * PREFILL * QUERY_HEADS * DIM];
static int counts[LANES], positions[LANES * CAPACITY], slots[LANES * CAPACITY], row_positions[PREFILL];
static uint32_t noise;
static uint64_t seen;

static float next_number(void) {
  noise = noise * 69069u + 12345u;
  return (float)(noise >> 8) / 16777216.0f - 0.5f;
}

static void see(int64_t number) { seen = (seen ^ (uint64_t)number) * 1099511628211u; }

static void check(kvpolicy_status status) {
  if (status == KVPOLICY_OK) return;
  fprintf(stderr, "%s\n", kvpolicy_last_error());
  exit(1);
}

/* What a forward of `tokens` tokens at `position` leaves: their rows behind each lane's entries, and their queries. */
static void forward(int tokens, int position, int const* list) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int head = 0; head < KV_HEADS; ++head) {
      int const lane = layer * KV_HEADS + head;
      for (int t = 0; t < tokens; ++t) {
        int const entry = counts[lane] + t;
        int const token = list != NULL ? list[lane * CAPACITY + entry] : entry;
        int const at = ((layer * CAPACITY + token) * KV_HEADS + head) * DIM;
        for (int d = 0; d < DIM; ++d) {
          keys[at + d] = next_number();
          values[at + d] = next_number();
        }
      }
    }
  }
  for (int i = 0; i < LAYERS * tokens * QUERY_HEADS * DIM; ++i) queries[i] = next_number();
  for (int t = 0; t < tokens; ++t) row_positions[t] = position + t;
}

static void step(kvpolicy_state* state, int tokens, int position, int const* list) {
  int64_t const row = QUERY_HEADS * DIM * (int64_t)sizeof(float);
  kvpolicy_queries rows = {queries, KVPOLICY_F32,  tokens, row * tokens, row * tokens, DIM * sizeof(float),
                           row,     row_positions, NULL};
  kvpolicy_signals signals = {&rows, NULL, NULL};
  kvpolicy_stats stats;
  forward(tokens, position, list);
  check(kvpolicy_append(state, 0, tokens, position));
  check(kvpolicy_observe(state, &signals));
  check(kvpolicy_decide(state, &signals));
  for (int lane = 0; lane < LANES; ++lane) {
    int const* kept;
    int count;
    check(kvpolicy_kept(state, 0, lane / KV_HEADS, lane % KV_HEADS, &kept, &count));
    for (int i = 0; i < count; ++i) see(kept[i]);
  }
  check(kvpolicy_apply(state, &stats));
  see(stats.logical_kept);
  see(stats.physical_freed);
  see(stats.attended_length);
  for (int lane = 0; lane < LANES; ++lane) {
    for (int e = 0; e < counts[lane]; ++e) see(positions[lane * CAPACITY + e]);
  }
}

static void decode(kvpolicy_policy const* policy, int* list) {
  int64_t const row = DIM * (int64_t)sizeof(float);
  kvpolicy_plane plane = {keys, KVPOLICY_F32, DIM, row * KV_HEADS * CAPACITY, row * KV_HEADS * CAPACITY, row * KV_HEADS,
                          row,  sizeof(float)};
  kvpolicy_cache cache = {LAYERS, QUERY_HEADS, KV_HEADS, DIM,       0,    1,       CAPACITY,
                          plane,  plane,       counts,   positions, list, CAPACITY};
  kvpolicy_state* state;
  cache.values.data = values;
  if (list != NULL) cache.keys.unit_stride = cache.values.unit_stride = row * KV_HEADS;
  for (int lane = 0; lane < LANES; ++lane) {
    counts[lane] = 0;
    for (int e = 0; e < CAPACITY; ++e) slots[lane * CAPACITY + e] = e;
  }
  noise = 1;
  check(kvpolicy_make(policy, &cache, 2, &state));
  step(state, PREFILL, 0, list);
  for (int i = 0; i < STEPS; ++i) step(state, 1, PREFILL + i, list);
  if (kvpolicy_append(state, 0, CAPACITY, PREFILL + STEPS) != KVPOLICY_INVALID_ARGUMENT || counts[0] != 40) exit(2);
  check(kvpolicy_reset(state, 0));
  if (counts[0] != 0) exit(3);
  kvpolicy_state_destroy(state);
}

/* Decides about 64 entries after observe was shown the last `observed_rows` query rows of their tokens. */
static kvpolicy_status decided(char const* text, int observed_rows, kvpolicy_report* report) {
  int64_t const row = QUERY_HEADS * DIM * (int64_t)sizeof(float), of_cache = DIM * (int64_t)sizeof(float);
  kvpolicy_plane plane = {
      keys,     KVPOLICY_F32, DIM, of_cache * KV_HEADS * CAPACITY, of_cache * KV_HEADS * CAPACITY, of_cache * KV_HEADS,
      of_cache, sizeof(float)};
  kvpolicy_cache cache = {LAYERS, QUERY_HEADS, KV_HEADS, DIM,       0,    1,       CAPACITY,
                          plane,  plane,       counts,   positions, NULL, CAPACITY};
  kvpolicy_queries rows = {queries, KVPOLICY_F32, 0,   row * PREFILL, row * PREFILL, DIM * sizeof(float),
                           row,     NULL,         NULL};
  kvpolicy_signals signals = {NULL, NULL, NULL};
  kvpolicy_policy* policy;
  kvpolicy_state* state;
  kvpolicy_status status;
  cache.values.data = values;
  memset(counts, 0, sizeof counts);
  memset(report, 0, sizeof *report);
  check(kvpolicy_parse(text, &policy));
  status = kvpolicy_make(policy, &cache, 1, &state);
  kvpolicy_policy_destroy(policy);
  if (status != KVPOLICY_OK) return status;
  check(kvpolicy_append(state, 0, PREFILL, 0));
  forward(PREFILL, 0, NULL);
  if (observed_rows > 0) {
    rows.rows = observed_rows;
    rows.positions = row_positions + PREFILL - observed_rows;
    signals.queries = &rows;
    status = kvpolicy_observe(state, &signals);
  }
  if (status == KVPOLICY_OK) status = kvpolicy_decide(state, &signals);
  if (status == KVPOLICY_OK || status == KVPOLICY_UNOBSERVED) check(kvpolicy_reported(state, report));
  kvpolicy_state_destroy(state);
  return status;
}

/* Every policy whose signals a caller may forget. Each is refused by a signal's name, or its report counts it. */
static int missing_signals(void) {
  static char const* const unknown[][2] = {{"trim_kv", "log_beta"},       {"db_trim_kv", "log_beta"},
                                           {"carried", "birth_score"},    {"fast_kvzip", "birth_score"},
                                           {"sir_llm", "birth_score"},    {"locret", "birth_score"},
                                           {"intent_kv", "turn_queries"}, {"not_stale", "stale_spans"},
                                           {"side_quest", "stale_spans"}, {"lookahead_kv", "external_queries"},
                                           {"dapq", "external_queries"},  {"kvzip", "external_queries"}};
  static char const* const recorded[] = {"snapkv(window=8) | budget(40)", "tova | budget(40)",
                                         "pyramid_kv(window=8) | budget(40)", "nacl(window=8) | budget(40)"};
  static char const* const summed[] = {"h2o | budget(40)", "observed_attention | budget(40)"};
  kvpolicy_report report;
  size_t i;
  for (i = 0; i < sizeof unknown / sizeof *unknown; ++i) {
    if (decided(unknown[i][0], 0, &report) != KVPOLICY_INVALID_ARGUMENT) return 20;
    if (strstr(kvpolicy_last_error(), unknown[i][1]) == NULL) return 21;
  }
  for (i = 0; i < sizeof recorded / sizeof *recorded; ++i) {
    if (decided(recorded[i], 0, &report) != KVPOLICY_UNOBSERVED) return 22;
    if (report.unobserved == 0 || report.unobserved != report.triggered) return 23;
    if (strstr(kvpolicy_last_error(), "queries") == NULL) return 24;
    if (decided(recorded[i], 32, &report) != KVPOLICY_OK || report.unobserved != 0 || report.triggered == 0) return 25;
  }
  for (i = 0; i < sizeof summed / sizeof *summed; ++i) {
    if (decided(summed[i], 0, &report) != KVPOLICY_INVALID_ARGUMENT) return 26;
    if (decided(summed[i], 32, &report) != KVPOLICY_INVALID_ARGUMENT) return 27;
    if (strstr(kvpolicy_last_error(), "kvpolicy_observe: queries = missing of 32 entries") == NULL) return 28;
    if (decided(summed[i], PREFILL, &report) != KVPOLICY_OK || report.triggered == 0) return 29;
  }
  if (decided("external | budget(40)", 0, &report) != KVPOLICY_INVALID_ARGUMENT) return 30;
  if (strstr(kvpolicy_last_error(), "external needs signal external") == NULL) return 31;
  if (decided("knorm | at_least(100, unbounded=true)", 0, &report) != KVPOLICY_OK || report.emptied != LANES) return 32;
  return 0;
}

int main(void) {
  kvpolicy_policy* policy;
  char text[100];
  size_t length;
  if (kvpolicy_parse("snapkv(windw=8)", &policy) != KVPOLICY_INVALID_ARGUMENT || policy != NULL) return 4;
  if (strncmp(kvpolicy_last_error(), "kvpolicy_parse: column 8 = windw, but ", 38) != 0) return 5;
  if (kvpolicy_parse(NULL, &policy) != KVPOLICY_INVALID_ARGUMENT) return 6;
  if (strcmp(kvpolicy_last_error(), "kvpolicy_parse: text = null, but it points to an object") != 0) return 7;
  check(kvpolicy_parse(policy_text, &policy));
  check(kvpolicy_print(policy, text, sizeof text, &length));
  if (length != strlen(text) || strncmp(text, "snapkv(", 7) != 0) return 8;
  if (missing_signals() != 0) {
    fprintf(stderr, "%d: %s\n", missing_signals(), kvpolicy_last_error());
    return 9;
  }
  seen = 14695981039346656037u;
  decode(policy, NULL);
  decode(policy, slots);
  kvpolicy_policy_destroy(policy);
  printf("decode %016llx, kvpolicy %s\n", (unsigned long long)seen, kvpolicy_version());
  return 0;
}
