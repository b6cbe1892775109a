// SPDX-License-Identifier: Apache-2.0
// What a sequence may do with the pool: take blocks, share them, write to them, and give them back.
#pragma once

#include "held_memory.hpp"
#include "sequence.hpp"

namespace serving {

/// The pool, the prefix cache and the tables, which change together.
class memory {
 public:
  memory(executor& exec, kv::shape const& model, int blocks, slot_sizes const& slots, bool with_log_betas)
      : exec_(&exec), pool_(model, blocks, with_log_betas), prefixes_(pool_), tables_(pool_, slots) {}
  memory(memory const&) = delete;  // its parts point to each other
  memory& operator=(memory const&) = delete;

  [[nodiscard]] block_pool& pool() { return pool_; }
  [[nodiscard]] prefix_cache& prefixes() { return prefixes_; }
  [[nodiscard]] slot_tables& tables() { return tables_; }
  /// The view of all slots of a kind, and that of a sequence as a batch of one.
  [[nodiscard]] kv::cache view(width kind) { return tables_.view(kind); }
  [[nodiscard]] kv::cache view(sequence const& of) {
    return kv::only(tables_.view(of.kind), {.slots = &of.slot, .size = 1});
  }
  [[nodiscard]] int entries(sequence const& of) const { return tables_.entries(of.kind, of.slot); }
  [[nodiscard]] int copies() const { return copies_; }
  [[nodiscard]] std::int64_t block_bytes() const { return pool_.block_bytes(); }
  /// The blocks that requests could take now: those that are free, and those that only the prefix cache references.
  [[nodiscard]] int obtainable() const { return pool_.available() + pool_.idle(); }

  void count(held_memory& into) const {
    into.rows += pool_.rows_bytes();
    into.numbers += pool_.log_betas_bytes();
    into.counters += pool_.counters_bytes() + prefixes_.most_bytes();
    into.tables += tables_.bytes();
  }

  /// Gives a sequence a slot.
  void open(sequence& of, width kind) {
    of.kind = kind;
    of.slot = tables_.take(kind, of.seed());
  }
  /// Gives a sequence a narrow slot in place of its wide one. The caller brings its entries there.
  void narrow(sequence& of) {
    tables_.give(of.kind, of.slot);
    open(of, width::narrow);
    write_blocks(of);
  }

  /// Gives a sequence the cached blocks of the first `tokens` tokens of its text, and returns how many tokens they
  /// have. They are not in the counts yet.
  int find_prefix(sequence& of, int tokens) {
    auto found = prefixes_.match(of.text, tokens);
    of.blocks = std::move(found.blocks);
    of.locked = found.locked;
    write_blocks(of);
    return static_cast<int>(of.blocks.size()) * block_pool::block_tokens;
  }

  /// Gets a sequence the blocks for `tokens` more entries, and `spares` more blocks. A block that is shared is copied
  /// before anything is written to it. Returns false, and changes nothing but the prefix cache, if the pool has too
  /// few.
  [[nodiscard]] bool reserve(sequence& of, int tokens, int spares) {
    int const held = static_cast<int>(of.blocks.size());
    int const wanted = std::max(held, blocks_for(entries(of) + tokens));
    int const first = entries(of) / block_pool::block_tokens;  // the block of the next entry
    int const missing = wanted - held + shared(of, first, held) + spares - static_cast<int>(of.spares.size());
    prefixes_.make_available(missing);
    if (pool_.available() < missing) return false;
    while (std::ssize(of.spares) < spares) of.spares.push_back(pool_.take());
    own(of, first, held);
    take(of, wanted);
    return true;
  }

  /// The number of shared blocks among [first, last) of a sequence.
  [[nodiscard]] int shared(sequence const& of, int first, int last) const {
    int count = 0;
    for (int i = first; i < std::min(last, static_cast<int>(of.blocks.size())); ++i) {
      count += pool_.is_shared(of.blocks[static_cast<std::size_t>(i)]) ? 1 : 0;
    }
    return count;
  }

  /// Gets a sequence blocks until it has so many. The pool must have obtainable ones.
  void take(sequence& of, int blocks) {
    prefixes_.make_available(blocks - static_cast<int>(of.blocks.size()));
    while (std::ssize(of.blocks) < blocks) of.blocks.push_back(pool_.take());
    write_blocks(of);
  }

  /// Makes the blocks [first, last) of a sequence its own: those that are shared are copied before anything is written
  /// to them. The copies take its spares first.
  void own(sequence& of, int first, int last) {
    int at = first;
    auto const replace = [&](int block) {
      int const index = at++;
      if (index >= last || !pool_.is_shared(block)) return block;
      bool const spare = !of.spares.empty();
      int const copy = spare ? of.spares.back() : pool_.take();
      if (spare) of.spares.pop_back();
      pool_.give(block);
      of.blocks[static_cast<std::size_t>(index)] = copy;
      return copy;
    };
    copies_ += kv::copy_on_write(*exec_, view(of.kind), tables_.table(of.kind), of.slot,
                                 first * block_pool::block_tokens, replace);
  }

  /// Gives back the blocks after the last entry, and the spares.
  void shrink(sequence& of) {
    while (std::ssize(of.blocks) > blocks_for(entries(of))) give_last(of.blocks);
    while (!of.spares.empty()) give_last(of.spares);
  }

  /// Puts the whole blocks of the text into the prefix cache.
  void publish(sequence& of) {
    of.locked =
        prefixes_.publish(std::span(of.text).first(static_cast<std::size_t>(of.computed)), of.blocks, of.locked);
    write_blocks(of);
  }
  /// The sequence no longer reads its blocks of the prefix cache.
  void leave_prefix(sequence& of) {
    if (of.locked != nullptr) prefixes_.unlock(of.locked);
    of.locked = nullptr;
  }

  /// Gives a sequence a slot of the same kind and all blocks of another one.
  void share(sequence const& from, sequence& to) {
    open(to, from.kind);
    to.blocks = from.blocks;
    for (int const block : to.blocks) pool_.share(block);
    to.locked = from.locked;
    if (to.locked != nullptr) prefixes_.lock(to.locked);
    write_blocks(to);
  }

  /// Gives everything back.
  void close(sequence& of) {
    while (!of.blocks.empty()) give_last(of.blocks);
    while (!of.spares.empty()) give_last(of.spares);
    leave_prefix(of);
    tables_.give(of.kind, of.slot);
    of.slot = -1;
  }

 private:
  void write_blocks(sequence const& of) { tables_.write_blocks(of.kind, of.slot, of.blocks); }
  void give_last(std::vector<int>& blocks) {
    pool_.give(blocks.back());
    blocks.pop_back();
  }

  executor* exec_;
  block_pool pool_;
  prefix_cache prefixes_;
  slot_tables tables_;
  int copies_ = 0;
};

}  // namespace serving
