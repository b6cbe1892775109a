// The signals of a trace by which a selection scores pages.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"
#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// `page_signals<Scorer>(with, of, scorer)` checks that a trace has the signals of a scorer of pages; `in(cache)` gives
/// them for the cache's layers.
template <class Scorer>
class page_signals;

/// The keys, and the last query row, which is the only one that Quest needs.
template <>
class page_signals<kv::quest> {
 public:
  page_signals(options const& with, trace& of, kv::quest const&)
      : from_(of.queries ? &of.queries : &of.recent_queries), trace_(of) {
    bool const given[] = {static_cast<bool>(of.keys), static_cast<bool>(*from_)};
    for (int i = 0; i < 2; ++i) {
      kv::expects(given[i], "kvreplay", "trace", i == 0 ? "without keys" : "without queries",
                  [&] { return with.policy + " needs signal " + (i == 0 ? "keys" : "queries"); });
    }
    auto const rows = static_cast<int>(from_->shape[2]);
    check_rows(*from_, rows - 1, rows);
  }
  [[nodiscard]] auto in(kv::cache const& batch) const {
    return kv::signals{batch.lanes, kv::keys_of(batch), last_row()};
  }

 private:
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

  array const* from_;
  trace const& trace_;
};

/// The tensor `page_gate.NAME` in float32.
template <>
class page_signals<kv::page_gates> {
 public:
  page_signals(options const&, trace& of, kv::page_gates const& scorer) : page_(scorer.page) {
    std::string const name = scorer.of.text;
    auto const found = of.page_gate.find(name);
    if (found == of.page_gate.end()) refuse("page_gate." + name, "missing", "page_gates ranks pages by it: name=");
    array const& gates = found->second;
    pages_ = static_cast<int>(gates.shape[2]);
    int const wanted = (of.entries() - 1) / page_ + 1;
    if (pages_ != wanted) {
      refuse("page_gate." + name, std::to_string(pages_) + " pages",
             std::to_string(of.entries()) + " entries are " + std::to_string(wanted) + " pages of " +
                 std::to_string(page_));
    }
    heads_ = of.shape().kv_heads;
    values_.resize(size(gates.count()));
    for (std::int64_t i = 0; i < gates.count(); ++i) values_[size(i)] = gates.value(i);
  }
  [[nodiscard]] auto in(kv::cache const& batch) const {
    std::int64_t const row = pages_;
    return kv::signals{batch.lanes,
                       kv::page_gate{.score = {values_.data(), 0, row * heads_, row}, .page = page_, .pages = pages_}};
  }

 private:
  std::vector<float> values_;  ///< [lanes][pages]
  int page_;
  int pages_ = 0;
  int heads_ = 0;
};

}  // namespace kvreplay
