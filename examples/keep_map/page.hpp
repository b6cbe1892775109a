// SPDX-License-Identifier: Apache-2.0
// One HTML file that shows what policies keep of texts, step by step, and a table of numbers. It needs no other file
// and no network.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <functional>
#include <kvpolicy/version.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "keep_map/page_text.hpp"
#include "machine.hpp"

namespace keep_map {

/// The parts of a page. Texts are plain, and are escaped where they are put in.
struct page {
  std::string title;
  std::string sentence;                                   ///< what the page shows
  std::vector<std::pair<std::string, std::string>> made;  ///< what made it, as names and values
  std::string docs;                                       ///< where the link to the documentation leads
  std::string numbers;                                    ///< what the columns of the table are
  std::string table;                                      ///< HTML: a thead and a tbody
  nlohmann::json data;                                    ///< what the page's script says that it reads
};

[[nodiscard]] inline std::string base64(std::span<std::uint8_t const> from) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < from.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t i = at; i < at + 3; ++i) three = three << 8 | (i < from.size() ? from[i] : 0U);
    for (unsigned i = 0; i < 4; ++i) text += at + i > from.size() ? '=' : digits[three >> (18 - 6 * i) & 63];
  }
  return text;
}

/// The numbers as base64, each in four bytes, the lowest first.
[[nodiscard]] inline std::string base64_of_numbers(std::span<std::uint32_t const> from) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(4 * from.size());
  for (std::uint32_t const one : from) {
    for (unsigned shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<std::uint8_t>(one >> shift));
  }
  return base64(bytes);
}

[[nodiscard]] inline std::string html_escaped(std::string_view text) {
  std::string escaped;
  for (char const one : text) {
    if (one == '&') {
      escaped += "&amp;";
    } else if (one == '<') {
      escaped += "&lt;";
    } else if (one == '"') {
      escaped += "&quot;";
    } else {
      escaped += one;
    }
  }
  return escaped;
}

namespace detail {

/// JSON that is safe inside of a script element: it contains neither `</script>` nor `<!--`.
inline std::string script_json(nlohmann::json const& data) {
  std::string text;
  for (char const one : data.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) {
    if (one == '<') {
      text += "\\u003c";
    } else {
      text += one;
    }
  }
  return text;
}

/// Replaces each `{{name}}` in the page by `text_of(name)`. Inserted texts are not searched.
inline std::string filled(std::string_view page, std::function<std::string(std::string_view)> const& text_of) {
  std::string made;
  for (std::size_t open = page.find("{{"); open != page.npos; open = page.find("{{")) {
    std::size_t const close = page.find("}}", open);
    made += page.substr(0, open);
    made += text_of(page.substr(open + 2, close - open - 2));
    page.remove_prefix(close + 2);
  }
  return made.append(page);
}

/// What made the page: the given names and values, the library, the machine, and the link.
inline std::string made_line(page const& of) {
  std::vector<std::pair<std::string, std::string>> all = of.made;
  all.emplace_back("kvpolicy", std::string(kvpolicy::version) + (commit().empty() ? "" : ", commit " + commit()));
  all.emplace_back("machine", machine());
  std::string html;
  for (auto const& [name, value] : all) html += fmt::format("{}: {} · ", html_escaped(name), html_escaped(value));
  return html + fmt::format("how to read it: <a href=\"{0}\">{0}</a>", html_escaped(of.docs));
}

}  // namespace detail

/// The page as HTML.
[[nodiscard]] inline std::string html_of(page const& of) {
  return detail::filled(page_text, [&](std::string_view name) {
    if (name == "data") return detail::script_json(of.data);
    if (name == "table") return of.table;
    if (name == "made") return detail::made_line(of);
    return html_escaped(name == "title" ? of.title : name == "sentence" ? of.sentence : of.numbers);
  });
}

}  // namespace keep_map
