// leasehold.h for C++17: handles that free themselves, and exceptions in place of codes. All of it is in this header;
// what it does not wrap is there by `get()`, the handle of the C function.
//
// A moved-from object has no handle: every call of it throws, with code LEASEHOLD_CODE_BAD_HANDLE. Objects are like
// std::unique_ptr: calls may come from any thread, but none while one is being set, destroyed, moved or assigned.
#ifndef LEASEHOLD_HPP
#define LEASEHOLD_HPP

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "leasehold.h"

namespace leasehold {

/// What a call that failed says.
class error : public std::runtime_error {
 public:
  explicit error(leasehold_code code)
      : std::runtime_error(text(leasehold_error_message)),
        code_(code),
        key_(text(leasehold_error_key)),
        holder_(text(leasehold_error_holder)),
        is_retryable_(leasehold_error_is_retryable()) {}

  leasehold_code code() const noexcept { return code_; }
  /// The key that it is about; empty when it is about none.
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

/// Throws what a code says, unless it is LEASEHOLD_CODE_OK.
inline void check(leasehold_code code) {
  if (code != LEASEHOLD_CODE_OK) {
    throw error(code);
  }
}

/// Whether it was done; false for one code that is no error to the caller.
inline bool check_unless(leasehold_code expected, leasehold_code code) {
  if (code == expected) {
    return false;
  }
  check(code);
  return true;
}

using milliseconds = std::chrono::milliseconds;

/// A time in any unit. The longest one is for ever, and so is what does not fit; a negative one is none.
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
    if (time <= duration<Rep, Period>::zero()) {
      return 0;
    }
    // Compared in floating point, for there nothing overflows.
    const bool fits = duration<long double, std::milli>(time) < duration<long double, std::milli>(milliseconds::max());
    if (time == (duration<Rep, Period>::max)() || !fits) {
      return (std::numeric_limits<uint64_t>::max)();
    }
    return static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(time).count());
  }

  uint64_t ms_;
};

inline uint64_t to_ms(time_span time) { return time.ms(); }

inline milliseconds from_ms(uint64_t ms) {
  const auto most = static_cast<uint64_t>(milliseconds::max().count());
  return ms >= most ? milliseconds::max() : milliseconds(static_cast<int64_t>(ms));
}

/// Frees the handle when it ends.
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

/// A lock that was held and is not any more.
struct loss {
  std::string key, text;
  uint64_t token;
  leasehold_reason reason;
  milliseconds held_for;
};

/// Called on a thread of the library's. An exception that leaves it ends the program. Whoever ends the guard on another
/// thread waits for it: it must not take a mutex that is held there.
using on_loss = std::function<void(const loss &)>;

/// A lock that is held: it is renewed by a thread, and released when this ends. So it needs a name: what is not kept is
/// released at once. Its end waits for a function of call_on_loss that runs on another thread, so hold no mutex there
/// that the function takes.
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

  /// Whether the lock is held: false before anybody else can be granted it. It asks nobody and does not wait.
  bool is_held() const noexcept {
    bool held = false;
    return leasehold_guard_is_held(get(), &held) == LEASEHOLD_CODE_OK && held;
  }
  /// Throws when the lock is not held: right before each step that must not overlap with another holder's.
  void ensure_held() const { check(leasehold_guard_ensure_held(get())); }
  void ensure_held_for(time_span time) const { check(leasehold_guard_ensure_held_for(get(), to_ms(time))); }
  /// From now on the lock stands for so long, counted from its grant, whatever ends the guard.
  void hold_at_least(time_span time) const { check(leasehold_guard_hold_at_least(get(), to_ms(time))); }
  uint64_t token() const {
    uint64_t token = 0;
    check(leasehold_guard_token(get(), &token));
    return token;
  }
  std::string key() const {
    size_t len = 0;
    check(leasehold_guard_key(get(), nullptr, 0, &len));
    std::string key(len + 1, '\0');
    check(leasehold_guard_key(get(), &key[0], key.size(), &len));
    key.resize(len);
    return key;
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
  /// Releases the lock, and throws when it was not held any more. The destructor does it without a word.
  void release() { check(leasehold_guard_release(get())); }

 private:
  // Behind the handle in time: freeing waits until the callback has returned.
  std::shared_ptr<on_loss> called_;
  owned<leasehold_guard, leasehold_guard_free> handle_;
};

/// All of several locks, in the order of their keys. See guard.
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
  /// Whether all of them are held. It asks nobody and does not wait.
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

/// What is asked for; each setter gives the request back.
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
  /// The lock stands for so long at the least, counted from its grant, however soon the guard ends.
  request &hold_at_least(time_span time) { return set(leasehold_request_set_hold_at_least(get(), to_ms(time))); }
  request &cancel_by(const cancel &token) { return set(leasehold_request_set_cancel(get(), token.get())); }
  /// Called once for each guard whose lock is lost; never after a release. It may end the guard.
  request &call_on_loss(on_loss function) {
    auto called = std::make_shared<leasehold::on_loss>(std::move(function));
    // Not kept here if it is refused.
    set(leasehold_request_set_on_loss(get(), lost, called.get()));
    // Guards that were made before keep theirs.
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
  /// Takes up a lock that is data, as leasehold_request_adopt does; with the function of call_on_loss, which a guard that
  /// is made of get() would not keep.
  guard adopt(leasehold_lock lock) const {
    leasehold_guard made{};
    check(leasehold_request_adopt(get(), lock, &made));
    return guard(made, called_);
  }
  /// All of several; only of client::request_all.
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
    // A copy: it may end the guard that keeps it.
    const on_loss function = *static_cast<on_loss *>(user);
    function(loss{std::string(lost->key, lost->key_len), std::string(lost->text, lost->text_len), lost->token,
                  lost->reason, from_ms(lost->held_for_ms)});
  }

  std::shared_ptr<on_loss> called_;
  owned<leasehold_request, leasehold_request_free> handle_;
};

/// The way to every lock of one store; any number of threads may use it.
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
  /// Waits for at most this time; nothing when others held the lock all the while.
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
  /// Ends everything; before exit(), which releases nothing.
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
