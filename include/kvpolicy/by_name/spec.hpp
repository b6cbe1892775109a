// SPDX-License-Identifier: Apache-2.0
// The grammar of a spec, which is the text of a policy. Its errors name the column, the text that was found, and the
// texts that are accepted.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/error.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// One argument of a part: `window=32`, or a value without a name, as in `4`. Columns count from 1.
struct spec_argument {
  std::string_view name;  ///< empty if the value has no name
  std::string_view value;
  int name_column = 0;
  int value_column = 0;
};

/// One part of a spec: `snapkv(window=32, pool=max:7)`.
struct spec_part {
  std::string_view name;
  int column = 0;
  std::vector<spec_argument> arguments;
};

/// One section of a spec: `select: quest | budget(512)`. Without a name it is `evict`.
struct spec_section {
  std::string_view name = "evict";
  bool is_named = false;
  int column = 1;
  std::vector<spec_part> parts;
};

namespace detail {

/// A text from outside as an error quotes it: at most 80 characters, all of them printable ones of ASCII.
inline std::string quote_of(std::string_view found) {
  constexpr std::size_t most = 80;
  std::string text;
  for (char const each : found) {
    bool const printable = each >= ' ' && each <= '~';
    constexpr char const* digits = "0123456789abcdef";
    auto const byte = static_cast<unsigned char>(each);
    text += printable ? std::string(1, each) : std::string("\\x") + digits[byte / 16] + digits[byte % 16];
    if (text.size() > most) return text.substr(0, most - 3) + "...";
  }
  return text;
}

[[noreturn]] inline void refuse_spec(int column, std::string_view found, std::string const& rule) {
  reject("parse", "column " + std::to_string(column), found.empty() ? "nothing" : quote_of(found), rule);
}

/// Refuses what may be given once, and was.
[[noreturn]] inline void refuse_twice(int column, std::string_view found, int before) {
  refuse_spec(column, found, "there is one before, at column " + std::to_string(before));
}

/// The edit distance of two words: the number of insertions, deletions and replacements.
inline std::size_t edits(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      std::size_t const replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

/// Lists the accepted names and the one that is nearest to the name found: "there are a, b and c; did you mean b?"
inline std::string accepted(std::string const& there_are, std::vector<std::string> const& names,
                            std::string_view found) {
  std::string text = there_are;
  std::string const* nearest = nullptr;
  std::size_t least = found.size() / 2 + 1;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? " " : i + 1 == names.size() ? " and " : ", ") + names[i];
    if (found.size() > 64) continue;  // too long to be a misspelt name
    if (std::size_t const away = edits(found, names[i]); away < least) {
      least = away;
      nearest = &names[i];
    }
  }
  return nearest != nullptr ? text + "; did you mean " + *nearest + "?" : text;
}

/// Reads a spec from left to right.
class spec_reader {
 public:
  explicit spec_reader(std::string_view text) : text_(text) {}

  std::vector<spec_section> read() {
    std::vector<spec_section> all;
    do {
      spec_section made = section();
      do {
        made.parts.push_back(part());
      } while (take('|'));
      for (spec_section const& each : all) {
        if (each.name != made.name) continue;
        refuse_twice(made.column, made.is_named ? made.name : made.parts.front().name, each.column);
      }
      all.push_back(std::move(made));
    } while (take(';'));
    if (at_ < text_.size()) refuse_spec(column(), text_.substr(at_, 1), "a part ends with (, | or ;");
    return all;
  }

  /// True for a text that a spec can say as the name of a part.
  static bool is_name(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), in_name); }

 private:
  [[nodiscard]] int column() const { return static_cast<int>(at_) + 1; }
  static bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  static bool in_value(char c) { return !blank(c) && c != ',' && c != '(' && c != ')' && c != '|' && c != '='; }

  void skip() {
    while (at_ < text_.size() && blank(text_[at_])) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string_view read_while(bool (*belongs)(char)) {
    skip();
    std::size_t const begin = at_;
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  [[nodiscard]] std::string_view found() const { return text_.substr(at_, 1); }

  /// The name of a section, `evict:`, which may be left out.
  spec_section section() {
    skip();
    std::size_t const begin = at_;
    spec_section made;
    made.column = column();
    std::string_view const name = read_while(in_name);
    if (name.empty() || !take(':')) {
      at_ = begin;
      return made;
    }
    made.name = name;
    made.is_named = true;
    if (name != "admit" && name != "select" && name != "evict") {
      refuse_spec(made.column, name, accepted("there are the sections", {"admit", "select", "evict"}, name));
    }
    return made;
  }

  spec_part part() {
    skip();
    int const begins = column();
    spec_part made{read_while(in_name), begins, {}};
    if (made.name.empty()) refuse_spec(column(), found(), "a part begins with a name, as in snapkv | budget(1024)");
    if (!take('(') || take(')')) return made;
    do {
      made.arguments.push_back(argument());
    } while (take(','));
    if (!take(')')) refuse_spec(column(), found(), "arguments end with , or )");
    return made;
  }

  spec_argument argument() {
    skip();
    int const begins = column();
    std::string_view const first = read_while(in_value);
    if (first.empty()) refuse_spec(column(), found(), "an argument is a value or field=value");
    if (!take('=')) return {{}, first, begins, begins};
    skip();
    int const value_begins = column();
    std::string_view const value = read_while(in_value);  // may be empty: its field decides whether that is a value
    return {first, value, begins, value_begins};
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace detail

/// Splits a spec `admit: name(argument, ...) | name; select: ...; evict: ...` into its sections, whose parts are views
/// into the text. Sections may come in any order, each once; a section without a name is `evict`.
/// - throws: `invalid_argument` that names the column, the text that was found, and the texts that are accepted.
[[nodiscard]] inline std::vector<spec_section> split_sections(std::string_view text) {
  return detail::spec_reader(text).read();
}

/// Splits the spec of an eviction, which may begin with `evict:`, into its parts.
/// - throws: also if there is another section.
[[nodiscard]] inline std::vector<spec_part> split_spec(std::string_view text) {
  std::vector<spec_section> all = split_sections(text);
  for (spec_section const& each : all) {
    if (each.name != "evict") {
      detail::refuse_spec(each.column, each.name, "an eviction has the section evict: alone, and a cache policy all");
    }
  }
  return std::move(all.front().parts);
}

}  // namespace KVPOLICY_NAMESPACE
