// The report: one HTML file with the table, its charts, and the bytes that were kept of some prompts.
#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <functional>
#include <kvpolicy/io/atomic_file.hpp>
#include <kvpolicy/version.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"
#include "report_page.hpp"
#include "run.hpp"

namespace demo {

inline std::string base64(std::span<std::uint8_t const> from) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < from.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t i = at; i < at + 3; ++i) three = three << 8 | (i < from.size() ? from[i] : 0U);
    for (unsigned i = 0; i < 4; ++i) text += at + i > from.size() ? '=' : digits[three >> (18 - 6 * i) & 63];
  }
  return text;
}

inline std::string html_escaped(std::string_view text) {
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

inline std::string about_line(options const& with) {
  return fmt::format("tinylm, prompts of {} bytes, {} recall questions, {} stretches of {} bytes{}; kvpolicy {}",
                     with.context, with.cases, with.windows, with.length,
                     with.text.empty() ? std::string() : " of " + std::filesystem::path(with.text).filename().string(),
                     kvpolicy::version);
}

/// The table in HTML: the rows of its head, then those of its body.
inline std::string html_table(run const& all, int lanes) {
  std::string html = "<thead><tr>";
  for (column const& one : columns()) {
    std::string const unit = one.unit.empty() ? "" : fmt::format(" <small>{}</small>", one.unit);
    std::string_view const name = one.name;
    html += fmt::format("<th scope=\"col\">{}{}</th>", name.substr(0, name.find(':')), unit);
  }
  html += "</tr></thead>\n<tbody>\n";
  for (std::size_t e = 0; e < all.rows().size(); ++e) {
    char const* tag = "th scope=\"row\"";
    html += "<tr>";
    for (std::string const& text : cells(all.rows()[e], lanes)) {
      html += fmt::format("<{}>{}</{}>", tag, html_escaped(text), std::string_view(tag, 2));
      tag = "td";
    }
    html += "</tr>\n";
  }
  return html + "</tbody>";
}

/// A row's figures as JSON; null for a figure that was not measured.
inline nlohmann::json json_of(row const& one, std::string const& spelt, int lanes) {
  auto const if_any = [](std::int64_t count, double value) { return count > 0 ? nlohmann::json(value) : nullptr; };
  return {{"policy", one.policy},
          {"budget", one.budget_name()},
          {"share", one.share},
          {"tokens", one.budget},
          {"spelt", spelt},
          {"bits", if_any(one.continued, one.bits_per_byte())},
          {"inside", if_any(one.asked, one.recall_inside())},
          {"later", if_any(one.asked, one.recall_later())},
          {"agree", if_any(one.compared, one.agreement())},
          {"entries", if_any(one.measured, one.entries_per_lane(lanes))}};
}

inline nlohmann::json json_of(mapped_prompt const& one) {
  std::vector<std::string> kept;
  for (bytes const& map : one.kept) kept.push_back(base64(map));
  return {{"text", base64(one.text)},
          {"facts", one.about.facts},
          {"fact_bytes", task_maker::fact_bytes},
          {"asked", one.about.asked},
          {"question_bytes", one.about.question.size()},
          {"right", one.right},
          {"kept", kept}};
}

inline void write_report(kv::atomic_file& to, options const& with, kv::shape const& model, run const& all) {
  int const lanes = model.layers * model.kv_heads;
  nlohmann::json data{{"layers", model.layers},
                      {"heads", model.kv_heads},
                      {"rows", nlohmann::json::array()},
                      {"prompts", nlohmann::json::array()}};
  for (std::size_t e = 0; e < all.rows().size(); ++e) {
    data["rows"].push_back(json_of(all.rows()[e], all.spell(e), lanes));
  }
  for (mapped_prompt const& one : all.maps()) data["prompts"].push_back(json_of(one));
  std::string const html = filled(report_page, [&](std::string_view name) {
    if (name == "about") return html_escaped(about_line(with));
    return name == "table" ? html_table(all, lanes) : script_json(data);
  });
  to.append(html.data(), html.size());
}

}  // namespace demo
