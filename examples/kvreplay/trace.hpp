// SPDX-License-Identifier: Apache-2.0
// A recorded trace: a safetensors file whose tensors are checked against each other.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>

#include "tensors.hpp"

namespace kvreplay {

/// The tensors of a trace, and the shape of the model, which follows from them.
class trace {
 public:
  /// Reads all layers, or a list of them as a trace of its own.
  explicit trace(std::string const& path, std::vector<int> layers = {}) : from_(path, std::move(layers)) {
    keys = from_.read("keys", "LKND");
    values = from_.read("values", "LKNV");
    pre_rope_keys = from_.read("pre_rope_keys", "LKND");
    pre_rope_queries = from_.read("pre_rope_queries", "LQND");
    queries = from_.read("queries", "LQND");
    recent_queries = from_.read("recent_queries", "LQWD");
    query_rows = from_.read("query_rows", "LQRD");
    query_keys = from_.read("query_keys", "LKRD");
    query_hidden_norm = from_.read("query_hidden_norm", "LR");
    query_mean = from_.read("query_model.mean", "LQD");
    query_radius = from_.read("query_model.radius", "LQP");
    output_projection = from_.read("output_projection", "LEO");
    value_norms = from_.read("value_norms", "LKN");
    query_square = from_.read("query_model.square", "LQDD");
    attention_mass = from_.read("attention_mass", "LhN");
    row_lse = from_.read("row_lse", "LQW");
    sink_logits = from_.read("sink_logits", "LQ");
    log_beta = from_.read("log_beta", "LKN");
    gate = from_.read("gate", "LKN");
    query_lse = from_.read("query_lse", "LQR");
    layer_group = from_.read_integers("layer_group", "L");
    query_positions = from_.read_integers("query_positions", "R");
    row_begin = from_.read_integers("row_begin", "R");
    row_end = from_.read_integers("row_end", "R");
    positions = from_.read_integers("positions", "N");
    token_ids = from_.read_integers("token_ids", "N");
    turn_end = from_.read_integers("turn_end", "T");
    span_begin = from_.read_integers("span_begin", "T");
    span_end = from_.read_integers("span_end", "T");
    stale_begin = from_.read_integers("stale_begin", "s");
    stale_end = from_.read_integers("stale_end", "s");
    token_class = from_.read_integers("token_class", "N");
    prompt_end = from_.read_integers("prompt_end", from_.axes("prompt_end") == 0 ? "" : "e");
    for (auto const& [name, tensor] : from_.file().tensors()) {
      if (name.rfind("external.", 0) == 0) {
        external[name.substr(9)] = from_.read(name, tensor.shape.size() == 1 ? "N" : "LKN");
      }
      if (name.rfind("table.", 0) == 0) {
        std::size_t const axes = tensor.shape.size();
        bool const rows =
            axes == 3 && (keys ? keys.shape[0] == static_cast<std::int64_t>(tensor.shape[0]) : tensor.shape[0] != 99);
        bool const of_queries = axes == 2 && static_cast<int>(tensor.shape[1]) != from_.bound('K', 0) &&
                                from_.bound('Q', 0) > 0 && static_cast<int>(tensor.shape[1]) == from_.bound('Q', 0);
        bool const sketch = name == "table.sketch";
        table[name.substr(6)] = from_.read(name, sketch && axes == 2   ? "DS"
                                                 : sketch && axes == 4 ? "LKDS"
                                                 : axes == 1           ? "L"
                                                 : of_queries          ? "LQ"
                                                 : axes == 2           ? "LK"
                                                 : rows                ? "LKD"
                                                                       : "xLK");
      }
      if (name.rfind("birth.", 0) == 0)
        birth[name.substr(6)] = from_.read(name, tensor.shape.size() == 1 ? "N" : "LKN");
      if (name.rfind("page_gate.", 0) == 0) page_gate[name.substr(10)] = from_.read(name, "LKh");
    }
    settle();
    check_residual();
    check_pairs();
    check_positions();
    check_turns();
    check_stale();
    check_row_spans();
    check_tokens();
    check_launch_config();
    read_rope();
    read_logits();
  }

  [[nodiscard]] kv::shape const& shape() const { return shape_; }
  [[nodiscard]] int entries() const { return entries_; }
  [[nodiscard]] int value_dim() const { return shape_.value_dim != 0 ? shape_.value_dim : shape_.head_dim; }
  [[nodiscard]] safetensors const& file() const { return from_.file(); }
  /// True if the metadata says how keys were rotated. Otherwise `rope()` is not valid.
  [[nodiscard]] bool names_rope() const { return rope_.frequency || file().all_metadata().contains("rope_theta"); }
  [[nodiscard]] kv::rope const& rope() const { return rope_; }

  /// How the model makes logits of queries and keys.
  [[nodiscard]] kv::logit_options const& logits() const { return logits_; }

  /// Gives back the memory of the i-th part of an array along its first axis, which will not be read again. Written
  /// pages of the mapped file are private copies until then.
  static void release(array const& of, std::int64_t i) {
    if (!of || !of.mapped) return;
    auto const page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    auto const begin = reinterpret_cast<std::uintptr_t>(of.data + i * of.stride(0));
    std::uintptr_t const first = (begin + page - 1) / page * page;
    std::uintptr_t const last = (begin + static_cast<std::uintptr_t>(of.stride(0))) / page * page;
    if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

  /// The residual head in the trace, or an empty one.
  [[nodiscard]] kv::residual_head residual() const {
    if (weights_.empty()) return {};
    return kv::residual_head::named(shape_.head_dim, from_.bound('c', 0), from_.bound('f', 0), [&](char const* name) {
      return weights_.at(std::string("residual.") + name).data();
    });
  }

  array keys, values, pre_rope_keys, pre_rope_queries, queries, recent_queries, query_rows, query_keys,
      query_hidden_norm, query_mean, query_radius, query_square, output_projection, value_norms, attention_mass,
      row_lse, sink_logits, log_beta, gate, query_lse;
  std::map<std::string, array> external, birth, table, page_gate;
  std::vector<int> layer_group;  ///< of all layers of the file
  std::vector<int> query_positions, row_begin, row_end, positions, token_ids, turn_end, span_begin, span_end,
      stale_begin, stale_end, token_class, prompt_end;

 private:
  /// Computes and checks everything that follows from several tensors.
  void settle() {
    kv::expects(from_.bound('N'), "kvreplay", "trace", "without entries",
                "keys, positions or another tensor over the entries says how many there are");
    entries_ = from_.bound('N', 0);
    int const heads = from_.bound('K', from_.bound('Q', 1));
    shape_ = {from_.layers(), from_.bound('Q', heads), heads, from_.bound('D', 1),
              from_.bound('V', from_.bound('D', 1))};
    if (shape_.query_heads % shape_.kv_heads != 0) {
      refuse(from_.bound_by('Q'), std::to_string(shape_.query_heads) + " query heads",
             "they are a multiple of " + std::to_string(shape_.kv_heads) + " KV heads");
    }
    settle_mass();
    settle_projection();
    if (from_.bound('W', 0) > entries_) {
      refuse(from_.bound_by('W'), std::to_string(from_.bound('W', 0)) + " rows",
             "there are " + std::to_string(entries_) + " entries");
    }
  }

  /// Decides whether an attention mass is one of query heads or of KV heads. If no other tensor has the number of
  /// heads, the mass determines it.
  void settle_mass() {
    if (!attention_mass) return;
    auto const heads = static_cast<int>(attention_mass.shape[1]);
    if (!from_.bound('K') && !from_.bound('Q')) shape_.query_heads = shape_.kv_heads = heads;
    if (!from_.bound('Q') && heads % shape_.kv_heads == 0) shape_.query_heads = heads;
    if (heads != shape_.kv_heads && heads != shape_.query_heads) {
      refuse("attention_mass", std::to_string(heads) + " heads",
             "the trace has " + std::to_string(shape_.query_heads) + " query heads and " +
                 std::to_string(shape_.kv_heads) + " KV heads");
    }
  }

  /// Checks the columns of the output projection: those of all query heads, whose number it determines if no other
  /// tensor does.
  void settle_projection() {
    if (!output_projection) return;
    std::int64_t const columns = output_projection.shape[2];
    bool const heads_known = from_.bound('Q') || attention_mass;
    if (!heads_known && columns % (std::int64_t{value_dim()} * shape_.kv_heads) == 0) {
      shape_.query_heads = static_cast<int>(columns / value_dim());
    }
    if (columns != std::int64_t{shape_.query_heads} * value_dim()) {
      refuse("output_projection", std::to_string(columns) + " columns",
             "there are " + std::to_string(shape_.query_heads) + " query heads and values of " +
                 std::to_string(value_dim()) + " channels");
    }
  }

  /// Checks that the weights of the residual head fit each other and the head size.
  void check_residual() {
    static constexpr std::array<std::pair<char const*, char const*>, 10> sizes{{{"w_q.weight", "cp"},
                                                                                {"w_q.bias", "c"},
                                                                                {"w_k.weight", "cD"},
                                                                                {"w_k.bias", "c"},
                                                                                {"w_v.weight", "cD"},
                                                                                {"w_v.bias", "c"},
                                                                                {"fc1.weight", "fj"},
                                                                                {"fc1.bias", "f"},
                                                                                {"fc2.weight", "of"},
                                                                                {"fc2.bias", "o"}}};
    bool any = from_.has("residual.alpha");
    for (auto const& [name, letters] : sizes) any = any || from_.has(std::string("residual.") + name);
    if (!any) return;
    for (auto const& [name, letters] : sizes) read_residual(std::string("residual.") + name, letters);
    std::int64_t const phi = 3 * std::int64_t{shape_.head_dim} + 1;
    check_extent("residual.w_q.weight", 'p', phi, "3 D + 1");
    check_extent("residual.fc1.weight", 'j', phi + from_.bound('c', 0), "3 D + 1 + d_c");
    check_extent("residual.fc2.weight", 'o', 1, "one score");
    bool const scalar = from_.has("residual.alpha") && from_.file().tensors().at("residual.alpha").shape.empty();
    read_residual("residual.alpha", scalar ? "" : "a");
    if (!scalar) check_extent("residual.alpha", 'a', 1, "one number");
  }

  void read_residual(std::string const& name, std::string const& letters) {
    if (!from_.has(name)) refuse(name, "missing", "the residual head has eleven tensors");
    array const weights = from_.read(name, letters);
    check_finite(name, weights);
    for (std::int64_t i = 0; i < weights.count(); ++i) weights_[name].push_back(weights.value(i));
  }

  void check_extent(std::string const& name, char letter, std::int64_t wanted, std::string const& why) const {
    if (from_.bound(letter, 0) == wanted) return;
    refuse(name, std::to_string(from_.bound(letter, 0)) + " columns", "it has " + std::to_string(wanted) + ", " + why);
  }

  /// Checks tensors that need another tensor.
  void check_pairs() const {
    for (auto const& [one, other] : {std::pair{"query_rows", "query_positions"},
                                     {"query_positions", "query_rows"},
                                     {"query_keys", "query_rows"},
                                     {"query_hidden_norm", "query_rows"},
                                     {"row_begin", "row_end"},
                                     {"row_end", "row_begin"},
                                     {"row_begin", "query_rows"},
                                     {"span_begin", "span_end"},
                                     {"span_end", "span_begin"},
                                     {"span_begin", "turn_end"}}) {
      if (from_.has(one) && !from_.has(other)) refuse(other, "missing", std::string("there is a ") + one);
    }
  }

  void check_positions() {
    for (int i = 0; !from_.has("positions") && i < entries_; ++i) positions.push_back(i);
    for (std::size_t i = 1; i < positions.size(); ++i) {
      if (positions[i] <= positions[i - 1]) {
        refuse("positions", std::to_string(positions[i]),
               "they ascend, and the one before is " + std::to_string(positions[i - 1]));
      }
    }
    if (!positions.empty() && positions.back() == std::numeric_limits<int>::max()) {
      refuse("positions", std::to_string(positions.back()), "the one after it has to be a number of 32 bits too");
    }
  }

  void check_turns() const {
    for (std::size_t t = 0; t < turn_end.size(); ++t) {
      int const before = t == 0 ? 0 : turn_end[t - 1];
      if (turn_end[t] <= before || turn_end[t] > entries_) {
        refuse("turn_end", std::to_string(turn_end[t]),
               "turns end after " + std::to_string(before) + " and at most at " + std::to_string(entries_));
      }
      if (span_begin.empty() || span_end.empty()) continue;
      if (span_begin[t] > turn_end[t]) {
        refuse("span_begin", std::to_string(span_begin[t]),
               "a span begins within its turn, which ends at " + std::to_string(turn_end[t]));
      }
      if (span_end[t] < span_begin[t] || span_end[t] > turn_end[t]) {
        refuse("span_end", std::to_string(span_end[t]),
               "a span ends after its begin, " + std::to_string(span_begin[t]) + ", and within its turn");
      }
    }
  }

  /// Checks that stale spans have both ends.
  void check_stale() const {
    if (stale_begin.size() != stale_end.size()) {
      refuse(stale_begin.empty() ? "stale_begin" : "stale_end", "missing", "a stale span has a begin and an end");
    }
    for (std::size_t i = 0; i < stale_begin.size(); ++i) {
      if (stale_end[i] < stale_begin[i]) {
        refuse("stale_end", std::to_string(stale_end[i]),
               "a span ends after its begin, " + std::to_string(stale_begin[i]));
      }
    }
  }

  /// Checks which entries external rows are about.
  void check_row_spans() const {
    for (std::size_t i = 0; i < row_begin.size(); ++i) {
      if (row_end[i] < row_begin[i] || row_end[i] > entries_) {
        refuse("row_end", std::to_string(row_end[i]),
               "a row is about entries from its begin, " + std::to_string(row_begin[i]) + ", up to at most " +
                   std::to_string(entries_));
      }
    }
  }

  /// Checks where the prompt ends, and the classes of tokens.
  void check_tokens() const {
    if (prompt_end.size() > 1) refuse("prompt_end", std::to_string(prompt_end.size()) + " numbers", "it is one");
    for (int const end : prompt_end) {
      if (end > entries())
        refuse("prompt_end", std::to_string(end), "the trace has " + std::to_string(entries()) + " entries");
    }
    for (int const each : token_class) {
      if (each > 31) refuse("token_class", std::to_string(each), "there are 32 classes, 0 to 31");
    }
  }

  /// Checks that computed numbers are finite. Keys, values, gates and external scores may be NaN, which shows in the
  /// scores and is counted there. Queries are checked when they are read.
  void check_launch_config() const {
    check_finite("recent_queries", recent_queries);
    check_finite("query_rows", query_rows);
    check_finite("query_keys", query_keys);
    check_finite("query_model.mean", query_mean);
    check_finite("query_model.radius", query_radius);
    check_finite("output_projection", output_projection);
    check_finite("value_norms", value_norms);
    check_finite("query_model.square", query_square);
    check_finite("attention_mass", attention_mass);
    check_finite("row_lse", row_lse);
    check_finite("query_lse", query_lse);
    check_finite("log_beta", log_beta);
  }
  static void check_finite(std::string const& name, array const& of) {
    if (!of) return;
    std::int64_t const at = of.first_not_finite(0, of.count());
    if (at >= 0) refuse(name, kv::to_string(of.value(at)) + " at element " + std::to_string(at), "it is finite");
  }

  void read_rope() {
    auto const& known = file().all_metadata();
    if (auto const found = known.find("rope_theta"); found != known.end()) {
      bool const number = kv::detail::read_value(found->second, rope_.theta);
      kv::expects(number && std::isfinite(rope_.theta) && rope_.theta > 0, "kvreplay", "metadata rope_theta",
                  found->second, "it is a positive number");
    }
    if (auto const found = known.find("rope_style"); found != known.end()) {
      kv::expects(kv::detail::read_value(found->second, rope_.style), "kvreplay", "metadata rope_style", found->second,
                  "it is neox or gptj");
    }
    if (auto const found = known.find("rope_frequencies"); found != known.end()) read_frequencies(found->second);
  }

  /// Reads numbers that are separated by commas, blanks or both, with or without brackets.
  void read_frequencies(std::string const& text) {
    static constexpr char const* what = "metadata rope_frequencies";
    static constexpr char const* between = ", \t\r\n[]";
    for (std::size_t at = text.find_first_not_of(between); at != std::string::npos;) {
      std::size_t const end = std::min(text.find_first_of(between, at), text.size());
      std::string_view const word = std::string_view(text).substr(at, end - at);
      double each = 0;
      kv::expects(kv::detail::read_value(word, each) && each >= 0, "kvreplay", what, word,
                  "frequencies are numbers of radians per position, 0 or more");
      frequencies_.push_back(each);
      at = text.find_first_not_of(between, end);
    }
    int const dims = shape_.head_dim;
    auto const pairs = static_cast<int>(frequencies_.size());
    kv::expects(pairs > 0 && (!from_.bound('D') || 2 * pairs == dims), "kvreplay", what,
                std::to_string(pairs) + " numbers",
                [&] { return "each pair of a key's " + std::to_string(dims) + " channels has one"; });
    rope_.frequency = frequencies_.data();
  }

  /// A number of the metadata, as a float, or none if it is absent.
  [[nodiscard]] std::optional<float> metadata_number(char const* name, bool or_zero) const {
    auto const found = file().all_metadata().find(name);
    if (found == file().all_metadata().end()) return {};
    double read = 0;
    bool const number = kv::detail::read_value(found->second, read);
    auto const made = static_cast<float>(read);
    kv::expects(number && std::isfinite(made) && (made > 0 || (or_zero && made == 0)), "kvreplay",
                std::string("metadata ") + name, found->second,
                or_zero ? "it is a positive number, or 0 for none" : "it is a positive number");
    return made;
  }

  /// Reads the scale and the cap of logits, and copies the sinks.
  void read_logits() {
    logits_.scale = metadata_number("attention_scale", false);
    logits_.soft_cap = metadata_number("logit_cap", true).value_or(0.0f);
    if (!sink_logits) return;
    for (std::int64_t i = 0; i < sink_logits.count(); ++i) {
      float const sink = sink_logits.value(i);
      if (!(sink < std::numeric_limits<float>::infinity())) {
        refuse("sink_logits", kv::to_string(sink) + " at element " + std::to_string(i),
               "it is a number, or -inf for a head without a sink");
      }
      sinks_.push_back(sink);
    }
    logits_.sinks = {sinks_.data(), shape_.query_heads};
  }

  tensors from_;
  kv::logit_options logits_{};
  std::vector<float> sinks_;  ///< the sinks to which `logits_` points
  kv::rope rope_{};
  std::vector<double> frequencies_;                    ///< the frequencies to which `rope_` points
  std::map<std::string, std::vector<float>> weights_;  ///< the weights of the residual head
  kv::shape shape_{};
  int entries_ = 0;
};

}  // namespace kvreplay
