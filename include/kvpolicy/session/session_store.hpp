// What outlives a request: the memories of sessions, the least recently used first to go, one request a session at a
// time.
#pragma once

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
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

/// Floats that are never changed, only replaced by others: who holds them may read them at any time.
using memory_floats = std::shared_ptr<std::vector<float> const>;

/// A session and what it remembers.
struct remembered {
  session_id id;
  memory_floats memory;
};

class session_store;

namespace detail {

/// A session in a store: kept, or new and out. It stays where it is in memory.
struct session_record {
  session_id const* id = nullptr;
  memory_floats memory;                          // null: new
  std::list<session_record*>::iterator place{};  // in the list of those that are kept, or of the new ones
  bool is_out = false;
};

/// Index of the first float that is infinite or NaN; how many there are, if none is.
[[nodiscard]] inline std::size_t first_not_finite(std::span<float const> values) {
  auto const at = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  return static_cast<std::size_t>(at - values.begin());
}

}  // namespace detail

/// A memory that is out: one request works on a copy of it, and no other request has it. Moves, does not copy. It ends
/// when it is committed or destroyed; the store must live until then. For one thread at a time.
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
  /// Gives the session back as if it had not been taken, unless the lease was committed.
  ~session_lease();

  /// Whether it holds a memory: it was taken, and neither moved from nor committed.
  [[nodiscard]] explicit operator bool() const { return work_ != nullptr; }

  /// The request's copy of the memory, to read and to write: [layers][query heads][channels]. Zeros where nothing was
  /// remembered. Empty if the lease holds no memory.
  [[nodiscard]] std::span<float> floats() const { return work_ ? std::span<float>(*work_) : std::span<float>(); }

  /// The shape of the floats. Zeros if the lease holds no memory.
  [[nodiscard]] memory_shape extents() const;

  /// The session remembers `floats()` from here on, and others may take it. Ends the lease.
  ///
  /// - cost: one pass over the floats; the store is locked for O(1), and longer only for memories that it drops.
  /// - throws: `invalid_argument` if the lease holds no memory, or a float is infinite or NaN (a memory never recovers
  ///   from one). Then nothing was changed, and the lease goes on.
  void commit();

 private:
  friend session_store;
  void swap(session_lease& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(record_, other.record_);
    std::swap(work_, other.work_);
  }

  session_store* store_ = nullptr;
  detail::session_record* record_ = nullptr;  // null: of a name that matches nothing
  std::shared_ptr<std::vector<float>> work_;
};

/// Memories by session, all of one shape, in the host's memory. When there are more than `capacity`, those go whose
/// last commit is longest ago. One that is out never goes, so that there may be more for as long as others are out. A
/// name that matches nothing gets zeros, and what is committed under it is not kept.
///
/// Threads may call everything at once. Requests of one session come one after the other; those of different sessions
/// share the lock for a look-up, and copy and work outside of it.
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

  /// Takes a session out. If it is out, waits until it is given back: a thread that holds its lease waits for ever. Who
  /// wait for one session get it in no particular order.
  ///
  /// - cost: O(name) under the lock; outside of it a copy of the memory, which is all that a known name allocates.
  /// - throws: `bad_alloc`; then nothing was changed.
  [[nodiscard]] session_lease take(session_id const& id) { return take(id, true); }

  /// Takes a session out, or if it is out returns at once a lease that holds nothing.
  [[nodiscard]] session_lease try_take(session_id const& id) { return take(id, false); }

  /// Memories that are kept, whether they are out or not.
  [[nodiscard]] int size() const {
    std::lock_guard const lock(guard_);
    return static_cast<int>(kept_.size());
  }
  [[nodiscard]] int capacity() const { return capacity_; }
  [[nodiscard]] memory_shape const& extents() const { return extents_; }

  /// Everything that is kept, in the order of the last commits, the oldest first; of a session that is out, what it
  /// remembered before. O(sessions) under the lock: names are copied, floats are not.
  [[nodiscard]] std::vector<remembered> snapshot() const {
    std::lock_guard const lock(guard_);
    std::vector<remembered> all;
    all.reserve(kept_.size());
    for (auto const* each : kept_) all.push_back({*each->id, each->memory});
    return all;
  }

  /// Replaces everything that is kept, as if the memories were committed in this order. Holds on to the floats.
  ///
  /// - throws: `invalid_argument` if a session is out, a name is there twice or matches nothing, or a memory has
  ///   another size or a float that is infinite or NaN; `bad_alloc`. Then nothing was changed.
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
      lease.record_ = at != records_.end() ? &at->second : &insert(id, fresh_);
      lease.record_->is_out = true;
      out_ += 1;
      before = lease.record_->memory;
    }
    lease.store_ = this;  // a failure from here on gives the session back
    lease.work_ = before ? std::make_shared<std::vector<float>>(*before)
                         : std::make_shared<std::vector<float>>(extents_.floats());
    return lease;
  }

  /// A record at the end of a list.
  record& insert(session_id const& id, std::list<record*>& into) {
    std::list<record*> place(1);
    auto const [at, is_new] = records_.try_emplace(id);
    at->second.id = &at->first;
    at->second.place = place.begin();
    place.front() = &at->second;
    into.splice(into.end(), place);
    return at->second;
  }

  /// Ends a lease; without a memory everything stays as it was before it was taken.
  void give_back(record& one, memory_floats memory) noexcept {
    {
      std::lock_guard const lock(guard_);
      one.is_out = false;
      out_ -= 1;
      bool const is_new = one.memory == nullptr;
      bool const is_committed = memory != nullptr;
      if (memory) {
        kept_.splice(kept_.end(), is_new ? fresh_ : kept_, one.place);
        one.memory.swap(memory);
      } else if (is_new) {
        drop(one, fresh_);
      }
      trim(is_committed ? &one : nullptr);
    }
    given_back_.notify_all();
  }

  /// Drops the oldest that are not out, until no more than the capacity are left; not the one just committed.
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

  /// Checks a memory that comes from outside and keeps it.
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
  std::list<record*> kept_;   // oldest commit first
  std::list<record*> fresh_;  // new sessions that are out: nothing to keep yet
  int out_ = 0;
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
