// SPDX-License-Identifier: Apache-2.0
// The page of a replay: which entries of the trace every lane held, step by step (--html).
#pragma once

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "../keep_map/history.hpp"
#include "options.hpp"
#include "report.hpp"
#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// The text of each entry, if the metadata `token_texts` of the trace hold them: a JSON list of N strings.
[[nodiscard]] inline std::vector<std::string> token_texts(trace const& of) {
  auto const found = of.file().all_metadata().find("token_texts");
  if (found == of.file().all_metadata().end()) return {};
  nlohmann::json const all = nlohmann::json::parse(found->second, nullptr, false);
  bool const strings =
      all.is_array() && std::all_of(all.begin(), all.end(), [](auto const& one) { return one.is_string(); });
  kv::expects(strings, "kvreplay", "metadata token_texts", found->second.substr(0, 40), "it is a JSON list of strings");
  kv::expects(std::ssize(all) == of.entries(), "kvreplay", "metadata token_texts",
              std::to_string(all.size()) + " strings",
              [&] { return "the trace has " + std::to_string(of.entries()) + " entries"; });
  return all.get<std::vector<std::string>>();
}

/// The steps of a replay, and what they dropped. Step 0 is the first decision.
class replayed_steps {
 public:
  replayed_steps(options const& with, trace const& of, results const& found)
      : with_(with), trace_(of), found_(found), made_(found.segments, of.entries()) {
    if (with.how == mode::turns) {
      by_turns();
    } else if (with.how == mode::decode || with.how == mode::chunks) {
      by_events();
    } else {
      arrived_ = {of.entries()};
      made_.begin(listed(found.keep, 0), of.entries());
    }
  }

  [[nodiscard]] nlohmann::json row() const { return made_.json(); }
  [[nodiscard]] std::vector<int> const& arrived() const { return arrived_; }

  /// Words for each step; none where the newest entry says enough.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (std::size_t i = 0; with_.how == mode::turns && i < arrived_.size(); ++i) {
      all.push_back(fmt::format("after turn {}", i + 1));
    }
    for (std::size_t i = 0; with_.how == mode::chunks && i < arrived_.size(); ++i) {
      all.push_back(fmt::format("after {} entries", arrived_[i]));
    }
    return all;
  }

 private:
  /// The lists of all segments, from list `first` on.
  [[nodiscard]] keep_map::bitmap listed(ragged const& from, std::size_t first) const {
    keep_map::bitmap made(found_.segments, trace_.entries());
    for (int s = 0; s < found_.segments; ++s) {
      for (std::int64_t i = from.offsets[first + size(s)]; i < from.offsets[first + size(s) + 1]; ++i) {
        made.set(s, static_cast<int>(from.ordinals[size(i)]));
      }
    }
    return made;
  }

  void by_turns() {
    keep_map::watched_history watched(found_.segments, trace_.entries());
    arrived_ = trace_.turn_end;
    for (std::size_t t = 0; t < arrived_.size(); ++t) {
      watched.look(listed(found_.turns, t * size(found_.segments)), arrived_[t]);
    }
    made_ = watched.made();
  }

  /// The steps in which entries arrive: one by one after the prompt, or in chunks.
  void find_steps() {
    int const entries = trace_.entries();
    std::set<int> ends{entries};
    if (with_.how == mode::decode) {
      for (int end = std::max(1, with_.prefill); end < entries; ++end) ends.insert(end);
    } else {
      for (int end = with_.chunk; end < entries; end += with_.chunk) ends.insert(end);
      for (std::size_t i = 0; i < found_.events.size(); i += 3) ends.insert(static_cast<int>(found_.events[i]) + 1);
    }
    arrived_.assign(ends.begin(), ends.end());
  }

  /// An event of step t belongs to the first step at which t + 1 entries have arrived.
  void by_events() {
    find_steps();
    keep_map::bitmap first(found_.segments, trace_.entries());
    for (int s = 0; s < found_.segments; ++s) {
      for (int e = 0; e < arrived_.front(); ++e) first.set(s, e);
    }
    std::size_t next = 0;
    auto const each_until = [&](int arrived, auto const& visit) {
      for (; next < found_.events.size() && found_.events[next] < arrived; next += 3) {
        visit(static_cast<int>(found_.events[next + 1]), static_cast<int>(found_.events[next + 2]));
      }
    };
    each_until(arrived_.front(), [&](int segment, int entry) { first.clear(segment, entry); });
    made_.begin(std::move(first), arrived_.front());
    for (std::size_t step = 1; step < arrived_.size(); ++step) {
      each_until(arrived_[step], [&](int segment, int entry) { made_.drop(segment, entry); });
      made_.end_step();
    }
  }

  options const& with_;
  trace const& trace_;
  results const& found_;
  keep_map::history made_;
  std::vector<int> arrived_;
};

/// Writes the page. It appears under its name only when the run has succeeded.
class page_writer {
 public:
  page_writer(options const& with, trace const& of)
      : with_(with), trace_(of), texts_(token_texts(of)), file_(with.html, "kvreplay", "--html") {}

  void write(policy_text const& policy, results const& found) {
    std::string const html = keep_map::html_of(page_of(policy, found));
    file_->append(html.data(), html.size());
    file_->finish();
  }
  void commit() { file_->commit(); }

 private:
  [[nodiscard]] keep_map::page page_of(policy_text const& policy, results const& found) const {
    std::string const entry = texts_.empty() ? "entry" : "token";
    char const* const holds = with_.how == mode::select ? "reads" : "holds";
    std::string const trace_name = std::filesystem::path(with_.trace).filename().string();
    return {.title = fmt::format("What {} keeps of {}", with_.policy, trace_name),
            .sentence =
                fmt::format("Each cell is one {} of a recorded trace, in every lane (a KV head of a layer); the darker "
                            "it is, the more lanes still hold it after the policy has decided.",
                            entry),
            .made = {{"trace", trace_name}, {"mode", kv::to_string(with_.how)}, {"layout", with_.layout_name}},
            .docs = with_.docs,
            .numbers = fmt::format("How many of the {} entries each lane {} at the end, layer by layer.",
                                   trace_.entries(), holds),
            .table = table(found),
            .data = data(policy, found, entry)};
  }

  [[nodiscard]] nlohmann::json data(policy_text const& policy, results const& found, std::string const& entry) const {
    replayed_steps const steps(with_, trace_, found);
    nlohmann::json text{{"name", std::filesystem::path(with_.trace).filename().string()},
                        {"length", trace_.entries()},
                        {"spans", nlohmann::json::array()},
                        {"arrived", steps.arrived()},
                        {"rows", {steps.row()}}};
    if (!texts_.empty()) text["words"] = texts_;
    std::vector<int> const& positions = trace_.positions;
    if (!positions.empty() && positions.back() != trace_.entries() - 1) text["positions"] = positions;
    if (std::vector<std::string> const names = steps.names(); !names.empty()) text["steps"] = names;
    kv::shape const& model = trace_.shape();
    nlohmann::json made{
        {"layers", model.layers},
        {"heads", model.kv_heads},
        {"entry", entry},
        {"rows", {{{"policy", with_.policy}, {"budget", "all"}, {"tokens", 0}, {"spelt", policy.spec}}}},
        {"texts", {text}}};
    if (found.decides != kv::granularity::lane) {
      for (int lane = 0; lane < model.layers * model.kv_heads; ++lane) {
        made["segment"].push_back(found.segment_of(lane / model.kv_heads, lane % model.kv_heads, model.kv_heads));
      }
    }
    return made;
  }

  /// The numbers of entries that are left: a row for each layer, a column for each KV head.
  [[nodiscard]] std::string table(results const& found) const {
    kv::shape const& model = trace_.shape();
    std::string html = "<thead><tr><th scope=\"col\">layer</th>";
    for (int head = 0; head < model.kv_heads; ++head) html += fmt::format("<th scope=\"col\">head {}</th>", head);
    html += "</tr></thead>\n<tbody>\n";
    for (int layer = 0; layer < model.layers; ++layer) {
      html += fmt::format("<tr><th scope=\"row\">{}</th>", layer);
      for (int head = 0; head < model.kv_heads; ++head) {
        auto const segment = size(found.segment_of(layer, head, model.kv_heads));
        html += fmt::format("<td>{}</td>", found.keep.offsets[segment + 1] - found.keep.offsets[segment]);
      }
      html += "</tr>\n";
    }
    return html + "</tbody>";
  }

  options const& with_;
  trace const& trace_;
  std::vector<std::string> texts_;
  examples::output_file file_;
};

}  // namespace kvreplay
