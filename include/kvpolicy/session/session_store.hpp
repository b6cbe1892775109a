// SPDX-License-Identifier: Apache-2.0
// Stores the memories of sessions between requests. It drops the least recently used memory first, and lets one request
// of a session work at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/session/session_id.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The shape of a session's memory: [layers][query heads][channels], float32, contiguous.
struct memory_shape {
  int layers = 0;
  int query_heads = 0;
  int dims = 0;  ///< D, channels of a head

  [[nodiscard]] constexpr std::size_t floats() const {
    return static_cast<std::size_t>(layers) * static_cast<std::size_t>(query_heads) * static_cast<std::size_t>(dims);
  }
  friend bool operator==(memory_shape const&, memory_shape const&) = default;
  friend std::string print(memory_shape const& of) {
    std::string text = "[";
    text.append(std::to_string(of.layers)).append(", ").append(std::to_string(of.query_heads)).append(", ");
    return text.append(std::to_string(of.dims)).append("]");
  }
};

/// Floats that are never changed, only replaced. A holder may read them at any time.
using memory_floats = std::shared_ptr<std::vector<float> const>;

/// A session and its memory.
struct remembered {
  session_id id;
  memory_floats memory;
};

class session_store;

namespace detail {

/// A session of a store: either one with a memory, or a new one that a lease has taken. Its address does not change.
struct session_record {
  session_id const* id = nullptr;
  memory_floats memory;                          // null: a new session
  std::list<session_record*>::iterator place{};  // in the list of sessions with a memory, or of new sessions
  bool is_out = false;                           // a lease has taken it
};

/// The index of the first float that is infinite or NaN, or the number of floats if all are finite.
[[nodiscard]] inline std::size_t first_not_finite(std::span<float const> values) {
  auto const at = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  return static_cast<std::size_t>(at - values.begin());
}

}  // namespace detail

/// Exclusive access of one request to the memory of a session: the request works on a copy, and no other request can
/// take the session meanwhile. A lease can be moved, not copied. It ends when it is committed or destroyed, and the
/// store must live until then. Only one thread may use it at a time.
class session_lease {
 public:
  session_lease() = default;
  session_lease(session_lease&& other) noexcept { swap(other); }
  session_lease& operator=(session_lease&& other) noexcept {
    session_lease(std::move(other)).swap(*this);
    return *this;
  }
  session_lease(session_lease const&) = delete;
  session_lease& operator=(session_lease const&) = delete;
  /// Gives the session back unchanged, unless the lease was committed.
  ~session_lease();

  /// True if it holds a memory: a session was taken, and the lease was neither moved from nor committed.
  [[nodiscard]] explicit operator bool() const { return work_ != nullptr; }

  /// The request's copy of the memory, which it may read and write: [layers][query heads][channels]. It is all zeros
  /// for a new session, and empty if the lease holds no memory.
  [[nodiscard]] std::span<float> floats() const { return work_ ? std::span<float>(*work_) : std::span<float>(); }

  /// The shape of the floats; all extents are 0 if the lease holds no memory.
  [[nodiscard]] memory_shape extents() const;

  /// Makes `floats()` the memory of the session and ends the lease. Other requests may take the session from then on.
  ///
  /// - cost: one pass over the floats. The store is locked for O(1), and longer only to drop memories.
  /// - throws: `invalid_argument` if the lease holds no memory, or if a float is infinite or NaN, from which a memory
  ///   would never recover. Nothing is changed then, and the lease does not end.
  void commit();

 private:
  friend session_store;
  void swap(session_lease& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(record_, other.record_);
    std::swap(work_, other.work_);
  }

  session_store* store_ = nullptr;
  detail::session_record* record_ = nullptr;  // null for an unmatched id
  std::shared_ptr<std::vector<float>> work_;
};

/// Stores the memories of sessions, all of one shape, in host memory. If there are more than `capacity`, it drops those
/// whose last commit is longest ago. It never drops a session that a lease has taken, so it may hold more than
/// `capacity` memories meanwhile. A lease of an unmatched id starts with zeros, and its commit is not stored.
///
/// All members may be called by several threads at once. Requests of one session wait for each other. Requests of
/// different sessions share a lock for the look-up only, and copy and work outside of it.
class session_store {
 public:
  /// - throws: `invalid_argument` if an extent or the capacity is not positive.
  explicit session_store(memory_shape const& extents, int capacity = 1024) : extents_(extents), capacity_(capacity) {
    expects(extents.layers > 0, "session_store", "layers", extents.layers, "a memory has at least one layer");
    expects(extents.query_heads > 0, "session_store", "query_heads", extents.query_heads,
            "a memory has at least one query head");
    expects(extents.dims > 0, "session_store", "dims", extents.dims, "a head has at least one channel");
    expects(capacity > 0, "session_store", "capacity", capacity, "a store keeps at least one memory");
  }
  session_store(session_store const&) = delete;
  session_store& operator=(session_store const&) = delete;
  ~session_store() = default;

  /// Takes a session and returns its lease. If another lease has taken it, waits until that ends; a thread that holds
  /// the other lease itself waits forever. Requests that wait for one session get it in no particular order.
  ///
  /// - cost: O(size of the id) under the lock, and a copy of the memory outside of it. The copy is the only allocation
  ///   for a known session.
  /// - throws: `bad_alloc`. Nothing is changed then.
  [[nodiscard]] session_lease take(session_id const& id) { return take(id, true); }

  /// Takes a session as `take` does, but does not wait: if another lease has taken it, returns an empty lease.
  [[nodiscard]] session_lease try_take(session_id const& id) { return take(id, false); }

  /// The number of stored memories, including those of sessions that a lease has taken.
  [[nodiscard]] int size() const {
    std::lock_guard const lock(guard_);
    return static_cast<int>(kept_.size());
  }
  [[nodiscard]] int capacity() const { return capacity_; }
  [[nodiscard]] memory_shape const& extents() const { return extents_; }

  /// All stored memories in the order of their last commits, the oldest first. A session that a lease has taken has the
  /// memory that it had before. O(sessions) under the lock: ids are copied, floats are not.
  [[nodiscard]] std::vector<remembered> snapshot() const {
    std::lock_guard const lock(guard_);
    std::vector<remembered> all;
    all.reserve(kept_.size());
    for (auto const* each : kept_) all.push_back({*each->id, each->memory});
    return all;
  }

  /// Replaces all stored memories, as if the new ones were committed in this order. It shares the floats and does not
  /// copy them.
  ///
  /// - throws: `invalid_argument` if a lease has taken a session, an id appears twice or is unmatched, or a memory has
  ///   another size or an infinite or NaN float; `bad_alloc`. Nothing is changed then.
  void assign(std::span<remembered const> all) {
    session_store made(extents_, capacity_);
    for (remembered const& each : all) made.add(each);
    made.trim();
    std::lock_guard const lock(guard_);
    expects(out_ == 0, "session_store::assign", "sessions out", out_, "all are given back before others replace them");
    records_.swap(made.records_);
    kept_.swap(made.kept_);
  }

 private:
  friend session_lease;
  using record = detail::session_record;

  session_lease take(session_id const& id, bool waits) {
    session_lease lease;
    memory_floats before;
    if (id.is_storable()) {
      std::unique_lock lock(guard_);
      auto at = records_.find(id);
      for (; at != records_.end() && at->second.is_out; at = records_.find(id)) {
        if (!waits) return lease;
        given_back_.wait(lock);
      }
      lease.record_ = at != records_.end() ? &at->second : &insert(id, new_);
      lease.record_->is_out = true;
      out_ += 1;
      before = lease.record_->memory;
    }
    lease.store_ = this;  // from here on the lease gives the session back if an allocation fails
    lease.work_ = before ? std::make_shared<std::vector<float>>(*before)
                         : std::make_shared<std::vector<float>>(extents_.floats());
    return lease;
  }

  /// Inserts a record at the end of a list.
  record& insert(session_id const& id, std::list<record*>& into) {
    std::list<record*> place(1);
    auto const [at, is_new] = records_.try_emplace(id);
    at->second.id = &at->first;
    at->second.place = place.begin();
    place.front() = &at->second;
    into.splice(into.end(), place);
    return at->second;
  }

  /// Ends a lease. Without a memory the session is as it was before it was taken.
  void give_back(record& one, memory_floats memory) noexcept {
    {
      std::lock_guard const lock(guard_);
      one.is_out = false;
      out_ -= 1;
      bool const is_new = one.memory == nullptr;
      bool const is_committed = memory != nullptr;
      if (memory) {
        kept_.splice(kept_.end(), is_new ? new_ : kept_, one.place);
        one.memory.swap(memory);
      } else if (is_new) {
        drop(one, new_);
      }
      trim(is_committed ? &one : nullptr);
    }
    given_back_.notify_all();
  }

  /// Drops the oldest memories until at most `capacity` are left, except those of taken sessions and the one that was
  /// just committed.
  void trim(record const* committed = nullptr) {
    for (auto next = kept_.begin(); kept_.size() > static_cast<std::size_t>(capacity_) && next != kept_.end();) {
      record& oldest = **next++;
      if (!oldest.is_out && &oldest != committed) drop(oldest, kept_);
    }
  }

  void drop(record& one, std::list<record*>& from) {
    from.erase(one.place);
    records_.erase(records_.find(*one.id));
  }

  /// Checks a memory that the caller gives, and stores it.
  void add(remembered const& each) {
    constexpr auto call = "session_store::assign";
    auto const called = [&](char const* what) {
      return [&each, what] { return std::string("session ").append(to_string(each.id)).append(what); };
    };
    expects(each.id.is_storable(), call, "session", [&] { return to_string(each.id); }, "this name matches nothing");
    expects(!records_.contains(each.id), call, "session", [&] { return to_string(each.id); }, "it is there twice");
    std::size_t const floats = each.memory ? each.memory->size() : 0;
    expects(floats == extents_.floats(), call, called(" floats"), floats,
            [&] { return std::string("a memory is ").append(to_string(extents_)); });
    std::size_t const wrong = detail::first_not_finite(*each.memory);
    expects(
        wrong == floats, call, [&] { return called(" float ")().append(std::to_string(wrong)); },
        [&] { return detail::spell((*each.memory)[wrong]); }, "a memory is finite");
    insert(each.id, kept_).memory = each.memory;
  }

  memory_shape extents_;
  int capacity_;
  mutable std::mutex guard_;
  std::condition_variable given_back_;
  std::unordered_map<session_id, record> records_;
  std::list<record*> kept_;  // sessions with a memory, the oldest commit first
  std::list<record*> new_;   // taken sessions that have no memory yet
  int out_ = 0;              // sessions that a lease has taken
};

inline session_lease::~session_lease() {
  if (record_ != nullptr) store_->give_back(*record_, nullptr);
}

inline memory_shape session_lease::extents() const { return work_ ? store_->extents() : memory_shape{}; }

inline void session_lease::commit() {
  constexpr auto call = "session_lease::commit";
  expects(work_ != nullptr, call, "lease", "ended", "it holds a memory until it is committed or moved from");
  std::size_t const wrong = detail::first_not_finite(*work_);
  expects(
      wrong == work_->size(), call, [&] { return std::string("float ").append(std::to_string(wrong)); },
      [&] { return detail::spell((*work_)[wrong]); }, "a memory is finite: it would never recover");
  if (record_ != nullptr) store_->give_back(*std::exchange(record_, nullptr), std::move(work_));
  work_ = nullptr;
  store_ = nullptr;
}

}  // namespace KVPOLICY_NAMESPACE
