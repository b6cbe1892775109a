// SPDX-License-Identifier: Apache-2.0
// Checks of lanes: their shape, their tables, and whether they belong to a state or to a plan. They read no table.
#pragma once

#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/core/scores.hpp>
#include <limits>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

#if defined(KVPOLICY_COMPILED)  // the library kvpolicy::compiled holds them
void check_lanes(char const* call, lanes const& batch, shape const& model);
void check_sequence(char const* call, lanes const& batch, int sequence);
void check_decided_about(char const* call, char const* name, lanes const& given, keep_set const& keep);
void check_same_lanes(char const* call, char const* name, lanes const& given, lanes const& made);
#else
/// Refuses batches of 2^31 or more lanes, because lanes are numbered in 32 bits.
inline void check_size(char const* call, char const* name, lanes const& batch) {
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  std::int64_t const of_sequence = std::int64_t{batch.layers()} * batch.heads;  // the product of two ints fits
  expects(
      of_sequence <= most / batch.sequences, call, name,
      [&] {
        return std::to_string(batch.sequences) + " sequences, " + std::to_string(batch.layers()) + " layers, " +
               std::to_string(batch.heads) + " heads";
      },
      "lanes are numbered in 32 bits: their product is less than 2^31");
}

/// Refuses counts or positions that are missing, or that several sequences would share. Layers and heads may share
/// both, or counts may have a row of their own where positions are shared, but not the other way round.
inline void check_lane_tables(char const* call, char const* name, lanes const& batch) {
  auto const member = [name](char const* which) { return [=] { return std::string(name) + which; }; };
  expects(batch.count.data != nullptr, call, member(".count"), "null", "every lane says how many entries it holds");
  expects(batch.position.data != nullptr, call, member(".position"), "null", "every entry says its position");
  auto const sequences = [&] {
    return "there are " + std::to_string(batch.sequences) + " sequences, and each has entries of its own";
  };
  expects(batch.count.sequence != 0 || batch.sequences == 1, call, member(".count.sequence"), 0, sequences);
  expects(batch.position.sequence != 0 || batch.sequences == 1, call, member(".position.sequence"), 0, sequences);
  expects(batch.count.layer != 0 || batch.position.layer == 0 || batch.layers() == 1, call, member(".count.layer"), 0,
          "positions have a row for each layer, so counts do too");
  expects(batch.count.head != 0 || batch.position.head == 0 || batch.heads == 1, call, member(".count.head"), 0,
          "positions have a row for each head, so counts do too");
  if (batch.order.data == nullptr) return;
  bool const alike = (batch.order.layer == 0) == (batch.position.layer == 0) &&
                     (batch.order.head == 0) == (batch.position.head == 0) &&
                     (batch.order.sequence != 0 || batch.sequences == 1);
  expects(alike, call, member(".order"), "shared otherwise", "it has a row for each row of positions");
}

inline void check_lanes(char const* call, lanes const& batch, shape const& model) {
  expects(batch.sequences > 0, call, "lanes.sequences", batch.sequences, "a batch has at least one sequence");
  expects(batch.heads == model.kv_heads, call, "lanes.heads", batch.heads,
          [&] { return "every KV head of the model (" + std::to_string(model.kv_heads) + ") is a lane"; });
  expects(batch.layer_begin >= 0 && batch.layer_begin < batch.layer_end, call, "lanes.layer_begin", batch.layer_begin,
          "layers are a range that is not empty");
  expects(batch.layer_end <= model.layers, call, "lanes.layer_end", batch.layer_end,
          [&] { return "the model has " + std::to_string(model.layers) + " layers"; });
  expects(batch.slots == nullptr || batch.slot_count > 0, call, "lanes.slot_count", batch.slot_count,
          "a list of slots says how many slots the tables have");
  expects(batch.sequence_begin >= 0 && batch.sequence_end() > 0 &&
              (batch.slots != nullptr || batch.sequence_end() <= batch.slot_total()),
          call, "lanes.sequence_begin", batch.sequence_begin, "the sequences are a part of the batch");
  check_size(call, "lanes", batch);
  expects(batch.capacity > 0, call, "lanes.capacity", batch.capacity,
          "an upper limit of the entries of a lane is needed");
  check_lane_tables(call, "lanes", batch);
}

/// Refuses a sequence that the lanes do not have. A part of a batch keeps the indices of the batch.
inline void check_sequence(char const* call, lanes const& batch, int sequence) {
  expects(sequence >= batch.sequence_begin && sequence < batch.sequence_end(), call, "sequence", sequence, [&] {
    return batch.sequence_begin == 0 ? "the batch has " + std::to_string(batch.sequences) + " sequences"
                                     : "the lanes are those of the sequences " + std::to_string(batch.sequence_begin) +
                                           " to " + std::to_string(batch.sequence_end() - 1);
  });
}

/// Refuses lanes whose counts or positions are other memory than those that the plan was decided about.
inline void check_decided_about(char const* call, char const* name, lanes const& given, keep_set const& keep) {
  auto const same = [&](auto const& now, auto const& then) {
    lane const first{given.sequence_begin, given.layer_begin, 0};
    lane const last{given.sequence_end() - 1, given.layer_end - 1, given.heads - 1};
    auto const row = [](auto table, lane one) {  // of the table's own rows: the host may be unable to read the slots
      table.slots = nullptr;
      return table.row(one);
    };
    return now.slots == then.slots && row(now, first) == row(then, first) && row(now, last) == row(then, last);
  };
  expects(same(given.count, keep.lanes.count) && same(given.position, keep.lanes.position), call, name,
          "other counts or positions than those that the plan was decided about",
          "a plan is carried out on the cache that decide was given");
}

/// Refuses lanes `given` that are not the lanes `made`, some of their layers or some of their slots.
inline void check_same_lanes(char const* call, char const* name, lanes const& given, lanes const& made) {
  auto const member = [name](char const* which) { return [=] { return std::string(name) + which; }; };
  auto const made_for = [](int what) { return [what] { return "it was made for " + std::to_string(what); }; };
  char const* const slots = given.slots != nullptr ? ".slot_count" : ".sequences";
  expects(given.slot_total() == made.slot_total(), call, member(slots), given.slot_total(),
          made_for(made.slot_total()));
  expects(given.slots == made.slots || made.slots == nullptr, call, member(".slots"), "other slots",
          "it was made for a list of slots, which is given again");
  bool const part = made.sequence_begin <= given.sequence_begin && given.sequence_begin < given.sequence_end() &&
                    given.sequence_end() <= made.sequence_end();
  expects(
      part || given.slots != made.slots, call, member(".sequences"),
      [&] { return std::to_string(given.sequence_begin) + " to " + std::to_string(given.sequence_end()); },
      made_for(made.sequences));
  expects(given.heads == made.heads, call, member(".heads"), given.heads, made_for(made.heads));
  expects(given.capacity == made.capacity, call, member(".capacity"), given.capacity, made_for(made.capacity));
  bool const inside =
      made.layer_begin <= given.layer_begin && given.layer_begin < given.layer_end && given.layer_end <= made.layer_end;
  expects(
      inside, call, member(".layers"),
      [&] { return std::to_string(given.layer_begin) + " to " + std::to_string(given.layer_end); },
      [&] {
        return "it was made for layers " + std::to_string(made.layer_begin) + " to " + std::to_string(made.layer_end);
      });
  check_lane_tables(call, name, given);
}

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
