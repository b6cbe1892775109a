// SPDX-License-Identifier: Apache-2.0
// Checks of the rows behind a signal: whether they can be read, and whether anything was recorded in them.
#pragma once

#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// True if any of `count` floats differs from +0, the initial value of a recorded column. Mostly the first one does.
/// The others are read 16 at a time, so that the loads are independent.
[[nodiscard]] KVPOLICY_HD inline bool any_recorded(float const* row, int count) {
  constexpr int at_once = 16;
  if (count > 0 && same_bits<std::uint32_t>(row[0]) != 0) return true;
  for (int first = 0; first < count; first += at_once) {
    std::uint32_t bits = 0;
    for (int e = first; e < first + at_once && e < count; ++e) bits |= same_bits<std::uint32_t>(row[e]);
    if (bits != 0) return true;
  }
  return false;
}

/// Refuses opaque rows, because a verb computes with these.
inline void check_readable(char const* call, char const* name, codec element) {
  expects(element != codec::opaque, call, name, "opaque rows", "only their engine can read them");
}

/// Refuses fp8, which keys and values alone may be.
template <class Name>
void check_not_fp8(char const* call, Name const& name, codec element) {
  expects(!is_fp8(element), call, name, name_of(element), "it is f32, f16 or bf16: only keys and values may be fp8");
}

/// Refuses scales of elements that are not fp8.
template <class Plane>
void check_scales(char const* call, char const* name, Plane const& rows) {
  expects(
      rows.scales.data == nullptr || is_fp8(rows.element), call, [&] { return std::string(name) + ".scales"; },
      [&] { return std::string("numbers beside ") + name_of(rows.element); },
      "e4m3 and e5m2 elements alone have scales");
}

/// Refuses a signal of one number for each entry whose pointer is null.
template <class T>
void check_numbers_given(char const* call, char const* name, by_lane<T> const& table) {
  expects(table.data != nullptr, call, name, "null", "a signal is the engine's memory");
}

/// Refuses a stride of 0 along an axis of several elements: every element would be the first one.
template <class Name>
void check_stride(char const* call, Name const& name, std::int64_t stride, char const* axis, int elements) {
  expects(stride != 0 || elements <= 1, call, name, stride, [&] {
    return std::string("there are ") + std::to_string(elements) + " " + axis + ", and each has memory of its own";
  });
}

/// Refuses equal strides of layers and of sequences: sequence 1 of a layer would be sequence 0 of the next layer. A
/// batch of tensors that was described as one sequence has such strides.
template <class Name>
void check_layers_apart(char const* call, Name const& name, std::int64_t layer, std::int64_t sequence,
                        lanes const& batch) {
  expects(layer != sequence || batch.layers() <= 1 || batch.sequences <= 1, call, name, layer, [&] {
    return "that is also the stride of sequences, of which there are " + std::to_string(batch.sequences) +
           ": say their number where the tensor is described";
  });
}

/// Refuses a signal of one number for each entry, whose lanes would all read the row of the first one.
template <class T>
void check_lane_strides(char const* call, char const* name, by_lane<T> const& table, lanes const& batch) {
  auto const one = [&](char const* member, std::int64_t stride, char const* axis, int elements) {
    expects(
        stride != 0 || elements <= 1, call, [&] { return std::string(name) + member; }, stride,
        [&] { return "there are " + std::to_string(elements) + " " + axis + ", and each has a row of its own"; });
  };
  one(".sequence", table.sequence, "sequences", batch.sequences);
  one(".layer", table.layer, "layers", batch.layers());
  one(".head", table.head, "KV heads", batch.heads);
}

/// Makes the checks of rows that read no memory: sizes, pointers, element type. `Rows` is a view of query rows or of
/// attention probabilities.
template <class Rows>
void check_rows_given(char const* call, char const* name, Rows const& of, shape const& model) {
  auto const member = [name](char const* which) { return [=] { return std::string(name) + which; }; };
  expects(of.rows >= 0, call, member(".rows"), of.rows, "a count cannot be negative");
  expects(of.base != nullptr || of.rows == 0, call, name, "null", "a signal is the engine's memory");
  check_readable(call, name, of.element);
  check_not_fp8(call, name, of.element);
  expects(of.position.data != nullptr || of.rows == 0, call, member(".position"), "null",
          "every row says its position");
  expects(of.heads == model.query_heads, call, member(".heads"), of.heads,
          [&] { return "the model has " + std::to_string(model.query_heads) + " query heads"; });
}

/// Refuses a stride of 0 along an axis on which such a view has several rows: they would all be the first one.
template <class Rows>
void check_row_strides(char const* call, char const* name, Rows const& of, lanes const& batch) {
  if (of.rows == 0) return;
  auto const one = [&](char const* member, std::int64_t stride, char const* axis, int elements) {
    check_stride(call, [&] { return std::string(name) + member; }, stride, axis, elements);
  };
  one(".sequence", of.sequence, "sequences", batch.sequences);
  one(".layer", of.layer, "layers", batch.layers());
  check_layers_apart(call, [&] { return std::string(name) + ".layer"; }, of.layer, of.sequence, batch);
  one(".head", of.head, "query heads", of.heads);
  one(".row", of.row, "rows", of.rows);
  one(".position.sequence", of.position.sequence, "sequences", batch.sequences);
  if (of.valid_rows.data != nullptr) one(".valid_rows.sequence", of.valid_rows.sequence, "sequences", batch.sequences);
}

/// The text "sequence 1", or with the layer and the head if lanes of a sequence differ.
template <class T>
std::string spell_row_of(by_lane<T> const& table, lane one) {
  std::string text = "sequence " + std::to_string(one.sequence);
  if (table.layer != 0) text += ", layer " + std::to_string(one.layer);
  if (table.head != 0) text += ", head " + std::to_string(one.head);
  return text;
}

/// The position of the last row of a lane that counts and is not after `newest`; -1 if there is none.
template <class Rows>
[[nodiscard]] int last_counted_row(Rows const& of, lane one, int newest = 0x7FFFFFFF) {
  int const* const positions = of.position.row(one);
  for (int r = of.valid(one) - 1; r >= 0; --r) {
    int const position = positions[of.stored(one, r)];
    if (position >= 0 && position <= newest) return position;
  }
  return -1;
}
/// The position of the first row of a lane that counts; -1 if none does.
template <class Rows>
[[nodiscard]] int first_counted_row(Rows const& of, lane one) {
  int const* const positions = of.position.row(one);
  int r = 0;
  while (r < of.valid(one) && positions[of.stored(one, r)] < 0) ++r;
  return r == of.valid(one) ? -1 : positions[of.stored(one, r)];
}

/// Refuses numbers of valid rows outside of 0 .. `rows`, positions of rows that do not ascend (apart from negative
/// ones, which do not count), and, with `newest`, rows whose newest one is older than the newest committed entry of its
/// lane. `Rows` has the members `rows`, `valid`, `stored`, `position` and `valid_rows`.
///
/// Cost: reads each row's position once. Lanes that share their positions and numbers are looked at once, but for the
/// newest entry of each.
template <class Rows>
void check_row_positions(char const* call, char const* name, Rows const& of, lanes const& batch, bool newest = false) {
  if (of.rows == 0 || of.position.data == nullptr) return;
  int const* seen_positions = nullptr;
  for_each_lane(batch, [&](int, lane one) {
    int const valid = of.valid(one);
    expects(
        valid >= 0 && valid <= of.rows, call, [&] { return std::string(name) + ".valid_rows"; },
        [&] { return std::to_string(valid) + " of " + spell_row_of(of.valid_rows, one); },
        [&] { return "a lane has 0 to " + std::to_string(of.rows) + " rows"; });
    int const* const positions = of.position.row(one);
    int before = -1;
    for (int r = 0; r < valid && positions != seen_positions; ++r) {
      int const here = positions[of.stored(one, r)];
      if (here < 0) continue;  // a row that does not count
      expects(
          before < here, call, [&] { return std::string(name) + ".position"; },
          [&] {
            return std::to_string(here) + " after " + std::to_string(before) + " in row " + std::to_string(r) + " of " +
                   spell_row_of(of.position, one);
          },
          "positions ascend: these are not the rows of one forward, or valid_rows does not say how many are valid");
      before = here;
    }
    seen_positions = positions;
    int const last_entry = newest ? batch.newest(one) : -1;
    int const last_row = last_counted_row(of, one);
    if (last_entry < 0 || last_row < 0) return;
    expects(
        last_row >= last_entry, call, [&] { return std::string(name) + ".position"; },
        [&] { return std::to_string(last_row) + " in the last row of " + spell_row_of(of.position, one); },
        [&] {
          return "the newest entry is at " + std::to_string(last_entry) +
                 ": these rows are of an earlier forward, or positions do not count from the sequence's start";
        });
  });
}

}  // namespace KVPOLICY_NAMESPACE::detail
