// SPDX-License-Identifier: Apache-2.0
// Protections whose kind is chosen at run time.
#pragma once

#include <array>
#include <kvpolicy/by_name/user_parts.hpp>
#include <kvpolicy/parts/marked.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Any of the shipped protections, or up to eight of them joined; on the host also those of a program's own. It
/// protects every entry that one of its parts protects.
struct any_protection {
  enum class kind { none, everything, sinks, recent, span, safe, prompt, marks, own };
  /// One protection: its kind and its parameters. Of `own`, `first` is its index among those of a program's own.
  struct part {
    kind what = kind::none;
    int first = 0;
    int second = 0;
    friend bool operator==(part const&, part const&) = default;
  };
  static constexpr int most = 8;

  std::array<part, most> parts{};
  int count = 0;
  by_lane<int const> prompt_end{};   ///< of `prompt`
  by_lane<int const> token_class{};  ///< of `marks`
  std::vector<detail::own_protected> own{};

  any_protection() = default;
  any_protection(nothing) {}
  any_protection(kvpolicy::everything) : parts{{{kind::everything, 0, 0}}}, count(1) {}
  any_protection(kvpolicy::sinks from) : parts{{{kind::sinks, from.tokens, 0}}}, count(1) {}
  any_protection(kvpolicy::recent from) : parts{{{kind::recent, from.tokens, 0}}}, count(1) {}
  any_protection(kvpolicy::position_span from) : parts{{{kind::span, from.begin, from.end}}}, count(1) {}
  any_protection(kvpolicy::safe from) : parts{{{kind::safe, from.sinks, from.recent}}}, count(1) {}
  any_protection(kvpolicy::prompt from) : parts{{{kind::prompt, 0, 0}}}, count(1), prompt_end(from.end) {}
  any_protection(kvpolicy::marks from) : parts{{{kind::marks, from.of, 0}}}, count(1), token_class(from.classes) {}
  explicit any_protection(detail::own_protected const& from) : parts{{{kind::own, 0, 0}}}, count(1), own{from} {}
  template <class First, class Second>
  any_protection(either<First, Second> const& both) : any_protection(both.first) {
    add(any_protection(both.second));
  }

  /// Joins all parts of another one. There is one table of prompts' ends and one of classes: those of the other one, if
  /// it has any.
  void add(any_protection const& more) {
    expects(count + more.count <= most, "any_protection", "protections", count + more.count,
            "at most eight are joined");
    if (more.prompt_end.data != nullptr) prompt_end = more.prompt_end;
    if (more.token_class.data != nullptr) token_class = more.token_class;
    for (int i = 0; i < more.count; ++i) {
      part one = more.parts[static_cast<std::size_t>(i)];
      if (one.what == kind::own) {
        own.push_back(more.own[static_cast<std::size_t>(one.first)]);
        one.first = static_cast<int>(own.size()) - 1;
      }
      parts[static_cast<std::size_t>(count++)] = one;
    }
  }

  void check(char const* call) const {
    for_each([&](auto const& each) {
      if constexpr (requires { each.check(call); }) each.check(call);
    });
  }
  /// True if a protection of a program's own protects the entry.
  [[nodiscard]] bool own_protects(entry at) const {
    for (detail::own_protected const& each : own) {
      if (each.protects(at)) return true;
    }
    return false;
  }

  /// Protects the first positions, the last entries and some spans of positions: what the shipped parts do.
  struct ends_and_spans {
    kvpolicy::safe both{0, 0};
    int count = 0;
    part spans[most] = {};
    by_lane<int const> prompt_end{};  ///< null: prompts are not protected
    detail::marked_classes marked{};
    KVPOLICY_HD constexpr bool operator()(entry at) const {
      if (both(at) || marked(at)) return true;
      if (prompt_end.data != nullptr && at.position < *prompt_end.row(at.lane)) return true;
      for (int i = 0; i < count; ++i) {
        if (at.position >= spans[i].first && at.position < spans[i].second) return true;
      }
      return false;
    }
  };
  [[nodiscard]] ends_and_spans compiled() const {
    ends_and_spans made;
    for (int i = 0; i < count; ++i) {
      part const& one = parts[static_cast<std::size_t>(i)];
      bool const front = one.what == kind::sinks || one.what == kind::safe;
      int const back = one.what == kind::recent ? one.first : one.what == kind::safe ? one.second : 0;
      if (front && one.first > made.both.sinks) made.both.sinks = one.first;
      if (back > made.both.recent) made.both.recent = back;
      if (one.what == kind::everything) made.both.recent = 0x7FFFFFFF;
      if (one.what == kind::span) made.spans[made.count++] = one;
      if (one.what == kind::prompt) made.prompt_end = prompt_end;
      if (one.what != kind::marks) continue;
      made.marked.classes = token_class;
      made.marked.among |= 1u << static_cast<unsigned>(one.first);
    }
    return made;
  }
  /// Calls visit with the cheapest typed protection that is equivalent, so that a decision costs no more than with a
  /// typed one: without spans the entries that compete are one run of ordinals, which the decision is told.
  template <class Visit>
  void pick(Visit const& visit) const {
    expects(
        own.empty(), "any_protection", "protection", [&] { return own.front().spell(); },
        "by name it goes with an eviction or an admission by name; elsewhere use the protection itself");
    ends_and_spans const all = compiled();
    if (all.count > 0 || all.marked.any() || all.prompt_end.data != nullptr) return visit(all);
    if (all.both.recent == 0) return visit(kvpolicy::sinks{all.both.sinks});
    visit(all.both);
  }
  bool operator()(entry at) const { return compiled()(at) || own_protects(at); }

  /// Calls visit with each part as the shipped protection that it stands for.
  template <class Visit>
  void for_each(Visit const& visit) const {
    for (int i = 0; i < count; ++i) {
      part const& one = parts[static_cast<std::size_t>(i)];
      if (one.what == kind::everything) visit(kvpolicy::everything{});
      if (one.what == kind::sinks) visit(kvpolicy::sinks{one.first});
      if (one.what == kind::recent) visit(kvpolicy::recent{one.first});
      if (one.what == kind::span) visit(kvpolicy::position_span{one.first, one.second});
      if (one.what == kind::safe) visit(kvpolicy::safe{one.first, one.second});
      if (one.what == kind::prompt) visit(kvpolicy::prompt{prompt_end});
      if (one.what == kind::marks) visit(kvpolicy::marks{one.first, token_class});
      if (one.what == kind::own) visit(own[static_cast<std::size_t>(one.first)]);
    }
  }

  friend bool operator==(any_protection const& a, any_protection const& b) {
    return a.parts == b.parts && a.count == b.count && a.prompt_end.data == b.prompt_end.data &&
           a.token_class.data == b.token_class.data && a.own == b.own;
  }
};

[[nodiscard]] inline std::string print(any_protection const& all) {
  std::string text;
  all.for_each([&](auto const& each) { text += (text.empty() ? "" : " | ") + to_string(each); });
  return text;
}

}  // namespace KVPOLICY_NAMESPACE
