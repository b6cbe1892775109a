// SPDX-License-Identifier: Apache-2.0
// Protections by what an engine knows of the tokens of a request: where its prompt ends, and the class of each token.
#pragma once

#include <kvpolicy/parts/protect.hpp>

namespace KVPOLICY_NAMESPACE {

/// Protects the prompt: the positions before the end of the prompt, a number of each sequence in the engine's memory.
/// In a spec it is the part `prompt`, and reads the table that a registry knows as "prompt_end".
struct prompt {
  by_lane<int const> end{};  ///< one number for each sequence; 0: the sequence has no prompt
  static constexpr auto name = "prompt";
  static constexpr auto fields() { return make_fields(); }
  void check(char const* call) const {
    expects(end.data != nullptr, call, "prompt.end", "null", "the engine has the end of every sequence's prompt");
  }
  KVPOLICY_HD constexpr bool operator()(entry at) const { return at.position < *end.row(at.lane); }
  KVPOLICY_HD constexpr ordinal_range candidates(lane_entries const& of) const {
    return {of.first_at(*end.row(of.lane)), of.count};
  }
  friend bool operator==(prompt const& a, prompt const& b) { return a.end.data == b.end.data; }
};

/// Protects the entries of tokens of one class, such as punctuation (FastGen, Ge et al. 2023, arXiv:2310.01801). The
/// engine has a row of classes for each sequence, one for every position. In a spec it is the part `marks(class)`, and
/// reads the table that a registry knows as "token_class".
struct marks {
  int of = 1;  ///< the class: 0 to 31
  by_lane<int const> classes{};
  static constexpr auto name = "marks";
  static constexpr auto fields() { return make_fields(field{"class", &marks::of}); }
  void check(char const* call) const {
    expects(of >= 0 && of < 32, call, "marks.class", of, "there are 32 classes of tokens, 0 to 31");
    expects(classes.data != nullptr, call, "marks.classes", "null", "the engine has the class of every token");
  }
  KVPOLICY_HD constexpr bool operator()(entry at) const { return classes.row(at.lane)[at.position] == of; }
  template <class Visit>
  void visit_protected(lane_entries const& all, Visit const& visit) const {
    int const* const row = classes.row(all.lane);
    for (int e = next_marked(row, all, 0); e < all.count; e = next_marked(row, all, e + 1)) visit(e);
  }
  friend bool operator==(marks const& a, marks const& b) { return a.of == b.of && a.classes.data == b.classes.data; }

 private:
  /// The first entry from `e` on whose token has the class, or the number of entries. It is one function for typed
  /// policies and those by name: compilers place the loop so that copies of it differ by a twelfth of a decision.
  [[gnu::noinline]] int next_marked(int const* row, lane_entries const& all, int e) const {
    constexpr int some = 8;  // tokens that one branch decides
    int const marked = of;
    int const count = all.count;
    int const* const position = all.position;
    while (e + some <= count) {
      int found = 0;
      for (int i = 0; i < some; ++i) found += row[position[e + i]] == marked ? 1 : 0;
      if (found > 0) break;
      e += some;
    }
    while (e < count && row[position[e]] != marked) ++e;
    return e;
  }
};

namespace detail {

/// Any number of classes of tokens as one protection.
struct marked_classes {
  by_lane<int const> classes{};  ///< of tokens; null: none is protected
  unsigned among = 0;            ///< a bit for each class that is

  [[nodiscard]] KVPOLICY_HD constexpr bool any() const { return classes.data != nullptr; }
  KVPOLICY_HD constexpr bool operator()(entry at) const {
    if (classes.data == nullptr) return false;
    int const of = classes.row(at.lane)[at.position];
    return of >= 0 && of < 32 && ((among >> of) & 1u) != 0;
  }
  template <class Visit>
  void visit_protected(lane_entries const& of, Visit const& visit) const {
    for (int i = 0; i < 32 && any(); ++i) {
      if (((among >> i) & 1u) != 0) marks{i, classes}.visit_protected(of, visit);
    }
  }
};

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
