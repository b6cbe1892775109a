// SPDX-License-Identifier: Apache-2.0
// The signals of a trace by which a selection scores pages.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"
#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// The signals by which a scorer of pages reads a trace: keys and the last query row, or a number of each page.
class page_signals {
 public:
  page_signals(options const& with, trace& of, kv::basic_any_page_scorer<executor> const& scorer) : trace_(of) {
    std::vector<std::string> const names = scorer.signals();
    auto const reads = [&](char const* one) { return std::find(names.begin(), names.end(), one) != names.end(); };
    if (reads(kv::page_gate::name)) read_gates(scorer.field_text("name").value_or(""), scorer.page);
    if (reads(kv::keys::name)) expect(with, static_cast<bool>(of.keys), kv::keys::name);
    if (!reads(kv::queries::name)) return;
    from_ = of.queries ? &of.queries : &of.recent_queries;
    expect(with, static_cast<bool>(*from_), kv::queries::name);
    auto const rows = static_cast<int>(from_->shape[2]);
    check_rows(*from_, rows - 1, rows);
  }
  /// Those of some layers of the trace. They are valid until the next call.
  [[nodiscard]] kv::any_signals in(kv::cache const& batch) {
    kv::any_signals all(batch.lanes);
    if (trace_.keys) all.add(keys_ = kv::keys_of(batch));
    if (from_ != nullptr) all.add(queries_ = last_row());
    std::int64_t const row = pages_;
    if (pages_ > 0) all.add(gate_ = {.score = {values_.data(), 0, row * heads_, row}, .page = page_, .pages = pages_});
    return all;
  }

 private:
  static void expect(options const& with, bool given, std::string const& name) {
    kv::expects(given, "kvreplay", "trace", "without " + name, [&] { return with.policy + " needs signal " + name; });
  }
  /// Reads the tensor `page_gate.NAME` in float32.
  void read_gates(std::string const& name, int page) {
    page_ = page;
    auto const found = trace_.page_gate.find(name);
    if (found == trace_.page_gate.end()) refuse("page_gate." + name, "missing", "page_gates ranks pages by it: name=");
    array const& gates = found->second;
    pages_ = static_cast<int>(gates.shape[2]);
    int const wanted = (trace_.entries() - 1) / page_ + 1;
    if (pages_ != wanted) {
      refuse("page_gate." + name, std::to_string(pages_) + " pages",
             std::to_string(trace_.entries()) + " entries are " + std::to_string(wanted) + " pages of " +
                 std::to_string(page_));
    }
    heads_ = trace_.shape().kv_heads;
    values_.resize(size(gates.count()));
    for (std::int64_t i = 0; i < gates.count(); ++i) values_[size(i)] = gates.value(i);
  }
  [[nodiscard]] kv::queries last_row() const {
    return {{.base = from_->data + (from_->shape[2] - 1) * from_->stride(2),
             .element = from_->element,
             .dims = trace_.shape().head_dim,
             .layer = from_->stride(0),
             .head = from_->stride(1),
             .row = from_->stride(2),
             .heads = trace_.shape().query_heads,
             .rows = 1,
             .position = {&trace_.positions.back()}}};
  }

  trace const& trace_;
  array const* from_ = nullptr;
  std::vector<float> values_;  ///< [lanes][pages]
  int page_ = 0;
  int pages_ = 0;
  int heads_ = 0;
  kv::keys keys_;
  kv::queries queries_;
  kv::page_gate gate_;
};

}  // namespace kvreplay
