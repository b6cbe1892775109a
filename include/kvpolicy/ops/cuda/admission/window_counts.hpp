// SPDX-License-Identifier: Apache-2.0
// Device implementations of the verbs that count and check before a window advances: how many entries leave it, how
// many tokens of a chunk skip it, and which new tokens are invalid.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/moves/columns.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The number of entries of a sequence that leave its window, how many then stay, drafts included, and the fault that
/// prevents it, if there is one.
struct leaving_entries {
  int count;
  int left;
  std::uint64_t fault;
};

/// Counts the entries that leave the window of a sequence. The count never exceeds the committed entries, even for an
/// invalid number of tokens, since decisions read so many.
struct exit_counter {
  kvpolicy::lanes lanes;
  int window;

  [[nodiscard]] KVPOLICY_HD leaving_entries operator()(int sequence, int num_new_tokens) const {
    lane const one{sequence, lanes.layer_begin, 0};
    int const committed = lanes.committed(one);
    int const held = *lanes.count.row(one);
    int const drafts = held - committed;
    std::int64_t const over = std::int64_t{committed} + num_new_tokens - window;
    std::uint64_t found = device_error::nothing;
    if (num_new_tokens < 0 || num_new_tokens > window)
      found = device_error::pack(fault::window_tokens, sequence, num_new_tokens);
    if (drafts != 0 && (num_new_tokens != 0 || over > 0))
      found = min_op{}(found, device_error::pack(fault::window_drafts, sequence, drafts));
    int const gone = over < 0 ? 0 : over < committed ? static_cast<int>(over) : committed;
    return {gone, held - gone, found};
  }
};

/// Numbers of new tokens of some sequences, in a kernel's arguments.
using few_host_tokens = a_few<int, 64>;

/// Counts the entries that leave the windows, one thread for each sequence.
struct count_exits_body {
  exit_counter counter;
  int first;          ///< the first sequence
  int const* tokens;  ///< on the device; null: use host_tokens
  few_host_tokens host_tokens;
  int* exits;
  device_error faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    int const sequence = first + static_cast<int>(i);
    leaving_entries const found = counter(sequence, tokens != nullptr ? tokens[sequence] : host_tokens.of[i]);
    if (found.fault != device_error::nothing) report_fault(block, faults, found.fault);
    exits[sequence] = found.count;
  }
};

/// Counts the tokens of a chunk that enter the window and those that skip it, one thread for each sequence.
struct count_passing_body {
  lanes chunk;
  int window;
  int* new_tokens;
  int* below;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    int const sequence = chunk.sequence_begin + static_cast<int>(i);
    int const tokens = *chunk.count.row({sequence, chunk.layer_begin, 0});
    int const last = tokens < window ? tokens : window;
    new_tokens[sequence] = last;
    below[sequence] = tokens - last;
  }
};

/// One thread for each request and each lane of its sequence. The thread of the first lane also checks the window.
struct check_new_tokens {
  lanes window;
  lanes pages;
  a_few<append_request> new_tokens;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    int const lanes_of_one = window.layers() * window.heads;
    append_request const& one = new_tokens.of[i / lanes_of_one];
    auto const which = static_cast<int>(i % lanes_of_one);
    lane const this_lane{one.sequence, window.layer_begin + which / window.heads, which % window.heads};
    if (which == 0) {
      int const capacity = window.capacity - *window.count.row(this_lane);
      if (one.in_flight && one.tokens > capacity)
        report_fault(block, faults, fault::step_drafts, one.sequence, one.tokens);
      refuse_behind(block, faults, window, this_lane, one);
    }
    refuse_behind(block, faults, pages, this_lane, one);
  }

 private:
  template <class Block>
  KVPOLICY_HD static void refuse_behind(Block& block, device_error faults, lanes const& part, lane this_lane,
                                        append_request const& one) {
    int const count = *part.count.row(this_lane);
    int const last = count > 0 ? part.position.row(this_lane)[count - 1] : -1;
    if (one.position <= last && one.tokens != 0) {
      report_fault(block, faults, fault::step_position, one.sequence, one.position);
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::count_exits_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, ring_request const& asked, int* exits) {
    bool const on_host = !asked.host_tokens.empty();
    for (int const tokens : asked.host_tokens) detail::refuse_long(asked, tokens);
    int const at_once = on_host ? detail::few_host_tokens::most : batch.sequences;
    int const* const on_device = on_host ? nullptr : asked.tokens;
    detail::count_exits_body body{{batch, asked.window}, 0, on_device, {}, exits, exec.faults()};
    for (int first = 0; first < batch.sequences; first += at_once) {
      int const count = std::min(at_once, batch.sequences - first);
      body.first = batch.sequence_begin + first;
      if (on_host) std::copy_n(asked.host_tokens.begin() + first, count, body.host_tokens.of);
      detail::launch_each(exec, count, body);
    }
  }
};

template <kernel_backend Backend>
struct implementation<ops::count_passing_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& chunk, int window, int* new_tokens, int* below) {
    detail::launch_each(exec, chunk.sequences, detail::count_passing_body{chunk, window, new_tokens, below});
  }
};

template <kernel_backend Backend>
struct implementation<ops::refuse_new_tokens_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, char const* call, lanes const& window, lanes const& pages,
                  std::span<append_request const> new_tokens) {
    for (append_request const& each : new_tokens) {
      detail::refuse_unknown(call, window, each);
      expects(!each.in_flight || window.in_flight != nullptr, call, "tokens", each.tokens,
              "drafts are counted for each sequence");
    }
    detail::for_each_few(new_tokens, [&](detail::a_few<append_request> const& few) {
      std::int64_t const lanes_of_one = std::int64_t{window.layers()} * window.heads;
      detail::launch_check(exec, few.count * lanes_of_one, detail::check_new_tokens{window, pages, few});
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
