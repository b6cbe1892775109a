// SPDX-License-Identifier: Apache-2.0
// What is known of tinylm's queries before any is seen, and the policies that go by it.
#pragma once

#include <cstdlib>
#include <kvpolicy/io/safetensors.hpp>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <vector>

namespace demo {

namespace kv = kvpolicy;

/// A file of tools/profile_tinylm.py.
class query_profile {
 public:
  query_profile(std::string const& path, kv::shape const& about) : about_(about) {
    kv::safetensors_reader file(path);
    auto const extents = [&](int heads, int width) {
      return std::vector<std::uint64_t>{static_cast<std::uint64_t>(about.layers), static_cast<std::uint64_t>(heads),
                                        static_cast<std::uint64_t>(width)};
    };
    mean_ = file.floats("query_model.mean", extents(about.query_heads, about.head_dim));
    radius_ = file.floats("query_model.radius", extents(about.query_heads, about.head_dim / 2));
    directions_ = file.floats("rows.q_filters", extents(about.kv_heads, about.head_dim));
    auto const theta = file.all_metadata().find("rope_theta");
    file.refuse(theta == file.all_metadata().end(), "rope_theta", "missing", "the profile says how queries turn");
    turns_.theta = std::strtod(theta->second.c_str(), nullptr);
  }
  [[nodiscard]] kv::query_model queries() const {
    return kv::query_model_of(mean_.data(), radius_.data(), about_, turns_);
  }
  [[nodiscard]] kv::rows_of_heads directions() const {
    std::int64_t const dims = about_.head_dim;
    return {{directions_.data(), 0, dims * about_.kv_heads, dims}, about_.head_dim};
  }

 private:
  kv::shape about_;
  std::vector<float> mean_, radius_, directions_;
  kv::rope turns_{};
};

/// `tri_attention` with a profile of its own, because tinylm's sessions give the signals of forwards only.
struct profiled_tri_attention {
  kv::query_model profile{};

  static constexpr auto name = kv::tri_attention::name;
  static constexpr auto fields() { return kv::make_fields(); }
  using needs = kv::needs<kv::keys>;
  using verbs = kv::tri_attention::verbs;
  static constexpr kv::granularity decides = kv::granularity::lane;
  static constexpr bool ranks_candidates = true;

  /// The signals of a decision, and the profile.
  template <class SignalSet>
  struct with_profile {
    SignalSet const& given;
    kv::query_model const& profile;
    template <class Signal>
    [[nodiscard]] decltype(auto) get() const {
      if constexpr (std::same_as<Signal, kv::query_model>) {
        return (profile);
      } else {
        return given.template get<Signal>();
      }
    }
  };
  [[nodiscard]] static int spare_rows(kv::lanes const& batch, kv::shape const& model) {
    return kv::tri_attention{}.spare_rows(batch, model);
  }
  template <class Executor, class SignalSet>
  void score(Executor& exec, SignalSet const& in, kv::score_view const& out) const {
    kv::tri_attention{}.score(exec, with_profile<SignalSet>{in, profile}, out);
  }

  friend bool operator==(profiled_tri_attention const& a, profiled_tri_attention const& b) {
    return a.profile.mean.base == b.profile.mean.base;
  }
};

}  // namespace demo
