// External: the scores come from outside of the library.
#pragma once

#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

/// Signal: one score for every entry, computed by the engine or by a model beside it. The library does not interpret
/// it.
struct external_scores {
  static constexpr auto name = "external";
  by_lane<float const> score{};
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, score); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_stride(call, "external.sequence", score.sequence, "sequences", batch.sequences);
  }
};

/// A short name in a policy's parameters. At most 31 characters.
struct label {
  char text[32] = {};
  friend bool operator==(label const&, label const&) = default;
};

[[nodiscard]] inline std::string print(label const& of) { return of.text; }

/// Describes the text of a label, for error messages.
[[nodiscard]] inline std::string wanted_text(label const*) { return "a name of at most 31 characters"; }

/// Reads what `print` writes; false if it is too long, or has a null character.
[[nodiscard]] inline bool read_text(std::string_view text, label& to) {
  if (text.size() >= sizeof to.text || text.find('\0') != std::string_view::npos) return false;
  to = {};
  for (std::size_t i = 0; i < text.size(); ++i) to.text[i] = text[i];
  return true;
}

/// Keeps the entries with the highest external scores. If an engine offers several scores, `of` names the one it must
/// provide; the scorer itself does not read `of`.
struct external {
  label of{};

  static constexpr auto name = "external";
  static constexpr auto fields() { return std::tuple{field{"name", &external::of}}; }
  using needs = kvpolicy::needs<external_scores>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is its external score.
  struct copy_score {
    by_lane<float const> score;
    KVPOLICY_HD float operator()(float, entry at) const { return score.row(at.lane)[at.ordinal]; }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, copy_score{in.template get<external_scores>().score});
  }

  friend bool operator==(external const&, external const&) = default;
};
static_assert(scorer<external>);

}  // namespace KVPOLICY_NAMESPACE
