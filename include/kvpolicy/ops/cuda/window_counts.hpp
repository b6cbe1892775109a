// Device implementations of what a window is asked before it moves on: who leaves, what passes it by, what it refuses.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/columns.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// New tokens of some sequences, in a kernel's arguments.
struct told_tokens {
  static constexpr int most = 64;
  int first = 0;  ///< sequence
  int of[most] = {};
};

/// A thread a sequence. What is counted is never more than there is, whatever was asked: decisions read so many.
struct count_exits_body {
  lanes who;
  int window;
  int const* tokens;  ///< null: they are told
  told_tokens told;
  int* exits;
  fault_word faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    std::int64_t const sequence = told.first + i;
    lane const one{static_cast<int>(sequence), who.layer_begin, 0};
    int const fresh = tokens != nullptr ? tokens[sequence] : told.of[i];
    int const committed = who.committed(one);
    int const drafts = *who.count.row(one) - committed;
    std::int64_t const over = std::int64_t{committed} + fresh - window;
    if (fresh < 0 || fresh > window) tell_fault(block, faults, fault::window_tokens, sequence, fresh);
    if (drafts != 0 && (fresh != 0 || over > 0)) {
      tell_fault(block, faults, fault::window_drafts, sequence, drafts);
    }
    exits[sequence] = over < 0 ? 0 : over < committed ? static_cast<int>(over) : committed;
  }
};

/// A thread a sequence.
struct count_passing_body {
  lanes fresh;
  int window;
  int* entering;
  int* below;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t sequence) const {
    int const tokens = *fresh.count.row({static_cast<int>(sequence), fresh.layer_begin, 0});
    int const last = tokens < window ? tokens : window;
    entering[sequence] = last;
    below[sequence] = tokens - last;
  }
};

/// A thread for each new token's run and each lane of its sequence; the first lane's asks the window, too.
struct refuse_fresh_body {
  lanes window;
  lanes pages;
  a_few<appended> fresh;

  fault_word faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    int const lanes_of_one = window.layers() * window.heads;
    appended const& one = fresh.of[i / lanes_of_one];
    auto const which = static_cast<int>(i % lanes_of_one);
    lane const who{one.sequence, window.layer_begin + which / window.heads, which % window.heads};
    if (which == 0) {
      int const room = window.bound - *window.count.row(who);
      if (one.in_flight && one.tokens > room) tell_fault(block, faults, fault::step_drafts, one.sequence, one.tokens);
      refuse_behind(block, window, who, one);
    }
    refuse_behind(block, pages, who, one);
  }

 private:
  template <class Block>
  KVPOLICY_HD void refuse_behind(Block& block, lanes const& part, lane who, appended const& one) const {
    int const held = *part.count.row(who);
    int const last = held > 0 ? part.position.row(who)[held - 1] : -1;
    if (one.position <= last && one.tokens != 0) {
      tell_fault(block, faults, fault::step_position, one.sequence, one.position);
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::count_exits_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, lanes const& who, entering const& asked, int* exits) {
    if (asked.told.empty()) {
      detail::launch_each(exec, who.sequences, body(exec, who, asked, exits));
      return;
    }
    for (int const tokens : asked.told) detail::refuse_long(asked, tokens);
    for (int first = 0; first < who.sequences; first += detail::told_tokens::most) {
      detail::count_exits_body some = body(exec, who, asked, exits);
      int const count = std::min(detail::told_tokens::most, who.sequences - first);
      some.tokens = nullptr;
      some.told.first = first;
      std::copy_n(asked.told.begin() + first, count, some.told.of);
      detail::launch_each(exec, count, some);
    }
  }

 private:
  template <class Executor>
  static detail::count_exits_body body(Executor& exec, lanes const& who, entering const& asked, int* exits) {
    return {who, asked.window, asked.tokens, {}, exits, exec.faults()};
  }
};

template <kernel_backend Backend>
struct implementation<ops::count_passing_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, lanes const& fresh, int window, int* entering, int* below) {
    detail::launch_each(exec, fresh.sequences, detail::count_passing_body{fresh, window, entering, below});
  }
};

template <kernel_backend Backend>
struct implementation<ops::refuse_fresh_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, char const* call, lanes const& window, lanes const& pages,
                  std::span<appended const> fresh) {
    for (appended const& each : fresh) {
      detail::refuse_unknown(call, window, each);
      expects(!each.in_flight || window.in_flight != nullptr, call, "tokens", each.tokens,
              "drafts are counted for each sequence");
    }
    detail::for_each_few(fresh, [&](detail::a_few<appended> const& few) {
      std::int64_t const lanes_of_one = std::int64_t{window.layers()} * window.heads;
      detail::launch_each(exec, few.count * lanes_of_one, detail::refuse_fresh_body{window, pages, few, exec.faults()});
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
