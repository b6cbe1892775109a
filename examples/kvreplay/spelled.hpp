// SPDX-License-Identifier: Apache-2.0
// A spec that is made from the options of a command line. Its errors name those options.
#pragma once

#include <algorithm>
#include <cstddef>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay {

namespace kv = kvpolicy;

/// The text of a spec, and the option from which each piece of it comes.
class spelled {
 public:
  /// Appends `text`, which comes from the `value` of `option` (or of the field of a `--set`).
  void add(std::string option, std::string value, std::string_view text) {
    pieces_.push_back({text_.size() + 1, std::move(option), std::move(value)});
    text_ += text;
  }
  /// Appends `text`, which belongs to the option before it.
  void add(std::string_view text) { text_ += text; }

  /// Appends a policy and its fields as `policy(field=value, ...)`. Each pair comes from a `--set`.
  void add_fields(std::string const& policy, std::vector<std::string> const& set) {
    add("--policy", policy, policy);
    for (std::size_t i = 0; i < set.size(); ++i) {
      std::string const name = name_of(set[i]);
      kv::expects(!name.empty() && kv::detail::sayable(name), "kvreplay", "--set", set[i], "it is FIELD=VALUE");
      add(i == 0 ? "(" : ", ");
      add("--set " + name, set[i].substr(set[i].find('=') + 1), set[i]);
    }
    if (!set.empty()) add(")");
  }

  /// The text, which is to be parsed: what comes from an option is one value of it, and no more of the grammar.
  [[nodiscard]] std::string const& text() const {
    for (piece const& each : pieces_) {
      kv::expects(kv::detail::sayable(trimmed(each.value)), "kvreplay", each.option, each.value,
                  "a value has none of the characters , ( ) | =");
    }
    return text_;
  }

  /// The name of FIELD=VALUE; empty if the text has no `=`.
  [[nodiscard]] static std::string name_of(std::string const& set) {
    std::size_t const equals = set.find('=');
    return equals == std::string::npos ? "" : std::string(trimmed(std::string_view(set).substr(0, equals)));
  }

  /// Runs `work`, which parses the text. The user has not typed the spec, so an error that names one of its columns
  /// becomes an error that names the option.
  template <class Work>
  decltype(auto) read(Work const& work) const {
    try {
      return work();
    } catch (kv::invalid_argument const& wrong) {
      std::string const said = in_options(wrong.what());
      if (said.empty()) throw;
      throw kv::invalid_argument(said);
    }
  }

 private:
  struct piece {
    std::size_t column;  ///< the column of its first character, from 1
    std::string option, value;
  };

  static std::string_view trimmed(std::string_view text) {
    std::size_t const begin = std::min(text.find_first_not_of(' '), text.size());
    return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
  }

  /// Turns an error "parse: column 17 = x, but it is y" or "parse: column 1: trim_kv.buffer = 0, but it is y" into an
  /// error of an option. Empty if the error has neither form.
  [[nodiscard]] std::string in_options(std::string_view said) const {
    constexpr std::string_view begins = "parse: column ";
    std::size_t const but = said.find(", but ");
    if (!said.starts_with(begins) || but == std::string_view::npos || pieces_.empty()) return {};
    std::size_t column = 0;
    std::size_t at = begins.size();
    while (at < said.size() && said[at] >= '0' && said[at] <= '9') {
      column = 10 * column + static_cast<std::size_t>(said[at++] - '0');
    }
    auto const after = std::upper_bound(pieces_.begin(), pieces_.end(), column,
                                        [](std::size_t wanted, piece const& each) { return wanted < each.column; });
    piece const* found = after == pieces_.begin() ? &pieces_.front() : &*(after - 1);
    std::string rule(said.substr(but + 6));
    if (said.substr(at).starts_with(": ")) {
      std::string_view const path = said.substr(at + 2, said.find(" = ", at) - at - 2);
      if (piece const* const named = of_field(path)) {
        found = named;
      } else if (!path.starts_with("budget.")) {
        return "kvreplay: " + std::string(said.substr(at + 2));
      }
    }
    piece const* const rounding = of_option("--rounding");
    if (rule == "only a ratio is rounded" && rounding != nullptr) found = rounding;
    return "kvreplay: " + found->option + " = " + found->value + ", but " + rule;
  }

  [[nodiscard]] piece const* of_option(std::string_view option) const {
    auto const found =
        std::find_if(pieces_.begin(), pieces_.end(), [&](piece const& each) { return each.option == option; });
    return found == pieces_.end() ? nullptr : &*found;
  }

  /// The piece that sets a field which a check names, such as `snapkv.window`.
  [[nodiscard]] piece const* of_field(std::string_view path) const {
    static constexpr std::pair<std::string_view, char const*> parts[] = {{"budget.tokens", "--budget"},
                                                                         {"budget.ratio", "--ratio"},
                                                                         {"budget.floor", "--floor"},
                                                                         {"reduce_lanes.how", "--reduce"},
                                                                         {"reduce_lanes.decides", "--granularity"}};
    for (auto const& [name, option] : parts) {
      if (path == name) return of_option(option);
    }
    for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
      std::string_view const rest = path.substr(dot + 1);
      if (piece const* const one = of_option("--set " + std::string(rest.substr(0, rest.find('.'))))) return one;
    }
    return nullptr;
  }

  std::string text_;
  std::vector<piece> pieces_;
};

}  // namespace kvreplay
