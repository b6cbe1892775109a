// SPDX-License-Identifier: Apache-2.0
// The engine, and prompts that it reads with the full cache.
#include "engine.hpp"

#include <cstring>

namespace demo {
namespace {

/// The pool holds three sequences: a prompt with its question, one without, and a session that continues either.
constexpr int sequences = 4;

/// The layout for which the pool is cut. An applier of a plugin gets pages, or lists of slots if it takes them.
tinylm::layout layout_of(engine_options const& with) {
  if (with.own.there()) return with.own.takes_list() ? tinylm::layout::overwrite : tinylm::layout::compact;
  tinylm::layout lay{};
  kv::expects(kv::detail::read_value(with.layout, lay), "demo", "--layout", with.layout,
              "there are compact, list_rewrite, dead_slot, mask and overwrite");
  return lay;
}

int units_for(engine_options const& with, tinylm::pool_options const& cut, int lanes) {
  return sequences * (cut.whole_tokens ? 1 : lanes) * (with.bound / cut.unit_tokens + 1);
}

int lanes_of(model_files const& files) {
  kv::shape const shape = shape_of(files);
  return shape.layers * shape.kv_heads;
}

/// Copies the rows of every entry; both caches hold the same entries.
void copy_rows(kv::cache const& from, kv::cache const& to) {
  auto const row_bytes = static_cast<std::size_t>(from.k.channels) * sizeof(float);
  for (int i = 0; i < from.lanes.size(); ++i) {
    kv::lane const lane = from.lanes.at(i);
    for (int e = 0; e < from.lanes.committed(lane); ++e) {
      kv::place const source = from.where.at(lane, e);
      kv::place const target = to.where.at(lane, e);
      std::memcpy(to.k.row(lane.layer, target, lane.head), from.k.row(lane.layer, source, lane.head), row_bytes);
      std::memcpy(to.v.row(lane.layer, target, lane.head), from.v.row(lane.layer, source, lane.head), row_bytes);
    }
  }
}

}  // namespace

engine::engine(std::shared_ptr<model_files const> files, engine_options const& with)
    : files_(std::move(files)),
      with_(with),
      lay_(layout_of(with)),
      model_(files_->model()),
      exec_(with.threads),
      pool_(model_.about().shape(), units_for(with, tinylm::pool_for(lay_), lanes_of(*files_)),
            tinylm::pool_for(lay_)) {}

tinylm::kv_pool& engine::pool_of_tokens() {
  tinylm::pool_options const cut = tinylm::pool_for(tinylm::layout::dead_slot, true);
  if (!pool_of_tokens_) pool_of_tokens_.emplace(model_.about().shape(), units_for(with_, cut, 0), cut);
  return *pool_of_tokens_;
}

tinylm::prompt const& reading::whole_in_tokens(engine& on) {
  if (in_tokens_) return *in_tokens_;
  tinylm::prompt copy{.text = whole_.text,
                      .entries = tinylm::kv_sequence(on.pool_of_tokens(), on.bound()),
                      .queries = whole_.queries,
                      .logits = whole_.logits};
  int const tokens = static_cast<int>(whole_.text.size());
  copy.entries.reserve(tokens);
  kv::cache cache = copy.entries.view();
  auto state = kv::make_state(on.exec(), kv::policies::full(), cache);
  kv::append(on.exec(), cache, state, {.sequence = 0, .tokens = tokens, .position = 0, .in_flight = false});
  copy.entries.note(0, tokens);
  copy_rows(whole_.entries.view(), cache);
  return in_tokens_.emplace(std::move(copy));
}

std::shared_ptr<model_files const> read_model(std::string const& folder, trained_parts needed) {
  return std::make_shared<model_files const>(folder, needed);
}

kv::shape shape_of(model_files const& files) { return files.model().about.shape(); }

std::shared_ptr<engine> make_engine(std::shared_ptr<model_files const> files, engine_options const& with) {
  return std::make_shared<engine>(std::move(files), with);
}

bool is_layout(std::string const& name) {
  tinylm::layout lay{};
  return kv::detail::read_value(name, lay);
}

std::shared_ptr<reading> read_whole(engine& on, bytes const& text) { return std::make_shared<reading>(on, text); }

bytes greedy_text(engine& on, reading const& from, int length) {
  tinylm::session full(on.model(), on.exec(), from.whole(), kv::policies::full(),
                       {.bound = on.bound(), .lay = on.lay()});
  std::string const text = full.generate(length);
  return {text.begin(), text.end()};
}

contender full_cache() {
  contender full = contestant("full", tinylm::when::after_prefill, [](int) { return kv::policies::full(); });
  full.budgeted = false;
  return std::move(full).titled("full", "never: it keeps everything");
}

}  // namespace demo
