// SPDX-License-Identifier: Apache-2.0
// Protections, budgets, picks and triggers of a program's own, which a registry knows by name. They are on the host
// only.
#pragma once

#include <concepts>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/parts/allot.hpp>
#include <kvpolicy/parts/pick.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <memory>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// A function of an object on the host, as two pointers. Kernels may carry it, but only the host calls it.
template <class Result, class... Args>
struct host_call {
  Result (*function)(void const*, Args...) = nullptr;
  void const* of = nullptr;

  [[nodiscard]] KVPOLICY_HD constexpr bool there() const {
#if defined(__CUDA_ARCH__)
    return false;
#else
    return function != nullptr;
#endif
  }
  KVPOLICY_HD constexpr Result operator()(Args... args) const {
#if defined(__CUDA_ARCH__)
    return Result{};
#else
    return function(of, args...);
#endif
  }
  friend bool operator==(host_call const&, host_call const&) = default;
};

/// A part of any type, and what is asked of each: an immutable object that copies share.
class own_part {
 public:
  own_part() = default;
  template <class Part>
    requires(!std::same_as<Part, own_part>)
  explicit own_part(Part const& from) : part_(std::make_shared<model<Part>>(from)) {}

  [[nodiscard]] bool there() const { return part_ != nullptr; }
  void check(char const* call) const {
    if (there()) part_->check(call);
  }
  [[nodiscard]] std::string spell() const { return part_->spell(); }
  friend std::string print(own_part const& of) { return of.spell(); }
  friend bool operator==(own_part const& a, own_part const& b) {
    return a.part_ == b.part_ || (a.there() && b.there() && a.part_->equals(*b.part_));
  }

  /// The call of a function of the part. It must not outlive the part.
  template <class Part, class Result, class... Args, class Function>
  [[nodiscard]] static host_call<Result, Args...> call_of(Part const& part, Function) {
    return {[](void const* of, Args... args) -> Result { return Function{}(*static_cast<Part const*>(of), args...); },
            &part};
  }
  template <class Part>
  [[nodiscard]] Part const& as() const {
    return static_cast<model<Part> const&>(*part_).part;
  }

 private:
  struct interface {
    virtual ~interface() = default;
    virtual void check(char const* call) const = 0;
    [[nodiscard]] virtual std::string spell() const = 0;
    [[nodiscard]] virtual bool equals(interface const& other) const = 0;
  };
  template <class Part>
  struct model final : interface {
    explicit model(Part const& from) : part(from) {}
    void check(char const* call) const override {
      if constexpr (requires { part.check(call); }) part.check(call);
    }
    [[nodiscard]] std::string spell() const override { return to_string(part); }
    [[nodiscard]] bool equals(interface const& other) const override {
      auto const* const same = dynamic_cast<model const*>(&other);
      return same != nullptr && same->part == part;
    }
    Part part;
  };

  std::shared_ptr<interface const> part_;
};

/// A protection of a program's own.
struct own_protected : own_part {
  host_call<bool, entry> protects{};

  own_protected() = default;
  template <class Protect>
    requires(!std::derived_from<Protect, own_part>)
  explicit own_protected(Protect const& from)
      : own_part(from),
        protects(call_of<Protect, bool, entry>(as<Protect>(), [](Protect const& p, entry at) { return p(at); })) {}
  friend bool operator==(own_protected const& a, own_protected const& b) {
    return static_cast<own_part const&>(a) == static_cast<own_part const&>(b);
  }
};

/// What a decision asks of a budget of a program's own.
struct own_budget_calls {
  host_call<int, lane, int> share{};
  host_call<int, int> floor{};
  friend bool operator==(own_budget_calls const&, own_budget_calls const&) = default;
};

/// A budget of a program's own.
struct own_budget : own_part {
  own_budget_calls calls{};
  budget_scope scope = budget_scope::lane;

  own_budget() = default;
  template <class Budget>
    requires(!std::derived_from<Budget, own_part>)
  explicit own_budget(Budget const& from)
      : own_part(from),
        calls{call_of<Budget, int, lane, int>(as<Budget>(),
                                              [](Budget const& b, lane of, int count) { return b(of, count); }),
              call_of<Budget, int, int>(as<Budget>(), [](Budget const& b, int share) { return floor_of(b, share); })},
        scope(scope_of(from)) {
    static_assert(
        !allots<Budget> && !requires(shape const& model) { from.in_entries(model, std::int64_t{}); },
        "kvpolicy: a budget of a program's own by name is a number of each lane: it has neither `allot` nor "
        "`in_entries`");
  }
  friend bool operator==(own_budget const& a, own_budget const& b) {
    return static_cast<own_part const&>(a) == static_cast<own_part const&>(b);
  }
};

/// A trigger of a program's own. It is called with 0 lanes for a lane that shares with nobody.
struct own_trigger : own_part {
  host_call<bool, int, int, int> fires{};
  host_call<bool, int> dues{};

  own_trigger() = default;
  template <class Trigger>
    requires(!std::derived_from<Trigger, own_part>)
  explicit own_trigger(Trigger const& from)
      : own_part(from),
        fires(call_of<Trigger, bool, int, int, int>(as<Trigger>(),
                                                    [](Trigger const& t, int count, int allowed, int lanes) {
                                                      return lanes == 0 ? t(count, allowed)
                                                                        : fires_in_pool(t, count, allowed, lanes);
                                                    })),
        dues(timed<Trigger> ? call_of<Trigger, bool, int>(
                                  as<Trigger>(), [](Trigger const& t, int newest) { return is_due(t, newest); })
                            : host_call<bool, int>{}) {}
  friend bool operator==(own_trigger const& a, own_trigger const& b) {
    return static_cast<own_part const&>(a) == static_cast<own_part const&>(b);
  }
};

/// A pick of a program's own, which depends on an entry's score only.
struct own_pick : own_part {
  host_call<bool, float> picks{};

  own_pick() = default;
  template <class Pick>
    requires(!std::derived_from<Pick, own_part>)
  explicit own_pick(Pick const& from)
      : own_part(from),
        picks(call_of<Pick, bool, float>(as<Pick>(), [](Pick const& p, float score) { return p(score); })) {}
  friend bool operator==(own_pick const& a, own_pick const& b) {
    return static_cast<own_part const&>(a) == static_cast<own_part const&>(b);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
