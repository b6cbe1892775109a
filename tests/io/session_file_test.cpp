// SPDX-License-Identifier: Apache-2.0
// Stores as files: saved and restored they are what they were, and a file that lies changes nothing.

#include <kvpolicy/io/session_file.hpp>

#include "io/temporary_folder.hpp"

namespace {

using namespace kvpolicy_test;
using session_content = std::vector<std::pair<std::string, std::vector<float>>>;

constexpr kv::memory_shape small{2, 3, 4};

session_content content_of(kv::session_store const& store) {
  session_content all;
  for (kv::remembered const& each : store.snapshot()) all.emplace_back(to_string(each.id), *each.memory);
  return all;
}

void put(kv::session_store& store, kv::session_id const& id, float first) {
  auto lease = store.take(id);
  for (float& each : lease.floats()) each = first++;
  lease.commit();
}

/// A name of any source that can be stored.
kv::session_id some_name(dice& roll) {
  std::vector<int> ids;
  for (int n = roll.between(1, 5); n > 0; --n) ids.push_back(roll.between(-1, 3));
  if (roll.chance(30)) return kv::session_id::of_span(ids);
  if (roll.chance(40)) return kv::session_id::of_prompt(ids);
  std::string text;
  for (int const id : ids) text += static_cast<char>(id * 77);
  return kv::session_id::named(text);
}

/// The tensors and the metadata of a file with two sessions, to be bent.
struct session_file {
  std::vector<float> first = std::vector<float>(24, 1.0f), second = std::vector<float>(24, 2.0f);
  std::vector<std::uint64_t> shape = {2, 3, 4};
  std::string second_name = "session.1";
  std::map<std::string, std::string> metadata = {
      {"kvpolicy.sessions", "1"}, {"memory", "[2, 3, 4]"}, {"session.0", "id:a"}, {"session.1", "span:1,2"}};

  void write(std::filesystem::path const& path) const {
    std::vector<kv::tensor_to_write> const tensors = {{"session.0", {2, 3, 4}, first}, {second_name, shape, second}};
    kv::write_safetensors(path, metadata, tensors);
  }
};

/// A store that refuses files: each must leave it as it was.
struct refusing_store {
  temporary_folder folder;
  kv::session_store store{small};
  refusing_store() {
    put(store, kv::session_id::named("old"), 1.0f);
    put(store, kv::session_id::named("older"), 2.0f);
  }
  std::string refusal() {
    session_content const before = content_of(store);
    std::string text = "accepted";
    try {
      kv::load_sessions(store, folder / "x");
    } catch (kv::invalid_argument const& error) {
      text = error.what();
      CHECK(content_of(store) == before);
    }
    return text;
  }
  std::string refusal(session_file const& bent) {
    bent.write(folder / "x");
    return refusal();
  }
};

}  // namespace

TEST_SUITE("io/session_file") {
  TEST_CASE("saved and restored, a store keeps the same memories under the same names in the same order") {
    temporary_folder const folder;
    holds("a restored store is the saved one", [&](std::uint64_t seed) {
      dice roll(seed);
      kv::session_store store(small, roll.between(1, 6));
      for (int n = roll.below(12); n > 0; --n) put(store, some_name(roll), static_cast<float>(roll.real(1e3)));
      kv::save_sessions(store, folder / "x");
      kv::session_store other(small, 6);
      put(other, kv::session_id::named("gone"), 1.0f);
      kv::load_sessions(other, folder / "x");
      RC_ASSERT(content_of(other) == content_of(store));
      kv::save_sessions(other, folder / "y");
      RC_ASSERT(read_bytes(folder / "y") == read_bytes(folder / "x"));
    });
  }

  TEST_CASE("a file has a tensor a session, the oldest commit first, and the names in its metadata") {
    temporary_folder const folder;
    kv::session_store store(small);
    std::vector<int> const ids = {1, 2};
    put(store, kv::session_id::named("a b"), 1.0f);
    put(store, kv::session_id::of_span(ids), 2.0f);
    put(store, kv::session_id::of_prompt(ids), 3.0f);
    put(store, kv::session_id::unmatched(), 4.0f);
    put(store, kv::session_id::named("a b"), 5.0f);
    auto const out = store.take(kv::session_id::of_span(ids));  // in the file as it was
    std::ranges::fill(out.floats(), 9.0f);
    kv::save_sessions(store, folder / "x");
    kv::safetensors_reader read(folder / "x");
    CHECK(read.all_metadata() ==
          std::map<std::string, std::string>{{"kvpolicy.sessions", "1"},
                                             {"memory", "[2, 3, 4]"},
                                             {"session.0", "span:1,2"},
                                             {"session.1", "prompt:2:1066d714b87c7e4579867e8ea219fa26"},
                                             {"session.2", "id:a%20b"}});
    CHECK(read.tensors().size() == 3);
    for (auto const& [key, first] : {std::pair("session.0", 2.0f), {"session.1", 3.0f}, {"session.2", 5.0f}}) {
      CHECK(read.floats(key, {2, 3, 4}).front() == first);
      CHECK(read.floats(key, {2, 3, 4}).back() == first + 23);
    }
  }

  TEST_CASE("a smaller store takes over what was committed last") {
    temporary_folder const folder;
    kv::session_store store(small);
    for (int i = 0; i < 12; ++i) put(store, kv::session_id::named(std::to_string(i)), static_cast<float>(i));
    kv::save_sessions(store, folder / "x");
    kv::session_store other(small, 2);
    kv::load_sessions(other, folder / "x");
    session_content const all = content_of(other);
    REQUIRE(all.size() == 2);
    CHECK(all[0].first == "id:10");
    CHECK(all[1].first == "id:11");
    CHECK(all[1].second.front() == 11.0f);
  }

  TEST_CASE("a file that is not a store's, or another store's, is refused by its line") {
    refusing_store on;
    auto const bent = [&](auto const& bend) {
      session_file file;
      bend(file);
      return on.refusal(file);
    };
    CHECK(bent([](session_file& f) { f.shape = {2, 4, 3}; }) ==
          "safetensors: x: tensor session.1 shape = [2,4,3], but it must be [2,3,4]");
    CHECK(bent([](session_file& f) { f.metadata["memory"] = "[4, 3, 2]"; }) ==
          "safetensors: x: metadata memory = [4, 3, 2], but the store's memories are [2, 3, 4]");
    CHECK(bent([](session_file& f) { f.metadata["kvpolicy.sessions"] = "2"; }) ==
          "safetensors: x: metadata kvpolicy.sessions = 2, but this is version 1");
    CHECK(bent([](session_file& f) { f.metadata.erase("kvpolicy.sessions"); }) ==
          "safetensors: x: metadata kvpolicy.sessions = missing, but it is needed");
    CHECK(bent([](session_file& f) { f.metadata.erase("session.1"); }) ==
          "safetensors: x: metadata session.1 = missing, but it is needed");
    CHECK(bent([](session_file& f) { f.second_name = "session.2"; }) ==
          "safetensors: x: tensor session.1 = missing, but it is needed");
    CHECK(bent([](session_file& f) { f.second[3] = std::numeric_limits<float>::quiet_NaN(); }) ==
          "session_store::assign: session span:1,2 float 3 = nan, but a memory is finite");
    CHECK(bent([](session_file& f) { f.first[23] = -std::numeric_limits<float>::infinity(); }) ==
          "session_store::assign: session id:a float 23 = -inf, but a memory is finite");
    CHECK(bent([](session_file& f) { f.metadata["session.1"] = "id:a"; }) ==
          "session_store::assign: session = id:a, but it is there twice");
    CHECK(bent([](session_file& f) {
            f.metadata["session.1"] = "unmatched:7";
          }).starts_with("session_id::parse: text = unmatched:7, but "));
    CHECK(bent([](session_file& f) {
            f.metadata["session.1"] = "alice";
          }).starts_with("session_id::parse: text = alice, but "));
    CHECK(bent([](session_file&) {}) == "accepted");
    CHECK(on.store.size() == 2);
    CHECK(content_of(on.store).front().first == "id:a");
  }

  TEST_CASE("no prefix of a store's file is accepted, and no session that is out is replaced") {
    refusing_store on;
    session_file{}.write(on.folder / "x");
    std::string const whole = read_bytes(on.folder / "x");
    for (std::size_t length = 0; length < whole.size(); ++length) {
      write_bytes(on.folder / "x", whole.substr(0, length));
      CHECK(on.refusal() != "accepted");
    }
    write_bytes(on.folder / "x", whole);
    {
      auto const lease = on.store.take(kv::session_id::named("old"));
      CHECK(on.refusal() ==
            "session_store::assign: sessions out = 1, but all are given back before others replace them");
    }
    CHECK(on.refusal() == "accepted");
  }

  TEST_CASE("a file whose header nests 200000 brackets is refused, and the store is as it was") {
    refusing_store on;
    std::string const nested = std::string(200'000, '[') + std::string(200'000, ']');
    std::string const header = R"({"session.0":{"dtype":"F32","shape":)" + nested + R"(,"data_offsets":[0,4]}})";
    std::uint64_t const length = header.size();
    write_bytes(on.folder / "x", std::string(reinterpret_cast<char const*>(&length), 8) + header + "1234");
    CHECK(on.refusal() == "safetensors: x: header = 200002 levels of brackets, but they nest at most 16 levels deep");
  }

  TEST_CASE("saving replaces nothing but a regular file, whose mode stays") {
    temporary_folder const folder;
    kv::session_store store(small);
    put(store, kv::session_id::named("a"), 1.0f);
    write_bytes(folder / "x", "old");
    std::filesystem::permissions(folder / "x", std::filesystem::perms{0600});
    std::filesystem::create_symlink("x", folder / "link");
    CHECK(error_of([&] { kv::save_sessions(store, folder / "link"); }) ==
          ("write_safetensors: file = " + (folder / "link").string() +
           ", but it cannot be written: it is a symbolic link")
              .c_str());
    CHECK(read_bytes(folder / "x") == "old");
    kv::save_sessions(store, folder / "x");
    CHECK(std::filesystem::status(folder / "x").permissions() == std::filesystem::perms{0600});
    CHECK(folder.files() == 2);
  }

  TEST_CASE("of two stores that are saved under one name at once the file is wholly one") {
    temporary_folder const folder;
    kv::session_store one(small), other(small);
    for (int i = 0; i < 8; ++i) put(one, kv::session_id::named("one" + std::to_string(i)), 1.0f);
    for (int i = 0; i < 5; ++i) put(other, kv::session_id::named("other" + std::to_string(i)), 2.0f);
    std::jthread beside([&] {
      for (int i = 0; i < 50; ++i) kv::save_sessions(other, folder / "x");
    });
    for (int i = 0; i < 50; ++i) {
      kv::save_sessions(one, folder / "x");
      kv::session_store read(small);
      kv::load_sessions(read, folder / "x");
      bool const whole = content_of(read) == content_of(one) || content_of(read) == content_of(other);
      CHECK(whole);
    }
    beside.join();
    CHECK(folder.files() == 1);
  }

  TEST_CASE("another element type is refused") {
    refusing_store on;
    session_file{}.write(on.folder / "x");
    std::string bytes = read_bytes(on.folder / "x");
    for (std::size_t at = bytes.find("F32"); at != std::string::npos; at = bytes.find("F32", at)) bytes[at] = 'I';
    write_bytes(on.folder / "x", bytes);
    CHECK(on.refusal() == "safetensors: x: tensor session.0 dtype = I32, but it is read as F32");
  }

  TEST_CASE("others go on with the store while it is saved") {
    temporary_folder const folder;
    kv::session_store store(small, 4);
    std::thread busy([&] {
      for (int i = 0; i < 300; ++i) put(store, kv::session_id::named(std::to_string(i % 6)), static_cast<float>(i));
    });
    for (int i = 0; i < 20; ++i) {
      kv::save_sessions(store, folder / "x");
      kv::session_store other(small, 4);
      kv::load_sessions(other, folder / "x");
      for (auto const& [id, floats] : content_of(other)) CHECK(floats.back() == floats.front() + 23);
    }
    busy.join();
  }
}
