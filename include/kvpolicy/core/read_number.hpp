// SPDX-License-Identifier: Apache-2.0
// Reads numbers from text with std::from_chars, or with exact arithmetic if the standard library's from_chars supports
// integers only.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/config.hpp>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE::detail {

/// A natural number of any size. The lowest 32 bits come first, and there are no leading zeros.
class big_natural {
 public:
  explicit big_natural(std::uint32_t value) : words_(value == 0 ? 0 : 1, value) {}

  /// this = this * factor + summand.
  void multiply_add(std::uint32_t factor, std::uint32_t summand) {
    std::uint64_t carry = summand;
    for (std::uint32_t& word : words_) {
      carry += std::uint64_t{word} * factor;
      word = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) words_.push_back(static_cast<std::uint32_t>(carry));
  }
  void multiply_by_power_of_ten(std::int64_t exponent) {
    for (; exponent > 0; --exponent) multiply_add(10, 0);
  }
  void shift_left(std::int64_t bits) {
    if (words_.empty()) return;
    for (; bits % 32 != 0; --bits) multiply_add(2, 0);
    words_.insert(words_.begin(), static_cast<std::size_t>(bits / 32), 0);
  }
  /// this = this - other. `other` must be at most this.
  void subtract(big_natural const& other) {
    std::uint64_t borrow = 0;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      std::uint64_t const minus = borrow + (i < other.words_.size() ? other.words_[i] : 0);
      borrow = words_[i] < minus ? 1 : 0;
      words_[i] = static_cast<std::uint32_t>(words_[i] - minus);
    }
    while (!words_.empty() && words_.back() == 0) words_.pop_back();
  }
  [[nodiscard]] std::int64_t bits() const {
    auto const below = static_cast<std::int64_t>(words_.size()) * 32;
    std::int64_t zeros = 0;
    while (!words_.empty() && (words_.back() >> (31 - zeros)) == 0) ++zeros;
    return below - zeros;
  }
  /// Returns a negative number if a < b, zero if a == b, and a positive number if a > b.
  friend int compare(big_natural const& a, big_natural const& b) {
    if (a.words_.size() != b.words_.size()) return a.words_.size() < b.words_.size() ? -1 : 1;
    for (std::size_t i = a.words_.size(); i-- > 0;) {
      if (a.words_[i] != b.words_[i]) return a.words_[i] < b.words_[i] ? -1 : 1;
    }
    return 0;
  }

 private:
  std::vector<std::uint32_t> words_;
};

/// numerator / denominator, rounded to the nearest Number; ties go to the even one. Both must be above 0.
template <std::floating_point Number>
  requires(std::numeric_limits<Number>::digits < 64)
Number rounded_quotient(big_natural numerator, big_natural denominator) {
  using limits = std::numeric_limits<Number>;
  auto const shift_both = [&](std::int64_t exponent, big_natural& over, big_natural& under) {
    (exponent > 0 ? under : over).shift_left(exponent > 0 ? exponent : -exponent);
  };
  std::int64_t log2 = numerator.bits() - denominator.bits();  // of the quotient, or one above it
  {
    big_natural over = numerator;
    big_natural under = denominator;
    shift_both(log2, over, under);
    if (compare(over, under) < 0) --log2;
  }
  std::int64_t const unit = std::max<std::int64_t>(log2 + 1, limits::min_exponent) - limits::digits;
  shift_both(unit, numerator, denominator);
  std::uint64_t mantissa = 0;
  for (int bit = limits::digits - 1; bit >= 0; --bit) {
    big_natural part = denominator;
    part.shift_left(bit);
    if (compare(numerator, part) < 0) continue;
    numerator.subtract(part);
    mantissa |= std::uint64_t{1} << bit;
  }
  numerator.shift_left(1);
  int const half = compare(numerator, denominator);
  if (half > 0 || (half == 0 && mantissa % 2 == 1)) ++mantissa;
  return std::ldexp(static_cast<Number>(mantissa), static_cast<int>(unit));
}

/// The digits of a decimal number, without zeros at either end. Its value is 0.digits * 10^point.
struct decimal_digits {
  std::string digits;
  std::int64_t point = 0;
};

/// Reads digits [. digits] [e [+-] digits]. Returns false if the whole text does not have this form.
inline bool scan_decimal(std::string_view text, decimal_digits& to) {
  std::size_t at = 0;
  auto const is_digit = [&] { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  bool any = false;
  for (bool behind_point = false; is_digit() || (at < text.size() && text[at] == '.' && !behind_point); ++at) {
    if (text[at] == '.') {
      behind_point = true;
      continue;
    }
    any = true;
    if (to.digits.empty() && text[at] == '0') {
      to.point -= behind_point ? 1 : 0;
      continue;
    }
    to.digits += text[at];
    to.point += behind_point ? 0 : 1;
  }
  to.digits.erase(to.digits.find_last_not_of('0') + 1);
  if (!any || at == text.size()) return any;
  if (text[at] != 'e' && text[at] != 'E') return false;
  ++at;
  bool const negative = at < text.size() && text[at] == '-';
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
  if (!is_digit()) return false;
  std::int64_t exponent = 0;
  constexpr std::int64_t far = std::int64_t{1} << 48;  // farther than any text has digits
  for (; is_digit(); ++at) exponent = exponent < far ? exponent * 10 + (text[at] - '0') : far;
  to.point += negative ? -exponent : exponent;
  return at == text.size();
}

/// Reads "inf", "infinity", "nan" or "nan(letters, digits and underscores)", in upper or lower case.
template <std::floating_point Number>
bool read_not_finite(std::string_view text, Number& to) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower == "inf" || lower == "infinity") {
    to = std::numeric_limits<Number>::infinity();
    return true;
  }
  bool const bare = lower == "nan";
  bool const bracketed = lower.starts_with("nan(") &&
                         lower.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", 4) == lower.size() - 1 &&
                         lower.ends_with(')');
  if (bare || bracketed) to = std::numeric_limits<Number>::quiet_NaN();
  return bare || bracketed;
}

/// The value of decimal digits, rounded to the nearest number. It is zero or infinite if it is beyond the type's range.
template <std::floating_point Number>
Number value_of(decimal_digits decimal) {
  using limits = std::numeric_limits<Number>;
  constexpr std::size_t enough = 800;  // digits decide; of those behind them it matters only whether there are any
  if (decimal.digits.size() > enough) decimal.digits.replace(enough, std::string::npos, "1");
  if (decimal.digits.empty() || decimal.point < limits::min_exponent10 - limits::digits) return 0;
  if (decimal.point > limits::max_exponent10 + 1) return limits::infinity();
  big_natural numerator(0);
  big_natural denominator(1);
  for (char const digit : decimal.digits) numerator.multiply_add(10, static_cast<std::uint32_t>(digit - '0'));
  std::int64_t const exponent = decimal.point - static_cast<std::int64_t>(decimal.digits.size());
  numerator.multiply_by_power_of_ten(exponent);
  denominator.multiply_by_power_of_ten(-exponent);
  return rounded_quotient<Number>(std::move(numerator), std::move(denominator));
}

/// Implements `read_number` for types that the standard library's from_chars does not support. It accepts the same
/// texts, rounds to the nearest value, and does not depend on the locale.
template <std::floating_point Number>
bool read_decimal(std::string_view text, Number& to) {
  bool const negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  Number value{};
  decimal_digits decimal;
  if (!read_not_finite(text, value)) {
    if (!scan_decimal(text, decimal)) return false;
    value = value_of<Number>(decimal);
    bool const too_small = value == 0 && !decimal.digits.empty();
    if (too_small || value > std::numeric_limits<Number>::max()) return false;
  }
  to = negative ? -value : value;
  return true;
}

/// A type that std::from_chars supports: integers always, floating-point numbers since libstdc++ 11 and libc++ 20.
template <class Number>
concept read_by_library = requires(char const* at, Number& to) { std::from_chars(at, at, to); };

/// Reads a whole text as a number, without spaces, leading plus or hexadecimal digits. Returns false, with `to`
/// unchanged, if the text has another form or the number is beyond the type's range. Infinities and NaN are valid for
/// floating-point types.
template <class Number>
bool read_number(std::string_view text, Number& to) {
  if constexpr (read_by_library<Number>) {
    Number value{};
    auto const end = text.data() + text.size();
    auto const [stopped, failed] = std::from_chars(text.data(), end, value);
    if (failed != std::errc{} || stopped != end) return false;
    to = value;
    return true;
  } else {
    return read_decimal(text, to);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
