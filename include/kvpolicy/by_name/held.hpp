// SPDX-License-Identifier: Apache-2.0
// What an erased part holds behind an interface.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <memory>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// A value behind an interface, which copies of a policy share. A policy that was moved from holds none.
template <class Interface>
class held {
 public:
  explicit held(std::shared_ptr<Interface const> value) : value_(std::move(value)) {}

  /// - throws: `invalid_argument` if the policy was moved from.
  [[nodiscard]] Interface const& operator*() const {
    expects(value_ != nullptr, "policy", "this", "moved from", "its parts are in the policy that it was moved to");
    return *value_;
  }
  [[nodiscard]] Interface const* operator->() const { return &**this; }

 private:
  std::shared_ptr<Interface const> value_;
};

}  // namespace KVPOLICY_NAMESPACE::detail
