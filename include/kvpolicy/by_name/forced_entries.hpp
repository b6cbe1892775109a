// SPDX-License-Identifier: Apache-2.0
// The entries that an erased scorer forces and those that a policy protects, as one protection.
#pragma once

#include <cstddef>
#include <cstring>
#include <kvpolicy/by_name/any_protection.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <memory>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// Protects entries at both ends of a lane: the first `sinks` positions, the prompt, and numbers of first and of last
/// entries. The entries that compete are one run, so that `top_k` need not ask about each.
struct forced_ends {
  int sinks = 0;
  int first = 0;
  int recent = 0;
  bool shares = false;              ///< also a number of last entries that may follow from the budget
  bool grows = false;               ///< also a number of last entries that follows from how many there are
  bool has_part = false;            ///< also the last ones, a part of all
  last_part part{0};                ///< of `has_part`
  int lag = 0;                      ///< also the last of the blocks of so many entries behind the first; 0: none
  recent_of_budget share{0, 0};     ///< of `shares`
  by_lane<int const> prompt_end{};  ///< the end of each sequence's prompt; null: it is not protected

  [[nodiscard]] KVPOLICY_HD std::int64_t last(int count, int budget) const {
    std::int64_t all = recent;
    if (shares && share.window(budget) > all) all = share.window(budget);
    if (grows && ends_of_count{0, -1}.last(count) > all) all = ends_of_count{0, -1}.last(count);
    if (has_part && part.last(count) > all) all = part.last(count);
    if (lag > 0 && around_blocks{first, lag}.last(count) > all) all = around_blocks{first, lag}.last(count);
    return all;
  }
  /// The first position that is not protected as one of the first.
  [[nodiscard]] KVPOLICY_HD int front(lane of) const {
    int const end = prompt_end.data != nullptr ? *prompt_end.row(of) : 0;
    return end > sinks ? end : sinks;
  }
  KVPOLICY_HD bool operator()(entry at) const {
    return at.ordinal < first || at.position < front(at.lane) || at.ordinal >= at.count - last(at.count, at.budget);
  }
  KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const {
    std::int64_t const end = of.count - last(of.count, of.budget);
    int const begin = of.first_at(front(of.lane));
    return {begin > first ? begin : first, static_cast<int>(end < 0 ? 0 : end < of.count ? end : of.count)};
  }
  friend bool operator==(forced_ends const& a, forced_ends const& b) {
    return a.sinks == b.sinks && a.first == b.first && a.recent == b.recent && a.shares == b.shares &&
           a.grows == b.grows && a.has_part == b.has_part && a.part == b.part && a.lag == b.lag && a.share == b.share &&
           a.prompt_end.data == b.prompt_end.data;
  }
};

/// A protection of a program's own, as bytes and a function that knows them.
template <bool Host>
class own_protection {
 public:
  constexpr own_protection() = default;
  template <class Protect>
  explicit own_protection(Protect const& from)
      : asks_([](std::byte const* at, entry one) { return (*reinterpret_cast<Protect const*>(at))(one); }) {
    static_assert(std::is_trivially_copyable_v<Protect> && sizeof(Protect) <= sizeof bytes_,
                  "kvpolicy: what a scorer forces is copied for a decision by name: it is trivially copyable and at "
                  "most 512 bytes");
    std::construct_at(reinterpret_cast<Protect*>(bytes_), from);
  }
  [[nodiscard]] constexpr bool there() const { return asks_ != nullptr; }
  bool operator()(entry at) const { return asks_(bytes_, at); }

 private:
  alignas(std::max_align_t) std::byte bytes_[512] = {};
  bool (*asks_)(std::byte const*, entry) = nullptr;
};

/// On a device there is none, and the arguments of a kernel are few bytes.
template <>
class own_protection<false> {
 public:
  [[nodiscard]] KVPOLICY_HD static constexpr bool there() { return false; }
  KVPOLICY_HD constexpr bool operator()(entry) const { return false; }
};

/// Protects entries at both ends of a lane, spans of positions, the span of a turn, classes of tokens, and, on the
/// host, what a scorer or a protection of a program's own protects.
template <bool Host>
struct forced_entries {
  forced_ends ends{};
  int spans = 0;
  bool has_turn = false;
  any_protection::part span[any_protection::most + 1] = {};  ///< one of the scorer, and those of a policy
  prefix_and_span turn{};
  detail::marked_classes marked{};
  own_protection<Host> own{};
  any_protection const* of_program = nullptr;  ///< a policy's protection that has parts of a program's own

  forced_entries() = default;
  forced_entries(nothing) {}
  forced_entries(kvpolicy::everything) { ends.recent = 0x7FFFFFFF; }
  forced_entries(kvpolicy::sinks from) { ends.sinks = from.tokens; }
  forced_entries(kvpolicy::recent from) { ends.recent = from.tokens; }
  forced_entries(kvpolicy::safe from) { ends.sinks = from.sinks, ends.recent = from.recent; }
  forced_entries(position_span from) : spans(1) { span[0] = {any_protection::kind::span, from.begin, from.end}; }
  forced_entries(first_and_last from) { ends.first = from.first, ends.recent = from.last; }
  forced_entries(last_part from) { ends.has_part = true, ends.part = from; }
  forced_entries(around_blocks from) { ends.first = from.first, ends.lag = from.lag; }
  forced_entries(recent_of_budget from) { ends.shares = true, ends.share = from; }
  forced_entries(ends_of_count from) {
    ends.sinks = from.sinks;
    ends.grows = from.window < 0;
    ends.recent = ends.grows ? 0 : from.window;
  }
  forced_entries(prefix_and_span const& from) : has_turn(true), turn(from) {}
  explicit forced_entries(own_protection<Host> const& from) : own(from) {}

  KVPOLICY_HD bool operator()(entry at) const {
    if (ends(at)) return true;
    for (int i = 0; i < spans; ++i) {
      if (at.position >= span[i].first && at.position < span[i].second) return true;
    }
    if ((has_turn && turn(at)) || marked(at)) return true;
    if constexpr (Host) {
      if (own.there() && own(at)) return true;
      return of_program != nullptr && of_program->own_protects(at);
    }
    return false;
  }

  template <class Visit>
  void visit_protected(lane_entries const& of, Visit const& visit) const {
    detail::visit_protected(ends, of, visit);
    for (int i = 0; i < spans; ++i) position_span{span[i].first, span[i].second}.visit_protected(of, visit);
    if (marked.any()) marked.visit_protected(of, visit);
    bool const asks_program = own.there() || of_program != nullptr;
    for (int e = 0; e < of.count && (has_turn || asks_program); ++e) {
      if ((*this)(entry{of.lane, e, of.count, of.position[e], of.budget})) visit(e);
    }
  }

  /// Joins the entries of a protection, which must outlive this. What is forced itself has at most one span.
  void join(any_protection const& more) {
    any_protection::ends_and_spans const all = more.compiled();
    if (all.both.sinks > ends.sinks) ends.sinks = all.both.sinks;
    if (all.both.recent > ends.recent) ends.recent = all.both.recent;
    if (all.prompt_end.data != nullptr) ends.prompt_end = all.prompt_end;
    for (int i = 0; i < all.count; ++i) span[spans++] = all.spans[i];
    if (all.marked.any()) marked = all.marked;
    if (!more.own.empty()) of_program = &more;
  }
  /// Calls visit with the cheapest protection that is equivalent.
  template <class Visit>
  void pick(Visit const& visit) const {
    bool const asks = spans > 0 || has_turn || marked.any() || own.there() || of_program != nullptr;
    if (!asks) return visit(ends);
    visit(*this);
  }
};

/// True for what a scorer may force if kernels of a device shall ask it.
template <class Forces>
concept forced_by_shipped = std::is_convertible_v<Forces, forced_entries<false>>;

}  // namespace KVPOLICY_NAMESPACE
