// SPDX-License-Identifier: Apache-2.0
// Names of sessions: four sources that never meet, a hash of known values, text that reads back.

#include <unordered_set>

#include "support/test.hpp"
#include "support/words.hpp"

namespace {

using namespace kvpolicy_test;
using tokens = std::vector<int>;

static_assert(std::regular<kv::session_id>);

tokens counting(int n) {
  tokens ids(as_size(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

/// What the hash of a prompt prints as.
std::string digest(tokens const& ids, int hashed = 256) {
  std::string const text = to_string(kv::session_id::of_prompt(ids, hashed));
  return text.substr(text.rfind(':') + 1);
}

std::string refusal(std::string const& text) {
  try {
    return "accepted as " + to_string(kv::session_id::parse(text));
  } catch (kv::invalid_argument const& error) {
    return error.what();
  }
}

}  // namespace

TEST_SUITE("session/session_id") {
  TEST_CASE("names of one source are equal if what they hold is equal") {
    CHECK(kv::session_id::named("a") == kv::session_id::named("a"));
    CHECK(kv::session_id::named("a") != kv::session_id::named("b"));
    CHECK(kv::session_id::of_span(tokens{1, 2}) == kv::session_id::of_span(tokens{1, 2}));
    CHECK(kv::session_id::of_span(tokens{1, 2}) != kv::session_id::of_span(tokens{1, 2, 0}));
    CHECK(kv::session_id::of_prompt(tokens{1, 2}) == kv::session_id::of_prompt(tokens{1, 2}));
    CHECK(kv::session_id::of_prompt(tokens{1, 2}) != kv::session_id::of_prompt(tokens{1, 2, 0}));
    CHECK(kv::session_id::of_prompt(tokens{1, 2}) != kv::session_id::of_prompt(tokens{2, 1}));
  }

  TEST_CASE("a name that matches nothing equals its copies and no other") {
    kv::session_id const first, second;
    kv::session_id const copy = first;
    CHECK(copy == first);
    CHECK(first != second);
    CHECK(kv::session_id::unmatched() != kv::session_id::unmatched());
    CHECK_FALSE(first.is_storable());
    CHECK(kv::session_id::named("a").is_storable());
  }

  TEST_CASE("names of different sources are never equal, not even where they print the same behind the colon") {
    std::string const hash = to_string(kv::session_id::of_prompt(tokens{1, 2})).substr(7);
    CHECK(kv::session_id::named(hash) != kv::session_id::of_prompt(tokens{1, 2}));
    CHECK(kv::session_id::named("1,2") != kv::session_id::of_span(tokens{1, 2}));
    CHECK(kv::session_id::of_span(tokens{1, 2}) != kv::session_id::of_prompt(tokens{1, 2}));
    holds("sources never meet", [](std::string const& text, tokens const& ids) {
      RC_PRE(!text.empty() && !ids.empty());
      std::vector<kv::session_id> const all = {kv::session_id::named(text), kv::session_id::of_span(ids),
                                               kv::session_id::of_prompt(ids), kv::session_id::unmatched()};
      for (std::size_t i = 0; i < all.size(); ++i) {
        RC_ASSERT(as_size(all[i].source()) == i);
        for (std::size_t j = 0; j < all.size(); ++j) {
          RC_ASSERT((all[i] == all[j]) == (i == j));
          RC_ASSERT((to_string(all[i]) == to_string(all[j])) == (i == j));
        }
      }
    });
  }

  TEST_CASE("the hash is the first half of SHA-256 over the number of ids and the ids, little endian") {
    // hashlib.sha256(struct.pack('<Q', len(ids)) + b''.join(struct.pack('<i', i) for i in ids)).hexdigest()[:32]
    CHECK(digest({1, 2}) == "1066d714b87c7e4579867e8ea219fa26");
    CHECK(digest({1, 2, 0}) == "b986ab39618b2d59b4b4a5041d35cdc2");
    CHECK(digest({-1}) == "3aaf0ffee0d110409666e9f75adb570b");
    CHECK(digest({0x01020304, 2147483647, -2147483647 - 1}) == "39a2e3fa3498304263672181b85ea474");
    CHECK(digest(counting(11)) == "560cc740e047685f3e4ed1c513aa4397");  // 52, 56, 60 and 64 bytes: the padding's edge
    CHECK(digest(counting(12)) == "dad40fd0bfb991c8b11c429813868fbb");
    CHECK(digest(counting(13)) == "00d9aad6d6bc6be7016f12d705bbe9cc");
    CHECK(digest(counting(14)) == "e03d62888aaee2bd849cef11168613f4");
    CHECK(digest(counting(256)) == "f58740bc0696757e6de7013a7bc69fe4");
  }

  TEST_CASE("a prompt is known by its first 256 ids, a shorter one by all") {
    tokens const long_one = counting(300);
    tokens other = long_one;
    other[256] = -1;
    CHECK(kv::session_id::of_prompt(long_one) == kv::session_id::of_prompt(other));
    CHECK(kv::session_id::of_prompt(long_one) == kv::session_id::of_prompt(counting(256)));
    CHECK(kv::session_id::of_prompt(long_one) != kv::session_id::of_prompt(counting(255)));
    CHECK(kv::session_id::of_prompt(long_one, 257) != kv::session_id::of_prompt(other, 257));
    other[255] = -1;
    CHECK(kv::session_id::of_prompt(long_one) != kv::session_id::of_prompt(other));
    CHECK(to_string(kv::session_id::of_prompt(long_one)).starts_with("prompt:256:"));
    CHECK(to_string(kv::session_id::of_prompt(counting(3))).starts_with("prompt:3:"));
  }

  TEST_CASE("the first clue that is there names the session") {
    tokens const span = {7, 8}, prompt = counting(300);
    CHECK(kv::identify({.explicit_id = "a", .span_tokens = span, .prompt_tokens = prompt}) ==
          kv::session_id::named("a"));
    CHECK(kv::identify({.span_tokens = span, .prompt_tokens = prompt}) == kv::session_id::of_span(span));
    CHECK(kv::identify({.prompt_tokens = prompt}) == kv::session_id::of_prompt(prompt));
    CHECK(kv::identify({.prompt_tokens = prompt, .hashed = 5}) == kv::session_id::of_prompt(counting(5)));
    CHECK(kv::identify({}).source() == kv::session_source::unmatched);
    CHECK(kv::identify({}) != kv::identify({}));
  }

  TEST_CASE("names print as one line, and read back") {
    CHECK(to_string(kv::session_id::named("alice@host/7")) == "id:alice@host/7");
    CHECK(to_string(kv::session_id::named("a b%\n\xff")) == "id:a%20b%25%0a%ff");
    CHECK(to_string(kv::session_id::of_span(tokens{1, -2, 3})) == "span:1,-2,3");
    CHECK(to_string(kv::session_id::of_prompt(tokens{1, 2})) == "prompt:2:1066d714b87c7e4579867e8ea219fa26");
    CHECK(to_string(kv::session_id::unmatched()).starts_with("unmatched:"));
    holds("what prints reads back", [](std::string const& text, tokens const& ids) {
      RC_PRE(!text.empty() && !ids.empty());
      for (kv::session_id const& id :
           {kv::session_id::named(text), kv::session_id::of_span(ids), kv::session_id::of_prompt(ids)}) {
        RC_ASSERT(kv::session_id::parse(to_string(id)) == id);
        RC_ASSERT(std::hash<kv::session_id>{}(kv::session_id::parse(to_string(id))) == std::hash<kv::session_id>{}(id));
        for (char const each : to_string(id)) RC_ASSERT(each > ' ' && each <= '~');
      }
    });
  }

  TEST_CASE("a text that no name prints as is refused") {
    std::string const rule = ", but a name reads id:TEXT, span:1,2,3 or prompt:COUNT:32 hexadecimal digits";
    std::vector<std::string> all = words(
        "id id: alice Id:a id:%4 id:%41 id:%2A id:%zz id:% span: span:1, span:,1 span:01 span:2147483648 prompt:2 "
        "prompt:2:1066d714b87c7e4579867e8ea219fa2 prompt:2:1066d714b87c7e4579867e8ea219fa2g "
        "prompt:2:1066d714b87c7e4579867e8ea219fa260 prompt:2:1066D714b87c7e4579867e8ea219fa26 "
        "prompt:0:1066d714b87c7e4579867e8ea219fa26 prompt::1066d714b87c7e4579867e8ea219fa26 unmatched:1");
    all.insert(all.end(), {"", "span:1, 2"});
    for (std::string const& text : all) {
      std::string shown;
      for (char const at : text) shown += at == '%' ? "%25" : at == ' ' ? "%20" : std::string(1, at);
      CHECK(refusal(text) == "session_id::parse: text = " + shown + rule);
    }
    CHECK(refusal("id:a\n") == "session_id::parse: text = id:a%0a" + rule);
  }

  TEST_CASE("what names nothing is refused") {
    CHECK_THROWS_WITH_AS((void)kv::session_id::named(""),
                         "session_id::named: text = empty, but a name has at least one byte", kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)kv::session_id::of_span({}),
                         "session_id::of_span: ids = empty, but a span has at least one token", kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)kv::session_id::of_prompt({}),
                         "session_id::of_prompt: ids = empty, but a prompt has at least one token",
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)kv::session_id::of_prompt(tokens{1}, 0),
                         "session_id::of_prompt: hashed = 0, but at least one token is hashed", kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)kv::identify({.explicit_id = "a", .hashed = -1}),
                         "identify: hashed = -1, but at least one token is hashed", kv::invalid_argument);
  }

  TEST_CASE("hashes tell names apart") {
    std::unordered_set<std::size_t> hashes;
    for (int i = 0; i < 1000; ++i) {
      for (auto const& id : {kv::session_id::named(std::to_string(i)), kv::session_id::of_span(tokens{i}),
                             kv::session_id::of_span(tokens{0, i}), kv::session_id::of_prompt(tokens{i})}) {
        hashes.insert(std::hash<kv::session_id>{}(id));
      }
    }
    CHECK(hashes.size() > 3990);
  }
}
