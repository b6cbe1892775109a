// SPDX-License-Identifier: Apache-2.0
// Type-erased recorders: those of a scorer that is chosen at run time.
#pragma once

#include <array>
#include <kvpolicy/by_name/any_signals.hpp>
#include <kvpolicy/by_name/held.hpp>
#include <kvpolicy/decision/missed_rows.hpp>
#include <kvpolicy/decision/record.hpp>
#include <kvpolicy/decision/scratch.hpp>
#include <kvpolicy/scorers/with_recorders.hpp>
#include <memory>
#include <string>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// A list of columns of fixed capacity, which allocates nothing.
class column_list {
 public:
  static constexpr std::size_t most = 16;

  void add(column const& one) {
    expects(count_ < most, "any_recorders", "columns", count_ + 1, "erased recorders have at most 16 columns");
    all_[count_++] = one;
  }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] column const* begin() const { return all_.data(); }
  [[nodiscard]] column const* end() const { return all_.data() + count_; }

 private:
  std::array<column, most> all_{};
  std::size_t count_ = 0;
};

namespace detail {

/// Refuses signals without one that a scorer reads.
template <class Signal>
void refuse_missing(char const* call, char const* whose, any_signals const& in, Signal const* signal) {
  expects(
      in.has(signal), call, "signals", [&] { return in.names(); },
      [&] { return std::string(whose) + " needs signal " + signal_name(signal); });
}
/// Refuses signals without one that a recorder reads, unless the engine gives the signal that the recorder provides.
template <class Recorder>
void refuse_unrecordable(char const* call, char const* whose, any_signals const& in) {
  if (in.has(static_cast<typename Recorder::provides const*>(nullptr))) return;
  each_need<typename Recorder::needs>::visit([&](auto const* signal) { refuse_missing(call, whose, in, signal); });
}

}  // namespace detail

/// All recorders of a scorer as one recorder, for one kind of executor. Its columns are theirs, in their order. The
/// signals that it reads are found by name when it observes. It is a value; copies share an immutable object.
template <executor Executor>
class any_recorders {
 public:
  using needs = kvpolicy::needs<>;  // known at run time only: see `refuse`
  using provides = recorded_columns;

  any_recorders() : any_recorders(std::tuple<>{}, "nothing") {}
  /// `whose` is the name of the scorer, for errors.
  template <recorder... Recorders>
  any_recorders(std::tuple<Recorders...> const& all, std::string const& whose)
      : inner_(std::make_shared<model<Recorders...>>(all, whose)) {}

  /// Those that the window of an admission has, too: of values known when an entry is appended, and of numbers of
  /// entries.
  [[nodiscard]] any_recorders in_window() const {
    any_recorders made = *this;
    made.window_ = true;
    return made;
  }
  /// True if the values of all of them are known when an entry is appended.
  [[nodiscard]] bool all_known_at_append() const { return inner_->all_known_at_append(); }
  /// True if one of them keeps what belongs to no entry and follows from every forward, such as the last query rows.
  [[nodiscard]] bool keeps_rows() const { return inner_->keeps_rows(); }
  /// The name of a column of numbers of entries, if its recorder does not say that it keeps such; otherwise empty.
  [[nodiscard]] std::string undeclared(shape const& of) const { return inner_->undeclared(of); }

  [[nodiscard]] column_list columns(shape const& of, int bound) const {
    column_list made;
    inner_->columns(window_, of, bound, made);
    return made;
  }
  [[nodiscard]] static recorded_columns view(recorded_columns const& recorded) { return recorded; }

  /// Observes with each of them; in a window, with those of values known when an entry is appended. `in` is `signals`
  /// or `any_signals`.
  template <class Given>
  void observe(Executor& exec, Given const& in, recorded_columns const& recorded) const {
    inner_->observe(window_, {true, !window_}, exec, any_signals(in), recorded);
  }
  /// Observes a part of a dual cache with those that change with forwards.
  template <class Given>
  void observe_part(Executor& exec, Given const& in, recorded_columns const& recorded) const {
    inner_->observe(window_, {false, true}, exec, any_signals(in), recorded);
  }
  void forget(Executor& exec, lanes const& batch, recorded_columns const& recorded, int sequence, int position) const {
    inner_->forget(window_, exec, batch, recorded, sequence, position);
  }

  /// Refuses signals from which one of them cannot record.
  /// - throws: `invalid_argument` that names the missing signal, unless the engine gives what would be recorded.
  template <class Given>
  void refuse(char const* call, Given const& in) const {
    inner_->refuse(window_, {true, !window_}, call, any_signals(in));
  }
  /// Refuses signals of a part of a dual cache from which one of those that change with forwards cannot record.
  template <class Given>
  void refuse_part(char const* call, Given const& in) const {
    inner_->refuse(window_, {false, true}, call, any_signals(in));
  }
  /// True if one of them sums over the rows of all tokens: see `detail::sums_rows`.
  template <class Given>
  [[nodiscard]] bool sums_rows(Given const& in) const {
    return inner_->sums_rows(any_signals(in));
  }
  /// The names of the signals from which they record.
  [[nodiscard]] std::vector<std::string> signals() const { return inner_->signals(window_); }
  /// The bytes of scratch that `observe` needs.
  [[nodiscard]] std::size_t scratch(shape const& of, lanes const& batch) const { return inner_->scratch(of, batch); }
  /// Calls visit(kind) for each kind of rows that one of them reads.
  template <class Visit>
  void visit_kinds_of_rows(Visit const& visit) const {
    for (int kind = 0; kind < 3; ++kind) {
      if (inner_->reads_rows(kind)) visit(kind);
    }
  }

  friend bool operator==(any_recorders const& a, any_recorders const& b) {
    return a.window_ == b.window_ && a.inner_->equals(*b.inner_);
  }

 private:
  /// Which of them are asked: those of values known when an entry is appended, and those that change with forwards.
  struct asked {
    bool known_at_append;
    bool changing;
  };

  struct interface {
    virtual ~interface() = default;
    [[nodiscard]] virtual void const* type() const = 0;
    [[nodiscard]] virtual bool equals(interface const& other) const = 0;
    [[nodiscard]] virtual bool all_known_at_append() const = 0;
    [[nodiscard]] virtual bool keeps_rows() const = 0;
    [[nodiscard]] virtual std::string undeclared(shape const&) const = 0;
    virtual void columns(bool window, shape const&, int bound, column_list& to) const = 0;
    virtual void observe(bool window, asked, Executor&, any_signals const&, recorded_columns const&) const = 0;
    virtual void forget(bool window, Executor&, lanes const&, recorded_columns const&, int sequence,
                        int position) const = 0;
    virtual void refuse(bool window, asked, char const* call, any_signals const&) const = 0;
    [[nodiscard]] virtual bool sums_rows(any_signals const&) const = 0;
    [[nodiscard]] virtual std::vector<std::string> signals(bool window) const = 0;
    [[nodiscard]] virtual std::size_t scratch(shape const&, lanes const&) const = 0;
    [[nodiscard]] virtual bool reads_rows(int kind) const = 0;
  };

  template <class... Recorders>
  struct model final : interface {
    model(std::tuple<Recorders...> const& from, std::string const& name) : all(from), whose(name) {}
    std::tuple<Recorders...> all;
    std::string whose;

    static constexpr char tag = 0;

    [[nodiscard]] void const* type() const override { return &tag; }
    [[nodiscard]] bool equals(interface const& other) const override {
      return other.type() == type() && static_cast<model const&>(other).all == all;
    }
    [[nodiscard]] bool all_known_at_append() const override { return (detail::known_at_append<Recorders> && ...); }
    [[nodiscard]] bool keeps_rows() const override {
      return ((!detail::known_at_append<Recorders> && !detail::of_entries<Recorders>) || ...);
    }
    [[nodiscard]] std::string undeclared(shape const& of) const override {
      std::string found;
      each(false, [&](auto const& keeps) {
        if (found.empty()) found = detail::undeclared_column(keeps, of);
      });
      return found;
    }
    void columns(bool window, shape const& of, int bound, column_list& to) const override {
      each(window, [&](auto const& keeps) {
        for (column const& one : keeps.columns(of, bound)) to.add(one);
      });
    }
    void observe(bool window, asked which, Executor& exec, any_signals const& in,
                 recorded_columns const& recorded) const override {
      each_with_columns(
          window, in.lanes, recorded, [&]<class Recorder>(Recorder const& keeps, recorded_columns const& its) {
            bool const is_asked = detail::known_at_append<Recorder> ? which.known_at_append : which.changing;
            if (is_asked && in.has_all(typename Recorder::needs{})) keeps.observe(exec, in, its);
          });
    }
    void forget(bool window, Executor& exec, lanes const& batch, recorded_columns const& recorded, int sequence,
                int position) const override {
      each_with_columns(window, batch, recorded, [&](auto const& keeps, recorded_columns const& its) {
        if constexpr (requires { keeps.forget(exec, batch, its, sequence, position); }) {
          keeps.forget(exec, batch, its, sequence, position);
        }
      });
    }
    void refuse(bool window, asked which, char const* call, any_signals const& in) const override {
      each(window, [&]<class Recorder>(Recorder const& keeps) {
        if (!(detail::known_at_append<Recorder> ? which.known_at_append : which.changing)) return;
        detail::refuse_unrecordable<Recorder>(call, whose.c_str(), in);
        detail::refuse_rows<typename Executor::backend>(call, typename Recorder::needs{}, in);
        if (!which.known_at_append) detail::refuse_part_of(call, keeps, in);
      });
    }
    [[nodiscard]] bool sums_rows([[maybe_unused]] any_signals const& in) const override {
      return std::apply([&](auto const&... keeps) { return (detail::sums_rows(keeps, in) || ...); }, all);
    }
    [[nodiscard]] std::vector<std::string> signals(bool window) const override {
      std::vector<std::string> names;
      each(window, [&]<class Recorder>(Recorder const&) {
        detail::each_need<typename Recorder::needs>::visit(
            [&](auto const* signal) { names.push_back(detail::signal_name(signal)); });
      });
      return names;
    }
    [[nodiscard]] std::size_t scratch(shape const& of, lanes const& batch) const override {
      return detail::scratch_to_observe<typename Executor::backend>(all, of, batch);
    }
    [[nodiscard]] bool reads_rows([[maybe_unused]] int kind) const override {
      bool found = false;
      (detail::visit_kinds_of_rows(typename Recorders::needs{}, [&](int one) { found = found || one == kind; }), ...);
      return found;
    }

    template <class Visit>
    void each(bool window, Visit const& visit) const {
      auto const one = [&]<class Recorder>(Recorder const& keeps) {
        if (!window || detail::known_at_append<Recorder> || detail::of_entries<Recorder>) visit(keeps);
      };
      std::apply([&](auto const&... keeps) { (one(keeps), ...); }, all);
    }
    /// The same, with the columns of each.
    template <class Visit>
    void each_with_columns(bool window, lanes const& batch, recorded_columns recorded, Visit const& visit) const {
      each(window, [&](auto const& keeps) {
        visit(keeps, recorded);
        recorded.first += keeps.columns(recorded.model, batch.capacity).size();
      });
    }
  };

  detail::held<interface> inner_;
  bool window_ = false;
};

}  // namespace KVPOLICY_NAMESPACE
