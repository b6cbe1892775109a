// SPDX-License-Identifier: Apache-2.0
// The report: the page of what each row of the table kept of some texts, with the table itself.
#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <kvpolicy/io/atomic_file.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "../keep_map/page.hpp"
#include "options.hpp"
#include "run.hpp"

namespace demo {

inline std::string const& page_name(row const& one) { return one.title.empty() ? one.policy : one.title; }

/// The table in HTML: the rows of its head, then those of its body.
inline std::string html_table(run const& all, int lanes) {
  std::string html = "<thead><tr>";
  for (column const& one : columns()) {
    std::string const unit = one.unit.empty() ? "" : fmt::format(" <small>{}</small>", one.unit);
    std::string_view const name = one.name;
    html += fmt::format("<th scope=\"col\">{}{}</th>", name.substr(0, name.find(':')), unit);
  }
  html += "</tr></thead>\n<tbody>\n";
  for (row const& one : all.rows()) {
    std::vector<std::string> text = cells(one, lanes);
    text.front() = page_name(one);
    html += one.share > 1 && !one.own ? fmt::format("<tr data-budget=\"{}\">", one.budget_name()) : "<tr>";
    char const* tag = "th scope=\"row\"";
    for (std::string const& each : text) {
      html += fmt::format("<{}>{}</{}>", tag, keep_map::html_escaped(each), std::string_view(tag, 2));
      tag = "td";
    }
    html += "</tr>\n";
  }
  return html + "</tbody>";
}

inline nlohmann::json json_of(row const& one, std::string const& spelt) {
  return {{"policy", page_name(one)},
          {"budget", one.budget_name()},
          {"tokens", one.share > 1 && !one.own ? one.budget : 0},
          {"spelt", spelt}};
}

inline nlohmann::json json_of(mapped_row const& one) {
  nlohmann::json made = one.held.json();
  if (!one.right) return made;
  made["said"] = keep_map::base64(std::span(one.said).first(one.said.size() - 1));  // the last byte is no entry
  made["answer"] = {{"said", std::string(one.said.begin(), one.said.end())}, {"right", *one.right}};
  return made;
}

inline nlohmann::json json_of(mapped_text const& one) {
  nlohmann::json made{{"name", one.name},
                      {"length", one.entries()},
                      {"bytes", keep_map::base64(one.text)},
                      {"arrived", nlohmann::json::array()},
                      {"spans", nlohmann::json::array()},
                      {"rows", nlohmann::json::array()}};
  for (int step = 0; step <= one.steps; ++step) made["arrived"].push_back(one.prompt + step);
  for (text_span const& span : one.spans) {
    made["spans"].push_back({{"begin", span.begin}, {"end", span.end}, {"kind", span.kind}, {"name", span.name}});
    if (span.kind == "asked") made["spans"].back()["value"] = {one.value, span.end};
  }
  for (mapped_row const& row : one.rows) made["rows"].push_back(json_of(row));
  return made;
}

inline keep_map::page page_of(options const& with, kv::shape const& model, run const& all) {
  keep_map::page made{
      .title = "What KV-cache policies keep",
      .sentence =
          "A small decoder reads a text in which each character is one entry of every lane (a KV head of a layer); the "
          "darker a character, the more lanes still hold it after a policy has decided what to keep.",
      .made = {{"model", fmt::format("tinylm, prompts of {} bytes", with.context)},
               {"text", with.text.empty() ? "held out from its training"
                                          : std::filesystem::path(with.text).filename().string()}},
      .docs = with.docs,
      .numbers = fmt::format(
          "Recall is the share of right answers to {} questions about a fact in the prompt, with the 95 % Wilson "
          "interval in "
          "percent: “in prompt” with the question at the end of the prompt, so that a policy sees it before it "
          "decides, and "
          "“later” with a question that comes after the decision. Bits per byte are the model's on {} stretches of {} "
          "bytes "
          "that follow other prompts; lower is better. “Greedy” is how often the most probable next byte is the full "
          "cache's.",
          with.cases, with.windows, with.length),
      .table = html_table(all, model.layers * model.kv_heads),
      .data = {{"layers", model.layers},
               {"heads", model.kv_heads},
               {"entry", "character"},
               {"rows", nlohmann::json::array()},
               {"texts", nlohmann::json::array()}}};
  if (with.layout != "compact") made.made.push_back({"layout", with.layout});
  for (std::size_t e = 0; e < all.rows().size(); ++e) {
    made.data["rows"].push_back(json_of(all.rows()[e], all.spell(e)));
  }
  for (mapped_text const& one : all.maps()) made.data["texts"].push_back(json_of(one));
  return made;
}

inline void write_report(kv::atomic_file& to, options const& with, kv::shape const& model, run const& all) {
  std::string const html = keep_map::html_of(page_of(with, model, all));
  to.append(html.data(), html.size());
}

}  // namespace demo
