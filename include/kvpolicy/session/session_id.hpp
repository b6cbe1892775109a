// SPDX-License-Identifier: Apache-2.0
// The id of a session, to which a memory belongs. It comes from the first of four sources that the engine can give.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/session/token_hash.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The source of a session id, the best one first. Each source is a namespace of its own.
enum class session_source {
  explicit_id,  ///< a text that the caller gave
  span,         ///< all token ids of a designated span
  prompt,       ///< a hash of the prompt's first token ids, and their number
  unmatched     ///< no source: the id of a single request, which no other id matches
};

[[nodiscard]] constexpr std::array<char const*, 4> names(session_source) {
  return {"id", "span", "prompt", "unmatched"};
}

/// The id of a session. It is a regular, hashable value, and it prints as one line of ASCII that `parse` reads back.
///
/// Ids of different sources are never equal. Two ids of a text or of a span are equal if the texts or the spans are
/// equal. Two ids of a prompt are equal if the same number of tokens was hashed and all 128 bits agree. A default
/// constructed id is unmatched: it equals only its copies.
class session_id {
 public:
  session_id() : number_(next_serial()) {}

  /// The id of a session that the caller names. The text may be any bytes, at least one.
  /// - throws: `invalid_argument` if the text is empty.
  [[nodiscard]] static session_id named(std::string_view text) {
    expects(!text.empty(), "session_id::named", "text", "empty", "a name has at least one byte");
    session_id made(session_source::explicit_id);
    made.text_ = text;
    return made;
  }

  /// The id of a session that is recognised by a span of its tokens, typically the first task message after the
  /// template. It stores the token ids.
  /// - throws: `invalid_argument` if the span is empty.
  [[nodiscard]] static session_id of_span(std::span<int const> ids) {
    expects(!ids.empty(), "session_id::of_span", "ids", "empty", "a span has at least one token");
    session_id made(session_source::span);
    made.tokens_.assign(ids.begin(), ids.end());
    return made;
  }

  /// The id of a session that is recognised by the first `hashed` token ids of its prompt, or by all of a shorter one.
  ///
  /// Beware: two users whose prompts begin with the same tokens (one system prompt, one list of tools) get the same id,
  /// and read each other's memory. If that can happen, use a text or a span.
  /// - throws: `invalid_argument` if the prompt is empty, or `hashed` is not positive.
  [[nodiscard]] static session_id of_prompt(std::span<int const> ids, int hashed = 256) {
    expects(!ids.empty(), "session_id::of_prompt", "ids", "empty", "a prompt has at least one token");
    expects(hashed > 0, "session_id::of_prompt", "hashed", hashed, "at least one token is hashed");
    std::span<int const> const first = ids.first(std::min(ids.size(), static_cast<std::size_t>(hashed)));
    session_id made(session_source::prompt);
    made.number_ = first.size();
    made.hash_ = hash_tokens(first);
    return made;
  }

  /// The id of a request that belongs to no session. No other id of this process equals it.
  [[nodiscard]] static session_id unmatched() { return {}; }

  [[nodiscard]] session_source source() const { return source_; }

  /// True if a memory can be kept under this id.
  [[nodiscard]] bool is_storable() const { return source() != session_source::unmatched; }

  friend bool operator==(session_id const&, session_id const&) = default;

  /// Prints an id as "id:alice", "span:1,2,3", "prompt:256:32 hexadecimal digits" or "unmatched:7". A byte of a text
  /// that is not a visible ASCII character, or is '%', prints as '%' and two hexadecimal digits, so that every id is
  /// one line and different ids print differently.
  friend std::string print(session_id const& id) {
    std::string text = names(id.source_)[static_cast<std::size_t>(id.source_)];
    text += ':';
    switch (id.source_) {
      case session_source::explicit_id:
        return text + escaped(id.text_);
      case session_source::span:
        for (std::size_t i = 0; i < id.tokens_.size(); ++i) {
          text.append(i > 0 ? "," : "").append(std::to_string(id.tokens_[i]));
        }
        return text;
      case session_source::prompt:
        text.append(std::to_string(id.number_)).append(":");
        append_hex(text, id.hash_.high, 16);
        append_hex(text, id.hash_.low, 16);
        return text;
      case session_source::unmatched:
        break;
    }
    return text + std::to_string(id.number_);
  }

  [[nodiscard]] std::size_t hash() const {
    auto const made = static_cast<std::size_t>(source_);
    switch (source_) {
      case session_source::explicit_id:
        return made ^ std::hash<std::string>{}(text_);
      case session_source::span:
        return made ^ hash_of(tokens_);
      case session_source::prompt:
        return made ^ static_cast<std::size_t>(hash_.low);
      case session_source::unmatched:
        break;
    }
    return made ^ static_cast<std::size_t>(number_);
  }

  /// Reads a printed id.
  /// - throws: `invalid_argument` unless the text is one that `to_string` returns for an id that can be stored.
  [[nodiscard]] static session_id parse(std::string_view text) {
    session_id made;
    std::size_t const colon = std::min(text.find(':'), text.size());
    std::string_view const source = text.substr(0, colon), rest = text.substr(std::min(colon + 1, text.size()));
    if (source == "id") made = read_text(rest);
    if (source == "span") made = read_span(rest);
    if (source == "prompt" && !rest.starts_with('0')) made = read_prefix(rest);
    expects(
        made.is_storable() && !rest.empty() && print(made) == text, "session_id::parse", "text",
        [&] { return escaped(text); }, "a name reads id:TEXT, span:1,2,3 or prompt:COUNT:32 hexadecimal digits");
    return made;
  }

 private:
  explicit session_id(session_source source) : source_(source) {}

  static std::uint64_t next_serial() {
    static std::atomic<std::uint64_t> next{0};
    return next.fetch_add(1, std::memory_order_relaxed);
  }

  static std::string escaped(std::string_view text) {
    std::string made;
    for (char const each : text) {
      if (each > ' ' && each <= '~' && each != '%') {
        made += each;
      } else {
        made += '%';
        append_hex(made, static_cast<unsigned char>(each), 2);
      }
    }
    return made;
  }

  static void append_hex(std::string& text, std::uint64_t bits, int digits) {
    while (digits-- > 0) text += "0123456789abcdef"[bits >> 4 * digits & 15];
  }
  static std::size_t hash_of(std::vector<int> const& ids) {
    std::size_t sum = ids.size();
    for (int const id : ids) sum = sum * 0x9e3779b97f4a7c15u + static_cast<unsigned>(id) + (sum >> 29);
    return sum;
  }

  // These functions do not check their text; parse() then checks that the id prints as the text that it was read from.
  template <class Number>
  static Number read_number(std::string_view text, int base = 10) {
    Number value{};
    std::from_chars(text.data(), text.data() + text.size(), value, base);
    return value;
  }
  static session_id read_text(std::string_view text) {
    session_id made(session_source::explicit_id);
    for (std::size_t i = 0; i < text.size(); ++i) {
      bool const is_coded = text[i] == '%';
      made.text_ += is_coded ? static_cast<char>(read_number<unsigned char>(text.substr(i + 1, 2), 16)) : text[i];
      i += is_coded ? 2 : 0;
    }
    return made;
  }
  static session_id read_span(std::string_view text) {
    session_id made(session_source::span);
    for (std::size_t at = 0; at < text.size();) {
      std::size_t const comma = std::min(text.find(',', at), text.size());
      made.tokens_.push_back(read_number<int>(text.substr(at, comma - at)));
      at = comma + 1;
    }
    return made;
  }
  static session_id read_prefix(std::string_view text) {
    session_id made(session_source::prompt);
    std::size_t const colon = std::min(text.find(':'), text.size());
    std::string_view const digits = text.substr(std::min(colon + 1, text.size()));
    std::string_view const high = digits.substr(0, 16), low = digits.substr(high.size());
    made.number_ = read_number<std::uint64_t>(text.substr(0, colon));
    made.hash_ = {read_number<std::uint64_t>(high, 16), read_number<std::uint64_t>(low, 16)};
    return made;
  }

  session_source source_ = session_source::unmatched;
  std::string text_{};         ///< of a session that the caller names
  std::vector<int> tokens_{};  ///< of a span
  std::uint64_t number_ = 0;   ///< how many tokens of a prompt were hashed, or the serial number of a request
  token_hash hash_{};          ///< of a prompt
};

/// The sources by which an engine can identify the session of a request. An empty one is not known.
struct session_clues {
  std::string_view explicit_id{};        ///< the caller's own name for the session
  std::span<int const> span_tokens{};    ///< token ids of the span by which the session is recognised
  std::span<int const> prompt_tokens{};  ///< token ids of the request's input, from its beginning
  int hashed = 256;                      ///< P: how many of the prompt's first token ids are hashed
};

/// Identifies the session of a request by the first source that is known: the explicit id, the span, or the hash of the
/// prompt. If none is known, as for inputs that are embeddings, the id matches no other. See `session_id::of_prompt`
/// for the risk of the hash.
///
/// - throws: `invalid_argument` if `hashed` is not positive, whether or not it is used.
/// - cost: linear in the size of the source that is used.
[[nodiscard]] inline session_id identify(session_clues const& known) {
  expects(known.hashed > 0, "identify", "hashed", known.hashed, "at least one token is hashed");
  if (!known.explicit_id.empty()) return session_id::named(known.explicit_id);
  if (!known.span_tokens.empty()) return session_id::of_span(known.span_tokens);
  if (!known.prompt_tokens.empty()) return session_id::of_prompt(known.prompt_tokens, known.hashed);
  return session_id::unmatched();
}

}  // namespace KVPOLICY_NAMESPACE

/// Lets session ids be keys of the standard's hash containers.
template <>
struct std::hash<kvpolicy::session_id> {
  std::size_t operator()(kvpolicy::session_id const& id) const { return id.hash(); }
};
