// SPDX-License-Identifier: Apache-2.0
// An applier of any type, which programs know by its name.
#pragma once

#include <concepts>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// An applier whose type is erased: a value, whose copies share one immutable applier. `kv::apply` takes it as any
/// other one, and so does `make_state`, which adds its columns. `make_plan` does not know its scratch memory, which the
/// first `apply` reserves.
///
///     kv::any_applier how{mine{}};
///     kv::apply(exec, how, plan, cache, state);
///
/// An applier that has a member `list` of type `by_lane<int>` edits the lists of slots of an engine. `on_list` gives it
/// the lists of a cache.
template <executor Executor>
class basic_any_applier {
 public:
  /// No applier: it has no columns, and must not be applied.
  basic_any_applier() = default;
  template <class How>
    requires(!std::same_as<How, basic_any_applier>) && applier<How>
  explicit basic_any_applier(How const& how) : how_(std::make_shared<model<How> const>(how)) {}

  [[nodiscard]] bool there() const { return how_ != nullptr; }
  /// The name by which errors call it. Without an applier this throws, as do the calls below.
  [[nodiscard]] std::string_view name() const { return given().name(); }
  [[nodiscard]] applier_effects effects() const { return given().effects(); }
  /// True if it edits lists of slots: call `on_list` before it is applied.
  [[nodiscard]] bool takes_list() const { return given().takes_list(); }
  /// The same applier for these lists.
  [[nodiscard]] basic_any_applier on_list(by_lane<int> const& list) const { return given().on_list(list); }
  /// The columns that it keeps for itself; none without an applier.
  [[nodiscard]] std::vector<column> columns(cache const& in) const {
    return there() ? how_->columns(in) : std::vector<column>();
  }

  /// What `kv::apply` calls.
  void apply(Executor& exec, plan<Executor> const& decided, cache& in, state<Executor>& state,
             apply_stats* stats) const {
    given().apply(exec, decided, in, state, stats);
  }

 private:
  struct interface {
    virtual ~interface() = default;
    [[nodiscard]] virtual std::string_view name() const = 0;
    [[nodiscard]] virtual applier_effects effects() const = 0;
    [[nodiscard]] virtual bool takes_list() const = 0;
    [[nodiscard]] virtual basic_any_applier on_list(by_lane<int> const& list) const = 0;
    [[nodiscard]] virtual std::vector<column> columns(cache const& in) const = 0;
    virtual void apply(Executor& exec, plan<Executor> const& decided, cache& in, state<Executor>& state,
                       apply_stats* stats) const = 0;
  };
  template <class How>
  struct model final : interface {
    static constexpr bool has_list = requires(How how, by_lane<int> list) { how.list = list; };

    explicit model(How const& from) : how(from) {}
    [[nodiscard]] std::string_view name() const override { return How::name; }
    [[nodiscard]] applier_effects effects() const override { return How::effects; }
    [[nodiscard]] bool takes_list() const override { return has_list; }
    [[nodiscard]] basic_any_applier on_list([[maybe_unused]] by_lane<int> const& list) const override {
      How made = how;
      if constexpr (has_list) made.list = list;
      return basic_any_applier(made);
    }
    [[nodiscard]] std::vector<column> columns(cache const& in) const override {
      return detail::columns_of_applier(how, in);
    }
    void apply(Executor& exec, plan<Executor> const& decided, cache& in, state<Executor>& state,
               apply_stats* stats) const override {
      kvpolicy::apply(exec, how, decided, in, state, stats);
    }
    How how;
  };

  [[nodiscard]] interface const& given() const {
    expects(there(), "apply", "applier", "none", "it carries the decision out");
    return *how_;
  }

  std::shared_ptr<interface const> how_;
};

/// Carries out the decision that a plan holds by an applier of any type.
/// - throws: as `apply` of that applier, and `invalid_argument` if there is none.
template <executor Executor>
void apply(Executor& exec, basic_any_applier<Executor> const& how, plan<Executor> const& decided, cache& in,
           state<Executor>& state, apply_stats* stats = nullptr) {
  how.apply(exec, decided, in, state, stats);
}

/// An applier of any type for the host.
using any_applier = basic_any_applier<host_executor>;

namespace detail {

/// The appliers that a registry knows.
template <executor Executor>
class known_appliers {
 public:
  /// The appliers that were added, in their order.
  [[nodiscard]] std::vector<basic_any_applier<Executor>> const& appliers() const { return all_; }
  /// The applier of a name; none if there is none.
  [[nodiscard]] basic_any_applier<Executor> applier_of(std::string_view name) const {
    for (basic_any_applier<Executor> const& each : all_) {
      if (each.name() == name) return each;
    }
    return {};
  }

 protected:
  template <class How>
  void add_applier(How const& how) {
    expects(!applier_of(How::name).there(), "registry", "name", How::name, "there is an applier of that name");
    all_.push_back(basic_any_applier<Executor>(how));
  }

 private:
  std::vector<basic_any_applier<Executor>> all_;
};

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
