// leasehold.h for C++17: handles that free themselves, and exceptions instead of codes. All of it is in this header.
// For functions of C that it does not wrap, `get()` gives the handle.
//
// A moved-from object has no handle: every call of it throws, with code LEASEHOLD_CODE_BAD_HANDLE. Objects are like
// std::unique_ptr: calls may come from any thread, but not while the object is being set, destroyed, moved or assigned.
#ifndef LEASEHOLD_HPP
#define LEASEHOLD_HPP

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "leasehold.h"

namespace leasehold {

/// The error of a call that failed.
class error : public std::runtime_error {
 public:
  explicit error(leasehold_code code)
      : std::runtime_error(text(leasehold_error_message)),
        code_(code),
        key_(text(leasehold_error_key)),
        holder_(text(leasehold_error_holder)),
        is_retryable_(leasehold_error_is_retryable()) {}

  leasehold_code code() const noexcept { return code_; }
  /// The key that the error is about; empty when it is about none.
  const std::string &key() const noexcept { return key_; }
  /// Who holds the lock that was refused; empty when that is not known.
  const std::string &holder() const noexcept { return holder_; }
  bool is_retryable() const noexcept { return is_retryable_; }

 private:
  static std::string text(leasehold_code (*get)(char *, size_t, size_t *)) {
    size_t len = 0;
    get(nullptr, 0, &len);
    std::string text(len + 1, '\0');
    get(&text[0], text.size(), &len);
    text.resize(len);
    return text;
  }

  leasehold_code code_;
  std::string key_, holder_;
  bool is_retryable_;
};

/// Throws the error of a code, unless that is LEASEHOLD_CODE_OK.
inline void check(leasehold_code code) {
  if (code != LEASEHOLD_CODE_OK) {
    throw error(code);
  }
}

/// Returns true for LEASEHOLD_CODE_OK, and false for the one code that is no error to the caller; throws for others.
inline bool check_unless(leasehold_code expected, leasehold_code code) {
  if (code == expected) {
    return false;
  }
  check(code);
  return true;
}

using milliseconds = std::chrono::milliseconds;

/// A time in any unit. The longest time is for ever, and so is one that does not fit; a negative time counts as zero.
class time_span {
 public:
  template <typename Rep, typename Period>
  constexpr time_span(std::chrono::duration<Rep, Period> time) noexcept  // NOLINT: as std::chrono's own
      : ms_(to_ms(time)) {}
  constexpr uint64_t ms() const noexcept { return ms_; }

 private:
  template <typename Rep, typename Period>
  static constexpr uint64_t to_ms(std::chrono::duration<Rep, Period> time) noexcept {
    using std::chrono::duration;
    // Also for a time that is not a number.
    if (!(time > duration<Rep, Period>::zero())) {
      return 0;
    }
    // Compared in floating point, because nothing overflows there.
    const bool fits = duration<long double, std::milli>(time) < duration<long double, std::milli>((milliseconds::max)());
    if (time == (duration<Rep, Period>::max)() || !fits) {
      return (std::numeric_limits<uint64_t>::max)();
    }
    return static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(time).count());
  }

  uint64_t ms_;
};

inline uint64_t to_ms(time_span time) { return time.ms(); }

inline milliseconds from_ms(uint64_t ms) {
  const auto most = static_cast<uint64_t>((milliseconds::max)().count());
  return ms >= most ? (milliseconds::max)() : milliseconds(static_cast<int64_t>(ms));
}

/// Owns a handle, and frees it when it ends.
template <typename Handle, leasehold_code (*Free)(Handle)>
class owned {
 public:
  owned() noexcept : handle_{} {}
  explicit owned(Handle handle) noexcept : handle_(handle) {}
  owned(owned &&other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  owned &operator=(owned &&other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  owned(const owned &) = delete;
  owned &operator=(const owned &) = delete;
  ~owned() { reset(); }

  Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_.id != 0; }
  /// Frees it now.
  void reset() noexcept {
    if (handle_.id != 0) {
      Free(std::exchange(handle_, Handle{}));
    }
  }

 private:
  Handle handle_;
};

/// A text that a function of the library copies out.
template <typename Get>
std::string text_of(Get get) {
  size_t len = 0;
  check(get(nullptr, size_t(0), &len));
  std::string text(len + 1, '\0');
  check(get(&text[0], text.size(), &len));
  text.resize(len);
  return text;
}

/// Who holds a lock or a lease, as it was when somebody looked. For a lease the key is its name and the owner its
/// holder.
struct holder {
  std::string key, owner;
  uint64_t token = 0;
  leasehold_mode mode = LEASEHOLD_MODE_EXCLUSIVE;
  /// Zero when the lease had ended; (milliseconds::max)() when it has no end.
  milliseconds remaining{};
};

/// The entries of a list; the list is freed.
inline std::vector<holder> holders_of(leasehold_list handle) {
  const owned<leasehold_list, leasehold_list_free> list(handle);
  size_t len = 0;
  check(leasehold_list_len(handle, &len));
  std::vector<holder> all(len);
  for (size_t at = 0; at < len; at++) {
    const auto text = [&](int32_t which) {
      return text_of([&](char *to, size_t size, size_t *n) { return leasehold_list_text(handle, at, which, to, size, n); });
    };
    leasehold_status status{};
    // A pin has no numbers.
    check_unless(LEASEHOLD_CODE_NOT_FOUND, leasehold_list_status(handle, at, &status, sizeof status));
    all[at] = holder{text(LEASEHOLD_TEXT_KEY), text(LEASEHOLD_TEXT_OWNER), status.token, status.mode,
                     from_ms(status.remaining_ms)};
  }
  return all;
}

/// A statement for a transaction of your own, and what to bind to its two parameters: see leasehold_guard_assertion.
struct assertion {
  std::string sql, first, second;
};

/// A lock that was held and is not any more.
struct loss {
  std::string key, text;
  uint64_t token;
  leasehold_reason reason;
  milliseconds held_for;
};

/// Called on a thread of the library's. An exception that leaves it ends the program. Another thread that ends the
/// guard waits for it, so it must not take a mutex that such a thread holds.
using on_loss = std::function<void(const loss &)>;

/// A lock that is held: a thread renews it, and it is released when this ends. So keep the guard in a variable: a guard
/// that is not kept is released at once. Its end waits for a function of call_on_loss that runs on another thread, so
/// hold no mutex there that the function takes.
class [[nodiscard]] guard {
 public:
  guard() = default;
  guard(guard &&) = default;
  // The handle first: freeing it waits for the callback that the function belongs to.
  guard &operator=(guard &&other) noexcept {
    handle_ = std::move(other.handle_);
    called_ = std::move(other.called_);
    return *this;
  }
  explicit guard(leasehold_guard handle, std::shared_ptr<on_loss> called = nullptr)
      : called_(std::move(called)), handle_(handle) {}

  leasehold_guard get() const noexcept { return handle_.get(); }
  explicit operator bool() const noexcept { return bool(handle_); }

  /// Whether the lock is held: see leasehold_guard_is_held. It does not ask the store and does not wait.
  bool is_held() const noexcept {
    bool held = false;
    return leasehold_guard_is_held(get(), &held) == LEASEHOLD_CODE_OK && held;
  }
  /// Throws when the lock is not held. Call it right before each step that must not overlap with another holder's.
  void ensure_held() const { check(leasehold_guard_ensure_held(get())); }
  void ensure_held_for(time_span time) const { check(leasehold_guard_ensure_held_for(get(), to_ms(time))); }
  /// Makes the lock stay in the store for at least this time, counted from its grant, however the hold ends.
  void hold_at_least(time_span time) const { check(leasehold_guard_hold_at_least(get(), to_ms(time))); }
  uint64_t token() const {
    uint64_t token = 0;
    check(leasehold_guard_token(get(), &token));
    return token;
  }
  std::string key() const {
    return text_of([this](char *to, size_t size, size_t *len) { return leasehold_guard_key(get(), to, size, len); });
  }
  /// The statement by which a transaction in the locks' own database asserts that the lock is held.
  leasehold::assertion assertion() const {
    const auto part = [this](int32_t which) {
      return text_of([&](char *to, size_t size, size_t *n) {
        return leasehold_guard_assertion(get(), which, to, size, n);
      });
    };
    return {part(LEASEHOLD_ASSERTION_SQL), part(LEASEHOLD_ASSERTION_FIRST), part(LEASEHOLD_ASSERTION_SECOND)};
  }
  milliseconds remaining() const {
    uint64_t ms = 0;
    check(leasehold_guard_remaining(get(), &ms));
    return from_ms(ms);
  }
  /// Whether the lock was lost within this time.
  bool wait_loss(time_span time) const {
    return check_unless(LEASEHOLD_CODE_TIMED_OUT, leasehold_guard_wait_loss(get(), to_ms(time)));
  }
  /// Releases the lock, and throws when it was not held any more. The destructor releases it without a report.
  void release() { check(leasehold_guard_release(get())); }

 private:
  // Must outlive the handle: freeing the handle waits until the callback has returned.
  std::shared_ptr<on_loss> called_;
  owned<leasehold_guard, leasehold_guard_free> handle_;
};

/// All of several locks, sorted by their keys, byte by byte. See guard.
class [[nodiscard]] guards {
 public:
  guards() = default;
  guards(guards &&) = default;
  // The handle first: freeing it waits for the callback that the function belongs to.
  guards &operator=(guards &&other) noexcept {
    handle_ = std::move(other.handle_);
    called_ = std::move(other.called_);
    return *this;
  }
  explicit guards(leasehold_guards handle, std::shared_ptr<on_loss> called = nullptr)
      : called_(std::move(called)), handle_(handle) {}

  leasehold_guards get() const noexcept { return handle_.get(); }
  explicit operator bool() const noexcept { return bool(handle_); }
  /// Whether all of them are held. It does not ask the store and does not wait.
  bool is_held() const noexcept {
    bool held = false;
    return leasehold_guards_is_held(get(), &held) == LEASEHOLD_CODE_OK && held;
  }
  void ensure_held() const { check(leasehold_guards_ensure_held(get())); }
  void hold_at_least(time_span time) const { check(leasehold_guards_hold_at_least(get(), to_ms(time))); }
  size_t size() const {
    size_t len = 0;
    check(leasehold_guards_len(get(), &len));
    return len;
  }
  std::string key(size_t index) const {
    return text_of([&](char *to, size_t size, size_t *len) { return leasehold_guards_key(get(), index, to, size, len); });
  }
  /// The fencing token of the key at that index.
  uint64_t token(size_t index) const {
    uint64_t token = 0;
    check(leasehold_guards_token(get(), index, &token));
    return token;
  }
  void release() { check(leasehold_guards_release(get())); }

 private:
  std::shared_ptr<on_loss> called_;
  owned<leasehold_guards, leasehold_guards_free> handle_;
};

/// Ends waits, from any thread.
class cancel {
 public:
  cancel() {
    leasehold_cancel made{};
    check(leasehold_cancel_new(&made));
    handle_ = owned<leasehold_cancel, leasehold_cancel_free>(made);
  }
  leasehold_cancel get() const noexcept { return handle_.get(); }
  void fire() const { check(leasehold_cancel_fire(get())); }

 private:
  owned<leasehold_cancel, leasehold_cancel_free> handle_;
};

/// A request for locks; each setter returns the request.
class request {
 public:
  explicit request(leasehold_request handle) : handle_(handle) {}

  leasehold_request get() const noexcept { return handle_.get(); }
  request &add_key(std::string_view key) { return set(leasehold_request_add_key(get(), key.data(), key.size())); }
  request &shared() { return set(leasehold_request_set_shared(get())); }
  request &owner(std::string_view text) { return set(leasehold_request_set_owner(get(), text.data(), text.size())); }
  request &comment(std::string_view text) {
    return set(leasehold_request_set_comment(get(), text.data(), text.size()));
  }
  request &lease(time_span time) { return set(leasehold_request_set_lease(get(), to_ms(time))); }
  request &wait(time_span time) { return set(leasehold_request_set_wait(get(), to_ms(time))); }
  request &max_hold(time_span time) { return set(leasehold_request_set_max_hold(get(), to_ms(time))); }
  /// The lock stays in the store for at least this time, counted from its grant, however soon the guard ends.
  request &hold_at_least(time_span time) { return set(leasehold_request_set_hold_at_least(get(), to_ms(time))); }
  request &cancel_by(const cancel &token) { return set(leasehold_request_set_cancel(get(), token.get())); }
  /// Sets a function that is called once for each guard whose lock is lost; never after a release. It may end the
  /// guard. An empty function, or nullptr, for none, which is the default.
  request &call_on_loss(on_loss function) {
    auto called = function ? std::make_shared<leasehold::on_loss>(std::move(function)) : nullptr;
    // The function is not kept if it is refused.
    set(leasehold_request_set_on_loss(get(), called ? lost : nullptr, called.get()));
    // Guards that were made before keep their function.
    called_ = std::move(called);
    return *this;
  }

  /// Waits for the lock. Throws when the wait that was set is over.
  guard lock() const {
    leasehold_guard made{};
    check(leasehold_request_lock(get(), &made));
    return guard(made, called_);
  }
  /// Tries once; nothing when others hold the lock.
  [[nodiscard]] std::optional<guard> try_lock() const {
    leasehold_guard made{};
    if (!check_unless(LEASEHOLD_CODE_HELD, leasehold_request_try_lock(get(), &made))) {
      return std::nullopt;
    }
    return guard(made, called_);
  }
  /// Adopts a lock that is held as data, as leasehold_request_adopt does. The guard keeps the function of call_on_loss,
  /// which a guard that is made from get() by a C function would not.
  guard adopt(leasehold_lock lock) const {
    leasehold_guard made{};
    check(leasehold_request_adopt(get(), lock, &made));
    return guard(made, called_);
  }
  /// Waits for all of several locks; only for a request of client::request_all.
  guards lock_all() const {
    leasehold_guards made{};
    check(leasehold_request_lock_all(get(), &made));
    return guards(made, called_);
  }
  [[nodiscard]] std::optional<guards> try_lock_all() const {
    leasehold_guards made{};
    if (!check_unless(LEASEHOLD_CODE_HELD, leasehold_request_try_lock_all(get(), &made))) {
      return std::nullopt;
    }
    return guards(made, called_);
  }

 private:
  request &set(leasehold_code code) {
    check(code);
    return *this;
  }
  static void lost(const leasehold_loss *lost, void *user) noexcept {
    // A copy, because the function may end the guard that keeps it.
    const on_loss function = *static_cast<on_loss *>(user);
    function(loss{std::string(lost->key, lost->key_len), std::string(lost->text, lost->text_len), lost->token,
                  lost->reason, from_ms(lost->held_for_ms)});
  }

  std::shared_ptr<on_loss> called_;
  owned<leasehold_request, leasehold_request_free> handle_;
};

/// A lease that a thread extends until this ends, which leaves the lease as it is.
class [[nodiscard]] keeper {
 public:
  explicit keeper(leasehold_keeper handle) : handle_(handle) {}

  leasehold_keeper get() const noexcept { return handle_.get(); }
  /// Whether the lease surely is the holder's. It does not ask the store and does not wait.
  bool is_held() const noexcept {
    bool held = false;
    return leasehold_keeper_is_held(get(), &held) == LEASEHOLD_CODE_OK && held;
  }
  void ensure_held() const { check(leasehold_keeper_ensure_held(get())); }
  uint64_t token() const {
    uint64_t token = 0;
    check(leasehold_keeper_token(get(), &token));
    return token;
  }
  milliseconds remaining() const {
    uint64_t ms = 0;
    check(leasehold_keeper_remaining(get(), &ms));
    return from_ms(ms);
  }
  /// Whether the lease was lost within this time.
  bool wait_loss(time_span time) const {
    return check_unless(LEASEHOLD_CODE_TIMED_OUT, leasehold_keeper_wait_loss(get(), to_ms(time)));
  }

 private:
  owned<leasehold_keeper, leasehold_keeper_free> handle_;
};

/// The leases of a namespace: see leasehold_leases. A call that finds the lease in another state than it needs throws,
/// with LEASEHOLD_CODE_INVALID_LEASE. The end of this object ends no lease.
class leases {
 public:
  explicit leases(leasehold_leases handle) : handle_(handle) {}

  leasehold_leases get() const noexcept { return handle_.get(); }
  /// Returns the fencing token of the claim.
  uint64_t claim(std::string_view name, std::string_view holder, time_span time) const {
    uint64_t token = 0;
    check(leasehold_leases_claim(get(), name.data(), name.size(), holder.data(), holder.size(), to_ms(time), &token));
    return token;
  }
  void extend(std::string_view name, std::string_view holder, time_span time) const {
    check(leasehold_leases_extend(get(), name.data(), name.size(), holder.data(), holder.size(), to_ms(time)));
  }
  /// Extends the lease now, and then by a thread until the keeper ends.
  leasehold::keeper keep(std::string_view name, std::string_view holder, time_span time) const {
    leasehold_keeper made{};
    check(leasehold_leases_keep(get(), name.data(), name.size(), holder.data(), holder.size(), to_ms(time), &made));
    return leasehold::keeper(made);
  }
  void expire(std::string_view name) const { check(leasehold_leases_expire(get(), name.data(), name.size())); }
  void revoke(std::string_view name, std::string_view holder) const {
    check(leasehold_leases_revoke(get(), name.data(), name.size(), holder.data(), holder.size()));
  }
  /// The lease; nothing when nobody holds it.
  std::optional<holder> find(std::string_view name) const {
    leasehold_list list{};
    check(leasehold_leases_get(get(), name.data(), name.size(), &list));
    const auto found = holders_of(list);
    return found.empty() ? std::nullopt : std::optional<holder>(found.front());
  }
  std::vector<holder> list() const {
    leasehold_list list{};
    check(leasehold_leases_list(get(), &list));
    return holders_of(list);
  }
  void pin(std::string_view name, std::string_view entity) const {
    check(leasehold_leases_pin(get(), name.data(), name.size(), entity.data(), entity.size()));
  }
  void unpin(std::string_view name, std::string_view entity) const {
    check(leasehold_leases_unpin(get(), name.data(), name.size(), entity.data(), entity.size()));
  }
  std::vector<std::string> pinned_by(std::string_view name) const {
    leasehold_list list{};
    check(leasehold_leases_pinned_by(get(), name.data(), name.size(), &list));
    std::vector<std::string> entities;
    for (auto &pin : holders_of(list)) {
      entities.push_back(std::move(pin.owner));
    }
    return entities;
  }
  /// Waits until the lease's time is over, or nobody holds it.
  void wait_until_expired(std::string_view name) const { wait(name, {}); }
  void wait_until_expired(std::string_view name, const cancel &token) const { wait(name, token.get()); }

 private:
  void wait(std::string_view name, leasehold_cancel token) const {
    check(leasehold_leases_wait_until_expired(get(), name.data(), name.size(), token));
  }

  owned<leasehold_leases, leasehold_leases_free> handle_;
};

/// The work of a leader, with the fencing token of its term. An exception that leaves it ends the program.
using work = std::function<void(uint64_t)>;

/// A node of an election. Call the functions that set something before all others. The end of this object stops the
/// node, and waits for a work that runs on another thread, so hold no mutex there that the work takes.
class [[nodiscard]] election {
 public:
  election(election &&) = default;
  // The handle first: freeing it waits for the work.
  election &operator=(election &&other) noexcept {
    handle_ = std::move(other.handle_);
    called_ = std::move(other.called_);
    return *this;
  }
  explicit election(leasehold_election handle) : handle_(handle) {}

  leasehold_election get() const noexcept { return handle_.get(); }
  election &id(std::string_view text) { return set(leasehold_election_set_id(get(), text.data(), text.size())); }
  election &lease(time_span time) { return set(leasehold_election_set_lease(get(), to_ms(time))); }
  election &max_hold(time_span time) { return set(leasehold_election_set_max_hold(get(), to_ms(time))); }
  election &once() { return set(leasehold_election_set_once(get())); }

  /// Starts a thread that campaigns, and calls the work whenever this node has won, as leasehold_election_lead does.
  /// The work should return soon after is_leader() became false; it may end the election. Each term calls a copy of the
  /// work, so keep state that must last behind a pointer. An empty work throws; use run() for a node without a work. If
  /// lead() is called again after a stop() that did not wait for the earlier work to begin, the thread of that earlier
  /// term may still come, and then calls the new work, with the token of the term that is over.
  void lead(work function) {
    auto next = function ? std::make_shared<const work>(std::move(function)) : nullptr;
    if (!called_) {
      called_ = std::make_unique<called>();  // this object was moved from: the call below throws
    }
    // Stored before the new work can be called (the mutex is held), and not at all if it is refused: then another work
    // runs.
    const std::lock_guard<std::mutex> lock(called_->mutex);
    check(leasehold_election_lead(get(), next ? works : nullptr, called_.get()));
    called_->function = std::move(next);
  }
  /// Campaigns like lead(), without a work.
  void run() const { check(leasehold_election_run(get())); }
  bool is_leader() const noexcept {
    bool leader = false;
    return leasehold_election_is_leader(get(), &leader) == LEASEHOLD_CODE_OK && leader;
  }
  /// Waits until the thread of lead() or run() is over.
  void wait() const { check(leasehold_election_wait(get())); }
  /// Ends the campaign, and resigns. The node can campaign again later. A term that was lost already is no failure.
  void stop() const {
    const leasehold_code code = leasehold_election_stop(get());
    if (code != LEASEHOLD_CODE_LOST) {
      check(code);
    }
  }

 private:
  election &set(leasehold_code code) {
    check(code);
    return *this;
  }
  // The work that threads of the library call. It exists until the handle is freed, because the thread of a campaign
  // that is over may come late.
  struct called {
    std::mutex mutex;
    std::shared_ptr<const work> function;
  };
  static std::shared_ptr<const work> function_of(called &now) {
    const std::lock_guard<std::mutex> lock(now.mutex);
    return now.function;
  }
  static void works(uint64_t token, void *user) noexcept {
    // Each term calls a copy, because the work may end the election that keeps it.
    const work function = *function_of(*static_cast<called *>(user));
    function(token);
  }

  std::unique_ptr<called> called_ = std::make_unique<called>();
  owned<leasehold_election, leasehold_election_free> handle_;
};

/// Access to every lock of one store; any number of threads may use it.
class client {
 public:
  explicit client(leasehold_client handle) : handle_(handle) {}
  /// Connects to the store that the URL names, like "sqlite:locks.db".
  explicit client(std::string_view url) {
    leasehold_client made{};
    check(leasehold_client_connect(LEASEHOLD_VERSION_NUMBER, url.data(), url.size(), &made));
    handle_ = owned<leasehold_client, leasehold_client_free>(made);
  }

  leasehold_client get() const noexcept { return handle_.get(); }
  /// Waits for the lock, without limit.
  guard lock(std::string_view key) const {
    leasehold_guard made{};
    check(leasehold_client_lock(get(), key.data(), key.size(), &made));
    return guard(made);
  }
  /// Tries once; nothing when others hold the lock.
  [[nodiscard]] std::optional<guard> try_lock(std::string_view key) const {
    leasehold_guard made{};
    if (!check_unless(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(get(), key.data(), key.size(), &made))) {
      return std::nullopt;
    }
    return guard(made);
  }
  /// Waits for at most this time; nothing when others held the lock all the while, or the store answered too late for
  /// it to be held.
  [[nodiscard]] std::optional<guard> try_lock_for(std::string_view key, time_span time) const {
    leasehold_guard made{};
    const auto code = leasehold_client_lock_for(get(), key.data(), key.size(), to_ms(time), &made);
    if (!check_unless(LEASEHOLD_CODE_TIMED_OUT, code)) {
      return std::nullopt;
    }
    return guard(made);
  }
  leasehold::request request(std::string_view key) const {
    leasehold_request made{};
    check(leasehold_request_new(get(), key.data(), key.size(), &made));
    return leasehold::request(made);
  }
  leasehold::request request_any(const std::vector<std::string> &keys) const {
    return several(leasehold_request_new_any, keys);
  }
  leasehold::request request_all(const std::vector<std::string> &keys) const {
    return several(leasehold_request_new_all, keys);
  }
  leasehold::leases leases(std::string_view space) const {
    leasehold_leases made{};
    check(leasehold_leases_new(get(), space.data(), space.size(), &made));
    return leasehold::leases(made);
  }
  leasehold::election election(std::string_view name) const {
    leasehold_election made{};
    check(leasehold_election_new(get(), name.data(), name.size(), &made));
    return leasehold::election(made);
  }
  /// Removes holders whose lease ended longer ago than this, and returns them; see leasehold_client_purge.
  std::vector<holder> purge(time_span older_than) const {
    leasehold_list list{};
    check(leasehold_client_purge(get(), to_ms(older_than), &list));
    return holders_of(list);
  }
  /// The holders that purge() would remove; writes nothing.
  std::vector<holder> purge_preview(time_span older_than) const {
    leasehold_list list{};
    check(leasehold_client_purge_preview(get(), to_ms(older_than), &list));
    return holders_of(list);
  }
  /// Ends everything. Call it before exit(), which releases nothing.
  void close() const { check(leasehold_client_close(get())); }

 private:
  leasehold::request several(leasehold_code (*make)(leasehold_client, leasehold_request *),
                             const std::vector<std::string> &keys) const {
    leasehold_request made{};
    check(make(get(), &made));
    leasehold::request request(made);
    for (const auto &key : keys) {
      request.add_key(key);
    }
    return request;
  }

  owned<leasehold_client, leasehold_client_free> handle_;
};

}  // namespace leasehold

#endif
