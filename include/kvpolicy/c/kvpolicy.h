// SPDX-License-Identifier: Apache-2.0
/* The C interface of kvpolicy::compiled: evictions by name, for engines in C, Rust, Go, or anything that calls C.
 *
 *     kvpolicy_policy* policy;
 *     kvpolicy_state* state;
 *     if (kvpolicy_parse("streaming_llm | budget(1024)", &policy) != KVPOLICY_OK) puts(kvpolicy_last_error());
 *     kvpolicy_make(policy, &cache, 1, &state);
 *     for (;;) {  // a forward has written the rows of new tokens after each lane's last entry
 *       kvpolicy_append(state, 0, tokens, position);
 *       kvpolicy_observe(state, &signals);
 *       kvpolicy_decide(state, &signals);
 *       kvpolicy_apply(state, NULL);
 *     }
 *
 * Every function that can fail returns a kvpolicy_status. Unless it is KVPOLICY_OK, kvpolicy_last_error() is the text
 * of the error, and the call has changed nothing in the cache and in the state; KVPOLICY_UNOBSERVED alone comes with a
 * decision. No exception leaves a function.
 *
 * The engine owns all memory that it describes, which must live as long as the state. An object that a function makes
 * belongs to the caller, who destroys it with the function named for it. One object serves one thread at a time;
 * different objects may be used by different threads. Sizes of structs are part of the interface: compile and link one
 * version. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a call returns. */
typedef enum kvpolicy_status {
  KVPOLICY_OK = 0,
  KVPOLICY_INVALID_ARGUMENT = 1, /**< the text is one line: "call: argument = value, but rule" */
  KVPOLICY_OUT_OF_MEMORY = 2,
  KVPOLICY_FAILED = 3,    /**< anything else, such as a thread that the system could not start */
  KVPOLICY_UNOBSERVED = 4 /**< kvpolicy_decide has decided, but nothing had been observed of some lanes */
} kvpolicy_status;

/** The element type of a tensor. Any number may arrive from C, and a wrong one is refused. */
#ifdef __cplusplus
typedef enum kvpolicy_element : int {
#else
typedef enum kvpolicy_element {
#endif
  KVPOLICY_F32 = 0,
  KVPOLICY_F16 = 1,
  KVPOLICY_BF16 = 2,
  KVPOLICY_OPAQUE = 3 /**< bytes that only the engine can read: they are moved and listed, but not scored */
} kvpolicy_element;

/** A policy that was parsed. It is immutable, and any number of states and threads may use it. */
typedef struct kvpolicy_policy kvpolicy_policy;

/** What a policy has recorded about a cache, its latest decision, and the threads that work for it. */
typedef struct kvpolicy_state kvpolicy_state;

/** Keys or values: a base address, and strides in bytes, which may be negative. The row of an entry is at
 * data + layer * layer_stride + unit * unit_stride + token * token_stride + head * head_stride. */
typedef struct kvpolicy_plane {
  void* data;
  kvpolicy_element element;
  int channels;           /**< elements of a row; of opaque rows: bytes */
  int64_t layer_stride;   /**< bytes between two layers; the others are in bytes as well */
  int64_t unit_stride;    /**< between two sequences of a contiguous cache, two slots, or two blocks of a pool */
  int64_t token_stride;   /**< between two tokens of such a sequence, or of a block; slots have one token */
  int64_t head_stride;    /**< between two KV heads */
  int64_t channel_stride; /**< between two elements of a row: 4 or 2 where they are contiguous */
} kvpolicy_plane;

/** A KV cache. A lane is one KV head of one layer of one sequence; `entries` are the tokens that it holds, in ascending
 * position. The tables below are [sequence][layer][KV head], without gaps, and the library writes them. */
typedef struct kvpolicy_cache {
  int layers;
  int query_heads; /**< a multiple of kv_heads */
  int kv_heads;
  int head_dim;  /**< channels of keys and queries */
  int value_dim; /**< channels of values; 0: as head_dim */
  int sequences;
  int capacity; /**< the most entries of a lane */
  kvpolicy_plane keys;
  kvpolicy_plane values;
  int* counts;    /**< [sequence][layer][KV head]: entries of each lane, 0 before its first token */
  int* positions; /**< [sequence][layer][KV head][capacity]: the position of each entry */
  int* slots; /**< null: entry e is token e of its sequence's rows. Or [sequence][layer][KV head][capacity]: the slot
                   of each entry, in a pool of `slot_count` slots; a new entry is in the slot that the list names
                   after the lane's last one */
  int64_t slot_count;
  int const* blocks;   /**< null, or [sequence][capacity / block_size, rounded up]: the blocks of a pool that a sequence
                          holds, in order: entry e is token e % block_size of block e / block_size. kvpolicy_apply checks
                          their numbers; kvpolicy_decide and kvpolicy_observe follow them unchecked */
  int block_size;      /**< tokens of a block */
  int64_t block_count; /**< blocks of the pool */
} kvpolicy_cache;

/** The query rows of a forward, after RoPE: one for each new token. The row of a query head is at
 * data + sequence * sequence_stride + layer * layer_stride + head * head_stride + row * row_stride. */
typedef struct kvpolicy_queries {
  void const* data;
  kvpolicy_element element; /**< not opaque */
  int rows;                 /**< the largest number of rows of a sequence */
  int64_t sequence_stride;  /**< in bytes, as the others are; channels of a row are contiguous */
  int64_t layer_stride;
  int64_t head_stride;
  int64_t row_stride;
  int const* positions;  /**< [sequence][rows]: the position of each row, ascending; negative: the row does not count */
  int const* valid_rows; /**< [sequence]: how many rows a sequence has, or null: all of them */
} kvpolicy_queries;

/** What an engine knows of a step. Keys and values are always given: they are the cache's. A null pointer is a signal
 * that is not given; a policy that needs it is refused with its name. Tables are float32 [sequence][layer][KV
 * head][capacity], one number for each entry. */
typedef struct kvpolicy_signals {
  kvpolicy_queries const* queries; /**< for snapkv, tova, and h2o without attention_mass */
  float const* attention_mass;     /**< the attention that each entry has received since it was appended, for h2o */
  float const* external;           /**< the scores of the scorer `external` */
} kvpolicy_signals;

/** The effect of kvpolicy_apply, in entries summed over all lanes. */
typedef struct kvpolicy_stats {
  int64_t logical_kept;    /**< entries that stay */
  int64_t physical_freed;  /**< entries whose slots the engine may use again */
  int64_t attended_length; /**< entries that attention reads in the next step */
} kvpolicy_stats;

/** What the data of the latest decision showed. Lanes that decide together, or that share a budget, count as one. */
typedef struct kvpolicy_report {
  int64_t nan_scores;         /**< entries whose score was NaN */
  int64_t forced_over_budget; /**< lanes whose forced entries alone exceed the budget */
  int64_t triggered;          /**< lanes that drop entries */
  int64_t unobserved;         /**< those of them of which nothing had been observed: the order of entries decided */
  int64_t over_budget;        /**< lanes that keep more than their budget */
  int64_t emptied;            /**< lanes of which a pick by threshold keeps nothing */
} kvpolicy_report;

/** The version of the linked library, "major.minor.patch". */
char const* kvpolicy_version(void);

/** The text of the error of this thread's last call that failed, in one line, or "" if none has. The text stays until
 * this thread's next call that fails. */
char const* kvpolicy_last_error(void);

/** Makes a policy of its text, such as "snapkv(window=32) | sinks(4) | budget(1024)".
 * - out: *policy, which kvpolicy_policy_destroy ends; null if the call fails.
 * - fails with KVPOLICY_INVALID_ARGUMENT and a text that names the column, what was found there, and what is accepted.
 */
kvpolicy_status kvpolicy_parse(char const* text, kvpolicy_policy** policy);

/** Prints the text that kvpolicy_parse reads back as an equal policy.
 * - out: `text` receives at most `size` bytes, the last of which is 0; it may be null if `size` is 0. *length, unless
 *   `length` is null, is the number of bytes of the whole text without its 0. */
kvpolicy_status kvpolicy_print(kvpolicy_policy const* policy, char* text, size_t size, size_t* length);

/** Ends a policy. States that were made with it stay usable. Null is allowed. */
void kvpolicy_policy_destroy(kvpolicy_policy* policy);

/** Makes the state of a policy for a cache, and all memory that its calls need: later calls allocate nothing.
 * - in: `cache` is copied; the memory that it names is not. `threads` is at least 1; the caller's thread is among them.
 * - out: *state, which kvpolicy_state_destroy ends; null if the call fails.
 * - fails with KVPOLICY_INVALID_ARGUMENT if sizes, strides or pointers are impossible, or if the policy needs a signal
 *   that kvpolicy_signals does not have, such as the numbers of trained gates. */
kvpolicy_status kvpolicy_make(kvpolicy_policy const* policy, kvpolicy_cache const* cache, int threads,
                              kvpolicy_state** state);

/** Ends a state and its threads. Null is allowed. */
void kvpolicy_state_destroy(kvpolicy_state* state);

/** Adds `tokens` new entries at positions position, position + 1, ... to every lane of a sequence: counts and
 * positions. Their rows are the engine's: it writes them after each lane's last entry, before anything reads them.
 * - fails with KVPOLICY_INVALID_ARGUMENT if a lane would exceed `capacity`, or if positions would not ascend. */
kvpolicy_status kvpolicy_append(kvpolicy_state* state, int sequence, int tokens, int position);

/** Removes the entries of a sequence at `position` and after it. */
kvpolicy_status kvpolicy_truncate(kvpolicy_state* state, int sequence, int position);

/** Makes a sequence ready for a new request: no entries, and nothing recorded. */
kvpolicy_status kvpolicy_reset(kvpolicy_state* state, int sequence);

/** Records what the policy needs of a step. Call it once for each forward, after kvpolicy_append.
 * - fails with KVPOLICY_INVALID_ARGUMENT and the name of a signal that the policy needs and that is not given. Of a
 *   policy that sums over the rows of all tokens (h2o), also if rows before these were not observed. */
kvpolicy_status kvpolicy_observe(kvpolicy_state* state, kvpolicy_signals const* signals);

/** Decides which entries every lane keeps. It writes only the state.
 * - fails as kvpolicy_observe does. With KVPOLICY_UNOBSERVED the decision is made, and kvpolicy_apply would carry it
 *   out, but it rests on nothing: the policy decides by what kvpolicy_observe was shown, and that was nothing. */
kvpolicy_status kvpolicy_decide(kvpolicy_state* state, kvpolicy_signals const* signals);

/** What the data of the latest decision showed.
 * - fails with KVPOLICY_INVALID_ARGUMENT if nothing was decided. */
kvpolicy_status kvpolicy_reported(kvpolicy_state const* state, kvpolicy_report* report);

/** The decision about one lane, until the next kvpolicy_decide.
 * - out: *ordinals are the kept entries, as their indices before kvpolicy_apply, ascending; *count is their number. The
 *   memory is the state's.
 * - fails with KVPOLICY_INVALID_ARGUMENT if nothing was decided, or if there is no such lane. */
kvpolicy_status kvpolicy_kept(kvpolicy_state const* state, int sequence, int layer, int kv_head, int const** ordinals,
                              int* count);

/** Carries the decision out, once. A cache that is contiguous or in blocks is compacted: rows, positions and counts
 * move, and entry i of a lane is in row i again. Of a cache with slots the lists are rewritten and no row moves; behind
 * a lane's kept slots its list names the slots that were freed, so that the next tokens may be written there.
 * - out: *stats, unless `stats` is null.
 * - fails with KVPOLICY_INVALID_ARGUMENT if there is no decision, or if entries came or went since. */
kvpolicy_status kvpolicy_apply(kvpolicy_state* state, kvpolicy_stats* stats);

/** Waits for the calls about a state of a device, and returns what they found wrong (kvpolicy_cuda.h). About host
 * memory there is nothing to wait for. */
kvpolicy_status kvpolicy_synchronize(kvpolicy_state* state);

#ifdef __cplusplus
}
#endif
