/* Distributed locks: see the README for how to build and install the library.
 *
 * Written by tests/capi from the comments in src/capi: do not edit.
 *
 * Handles are numbers. 0 is never one, and a wrong, freed or foreign one is answered with a code and does no harm. In
 * the child of a fork() the parent's handles are answered with LEASEHOLD_CODE_FORKED: connect again there, but not to
 * SQLite if any of its files was open at the fork: fork before you connect, or exec in the child. Whatever was given
 * out is freed once, each by the function that its type names. Any thread may use any handle.
 *
 * The library has an SQLite of its own. Do not open its lock file with another one in the same process, like the
 * sqlite3 module of Python, and leave the -wal and -shm beside it alone: whatever closes these files ends the file locks
 * that the library has on them. On Linux it keeps its log safe from that, but not a write that is under way; elsewhere a
 * lock may be lost, which its guard finds out at the next heartbeat.
 *
 * Texts go in as UTF-8 with their length in bytes; they need no NUL. Texts come out into a buffer of the caller's: as
 * much as fits is written, with a NUL behind it, and the length of the whole text without the NUL goes to `len`, which
 * may be NULL. If it did not all fit, that is LEASEHOLD_CODE_BUFFER_TOO_SMALL. To ask for the length alone, pass a
 * capacity of 0; only then the buffer may be NULL.
 *
 * Results are written only on success; other places of the caller's are left as they are. Times are in milliseconds;
 * UINT64_MAX is for ever. A function that fails says why through the leasehold_error_ functions, for each thread.
 */


#ifndef LEASEHOLD_H
#define LEASEHOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What a function answers. The numbers never change; later versions may add some.
enum leasehold_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It is done.
  LEASEHOLD_CODE_OK = 0,
  // Others hold the lock; leasehold_error_holders says who.
  LEASEHOLD_CODE_HELD = 1,
  // This client holds the key already with the same lock id: it would wait for itself.
  LEASEHOLD_CODE_ALREADY_HELD = 2,
  // The wait ended before the lock was free; leasehold_error_holders says who held it last.
  LEASEHOLD_CODE_TIMED_OUT = 3,
  // The lock was held and is not any more.
  LEASEHOLD_CODE_LOST = 4,
  // The wait was cancelled.
  LEASEHOLD_CODE_CANCELLED = 5,
  // The client was closed, or what is waited for can't come any more.
  LEASEHOLD_CODE_CLOSED = 6,
  // An argument is out of bounds. Nothing was written.
  LEASEHOLD_CODE_INVALID_INPUT = 7,
  // The store URL or the client's options are wrong.
  LEASEHOLD_CODE_CONFIG = 8,
  // The store denies it.
  LEASEHOLD_CODE_PERMISSION = 9,
  // The table, the file or a row is not what this version can read.
  LEASEHOLD_CODE_SCHEMA = 10,
  // The store can't be reached or failed; leasehold_error_is_retryable says whether a repeat may help.
  LEASEHOLD_CODE_STORE = 11,
  // A write was sent, and no answer settled whether it happened.
  LEASEHOLD_CODE_AMBIGUOUS = 12,
  // The clocks differ by more than the guarantees allow.
  LEASEHOLD_CODE_CLOCK_SKEW = 13,
  // A lease is not in the state that the call needs.
  LEASEHOLD_CODE_INVALID_LEASE = 14,
  // A pointer is NULL that must not be.
  LEASEHOLD_CODE_NULL_POINTER = 100,
  // A text is not UTF-8.
  LEASEHOLD_CODE_BAD_UTF8 = 101,
  // The number is no handle: zero, or never given out.
  LEASEHOLD_CODE_BAD_HANDLE = 102,
  // The handle was freed.
  LEASEHOLD_CODE_STALE_HANDLE = 103,
  // The handle is one of another type.
  LEASEHOLD_CODE_WRONG_HANDLE = 104,
  // The handle belongs to the process that this one was forked from. Connect again here; but if an SQLite file was
  // open at the fork, every one is refused with LEASEHOLD_CODE_CONFIG: fork before you connect, or exec in the child.
  LEASEHOLD_CODE_FORKED = 105,
  // The buffer is too small; the length that is needed was written.
  LEASEHOLD_CODE_BUFFER_TOO_SMALL = 106,
  // There is none: nobody ever held the key, or no such entry.
  LEASEHOLD_CODE_NOT_FOUND = 107,
  // More handles than can be told apart.
  LEASEHOLD_CODE_TOO_MANY_HANDLES = 108,
  // A bug in the library, which was contained. The object may be of no more use.
  LEASEHOLD_CODE_PANIC = 109,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_code leasehold_code;
#else
typedef int32_t leasehold_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a lock was lost. The numbers never change; later versions may add some.
enum leasehold_reason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It is not lost.
  LEASEHOLD_REASON_NONE = 0,
  // Somebody else was granted the lock since.
  LEASEHOLD_REASON_TAKEN_OVER = 1,
  // The lease came to its end without a renewal.
  LEASEHOLD_REASON_EXPIRED = 2,
  // An operator or another process released it.
  LEASEHOLD_REASON_RELEASED_BY_OTHER = 3,
  // It was held for as long as leasehold_request_set_max_hold allows.
  LEASEHOLD_REASON_MAX_HOLD = 4,
  // The row, table or file is gone.
  LEASEHOLD_REASON_GONE = 5,
  // The heartbeat thread died.
  LEASEHOLD_REASON_HEARTBEAT_DIED = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_reason leasehold_reason;
#else
typedef int32_t leasehold_reason;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a lock is held.
enum leasehold_mode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Nobody else holds the key.
  LEASEHOLD_MODE_EXCLUSIVE = 0,
  // Others may hold the key in shared mode, nobody in exclusive mode.
  LEASEHOLD_MODE_SHARED = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_mode leasehold_mode;
#else
typedef int32_t leasehold_mode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The texts of a lock.
enum leasehold_text
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The name of the lock.
  LEASEHOLD_TEXT_KEY = 0,
  // The group that it belongs to. Whoever knows it can renew and release the whole group.
  LEASEHOLD_TEXT_LOCK_ID = 1,
  // Who holds it, for people.
  LEASEHOLD_TEXT_OWNER = 2,
  // The host of the holder.
  LEASEHOLD_TEXT_HOST = 3,
  // What the holder wanted to say.
  LEASEHOLD_TEXT_COMMENT = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_text leasehold_text;
#else
typedef int32_t leasehold_text;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Holders as they were when somebody looked. Free it with leasehold_list_free.
typedef uint64_t leasehold_list;

// Options of a client. Free it with leasehold_builder_free.
typedef uint64_t leasehold_builder;

// The way to every lock of one store; any number of threads may use it. Free it with leasehold_client_free.
typedef uint64_t leasehold_client;

// A lock that is held: its own thread renews it. Free it with leasehold_guard_free, which releases it.
typedef uint64_t leasehold_guard;

// What is asked for: one lock, or the first of several that is free. It can be used any number of times, by any
// number of threads. Free it with leasehold_request_free.
typedef uint64_t leasehold_request;

// A switch that ends the waits of requests it was given to. Free it with leasehold_cancel_free.
typedef uint64_t leasehold_cancel;

// A lock that was held and is not any more. Its texts end in a NUL that their length leaves out, and are only there
// during the callback.
typedef struct {
  // The fencing token that is out of date now.
  uint64_t token;
  // How long it had been held, in milliseconds.
  uint64_t held_for_ms;
  // The name of the lock.
  const char *key;
  size_t key_len;
  // How it was lost, for people.
  const char *text;
  size_t text_len;
  // How it was lost.
  leasehold_reason reason;
} leasehold_loss;

// Called with the loss and what was given along.
typedef void (*leasehold_on_loss)(const leasehold_loss *loss, void *user);

// A lock as data. To have it does not mean to hold the lock. Whoever has it can renew, release and adopt the lock, so
// treat it like a password. Free it with leasehold_lock_free, which releases nothing.
typedef uint64_t leasehold_lock;

// The numbers of a holder. Times are in milliseconds since 1970, by this host's wall clock. Later versions may add
// numbers at its end: whoever asks gives the sizeof of its own, gets as many of them, and 0 for those that the library
// does not know.
typedef struct {
  // The fencing token of its grant.
  uint64_t token;
  // When it was granted.
  uint64_t created_ms;
  // When it was last renewed; 0 when it never was.
  uint64_t renewed_ms;
  // When the lease ends; UINT64_MAX when it has no end.
  uint64_t leased_until_ms;
  // What was left of the lease when this was read: 0 when it had ended, UINT64_MAX when it has no end.
  uint64_t remaining_ms;
  // How it is held.
  leasehold_mode mode;
} leasehold_status;

// Which locks leasehold_client_list shall find: those that fit everything that is set. Free it with
// leasehold_filter_free.
typedef uint64_t leasehold_filter;

// A node that can stand for an election: of all nodes that do, one leads at a time. Free it with
// leasehold_election_free.
typedef uint64_t leasehold_election;

// Called with the fencing token of a term that was won, and what was given along.
typedef void (*leasehold_on_won)(uint64_t token, void *user);

// Called with the fencing token of a term that is over, how it ended, for people, and what was given along. The text
// ends in a NUL that its length leaves out, and is only there during the callback.
typedef void (*leasehold_on_lost)(uint64_t token, const char *text, size_t text_len, void *user);

// A term as the leader. Free it with leasehold_leadership_free, which resigns.
typedef uint64_t leasehold_leadership;



#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The name of a code as it stands in this header, and "LEASEHOLD_CODE_?" for a number that is none. Static.
const char *leasehold_code_name(int32_t code);

// The version of the library, like "0.1.0". Static.
const char *leasehold_version(void);

// The code of the last call of this thread that failed; LEASEHOLD_CODE_OK when none has. Calls that succeed, and
// the leasehold_error_ functions, leave it as it is.
leasehold_code leasehold_error_code(void);

// What went wrong in the last call of this thread that failed, for people: one line that names key, store and
// cause, and never a secret.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_error_message(char *buffer, size_t capacity, size_t *len);

// The key that the failed call was about; empty when it was about none.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_error_key(char *buffer, size_t capacity, size_t *len);

// The store of the failed call as scheme, host and database; empty when it was about none.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_error_store(char *buffer, size_t capacity, size_t *len);

// The owner of the lock that was refused, of several the first; empty when nobody is known.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_error_holder(char *buffer, size_t capacity, size_t *len);

// Everybody who held the lock that was refused; an empty list when nobody is known. Free it with
// leasehold_list_free.
//
// # Safety
// `list` must be writable.
leasehold_code leasehold_error_holders(leasehold_list *list);

// Whether the failed call may succeed later without any change.
bool leasehold_error_is_retryable(void);

// Options for a client of the store that `url` names, like "sqlite:locks.db".
//
// # Safety
// `url` must have `url_len` readable bytes, and `builder` be writable.
leasehold_code leasehold_builder_new(const char *url, size_t url_len, leasehold_builder *builder);

// Who holds its locks, for people: 1 to 1,024 bytes. Defaults to host:pid.
//
// # Safety
// `owner` must have `owner_len` readable bytes.
leasehold_code leasehold_builder_set_owner(leasehold_builder builder, const char *owner, size_t owner_len);

// For how long a lock is held without a renewal, in milliseconds: 1,000 (SQLite and memory: 100) to 30 days.
// Defaults to 20,000; on MongoDB to 30,000.
leasehold_code leasehold_builder_set_lease(leasehold_builder builder, uint64_t ms);

// The time between two renewals in milliseconds, at most half the lease. Defaults to a third of the lease.
leasehold_code leasehold_builder_set_heartbeat(leasehold_builder builder, uint64_t ms);

// The end of a lease in which the holder counts itself as lost already, in milliseconds. Defaults to a tenth of the
// lease.
leasehold_code leasehold_builder_set_margin(leasehold_builder builder,
                                            uint64_t ms);

// How long a waiter waits between two looks at a lock, drawn at random, in milliseconds. Defaults to 150 to 350.
leasehold_code leasehold_builder_set_poll(leasehold_builder builder,
                                          uint64_t from_ms,
                                          uint64_t to_ms);

// How long one request to the store may take, in milliseconds. Defaults to 5,000.
leasehold_code leasehold_builder_set_request_timeout(leasehold_builder builder, uint64_t ms);

// How long freeing a guard that is still held, or closing the client, may take, in milliseconds. Defaults to 5,000.
leasehold_code leasehold_builder_set_drop_timeout(leasehold_builder builder,
                                                  uint64_t ms);

// Opens the store and checks it once. The builder can be used again.
//
// # Safety
// `client` must be writable.
leasehold_code leasehold_builder_connect(leasehold_builder builder, leasehold_client *client);

// Frees the handle.
leasehold_code leasehold_builder_free(leasehold_builder builder);

// Connects to the store that `url` names, like "sqlite:locks.db", with default options, and checks it once.
//
// # Safety
// `url` must have `url_len` readable bytes, and `client` be writable.
leasehold_code leasehold_client_connect(const char *url, size_t url_len, leasehold_client *client);

// Connects to the store that the environment variable LEASEHOLD_STORE names.
//
// # Safety
// `client` must be writable.
leasehold_code leasehold_client_from_env(leasehold_client *client);

// Ends everything: wakes waiters with LEASEHOLD_CODE_CLOSED, releases every guard of this client, and joins its
// threads. Call it before exit(), which releases nothing. Handles still have to be freed.
leasehold_code leasehold_client_close(leasehold_client client);

// Frees the handle. Guards, requests and calls under way keep what they need of the client.
leasehold_code leasehold_client_free(leasehold_client client);

// Waits for the lock, without limit, and holds it until the guard is released or freed. It is renewed by a thread of
// its own.
//
// # Safety
// `key` must have `key_len` readable bytes, and `guard` be writable.
leasehold_code leasehold_client_lock(leasehold_client client,
                                     const char *key,
                                     size_t key_len,
                                     leasehold_guard *guard);

// Asks once: LEASEHOLD_CODE_HELD when others hold it.
//
// # Safety
// `key` must have `key_len` readable bytes, and `guard` be writable.
leasehold_code leasehold_client_try_lock(leasehold_client client,
                                         const char *key,
                                         size_t key_len,
                                         leasehold_guard *guard);

// Waits for at most `wait_ms` milliseconds: LEASEHOLD_CODE_TIMED_OUT when others held it all the while.
//
// # Safety
// `key` must have `key_len` readable bytes, and `guard` be writable.
leasehold_code leasehold_client_lock_for(leasehold_client client,
                                         const char *key,
                                         size_t key_len,
                                         uint64_t wait_ms,
                                         leasehold_guard *guard);

// leasehold_client_lock, together with other shared holders.
//
// # Safety
// `key` must have `key_len` readable bytes, and `guard` be writable.
leasehold_code leasehold_client_lock_shared(leasehold_client client,
                                            const char *key,
                                            size_t key_len,
                                            leasehold_guard *guard);

// leasehold_client_try_lock, together with other shared holders.
//
// # Safety
// `key` must have `key_len` readable bytes, and `guard` be writable.
leasehold_code leasehold_client_try_lock_shared(leasehold_client client,
                                                const char *key,
                                                size_t key_len,
                                                leasehold_guard *guard);

// leasehold_client_lock_for, together with other shared holders.
//
// # Safety
// `key` must have `key_len` readable bytes, and `guard` be writable.
leasehold_code leasehold_client_lock_shared_for(leasehold_client client,
                                                const char *key,
                                                size_t key_len,
                                                uint64_t wait_ms,
                                                leasehold_guard *guard);

// A request for one lock.
//
// # Safety
// `key` must have `key_len` readable bytes, and `request` be writable.
leasehold_code leasehold_request_new(leasehold_client client,
                                     const char *key,
                                     size_t key_len,
                                     leasehold_request *request);

// A request for whichever of several locks is free first: leasehold_request_add_key names them, and
// leasehold_guard_key says which it was.
//
// # Safety
// `request` must be writable.
leasehold_code leasehold_request_new_any(leasehold_client client, leasehold_request *request);

// One more key for a request made by leasehold_request_new_any.
//
// # Safety
// `key` must have `key_len` readable bytes.
leasehold_code leasehold_request_add_key(leasehold_request request, const char *key, size_t key_len);

// Tries the keys as they were added, each time from the first one on. Defaults to random order.
leasehold_code leasehold_request_set_in_order(leasehold_request request);

// Together with other shared holders. Defaults to exclusive.
leasehold_code leasehold_request_set_shared(leasehold_request request);

// Shared, and only while fewer than `n` hold the key. Defaults to no limit.
leasehold_code leasehold_request_set_max_holders(leasehold_request request, uint32_t n);

// Who holds it, for people: 1 to 1,024 bytes. Defaults to the client's owner.
//
// # Safety
// `owner` must have `owner_len` readable bytes.
leasehold_code leasehold_request_set_owner(leasehold_request request, const char *owner, size_t owner_len);

// Whatever others should read about this hold: 1 to 1,024 bytes. Defaults to none.
//
// # Safety
// `comment` must have `comment_len` readable bytes.
leasehold_code leasehold_request_set_comment(leasehold_request request,
                                             const char *comment,
                                             size_t comment_len);

// Puts the lock into a group: whoever knows the lock id can renew and release all of it. Defaults to a random one.
//
// # Safety
// `lock_id` must have `lock_id_len` readable bytes.
leasehold_code leasehold_request_set_lock_id(leasehold_request request,
                                             const char *lock_id,
                                             size_t lock_id_len);

// For how long the lock is held without a renewal, in milliseconds. Defaults to the client's lease.
leasehold_code leasehold_request_set_lease(leasehold_request request, uint64_t ms);

// The lease ends at this time, in milliseconds since 1970, and is not renewed past it. Defaults to the client's lease.
leasehold_code leasehold_request_set_lease_until(leasehold_request request,
                                                 uint64_t unix_ms);

// The lock is held until it is released: when the process dies, an operator has to do that. Defaults to the client's
// lease.
leasehold_code leasehold_request_set_lease_forever(leasehold_request request);

// A live exclusive holder with the same owner is replaced at once; it learns so at its next heartbeat. Needs an owner
// that was set. Defaults to respecting it like any other.
leasehold_code leasehold_request_set_replace_same_owner(leasehold_request request);

// For how many milliseconds leasehold_request_lock waits while others hold it; 0 asks once. Defaults to no limit.
leasehold_code leasehold_request_set_wait(leasehold_request request,
                                          uint64_t ms);

// Until when leasehold_request_lock waits: so many milliseconds from this call on, whenever and however often it is
// used afterwards. So several waits can share one deadline. Defaults to no limit.
leasehold_code leasehold_request_set_deadline_in(leasehold_request request,
                                                 uint64_t ms);

// leasehold_cancel_fire ends the wait with LEASEHOLD_CODE_CANCELLED. Defaults to none.
leasehold_code leasehold_request_set_cancel(leasehold_request request, leasehold_cancel cancel);

// The lock is lost after so many milliseconds, for a worker that hangs while its process lives. Defaults to no limit.
leasehold_code leasehold_request_set_max_hold(leasehold_request request,
                                              uint64_t ms);

// Called once for each guard of the request whose lock is lost, with `user`, on a thread of its own; never after a
// release. It may call anything here, also free the guard. No exception may leave it. Once leasehold_guard_free has
// returned, the callback is over and is not called any more, unless it was the callback that freed the guard; the same
// holds for a call that gave no guard. NULL for none, which is the default.
//
// # Safety
// Any thread must be able to call `on_loss` with `user` until each guard of the request is freed.
leasehold_code leasehold_request_set_on_loss(leasehold_request request,
                                             leasehold_on_loss on_loss,
                                             void *user);

// Waits for the lock and holds it: LEASEHOLD_CODE_TIMED_OUT when the wait is over.
//
// # Safety
// `guard` must be writable.
leasehold_code leasehold_request_lock(leasehold_request request, leasehold_guard *guard);

// Asks once: LEASEHOLD_CODE_HELD when others hold it, LEASEHOLD_CODE_TIMED_OUT when it was granted too late to be held.
//
// # Safety
// `guard` must be writable.
leasehold_code leasehold_request_try_lock(leasehold_request request,
                                          leasehold_guard *guard);

// Asks once and gives the lock as data: no guard, no thread, nothing that renews or releases it.
//
// # Safety
// `lock` must be writable.
leasehold_code leasehold_request_acquire(leasehold_request request, leasehold_lock *lock);

// leasehold_client_adopt with the owner, comment, lease and loss callback of the request, which must be for the same
// key.
//
// # Safety
// `guard` must be writable.
leasehold_code leasehold_request_adopt(leasehold_request request,
                                       leasehold_lock lock,
                                       leasehold_guard *guard);

// Frees the handle. Guards and waits that came from it go on.
leasehold_code leasehold_request_free(leasehold_request request);

// A token that is not cancelled yet.
//
// # Safety
// `cancel` must be writable.
leasehold_code leasehold_cancel_new(leasehold_cancel *cancel);

// Ends every wait that was started with the token, now and later, with LEASEHOLD_CODE_CANCELLED. Any thread may call
// it, but not a signal handler. Doing it again changes nothing.
leasehold_code leasehold_cancel_fire(leasehold_cancel cancel);

// Frees the handle. Requests that were given the token keep it, and can't be cancelled any more.
leasehold_code leasehold_cancel_free(leasehold_cancel cancel);

// Whether the lock is held. No I/O and no waiting; false before a rival can be granted the lock, and once false it
// stays so.
//
// # Safety
// `held` must be writable.
leasehold_code leasehold_guard_is_held(leasehold_guard guard,
                                       bool *held);

// LEASEHOLD_CODE_OK while the lock is held, LEASEHOLD_CODE_LOST when it was lost, LEASEHOLD_CODE_CLOSED after a release
// of one's own. For use right before each step that must not overlap.
leasehold_code leasehold_guard_ensure_held(leasehold_guard guard);

// Makes sure that the lock is held for at least so many milliseconds: renews it if less is left.
leasehold_code leasehold_guard_ensure_held_for(leasehold_guard guard, uint64_t ms);

// How many milliseconds are left until the guard counts itself as lost if no heartbeat succeeds: 0 when it is not
// held, UINT64_MAX when it has no end.
//
// # Safety
// `ms` must be writable.
leasehold_code leasehold_guard_remaining(leasehold_guard guard,
                                         uint64_t *ms);

// The fencing token: greater than that of every earlier grant of the key, and the same for the whole hold. It fits
// into an int64_t.
//
// # Safety
// `token` must be writable.
leasehold_code leasehold_guard_token(leasehold_guard guard,
                                     uint64_t *token);

// Exclusive or shared.
//
// # Safety
// `mode` must be writable.
leasehold_code leasehold_guard_mode(leasehold_guard guard, leasehold_mode *mode);

// The name of the lock.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_guard_key(leasehold_guard guard, char *buffer, size_t capacity, size_t *len);

// The group that the lock belongs to.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_guard_lock_id(leasehold_guard guard, char *buffer, size_t capacity, size_t *len);

// A copy of the lock as data; the guard goes on. Free it with leasehold_lock_free.
//
// # Safety
// `lock` must be writable.
leasehold_code leasehold_guard_info(leasehold_guard guard, leasehold_lock *lock);

// How the lock was lost: LEASEHOLD_REASON_NONE, and an empty text, when it was not.
//
// # Safety
// `reason` must be writable, and `buffer` as for every text, see the top.
leasehold_code leasehold_guard_loss(leasehold_guard guard,
                                    leasehold_reason *reason,
                                    char *buffer,
                                    size_t capacity,
                                    size_t *len);

// Waits until the lock is lost: LEASEHOLD_CODE_TIMED_OUT when that did not happen within `ms` milliseconds,
// LEASEHOLD_CODE_CLOSED once it was released or handed over instead.
leasehold_code leasehold_guard_wait_loss(leasehold_guard guard, uint64_t ms);

// A file descriptor for poll(), epoll or kqueue. It becomes readable when the lock is lost, and also when the guard is
// released or freed instead, and stays so: read() gives one byte if the lock was lost, and 0, the end, after it or in
// its place. It is the caller's: close() it, before or after the guard. Each call gives a new one, with a byte of its
// own.
//
// # Safety
// `descriptor` must be writable.
leasehold_code leasehold_guard_loss_descriptor(leasehold_guard guard,
                                               int32_t *descriptor);

// Stops the heartbeat and releases the lock. LEASEHOLD_CODE_LOST is final: it was not held any more. After any other
// error it can be called again: LEASEHOLD_CODE_CLOSED says that it was released already. The guard has to be freed afterwards all the same.
leasehold_code leasehold_guard_release(leasehold_guard guard);

// Stops the heartbeat and hands the lock over as data, without releasing it: whoever gets it takes it up with
// leasehold_client_adopt before its lease ends. The guard has to be freed afterwards all the same.
//
// # Safety
// `lock` must be writable.
leasehold_code leasehold_guard_into_lock(leasehold_guard guard, leasehold_lock *lock);

// Frees the guard, and releases the lock if it is still held, within the client's drop timeout. A loss callback that
// runs is waited for, however long, unless this is called by it: call it without a mutex that the callback takes, and
// do not let two callbacks free each other's guards.
leasehold_code leasehold_guard_free(leasehold_guard guard);

// The numbers of a lock: `remaining_ms` is counted by this host's wall clock. `status_size` is `sizeof *status`.
//
// # Safety
// `status_size` bytes at `status` must be writable.
leasehold_code leasehold_lock_status(leasehold_lock lock,
                                     leasehold_status *status,
                                     size_t status_size);

// A text of a lock; `text` is one of leasehold_text. LEASEHOLD_CODE_NOT_FOUND when it has none.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_lock_text(leasehold_lock lock,
                                   int32_t text,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *len);

// The lock as bytes, for another process. `len` gets how many there are, also when they do not fit, which is an error
// unless `capacity` is 0.
//
// # Safety
// `buffer` must have room for `capacity` bytes, or be NULL and `capacity` 0; `len` must be writable or NULL.
leasehold_code leasehold_lock_to_bytes(leasehold_lock lock,
                                       uint8_t *buffer,
                                       size_t capacity,
                                       size_t *len);

// A lock that another process wrote with leasehold_lock_to_bytes, or a Rust program as JSON.
//
// # Safety
// `bytes` must have `bytes_len` readable bytes, and `lock` be writable.
leasehold_code leasehold_lock_from_bytes(const uint8_t *bytes, size_t bytes_len, leasehold_lock *lock);

// Frees the data. The lock itself stays held until it is released or its lease ends.
leasehold_code leasehold_lock_free(leasehold_lock lock);

// Takes up a lock that was handed over, or acquired as data: without a gap, with a new fencing token.
// LEASEHOLD_CODE_LOST when it does not stand any more, or was adopted before. The data has to be freed all the same.
//
// # Safety
// `guard` must be writable.
leasehold_code leasehold_client_adopt(leasehold_client client,
                                      leasehold_lock lock,
                                      leasehold_guard *guard);

// Renews a lock that is held as data for so many milliseconds from now on, and brings the data up to date.
// LEASEHOLD_CODE_LOST when it does not stand any more.
leasehold_code leasehold_client_heartbeat(leasehold_client client, leasehold_lock lock, uint64_t lease_ms);

// Releases a lock that is held as data. Fine when nobody holds it; LEASEHOLD_CODE_HELD when others do.
leasehold_code leasehold_client_release(leasehold_client client, leasehold_lock lock);

// What the store knows of a key: the highest fencing token that was ever issued, and every holder in the record, the
// expired ones included. LEASEHOLD_CODE_NOT_FOUND when nobody ever held it or its row was deleted. For finding out
// who holds a lock, not for checking before taking it.
//
// # Safety
// `key` must have `key_len` readable bytes; `token` and `holders` must be writable.
leasehold_code leasehold_client_get(leasehold_client client,
                                    const char *key,
                                    size_t key_len,
                                    uint64_t *token,
                                    leasehold_list *holders);

// Every lock that fits the filter, newest first; 0 for all.
//
// # Safety
// `list` must be writable.
leasehold_code leasehold_client_list(leasehold_client client, leasehold_filter filter, leasehold_list *list);

// Renews all locks of a group for so many milliseconds from now on, and lists them. LEASEHOLD_CODE_LOST when there is
// none, or one of them has less than a second left.
//
// # Safety
// `lock_id` must have `lock_id_len` readable bytes, and `list` be writable.
leasehold_code leasehold_client_renew_group(leasehold_client client,
                                            const char *lock_id,
                                            size_t lock_id_len,
                                            uint64_t lease_ms,
                                            leasehold_list *list);

// Releases all locks of a group, newest first, and lists what was released.
//
// # Safety
// `lock_id` must have `lock_id_len` readable bytes, and `list` be writable.
leasehold_code leasehold_client_unlock_group(leasehold_client client,
                                             const char *lock_id,
                                             size_t lock_id_len,
                                             leasehold_list *list);

// Frees holders whose lease ended more than so many milliseconds ago, and lists them.
//
// # Safety
// `list` must be writable.
leasehold_code leasehold_client_purge(leasehold_client client, uint64_t older_than_ms, leasehold_list *list);

// Makes what the store needs (tables, indexes) where it is missing.
leasehold_code leasehold_client_create_schema(leasehold_client client);

// What leasehold_client_create_schema would do, for those who may not.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_client_schema(leasehold_client client, char *buffer, size_t capacity, size_t *len);

// How many holders the list has.
//
// # Safety
// `len` must be writable.
leasehold_code leasehold_list_len(leasehold_list list, size_t *len);

// The numbers of a holder, counted from 0; LEASEHOLD_CODE_NOT_FOUND behind the last. `status_size` is `sizeof *status`.
//
// # Safety
// `status_size` bytes at `status` must be writable.
leasehold_code leasehold_list_status(leasehold_list list,
                                     size_t index,
                                     leasehold_status *status,
                                     size_t status_size);

// A text of a holder; `text` is one of leasehold_text. LEASEHOLD_CODE_NOT_FOUND when it has none.
//
// # Safety
// `buffer` as for every text, see the top.
leasehold_code leasehold_list_text(leasehold_list list,
                                   size_t index,
                                   int32_t text,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *len);

// Frees the list.
leasehold_code leasehold_list_free(leasehold_list list);

// A filter that fits every lock.
//
// # Safety
// `filter` must be writable.
leasehold_code leasehold_filter_new(leasehold_filter *filter);

// Only this key.
//
// # Safety
// `key` must have `key_len` readable bytes.
leasehold_code leasehold_filter_set_key(leasehold_filter filter, const char *key, size_t key_len);

// Only keys that start with this text, byte by byte; the empty text fits all.
//
// # Safety
// `prefix` must have `prefix_len` readable bytes.
leasehold_code leasehold_filter_set_key_prefix(leasehold_filter filter,
                                               const char *prefix,
                                               size_t prefix_len);

// Only locks of this group.
//
// # Safety
// `lock_id` must have `lock_id_len` readable bytes.
leasehold_code leasehold_filter_set_lock_id(leasehold_filter filter, const char *lock_id, size_t lock_id_len);

// Only locks whose holder has exactly this label.
//
// # Safety
// `owner` must have `owner_len` readable bytes.
leasehold_code leasehold_filter_set_owner(leasehold_filter filter, const char *owner, size_t owner_len);

// Only exclusive holders.
leasehold_code leasehold_filter_set_exclusive(leasehold_filter filter);

// Only shared holders.
leasehold_code leasehold_filter_set_shared(leasehold_filter filter);

// Only locks whose lease is running.
leasehold_code leasehold_filter_set_live(leasehold_filter filter);

// Only locks whose lease has ended and that nobody has taken or purged since.
leasehold_code leasehold_filter_set_expired(leasehold_filter filter);

// Only locks that were granted before this time, in milliseconds since 1970.
leasehold_code leasehold_filter_set_created_before(leasehold_filter filter, uint64_t unix_ms);

// Only locks that were granted at this time or later, in milliseconds since 1970.
leasehold_code leasehold_filter_set_created_after(leasehold_filter filter, uint64_t unix_ms);

// Only locks with fewer milliseconds than this left of their lease, the expired ones included.
leasehold_code leasehold_filter_set_remaining_below(leasehold_filter filter, uint64_t ms);

// Only locks with so many milliseconds or more left of their lease.
leasehold_code leasehold_filter_set_remaining_at_least(leasehold_filter filter, uint64_t ms);

// Frees the filter.
leasehold_code leasehold_filter_free(leasehold_filter filter);

// A node for the election of this name, which is also the key of the leader's lock. What is set has to be set before
// it is first used for anything else.
//
// # Safety
// `name` must have `name_len` readable bytes, and `election` be writable.
leasehold_code leasehold_election_new(leasehold_client client,
                                      const char *name,
                                      size_t name_len,
                                      leasehold_election *election);

// By what name others see this node when it leads: 1 to 1,024 bytes. Defaults to the client's owner.
//
// # Safety
// `id` must have `id_len` readable bytes.
leasehold_code leasehold_election_set_id(leasehold_election election, const char *id, size_t id_len);

// For how many milliseconds a leader leads without a heartbeat, at least 1,000: this long after a leader died another
// can win. Defaults to the client's lease.
leasehold_code leasehold_election_set_lease(leasehold_election election,
                                            uint64_t ms);

// A term ends after so many milliseconds, so that others get their turn. Defaults to no limit.
leasehold_code leasehold_election_set_max_hold(leasehold_election election, uint64_t ms);

// leasehold_election_run ends after one term. Defaults to standing again after each.
leasehold_code leasehold_election_set_once(leasehold_election election);

// Called when this node has won a term, with its fencing token. The callbacks of an election run on one thread of the
// library's, one after the other, and each "won" is followed by one "lost" before the next. They may call anything
// here, and no exception may leave them. Once leasehold_election_free has returned none runs and none is called any
// more, unless it was the callback that freed it. NULL for none, which is the default.
//
// # Safety
// Any thread must be able to call `on_won` with `user` until the election is freed.
leasehold_code leasehold_election_set_on_won(leasehold_election election,
                                             leasehold_on_won on_won,
                                             void *user);

// Called when a term that this node had won is over. See leasehold_election_set_on_won.
//
// # Safety
// Any thread must be able to call `on_lost` with `user` until the election is freed.
leasehold_code leasehold_election_set_on_lost(leasehold_election election,
                                              leasehold_on_lost on_lost,
                                              void *user);

// Starts a thread that stands at once, and again after each term, until leasehold_election_stop. Trouble with the
// store does not end it.
leasehold_code leasehold_election_run(leasehold_election election);

// Whether this node leads. No I/O and no waiting: false before a rival can win.
//
// # Safety
// `leader` must be writable.
leasehold_code leasehold_election_is_leader(leasehold_election election, bool *leader);

// The fencing token of the term while this node leads, else LEASEHOLD_CODE_LOST. No I/O.
//
// # Safety
// `token` must be writable.
leasehold_code leasehold_election_token(leasehold_election election, uint64_t *token);

// Who leads, by a read of the store: its name, and the fencing token of its term. LEASEHOLD_CODE_NOT_FOUND when nobody
// does.
//
// # Safety
// `token` must be writable, and `buffer` as for every text, see the top.
leasehold_code leasehold_election_leader(leasehold_election election,
                                         uint64_t *token,
                                         char *buffer,
                                         size_t capacity,
                                         size_t *len);

// Waits until what leasehold_election_run started is over: after leasehold_election_stop or leasehold_client_close, or
// after one term with leasehold_election_set_once.
leasehold_code leasehold_election_wait(leasehold_election election);

// Ends the standing, and resigns if this node leads, so that the next one takes over at once. It can stand again
// later.
leasehold_code leasehold_election_stop(leasehold_election election);

// Frees the handle, and stops what leasehold_election_run started, within the client's drop timeout, also while other
// threads are inside calls: leasehold_election_campaign ends with LEASEHOLD_CODE_CANCELLED. A leadership that it gave
// before goes on. A callback that runs is waited for, unless this is called by it.
leasehold_code leasehold_election_free(leasehold_election election);

// Waits until this node leads: in place of leasehold_election_run. leasehold_election_stop or leasehold_election_free
// of another thread ends the wait with LEASEHOLD_CODE_CANCELLED.
//
// # Safety
// `leadership` must be writable.
leasehold_code leasehold_election_campaign(leasehold_election election,
                                           leasehold_leadership *leadership);

// Whether this node still leads. No I/O and no waiting: false before a rival can win, and once false it stays so.
//
// # Safety
// `leader` must be writable.
leasehold_code leasehold_leadership_is_leader(leasehold_leadership leadership,
                                              bool *leader);

// The fencing token of the term: greater than that of every earlier term of the election.
//
// # Safety
// `token` must be writable.
leasehold_code leasehold_leadership_token(leasehold_leadership leadership, uint64_t *token);

// How many milliseconds are left until the node counts itself as deposed if no heartbeat succeeds; 0 when it does not
// lead.
//
// # Safety
// `ms` must be writable.
leasehold_code leasehold_leadership_remaining(leasehold_leadership leadership,
                                              uint64_t *ms);

// Waits until the leadership is lost: LEASEHOLD_CODE_TIMED_OUT when that did not happen within `ms` milliseconds,
// LEASEHOLD_CODE_CLOSED once it was resigned instead.
leasehold_code leasehold_leadership_wait_loss(leasehold_leadership leadership,
                                              uint64_t ms);

// Gives the leadership up, so that the next node takes over at once. LEASEHOLD_CODE_LOST when the term was over
// before, LEASEHOLD_CODE_CLOSED when it was resigned already. It has to be freed afterwards all the same.
leasehold_code leasehold_leadership_resign(leasehold_leadership leadership);

// Frees the leadership, and resigns if this node still leads, within the client's drop timeout.
leasehold_code leasehold_leadership_free(leasehold_leadership leadership);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LEASEHOLD_H */
