// SPDX-License-Identifier: Apache-2.0
// Numbers from text, by the standard library and by our own arithmetic, which libraries without from_chars of double
// need.
#include <charconv>

#include "support/test.hpp"
#include "support/words.hpp"

namespace kv = kvpolicy;

namespace {

/// Texts with every turn of the grammar, and numbers at the edges of both types.
std::vector<std::string> texts() {
  std::vector<std::string> all = {"", " 1", "1 ", "1e 5"};
  char const* const grammar =
      "- +1 --1 1,5 . -. 1. .5 -.5 1..2 1.2.3 e5 .e5 1e 1e+ 1e- 1e5 1E5 1e+5 1e-05 1e5.0 0 -0 0.0 00012.500 1e0 "
      "0e999999999999999999999 0.000e-99999999999999999999";
  char const* const edges =
      "1e99999999999999999999 1e-99999999999999999999 1e400 -1e400 1e-400 -1e-400 2e-324 2.4703282292062327208e-324 "
      "2.4703282292062328e-324 3e-324 4.9e-324 2.2250738585072011e-308 2.2250738585072014e-308 "
      "1.7976931348623157e308 1.7976931348623158e308 1.7976931348623159e308 1.797693134862315808e308 3.4028234e38 "
      "3.4028235677973366e38 3.40282357e38 1.4e-45 7.006492321624085e-46 7.0064923216240854e-46 7.1e-46 "
      "1.1754942e-38 9007199254740993 9007199254740993.00000000000000000000000001 9007199254740992.99999999 "
      "16777217 16777217.0000001 0.1 0.3 1e22 1e23 8.5e22 123456789012345678901234567890";
  char const* const other =
      "0x10 0x1p3 1p3 inf -inf INF Infinity infinit infinityy +inf nan -nan NaN nan() nan(12_ab) nan( nan(-) "
      "nan(a)b nano true 1f 1.5f \xd9\xa1";
  for (char const* const some : {grammar, edges, other}) {
    for (std::string const& each : kvpolicy_test::words(some)) all.push_back(each);
  }
  all.push_back(std::string(400, '0') + "1");
  all.push_back("0." + std::string(400, '0') + "1e400");
  all.push_back(std::string(2000, '9') + "e-1995");
  // Halfway between 1 and the next double, and one digit, far behind, above and below it.
  std::string const half = "1.00000000000000011102230246251565404236316680908203125";
  for (std::string const& behind : {std::string{}, std::string(900, '0'), std::string(900, '0') + "1"})
    all.push_back(half + behind);
  all.push_back(half.substr(0, half.size() - 1) + "4" + std::string(900, '9'));
  return all;
}

/// Random bits as shortest digits, and random digits.
std::vector<std::string> random_texts(int count) {
  std::mt19937_64 random(20);
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(kv::to_string(std::bit_cast<double>(random())));
    all.push_back(kv::to_string(std::bit_cast<float>(static_cast<std::uint32_t>(random()))));
    std::string digits = random() % 2 == 0 ? "-" : "";
    for (auto n = 1 + random() % 40; n > 0; --n) digits += static_cast<char>('0' + random() % 10);
    digits.insert(1 + random() % (digits.size()), ".");
    all.push_back(digits + "e" + std::to_string(static_cast<int>(random() % 720) - 360));
    all.push_back(digits);
  }
  return all;
}

template <class Number>
bool same(Number a, Number b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

/// Both accept the same texts, with the same value, and leave the target alone otherwise.
template <class Number>
void check_against_library(std::string const& text) {
  CAPTURE(text);
  Number ours = 7;
  bool const accepted = kv::detail::read_decimal(text, ours);
  if constexpr (kv::detail::read_by_library<Number>) {
    Number theirs = 7;
    auto const [stopped, failed] = std::from_chars(text.data(), text.data() + text.size(), theirs);
    bool const whole = failed == std::errc{} && stopped == text.data() + text.size();
    CHECK(accepted == whole);
    CHECK(same(ours, whole ? theirs : Number{7}));
  }
  if (!accepted) {
    CHECK(ours == 7);
    return;
  }
  Number const by_c = std::same_as<Number, float> ? std::strtof(text.c_str(), nullptr)
                                                  : static_cast<Number>(std::strtod(text.c_str(), nullptr));
  CHECK(same(ours, by_c));
}

}  // namespace

TEST_SUITE_BEGIN("core/read_number");

TEST_CASE("our own arithmetic accepts what from_chars accepts, with the same values") {
  for (std::string const& text : texts()) {
    check_against_library<double>(text);
    check_against_library<float>(text);
  }
}

TEST_CASE("our own arithmetic agrees with the standard library on random texts") {
  for (std::string const& text : random_texts(2000)) {
    check_against_library<double>(text);
    check_against_library<float>(text);
  }
}

TEST_CASE("a printed number reads back as the same bits, by either way") {
  std::mt19937_64 random(21);
  for (int i = 0; i < 5000; ++i) {
    auto const value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    std::string const text = kv::to_string(value);
    CAPTURE(text);
    double by_library = 0;
    double by_us = 0;
    REQUIRE(kv::detail::read_number(text, by_library));
    REQUIRE(kv::detail::read_decimal(text, by_us));
    CHECK(std::bit_cast<std::uint64_t>(by_library) == std::bit_cast<std::uint64_t>(value));
    CHECK(std::bit_cast<std::uint64_t>(by_us) == std::bit_cast<std::uint64_t>(value));
  }
}

TEST_CASE("a number is read from the whole text or not at all") {
  int whole = 3;
  CHECK_FALSE(kv::detail::read_number("12x", whole));
  CHECK_FALSE(kv::detail::read_number("99999999999", whole));
  CHECK(whole == 3);
  CHECK(kv::detail::read_number("-12", whole));
  CHECK(whole == -12);
  double real = 3;
  CHECK_FALSE(kv::detail::read_number("1.5 ", real));
  CHECK_FALSE(kv::detail::read_number("1e999", real));
  CHECK(real == 3);
  CHECK(kv::detail::read_number("1.5", real));
  CHECK(real == 1.5);
}

TEST_SUITE_END();
