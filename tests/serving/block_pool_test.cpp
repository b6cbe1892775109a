// SPDX-License-Identifier: Apache-2.0
// The pool of blocks and the prefix cache: who references a block, and what is copied before it is written.

#include <serving/memory.hpp>

#include "support/test.hpp"

namespace {

using namespace serving;

constexpr kv::shape model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 2};

/// A text of so many blocks; each letter is a block.
bytes blocks_of(std::string_view letters) {
  bytes text;
  for (char const letter : letters)
    text.insert(text.end(), block_pool::block_tokens, static_cast<std::uint8_t>(letter));
  return text;
}

/// A memory, and a state for its slots.
struct fixture {
  kv::host_executor exec;
  memory held{exec, model, 12, {4, 160}, false};
  kv::state<kv::host_executor> state = kv::make_state(exec, kv::policies::full(), held.view(width::wide));

  /// A sequence that has read a text.
  sequence read(bytes const& text) {
    sequence of = begin(text);
    int const hit = held.find_prefix(of, static_cast<int>(text.size()));
    append(of, hit);
    REQUIRE(held.reserve(of, of.to_compute(), 0));
    append(of, of.to_compute());
    return of;
  }
  sequence begin(bytes const& text) {
    sequence of;
    of.from = std::make_shared<request const>();
    of.text = text;
    held.open(of, width::wide);
    kv::cache all = held.view(width::wide);
    kv::reset(exec, all, state, of.slot);
    return of;
  }
  void append(sequence& of, int tokens) {
    kv::cache in = held.view(of);
    kv::append(exec, in, state, {.tokens = tokens, .position = of.computed});
    of.computed += tokens;
  }
  float& first_key(sequence const& of, int block) {
    return *held.pool().block(of.blocks[static_cast<std::size_t>(block)]);
  }
  int available() { return held.pool().available(); }
};

}  // namespace

TEST_SUITE("serving") {
  TEST_CASE("a block is free when neither a request nor the prefix cache references it") {
    block_pool pool(model, 3);
    int const block = pool.take();
    pool.share(block);
    pool.cache(block);
    CHECK(pool.in_use() == 1);
    CHECK(pool.is_shared(block));
    pool.give(block);
    CHECK(pool.is_shared(block));  // a request and the cache
    pool.give(block);
    CHECK(pool.idle() == 1);
    CHECK(pool.in_use() == 0);
    CHECK(pool.available() == 2);
    pool.share(block);  // a request found it
    CHECK(pool.idle() == 0);
    pool.uncache(block);
    CHECK(pool.available() == 2);
    pool.give(block);
    CHECK(pool.available() == 3);
    CHECK(pool.peak_in_use() == 1);
  }

  TEST_CASE("a block that is given back twice, cached twice or shared while it is free is refused") {
    block_pool pool(model, 2);
    int const block = pool.take();
    pool.cache(block);
    CHECK_THROWS_WITH_AS(pool.cache(block), "cache: block = 1, but it is cached already", kv::invalid_argument);
    pool.give(block);
    CHECK_THROWS_WITH_AS(pool.give(block), "give: block = 1, but no request references it", kv::invalid_argument);
    pool.uncache(block);
    CHECK_THROWS_WITH_AS(pool.uncache(block), "uncache: block = 1, but it is not cached", kv::invalid_argument);
    CHECK_THROWS_WITH_AS(pool.give(block), "give: block = 1, but it is free, or not a block of the pool",
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS(pool.share(0), "share: block = 0, but it is free, or not a block of the pool",
                         kv::invalid_argument);
    CHECK(pool.available() == 2);
  }

  TEST_CASE("a prompt finds the whole blocks that another prompt has computed, and takes no memory for them") {
    fixture of;
    sequence first = of.read(blocks_of("abc"));
    of.held.publish(first);
    int const free_blocks = of.available();
    sequence second = of.read(blocks_of("abx"));
    CHECK(second.blocks[0] == first.blocks[0]);
    CHECK(second.blocks[1] == first.blocks[1]);
    CHECK(second.blocks[2] != first.blocks[2]);
    CHECK(of.available() == free_blocks - 1);
    bytes half = blocks_of("ab");
    half.pop_back();
    sequence third = of.read(half);  // a block that is not whole is not found
    CHECK(third.blocks[0] == first.blocks[0]);
    CHECK(third.blocks[1] != first.blocks[1]);
  }

  TEST_CASE("of two requests that have computed the same prompt, the later takes the blocks of the earlier") {
    fixture of;
    sequence first = of.read(blocks_of("abc"));
    sequence second = of.read(blocks_of("abc"));
    int const free_blocks = of.available();
    of.held.publish(first);
    of.held.publish(second);
    CHECK(second.blocks == first.blocks);
    CHECK(of.available() == free_blocks + 3);
    of.held.close(first);
    of.held.close(second);
    CHECK(of.held.pool().in_use() == 0);
    CHECK(of.held.pool().idle() == 3);
  }

  TEST_CASE("a shared block is copied before its request writes to it, and the other request sees no change") {
    fixture of;
    bytes text = blocks_of("ab");
    text.resize(20);
    sequence first = of.read(text);
    of.first_key(first, 1) = 5;
    sequence second;
    second.from = first.from;
    of.held.share(first, second);
    kv::cache all = of.held.view(width::wide);
    kv::fork(of.exec, all, of.state, first.slot, second.slot, kv::rows::leave);
    CHECK(second.blocks == first.blocks);
    REQUIRE(of.held.reserve(second, 1, 0));
    CHECK(second.blocks[0] == first.blocks[0]);  // nothing is written to it
    CHECK(second.blocks[1] != first.blocks[1]);
    CHECK(of.first_key(second, 1) == 5);
    of.first_key(second, 1) = 6;
    CHECK(of.first_key(first, 1) == 5);
    CHECK(of.held.copies() == 1);
    int const own = first.blocks[1];
    REQUIRE(of.held.reserve(first, 1, 0));  // it is the only one now
    CHECK(first.blocks[1] == own);
    CHECK(of.held.copies() == 1);
  }

  TEST_CASE("blocks of the prefix cache are copied before a policy moves entries there") {
    fixture of;
    sequence first = of.read(blocks_of("abcd"));
    of.held.publish(first);
    std::vector<int> const before = first.blocks;
    REQUIRE(of.held.reserve(first, 0, 2));
    CHECK(std::ssize(first.spares) == 2);
    of.held.own(first, 0, 2);
    CHECK(first.blocks[0] != before[0]);
    CHECK(first.blocks[1] != before[1]);
    CHECK(first.blocks[2] == before[2]);
    CHECK(first.spares.empty());
    CHECK(of.held.copies() == 2);
    sequence second = of.read(blocks_of("abcd"));
    CHECK(second.blocks == before);
  }

  TEST_CASE("a reservation that the pool cannot bear changes nothing, and takes idle blocks before it fails") {
    fixture of;  // twelve blocks
    sequence first = of.read(blocks_of("abcdefgh"));
    of.held.publish(first);
    sequence second = of.read(blocks_of("xy"));
    CHECK(of.available() == 2);
    CHECK_FALSE(of.held.reserve(second, 3 * block_pool::block_tokens, 0));
    CHECK(std::ssize(second.blocks) == 2);
    CHECK(of.available() == 2);
    of.held.close(first);
    CHECK(of.held.obtainable() == 10);
    CHECK(of.held.reserve(second, 3 * block_pool::block_tokens, 0));
    CHECK(std::ssize(second.blocks) == 5);
  }
}
