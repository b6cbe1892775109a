// SPDX-License-Identifier: Apache-2.0
// Files of tensors whose headers lie: what every reader of them refuses, and by which line.
#pragma once

#include <system_error>

#include "io/temporary_folder.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

inline std::string with_length(std::uint64_t length, std::string const& rest) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + rest;
}

inline std::string file_of(std::string const& header, std::size_t data) {
  return with_length(header.size(), header + std::string(data, '\x3f'));
}

/// A tensor's entry of a header.
inline std::string entry(std::string const& name, std::string const& dtype, std::string const& shape,
                         std::string const& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

/// The text with which a call fails, in itself or in the system.
std::string file_error_of(auto const& call) {
  try {
    call();
  } catch (kvpolicy::invalid_argument const& error) {
    return error.what();
  } catch (std::system_error const& error) {
    return std::string("system_error ") + error.what();
  }
  return "accepted";
}

/// Why a file of this content is refused, without the words that all refusals have in common.
template <class Reader>
std::string refusal(std::string const& content) {
  temporary_folder const folder;
  write_bytes(folder / "bad.safetensors", content);
  std::string const text = file_error_of([&] { Reader const read(folder / "bad.safetensors"); });
  std::string const common = "safetensors: bad.safetensors: ";
  return text.starts_with(common) ? text.substr(common.size()) : text;
}

template <class Reader>
void refuses_bad_headers() {
  auto const refusal_of = [](std::string const& header, std::size_t data) {
    return refusal<Reader>(file_of(header, data));
  };
  SUBCASE("no prefix of a sound file is accepted, and no longer file") {
    std::string const whole = file_of("{" + entry("a", "F32", "[3]", "[0,12]") + "}", 12);
    REQUIRE(refusal<Reader>(whole) == "accepted");
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CHECK(refusal<Reader>(whole.substr(0, length)) != "accepted");
    }
    CHECK(refusal<Reader>(whole + "x") == "data = 13, but the tensors end at 12");
  }

  SUBCASE("a header length that lies is refused with its value") {
    CHECK(refusal<Reader>("") == "size = 0, but a header length takes 8 bytes");
    CHECK(refusal<Reader>("1234") == "size = 4, but a header length takes 8 bytes");
    CHECK(refusal<Reader>(with_length(std::uint64_t{4} << 30, "{}")) ==
          "header length = 4294967296, but the file has 2 bytes after it");
    CHECK(refusal<Reader>(with_length(~std::uint64_t{0}, "{}")) ==
          "header length = 18446744073709551615, but the file has 2 bytes after it");
  }

  SUBCASE("a header that is not what it should be is refused") {
    CHECK(refusal_of("{\"a\":", 0) == "header = 5 bytes, but they are not a JSON object");
    CHECK(refusal_of("[1, 2]", 0) == "header = 6 bytes, but they are not a JSON object");
    CHECK(refusal_of("\xff\xfe", 0) == "header = 2 bytes, but they are not a JSON object");
    CHECK(refusal_of(std::string(100'000, '['), 0) == "header = 100000 bytes, but they are not a JSON object");
    CHECK(refusal_of(R"({"__metadata__":[]})", 0) == "__metadata__ = array, but it is an object");
    CHECK(refusal_of(R"({"__metadata__":{"width":256}})", 0) == "metadata width = number, but it is a string");
    CHECK(refusal_of(R"({"a":[0]})", 0) == "tensor a = array, but it is an object");
    CHECK(refusal_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4) == "tensor a dtype = null, but it is a string");
    CHECK(refusal_of("{" + entry("a", "F8", "[1]", "[0,4]") + "}", 4) ==
          "tensor a dtype = F8, but a tensor holds F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL or integers of 8 to 64 "
          "bits");
    std::string const whole = ", but sizes and offsets are whole and not negative";
    CHECK(refusal_of("{" + entry("a", "F32", "[-1]", "[0,4]") + "}", 4) == "tensor a shape = -1" + whole);
    CHECK(refusal_of("{" + entry("a", "F32", "[1.5]", "[0,4]") + "}", 4) == "tensor a shape = 1.5" + whole);
    CHECK(refusal_of("{" + entry("a", "F32", "7", "[0,4]") + "}", 4) == "tensor a shape = number, but it is an array");
    CHECK(refusal_of("{" + entry("a", "F32", "[1]", "[0]") + "}", 4) ==
          "tensor a data_offsets = 1, but they are two numbers");
  }

  SUBCASE("a header whose brackets nest deeper than 16 is refused, and one of 16 is read") {
    std::string const rule = " levels of brackets, but they nest at most 16 levels deep";
    std::size_t const deep = 200'000;
    std::string const nested = std::string(deep, '[') + std::string(deep, ']');
    CHECK(refusal_of("{" + entry("a", "F32", nested, "[0,4]") + "}", 4) == "header = 200002" + rule);
    CHECK(refusal_of(R"({"a":)" + nested + "}", 0) == "header = 200001" + rule);
    CHECK(refusal_of(R"({"__metadata__":{"a":)" + nested + "}}", 0) == "header = 200002" + rule);
    CHECK(refusal_of(nested, 0) == "header = 400000 bytes, but they are not a JSON object");
    std::string maps;
    for (std::size_t i = 0; i < deep; ++i) maps += R"({"a":)";
    CHECK(refusal_of(maps + "1" + std::string(deep, '}'), 0) == "header = 200000" + rule);
    CHECK(refusal_of(R"({"a":)" + std::string(15, '[') + std::string(15, ']') + "}", 0) ==
          "tensor a = array, but it is an object");
    CHECK(refusal_of(R"({"a":)" + std::string(16, '[') + std::string(16, ']') + "}", 0) == "header = 17" + rule);
  }

  SUBCASE("brackets inside of names and texts are no nesting") {
    std::string const brackets(100, '[');
    CHECK(refusal_of(R"({"__metadata__":{"\"{)" + brackets + R"(":")" + brackets + R"(\\"},)" +
                         entry(brackets, "U8", "[1]", "[0,1]") + "}",
                     1) == "accepted");
  }

  SUBCASE("a name that is there twice is refused wherever it stands") {
    CHECK(refusal_of("{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("a", "U8", "[1]", "[1,2]") + "}", 2) ==
          "tensor = a, but this name is there twice");
    CHECK(refusal_of(R"({"__metadata__":{"session.0":"x","session.0":"y"}})", 0) ==
          "header = session.0, but this name is there twice");
    CHECK(refusal_of(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1) ==
          "header = dtype, but this name is there twice");
    CHECK(refusal_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"dtype":"I8"}})", 1) ==
          "header = dtype, but this name is there twice");
    CHECK(refusal_of(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1) ==
          "header = shape, but this name is there twice");
    CHECK(refusal_of(R"({"__metadata__":{"model":"a"}})", 0) == "accepted");
    CHECK(refusal_of(R"({"__metadata__":{"a":"1"},)" + entry("a", "U8", "[1]", "[0,1]") + "}", 1) == "accepted");
  }

  SUBCASE("offsets that lie are refused with the tensor and the value") {
    CHECK(refusal_of("{" + entry("a", "F32", "[1]", "[4,0]") + "}", 4) ==
          "tensor a data_offsets = 4, but it ends before, at 0");
    CHECK(refusal_of("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 4) ==
          "tensor a data_offsets = 8, but the file holds 4 bytes of data");
    CHECK(refusal_of("{" + entry("a", "F32", "[2]", "[0,4]") + "}", 4) ==
          "tensor a bytes = 4, but shape and dtype make 8");
    CHECK(refusal_of("{" + entry("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", 4) ==
          "tensor a shape = 4294967296, but so many elements have no size in 64 bits");
    CHECK(refusal_of("{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[4,12]") + "}", 12) ==
          "tensor b data_offsets = 4, but the tensor before it ends at 8");
    CHECK(refusal_of("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[8,12]") + "}", 12) ==
          "tensor b data_offsets = 8, but bytes from 4 on belong to no tensor");
  }
}

}  // namespace kvpolicy_test
