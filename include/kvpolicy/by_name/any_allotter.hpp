// SPDX-License-Identifier: Apache-2.0
// Allotters that are chosen at run time.
#pragma once

#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/parts/shared_out.hpp>
#include <memory>
#include <string>
#include <utility>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// What is asked of an allotter for any kind of executor.
class erased_allotter {
 public:
  virtual ~erased_allotter() = default;
  virtual void check(char const* call) const = 0;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string spell() const = 0;  ///< ", by=moments, tau1=1.6"
  [[nodiscard]] virtual bool equals(erased_allotter const& other) const = 0;
  [[nodiscard]] virtual bool compares_layers() const = 0;
  [[nodiscard]] virtual budget_scope shared_by() const = 0;
  [[nodiscard]] virtual int lane_numbers() const = 0;
  [[nodiscard]] virtual int spare_rows(lanes const& batch) const = 0;
  [[nodiscard]] virtual std::shared_ptr<erased_allotter const> with_window(int window) const = 0;
  [[nodiscard]] virtual std::shared_ptr<erased_allotter const> one_by_one(int layers) const = 0;  ///< null: it is not
};

/// What a decision of one kind of executor asks, too.
template <executor Executor>
class erased_allotter_of : public erased_allotter {
 public:
  virtual void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const = 0;
};

template <executor Executor, allotter By>
class allotter_model final : public erased_allotter_of<Executor> {
 public:
  explicit allotter_model(By const& from) : by_(from) {}
  void check(char const* call) const override {
    if constexpr (requires { by_.check(call); }) by_.check(call);
  }
  [[nodiscard]] std::string name() const override { return By::name; }
  [[nodiscard]] std::string spell() const override { return print_allotter(by_); }
  [[nodiscard]] bool equals(erased_allotter const& other) const override {
    auto const* const same = dynamic_cast<allotter_model const*>(&other);
    return same != nullptr && same->by_ == by_;
  }
  [[nodiscard]] bool compares_layers() const override { return detail::compares_layers(by_); }
  [[nodiscard]] budget_scope shared_by() const override { return scope_of_shares<By>(); }
  [[nodiscard]] int lane_numbers() const override {
    if constexpr (requires { By::lane_numbers; }) return By::lane_numbers;
    return 0;
  }
  [[nodiscard]] int spare_rows(lanes const& batch) const override {
    if constexpr (requires { by_.spare_rows(batch); }) return by_.spare_rows(batch);
    return 0;
  }
  [[nodiscard]] std::shared_ptr<erased_allotter const> with_window(int window) const override {
    if constexpr (requires { by_.with_window(window); }) {
      return std::make_shared<allotter_model>(by_.with_window(window));
    } else {
      return std::make_shared<allotter_model>(*this);
    }
  }
  [[nodiscard]] std::shared_ptr<erased_allotter const> one_by_one([[maybe_unused]] int layers) const override {
    if constexpr (requires { by_.one_by_one(layers); }) {
      return std::make_shared<allotter_model>(by_.one_by_one(layers));
    } else {
      return nullptr;
    }
  }
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const override {
    by_.allot(exec, of, shares);
  }

 private:
  By by_;
};

template <executor Executor>
void allot_erased(Executor& exec, erased_allotter const& by, allotting<Executor>& of, by_lane<int> const& shares) {
  auto const* const here = dynamic_cast<erased_allotter_of<Executor> const*>(&by);
  expects(
      here != nullptr, "decide", "budget.by", [&] { return by.name(); },
      "it is of the registry of another kind of executor");
  here->allot(exec, of, shares);
}

}  // namespace detail

/// Any allotter: a value whose copies share an immutable object.
class any_allotter {
 public:
  any_allotter() = default;
  explicit any_allotter(std::shared_ptr<detail::erased_allotter const> of) : of_(std::move(of)) {}
  template <executor Executor, allotter By>
  [[nodiscard]] static any_allotter on(By const& from) {
    return any_allotter(std::make_shared<detail::allotter_model<Executor, By>>(from));
  }
  template <allotter By>
  [[nodiscard]] static any_allotter on_host(By const& from) {
    return on<host_executor>(from);
  }

  [[nodiscard]] bool there() const { return of_ != nullptr; }
  [[nodiscard]] detail::erased_allotter const* get() const { return of_.get(); }
  void check(char const* call) const { of_->check(call); }
  [[nodiscard]] std::string name() const { return of_->name(); }
  [[nodiscard]] std::string spell() const { return of_->spell(); }
  [[nodiscard]] budget_scope shared_by() const { return of_->shared_by(); }
  /// The same where the scorer forces the last `window` entries.
  [[nodiscard]] any_allotter with_window(int window) const { return any_allotter(of_->with_window(window)); }

  /// The same for decisions about the first ones of so many layers, or none if it does not take layers one by one.
  [[nodiscard]] any_allotter one_by_one(int layers) const { return any_allotter(of_->one_by_one(layers)); }

  friend bool operator==(any_allotter const& a, any_allotter const& b) {
    return a.of_ == b.of_ || (a.there() && b.there() && a.of_->equals(*b.of_));
  }

 private:
  std::shared_ptr<detail::erased_allotter const> of_;
};

}  // namespace KVPOLICY_NAMESPACE
