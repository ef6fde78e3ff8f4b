/* Distributed locks: the page `c` of the crate's guide (src/api/guide/c.md) says how to build and install the library.
 *
 * Written by tests/capi from the comments in src/capi: do not edit.
 *
 * Handles: an object is known by a number, never by a pointer. For each type the number is in a struct of its own, so
 * that a handle of another type does not compile; {0} is no handle. A handle that is wrong or was freed is answered
 * with an error code and does no harm. What a function gives you is yours: free it once, by the function that its type
 * names. What you pass in remains yours, and can be freed as soon as the call has returned: the library keeps what it
 * still needs of the object. Any thread may use any handle, also while another thread is inside a call with it.
 *
 * Codes: a function that succeeds returns LEASEHOLD_CODE_OK. The docs of each function name the codes that its caller
 * should handle. In addition, every function may return those for wrong arguments (LEASEHOLD_CODE_INVALID_INPUT and
 * those from LEASEHOLD_CODE_NULL_POINTER on), and every function that asks the store LEASEHOLD_CODE_PERMISSION,
 * LEASEHOLD_CODE_SCHEMA, LEASEHOLD_CODE_STORE or LEASEHOLD_CODE_AMBIGUOUS, and LEASEHOLD_CODE_CLOSED once the client
 * was closed. The leasehold_error_ functions say more about the last failure of the thread that asks: ask in the thread
 * that made the call. (A runtime that moves its tasks between threads must pin the task first, in Go by
 * runtime.LockOSThread around the call and the questions.) Results are written only on success; otherwise the places
 * for them are left as they are.
 *
 * Waiting: functions that connect, and that acquire, adopt, renew, release, list or read locks, ask the store. They
 * wait at most the client's request timeout for each request that they send and, when they wait for a lock, for as
 * long as you asked for. Closing, stopping and freeing take at most the client's drop timeout. All other functions
 * return at once, unless their docs say that they wait. Times are in milliseconds; UINT64_MAX means for ever. It is not
 * valid as a lease: locks without end have functions of their own.
 *
 * Threads: the library has threads of its own, which also run your callbacks. No function may be called by a signal
 * handler, and no thread may be cancelled (pthread_cancel) or left by longjmp() inside a call. A thread of the library
 * inherits the blocked signals of the thread whose call makes the library start it. So if you receive a signal by
 * sigwait() or a descriptor, block it before the first call, in every thread that calls. A callback has a stack of
 * 2 MB, or what is left of your thread's. If a log function is set while locks are held, it may run on the 512 KB (with
 * 32 bits 256 KB) of threads that were started before.
 *
 * Versions: a caller that connects passes LEASEHOLD_VERSION_NUMBER. If the library does not fit that version, it
 * refuses, instead of doing something else than the header says. Structs that the library fills can grow at their end.
 * For a struct that the caller provides, the caller passes the size that it was compiled with; a struct for a callback
 * has its size in `size`.
 *
 * fork(): in the child the parent's handles are answered with LEASEHOLD_CODE_FORKED. Connect again there, but not to
 * SQLite if any of its files was open at the fork: fork before you connect, or exec in the child.
 *
 * SQLite: the library has an SQLite of its own, unless it was built with the system's. Do not open its lock file with
 * another SQLite in the same process, like the sqlite3 module of Python, and do not touch the -wal and -shm files next
 * to it: whatever closes these files ends the file locks that the library has on them. On Linux the library keeps its
 * log safe from that, but not a write that is under way; elsewhere a lock may be lost, which its guard finds out at the
 * next heartbeat. A second copy of this library in the process, with its own SQLite, is refused on Linux with
 * LEASEHOLD_CODE_CONFIG; elsewhere both copies would be granted one lock.
 *
 * Texts go in as UTF-8 with their length in bytes, and need no NUL; or with SIZE_MAX as their length, and then end with
 * a NUL. Texts come out into a buffer of the caller's: as much as fits is written, with a NUL after it, and the length
 * of the whole text without the NUL goes to `len`, which may be NULL. If not all of it fits, the code is
 * LEASEHOLD_CODE_BUFFER_TOO_SMALL. To ask for the length alone, pass a capacity of 0; only then the buffer may be NULL.
 */


#ifndef LEASEHOLD_H
#define LEASEHOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Define LEASEHOLD_STATIC to link the static library. Only Windows needs to know.
#if defined(_WIN32) && !defined(LEASEHOLD_STATIC)
#define LEASEHOLD_API __declspec(dllimport)
#else
#define LEASEHOLD_API
#endif

// The compiler warns if a returned code is ignored.
#if defined(__GNUC__)
#define LEASEHOLD_NODISCARD __attribute__((warn_unused_result))
#elif defined(_MSC_VER)
#define LEASEHOLD_NODISCARD _Check_return_
#else
#define LEASEHOLD_NODISCARD
#endif

// The version of this header, as a text and as a number: 1,000,000 for a major version, 1,000 for a minor one.
#define LEASEHOLD_VERSION "0.1.0"
#define LEASEHOLD_VERSION_NUMBER 1000u


// What a function returns. The numbers never change; later versions may add some.
enum leasehold_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The call did what it says.
  LEASEHOLD_CODE_OK = 0,
  // Others hold the lock; leasehold_error_holders says who.
  LEASEHOLD_CODE_HELD = 1,
  // This client holds the key already with the same lock id: it would wait for itself.
  LEASEHOLD_CODE_ALREADY_HELD = 2,
  // The wait ended before the lock was free; leasehold_error_holders says who held it last.
  LEASEHOLD_CODE_TIMED_OUT = 3,
  // The lock was held, and is not any more.
  LEASEHOLD_CODE_LOST = 4,
  // The wait was cancelled.
  LEASEHOLD_CODE_CANCELLED = 5,
  // The client was closed, the lock was released, or what the call waits for can't happen any more.
  LEASEHOLD_CODE_CLOSED = 6,
  // An argument is out of bounds. Nothing was written.
  LEASEHOLD_CODE_INVALID_INPUT = 7,
  // The store URL is wrong, or the store that it names can't be used in this way.
  LEASEHOLD_CODE_CONFIG = 8,
  // The store denies access.
  LEASEHOLD_CODE_PERMISSION = 9,
  // The table, the file or a row is not what this version can read.
  LEASEHOLD_CODE_SCHEMA = 10,
  // The store can't be reached or failed; leasehold_error_is_retryable says whether a repeat may help.
  LEASEHOLD_CODE_STORE = 11,
  // A write was sent to the store, and whether it happened could not be found out.
  LEASEHOLD_CODE_AMBIGUOUS = 12,
  // Kept for clocks that differ by more than the guarantees allow. Nothing detects that yet, so nothing returns it.
  LEASEHOLD_CODE_CLOCK_SKEW = 13,
  // A lease is not in the state that the call needs.
  LEASEHOLD_CODE_INVALID_LEASE = 14,
  // A pointer is NULL, but must not be.
  LEASEHOLD_CODE_NULL_POINTER = 100,
  // A text is not UTF-8.
  LEASEHOLD_CODE_BAD_UTF8 = 101,
  // The number is no handle: zero, or never given out.
  LEASEHOLD_CODE_BAD_HANDLE = 102,
  // The handle was freed.
  LEASEHOLD_CODE_STALE_HANDLE = 103,
  // The handle is one of another type.
  LEASEHOLD_CODE_WRONG_HANDLE = 104,
  // The handle belongs to the process that this one was forked from. Connect again in this process. But if any
  // SQLite file was open at the fork, every SQLite file is refused with LEASEHOLD_CODE_CONFIG: fork before you
  // connect, or exec in the child.
  LEASEHOLD_CODE_FORKED = 105,
  // The buffer is too small; the length that is needed was written.
  LEASEHOLD_CODE_BUFFER_TOO_SMALL = 106,
  // What was asked for does not exist: nobody ever held the key, or the list has no such entry.
  LEASEHOLD_CODE_NOT_FOUND = 107,
  // There are 16 million handles of the type already.
  LEASEHOLD_CODE_TOO_MANY_HANDLES = 108,
  // A bug in the library: the call has caught a panic. The object that was used may not work any more: free it.
  LEASEHOLD_CODE_PANIC = 109,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_code leasehold_code;
#else
typedef int32_t leasehold_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How important a message is.
enum leasehold_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Something that must not happen, like a panic in a callback.
  LEASEHOLD_LOG_LEVEL_ERROR = 1,
  // A lock that is lost, or something that may become wrong, like a renewal that fails.
  LEASEHOLD_LOG_LEVEL_WARN = 2,
  LEASEHOLD_LOG_LEVEL_INFO = 3,
  LEASEHOLD_LOG_LEVEL_DEBUG = 4,
  LEASEHOLD_LOG_LEVEL_TRACE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_log_level leasehold_log_level;
#else
typedef int32_t leasehold_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What happened. The numbers never change; later versions may add some.
enum leasehold_event_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A request to the store was answered, failed or ran out of time; `ms` is how long it took.
  LEASEHOLD_EVENT_KIND_REQUEST = 1,
  // A write was sent, and no answer says whether it happened. It is repeated or given up.
  LEASEHOLD_EVENT_KIND_UNKNOWN = 2,
  // A hold begins: a lock was granted; `ms` is how long the call had waited. It ends by exactly one of
  // LEASEHOLD_EVENT_KIND_RELEASED, _LOST, _HANDED_OVER and _LEFT.
  LEASEHOLD_EVENT_KIND_GRANTED = 3,
  // Others hold the lock.
  LEASEHOLD_EVENT_KIND_REFUSED = 4,
  // A call begins to wait; it ends by exactly one LEASEHOLD_EVENT_KIND_WAIT_ENDED.
  LEASEHOLD_EVENT_KIND_WAIT_BEGAN = 5,
  // A wait is over, after `ms`; `code` says how: LEASEHOLD_CODE_OK when the lock was granted, _TIMED_OUT,
  // _CANCELLED, _CLOSED, _HELD when another of several keys was granted instead; after any other failure the code
  // that the waiting call returns.
  LEASEHOLD_EVENT_KIND_WAIT_ENDED = 6,
  // A wait goes on; it has lasted `ms` so far.
  LEASEHOLD_EVENT_KIND_WAITED = 7,
  // A lease was extended; `ms` was left before.
  LEASEHOLD_EVENT_KIND_RENEWED = 8,
  // Renewals fail, and only `ms` is left: see leasehold_request_set_warn_before.
  LEASEHOLD_EVENT_KIND_RENEWAL_LATE = 9,
  // A lock was lost, after `ms`; `text` says how.
  LEASEHOLD_EVENT_KIND_LOST = 10,
  // A guard released its lock, after `ms`.
  LEASEHOLD_EVENT_KIND_RELEASED = 11,
  // A guard handed its lock over as data, after `ms`.
  LEASEHOLD_EVENT_KIND_HANDED_OVER = 12,
  // A guard ended after `ms`, and no release was answered: the store may keep the lock until its lease ends.
  LEASEHOLD_EVENT_KIND_LEFT = 13,
  // A lock that was data was released.
  LEASEHOLD_EVENT_KIND_RELEASED_DATA = 14,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_event_kind leasehold_event_kind;
#else
typedef int32_t leasehold_event_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a lock was lost. The numbers never change; later versions may add some.
enum leasehold_reason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The lock is not lost.
  LEASEHOLD_REASON_NONE = 0,
  // Somebody else has been granted the lock meanwhile.
  LEASEHOLD_REASON_TAKEN_OVER = 1,
  // The lease came to its end without a renewal.
  LEASEHOLD_REASON_EXPIRED = 2,
  // An operator or another process released the lock.
  LEASEHOLD_REASON_RELEASED_BY_OTHER = 3,
  // The lock was held for as long as leasehold_request_set_max_hold allows.
  LEASEHOLD_REASON_MAX_HOLD = 4,
  // The lock's row is gone, alone or with its file, its collection or all rows; or the log next to an SQLite file
  // was removed or replaced. If the whole table is gone, heartbeats fail until the lease is over, and the reason is
  // LEASEHOLD_REASON_EXPIRED.
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
  // The group that the lock belongs to. Anyone who knows this id can renew and release the whole group.
  LEASEHOLD_TEXT_LOCK_ID = 1,
  // The holder's name, for people to read.
  LEASEHOLD_TEXT_OWNER = 2,
  // The host of the holder.
  LEASEHOLD_TEXT_HOST = 3,
  // The holder's note, for people to read.
  LEASEHOLD_TEXT_COMMENT = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_text leasehold_text;
#else
typedef int32_t leasehold_text;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The parts of an assertion.
enum leasehold_assertion
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The statement.
  LEASEHOLD_ASSERTION_SQL = 0,
  // What to bind to its first parameter: a text.
  LEASEHOLD_ASSERTION_FIRST = 1,
  // What to bind to its second parameter: a text. It proves who holds the lock: keep it out of logs.
  LEASEHOLD_ASSERTION_SECOND = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum leasehold_assertion leasehold_assertion;
#else
typedef int32_t leasehold_assertion;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Holders as they were when somebody looked. Free it with leasehold_list_free.
typedef struct {
  uint64_t id;
} leasehold_list;

// A message. Its texts end in a NUL that their length leaves out, and are only there during the callback. They name
// keys, owners and stores, and never a secret.
typedef struct {
  // The size of this struct as the library has it: later versions may add fields at its end.
  size_t size;
  // The part of the library that the message comes from, like "leasehold::heartbeat".
  const char *target;
  size_t target_len;
  // The message, for people.
  const char *text;
  size_t text_len;
  // How important it is.
  leasehold_log_level level;
  // Always 0. Padding is named so that a later field can't take its place unnoticed.
  uint32_t reserved;
} leasehold_log_record;

// Called with the message and the `user` pointer that was given.
typedef void (*leasehold_on_log)(const leasehold_log_record *record, void *user);

// A function that gets the library's messages. Free it with leasehold_log_free.
typedef struct {
  uint64_t id;
} leasehold_log;

// Options of a client. Free it with leasehold_builder_free.
typedef struct {
  uint64_t id;
} leasehold_builder;

// Something that a client did. Its texts end in a NUL that their length leaves out, and are only there during the
// callback. A field that the kind does not mention is 0 or empty.
typedef struct {
  // The size of this struct as the library has it: later versions may add fields at its end.
  size_t size;
  // The name of the lock; empty when the event is about none.
  const char *key;
  size_t key_len;
  // The request that was sent, like "acquire"; else empty.
  const char *operation;
  size_t operation_len;
  // What went wrong, or how the lock was lost, for people; else empty.
  const char *text;
  size_t text_len;
  // The fencing token of the grant, also for kinds that do not mention it; 0 when the event is about none.
  uint64_t token;
  // A time in milliseconds; the kind says which.
  uint64_t ms;
  // What happened.
  leasehold_event_kind kind;
  // For a request, an unknown write, or a wait that is over: LEASEHOLD_CODE_OK, or why it failed.
  leasehold_code code;
} leasehold_event;

// Called with the event and the `user` pointer that was given.
typedef void (*leasehold_on_event)(const leasehold_event *event, void *user);

// The way to every lock of one store; any number of threads may use it. Free it with leasehold_client_free.
typedef struct {
  uint64_t id;
} leasehold_client;

// A lock that is held: its own thread renews it. Free it with leasehold_guard_free, which releases it.
typedef struct {
  uint64_t id;
} leasehold_guard;

// A request for one lock, for the first of several that is free, or for all of several. It can be used any number of
// times, by any number of threads. Free it with leasehold_request_free.
typedef struct {
  uint64_t id;
} leasehold_request;

// A switch that ends the waits of the requests that it was given to. Free it with leasehold_cancel_free.
typedef struct {
  uint64_t id;
} leasehold_cancel;

// A lock that was held and is not any more. Its texts end in a NUL that their length leaves out, and are only there
// during the callback.
typedef struct {
  // The size of this struct as the library has it: later versions may add fields at its end.
  size_t size;
  // The fencing token that is out of date now.
  uint64_t token;
  // How long the lock had been held, in milliseconds.
  uint64_t held_for_ms;
  // The name of the lock.
  const char *key;
  size_t key_len;
  // How it was lost, for people.
  const char *text;
  size_t text_len;
  // How it was lost.
  leasehold_reason reason;
  // Always 0. Padding is named so that a later field can't take its place unnoticed.
  uint32_t reserved;
} leasehold_loss;

// Called with the loss and the `user` pointer that was given.
typedef void (*leasehold_on_loss)(const leasehold_loss *loss, void *user);

// Called with the milliseconds that are left until the loss and the `user` pointer that was given.
typedef void (*leasehold_on_warning)(uint64_t left_ms, void *user);

// A wait that goes on. Its texts end in a NUL that their length leaves out, and are only there during the callback.
typedef struct {
  // The size of this struct as the library has it: later versions may add fields at its end.
  size_t size;
  // The name of the lock.
  const char *key;
  size_t key_len;
  // The holder's name, or that of the first of several; empty when none is known.
  const char *holder;
  size_t holder_len;
  // Why the last request to the store failed, for people; empty when it did not fail.
  const char *text;
  size_t text_len;
  // For how long this call has waited.
  uint64_t waited_ms;
  // In how many milliseconds the wait ends without the lock; UINT64_MAX for a wait without limit.
  uint64_t left_ms;
  // How many other waiters of this client come first.
  uint64_t place;
  // How often the store was asked.
  uint32_t attempts;
  // Not 0 when a guard of the same client holds the lock: a guard of another thread, or one of this thread, which
  // then waits for itself.
  uint32_t held_by_this_client;
} leasehold_waiting;

// Called with the wait and the `user` pointer that was given.
typedef void (*leasehold_on_wait)(const leasehold_waiting *waiting, void *user);

// All of several locks, in the order of their keys: each is renewed by a thread of its own. Free it with
// leasehold_guards_free, which releases them.
typedef struct {
  uint64_t id;
} leasehold_guards;

// A lock as data. Having it does not mean that the lock is held. Anyone who has it can renew, release and adopt it, so
// treat it like a password. Free it with leasehold_lock_free, which releases nothing.
typedef struct {
  uint64_t id;
} leasehold_lock;

// The numbers of a holder. Times are in milliseconds since 1970, by this host's wall clock. Later versions may add
// numbers at its end: the caller passes the sizeof of its own version and gets the numbers of that version, with 0 for
// those that the library does not know.
typedef struct {
  // The fencing token of the holder's grant.
  uint64_t token;
  // When the lock was granted.
  uint64_t created_ms;
  // When the lock was last renewed; 0 when it never was.
  uint64_t renewed_ms;
  // When the lease ends; UINT64_MAX when it has no end.
  uint64_t leased_until_ms;
  // What was left of the lease when this was read: 0 when it had ended, UINT64_MAX when it has no end.
  uint64_t remaining_ms;
  // How the lock is held.
  leasehold_mode mode;
  // Always 0. Padding is named so that no bytes of the library's memory get into it.
  uint32_t reserved;
} leasehold_status;

// Which locks leasehold_client_list finds: those that fit everything that is set. Free it with
// leasehold_filter_free.
typedef struct {
  uint64_t id;
} leasehold_filter;

// The leases of a namespace: somebody claims a name for a holder, anyone may extend it for that holder, and it ends
// only when somebody expires it after its time, or revokes it. So it lasts over restarts, and no guard renews it. Free
// it with leasehold_leases_free, which ends no lease.
//
// Only the text `holder` identifies the holder: put something unique in it if two processes, or two lives of one, could
// use the same. Otherwise a process that was stopped, and goes on, shares, extends or revokes the lease of a successor;
// it can compare the token with that of its claim before it calls leasehold_leases_keep or leasehold_leases_revoke.
//
// A call that finds the lease in another state than it needs returns LEASEHOLD_CODE_INVALID_LEASE, which is normal:
// leasehold_error_holders gives the lease as it was found.
//
// In a list of leases the name is LEASEHOLD_TEXT_KEY and the holder LEASEHOLD_TEXT_OWNER; there are no other texts.
// Its times are those of the claim, of the last extension, and of its end, from when on (on DynamoDB a grace later) it
// can be expired. A list of pins has the same two texts, with the entity instead of the holder, and no numbers.
typedef struct {
  uint64_t id;
} leasehold_leases;

// A lease that a thread of the library extends. Free it with leasehold_keeper_free, which stops that and leaves the
// lease as it is.
typedef struct {
  uint64_t id;
} leasehold_keeper;

// A node of an election: of all nodes that campaign, at most one leads at a time. Free it with
// leasehold_election_free.
typedef struct {
  uint64_t id;
} leasehold_election;

// Called with the fencing token of a term that was won, and the `user` pointer that was given.
typedef void (*leasehold_on_won)(uint64_t token, void *user);

// Called with the fencing token of a term that is over, a text for people that says how it ended, and the `user`
// pointer that was given. The text ends in a NUL that its length leaves out, and is only there during the callback.
typedef void (*leasehold_on_lost)(uint64_t token, const char *text, size_t text_len, void *user);

// Called with the fencing token of a leader's term, the leader's name, and the `user` pointer that was given. The text
// ends in a NUL that its length leaves out, and is only there during the callback.
typedef void (*leasehold_on_leader)(uint64_t token, const char *id, size_t id_len, void *user);

// Called with the `user` pointer that was given; answers whether this node is healthy enough to lead.
typedef bool (*leasehold_health_check)(void *user);

// A term as the leader. Free it with leasehold_leadership_free, which resigns.
typedef struct {
  uint64_t id;
} leasehold_leadership;



#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The name of a code as in this header, or "LEASEHOLD_CODE_?" for any other number. The text is static: do
// not free it.
LEASEHOLD_API const char *leasehold_code_name(int32_t code);

// The version of the library that runs, like "0.1.0"; LEASEHOLD_VERSION is that of the header. The text is static: do
// not free it.
LEASEHOLD_API
const char *leasehold_version(void);

// The version of the library that runs, as a number like LEASEHOLD_VERSION_NUMBER: 1,000,000 for each major version,
// 1,000 for each minor one, and 1 for each patch.
LEASEHOLD_API
uint32_t leasehold_version_number(void);

// The code of the last call of this thread that failed; LEASEHOLD_CODE_OK when none has. Calls that succeed, and
// the leasehold_error_ functions, leave it as it is. But if leasehold_error_holders itself fails, it counts as a call
// that failed.
LEASEHOLD_API
leasehold_code leasehold_error_code(void);

// What went wrong in the last call of this thread that failed, for people: one line that names key, store and
// cause, and never a secret.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API leasehold_code leasehold_error_message(char *buffer, size_t capacity, size_t *len);

// The key that the failed call was about; empty when it was about none.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API leasehold_code leasehold_error_key(char *buffer, size_t capacity, size_t *len);

// The store of the failed call as scheme, host and database; empty when it was about none.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API leasehold_code leasehold_error_store(char *buffer, size_t capacity, size_t *len);

// The name of the holder of the lock that was refused (of the first one if it has several), or of the lease that was
// in the way; empty when none is known.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
leasehold_code leasehold_error_holder(char *buffer,
                                      size_t capacity,
                                      size_t *len);

// All holders of the lock that was refused, or the lease that was in the way; an empty list when none is known. Free
// it with leasehold_list_free.
// \param list Gets the list.
LEASEHOLD_API
leasehold_code leasehold_error_holders(leasehold_list *list);

// Whether one of the lock's holders was a guard of the same client that made the failed call: a guard of another
// thread, or one of this thread, which then waited for itself.
LEASEHOLD_API
bool leasehold_error_held_by_this_client(void);

// Whether the failed call may succeed later without any change.
LEASEHOLD_API bool leasehold_error_is_retryable(void);

// Passes the library's messages to a function, from now on and for all clients. Without such a function they go
// nowhere. It is called on the thread that a message comes from, on several threads at once, or, if a lock depends on
// that thread, on another one. It should return at once, may call every function of this header, and must return: no
// exception, longjmp() or pthread_exit(). A function that takes long holds up the call that the message comes from,
// but no renewal, no loss callback and no loss descriptor. Messages of the functions that it calls itself are passed
// neither to it nor to another such function. A forked child has no such function until it sets one.
// \param level The least important messages that are passed, one of leasehold_log_level.
// \param on_log Any thread may call it with `user` until it is freed.
// \param log Gets the handle.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_log_new(int32_t level,
                                 leasehold_on_log on_log,
                                 void *user,
                                 leasehold_log *log);

// Ends the passing of messages to the function. First it passes on the messages of other threads that still wait, for
// up to 5 s. Once this has returned, the function is not running and is not called any more, unless it freed itself;
// then `user` can be freed. Waits until other threads have left the function, however long that takes; but not for a
// thread that waits for a callback in which this is called.
LEASEHOLD_API
leasehold_code leasehold_log_free(leasehold_log log);

// Makes a builder, which holds options for a client of the store that `url` names, like "sqlite:locks.db". The URL is
// copied, and checked by leasehold_builder_connect.
// \param version LEASEHOLD_VERSION_NUMBER: LEASEHOLD_CODE_CONFIG when the library does not fit this header.
// \param url `url_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param builder Gets the builder.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_builder_new(uint32_t version,
                                     const char *url,
                                     size_t url_len,
                                     leasehold_builder *builder);

// What others see as the holder of its locks, for people to read: 1 to 1,024 bytes. Defaults to host:pid.
// \param owner `owner_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_builder_set_owner(leasehold_builder builder,
                                           const char *owner,
                                           size_t owner_len);

// For how long a lock is held without a renewal, in milliseconds: 1,000 (SQLite and memory: 100) to 30 days.
// Defaults to 20,000; on MongoDB to 30,000.
LEASEHOLD_API leasehold_code leasehold_builder_set_lease(leasehold_builder builder, uint64_t ms);

// The time between two renewals in milliseconds, at most half the lease. Defaults to a third of the lease.
LEASEHOLD_API leasehold_code leasehold_builder_set_heartbeat(leasehold_builder builder, uint64_t ms);

// How long before the end of its lease a holder already counts the lock as lost, in milliseconds: less than the lease
// minus the heartbeat, and at least 100 on DynamoDB and 1 on MongoDB (1,000 with fleet=mixed). Defaults to a tenth of
// the lease, or to that minimum if it is larger.
LEASEHOLD_API
leasehold_code leasehold_builder_set_margin(leasehold_builder builder,
                                            uint64_t ms);

// How long a waiter pauses between two looks at a lock, in milliseconds: a random time between the two numbers. After
// a minute of waiting both numbers double, and after ten minutes once more. Where the store reports releases (SQLite,
// memory, MongoDB, PostgreSQL) the waiter looks at each report. Because a report may be lost, it also looks after a
// hundred times such a pause, which does not double. Defaults to 150 and 350.
LEASEHOLD_API
leasehold_code leasehold_builder_set_poll(leasehold_builder builder,
                                          uint64_t from_ms,
                                          uint64_t to_ms);

// How long one request to the store may take, and how long in all a call may take that waits for no other holder, in
// milliseconds. Defaults to 5,000. A request gets half of the time that its call has left, but at least two seconds,
// so set twice the time that the slowest answer takes.
LEASEHOLD_API
leasehold_code leasehold_builder_set_request_timeout(leasehold_builder builder,
                                                     uint64_t ms);

// How long freeing a guard that is still held, or closing the client, may take, in milliseconds. Defaults to 5,000.
LEASEHOLD_API
leasehold_code leasehold_builder_set_drop_timeout(leasehold_builder builder,
                                                  uint64_t ms);

// Connects only to a store that exists: a missing SQLite file, table or collection is an error and is not made, and
// an SQLite file that this user may only read can be opened. Defaults to making a missing SQLite file.
LEASEHOLD_API
leasehold_code leasehold_builder_set_must_exist(leasehold_builder builder);

// Connecting makes the tables and indexes that are missing, as leasehold_client_create_schema does. It may take as
// long as that function, but there is no client yet that could be closed to end it. Without this option, connecting to
// a table that is missing succeeds, and its first lock fails. It can't be combined with
// leasehold_builder_set_must_exist. Defaults to making nothing but a missing SQLite file.
LEASEHOLD_API
leasehold_code leasehold_builder_set_create_schema(leasehold_builder builder);

// Sets a function that is called with each event of the clients and `user`, for metrics: on the thread on which the
// event happens or on another thread of the library's, on several threads at once, and while a call of the program's
// is under way. It should return at once, may call every function of this header, and must return: no exception,
// longjmp() or pthread_exit(). A function that takes long holds up what its thread does: a call, or the renewal of one
// lock, which is lost if the function takes longer than its lease. It holds up no renewal of another guard, no loss
// callback and no loss descriptor.
//
// leasehold_client_close first reports to the function the events that still wait for it; those that a slow function
// leaves after 5 seconds are dropped. Then it waits until other threads have left the function. After that the
// function is not called any more, and `user` can be freed. There is one exception: inside a callback,
// leasehold_client_close does not wait for a thread that itself waits for that callback, like one that closes the
// client, too. Then close once more from outside before you free `user`. A client that is freed without a close may
// call the function for as long as the process lives. A client that could not be made does not call it any more. NULL
// for none, which is the default.
// \param on_event Any thread may call it with `user` until the clients are closed.
LEASEHOLD_API
leasehold_code leasehold_builder_set_on_event(leasehold_builder builder,
                                              leasehold_on_event on_event,
                                              void *user);

// Opens the store and checks that it can be used: LEASEHOLD_CODE_CONFIG when the URL or what it names is wrong,
// LEASEHOLD_CODE_INVALID_INPUT when an option of the builder is. Waits for the store for at most the request timeout,
// or longer if leasehold_builder_set_create_schema has to make something. The builder stays yours and can be used
// again.
// \param client Gets the client.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_builder_connect(leasehold_builder builder,
                                         leasehold_client *client);

// Frees the builder. Clients that it made are not affected.
LEASEHOLD_API leasehold_code leasehold_builder_free(leasehold_builder builder);

// Connects to the store that `url` names, like "sqlite:locks.db", with default options. The same as a
// builder with no option set: see leasehold_builder_connect.
// \param version LEASEHOLD_VERSION_NUMBER: LEASEHOLD_CODE_CONFIG when the library does not fit this header.
// \param url `url_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param client Gets the client.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_connect(uint32_t version,
                                        const char *url,
                                        size_t url_len,
                                        leasehold_client *client);

// leasehold_client_connect with the URL in the environment variable LEASEHOLD_STORE; LEASEHOLD_CODE_CONFIG when it is
// not set.
// \param version LEASEHOLD_VERSION_NUMBER: LEASEHOLD_CODE_CONFIG when the library does not fit this header.
// \param client Gets the client.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_from_env(uint32_t version,
                                         leasehold_client *client);

// Ends everything: calls that wait return LEASEHOLD_CODE_CLOSED, every guard of this client is released, elections
// stop, and its threads end, except those of a server's driver, which end with the last handle. Takes at most about
// the drop timeout. Call it before exit(), which releases nothing; a handler of atexit() may call it. Data that a
// callback has left in a thread of the client, like thread_local variables, may be destroyed a little later. Handles
// still have to be freed. Closing again retries only what has failed.
LEASEHOLD_API
leasehold_code leasehold_client_close(leasehold_client client);

// Frees the handle, and does not close the client while guards, requests, elections, leases, keepers or calls under
// way still use it. The last of them that is freed closes it, within the drop timeout.
LEASEHOLD_API
leasehold_code leasehold_client_free(leasehold_client client);

// Waits for the lock, without limit, and gives a guard: the lock is held, and renewed by a thread of the library's,
// until the guard is released or freed. LEASEHOLD_CODE_CLOSED when the client is closed meanwhile.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_lock(leasehold_client client,
                                     const char *key,
                                     size_t key_len,
                                     leasehold_guard *guard);

// Tries once, and does not wait for other holders: LEASEHOLD_CODE_HELD when there are some, or other calls of this
// client wait for the lock already, LEASEHOLD_CODE_TIMED_OUT when the store answered too late for the lock to be held,
// LEASEHOLD_CODE_LOST when it was taken away again before its lease of more than a minute was set.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_try_lock(leasehold_client client,
                                         const char *key,
                                         size_t key_len,
                                         leasehold_guard *guard);

// leasehold_client_lock that waits for at most `wait_ms` milliseconds: LEASEHOLD_CODE_TIMED_OUT when others held the
// lock all the while, or when the store answered too late for the lock to be held (then leasehold_error_holders gives
// none).
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_lock_for(leasehold_client client,
                                         const char *key,
                                         size_t key_len,
                                         uint64_t wait_ms,
                                         leasehold_guard *guard);

// leasehold_client_lock in shared mode, together with other shared holders.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_lock_shared(leasehold_client client,
                                            const char *key,
                                            size_t key_len,
                                            leasehold_guard *guard);

// leasehold_client_try_lock in shared mode, together with other shared holders.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_try_lock_shared(leasehold_client client,
                                                const char *key,
                                                size_t key_len,
                                                leasehold_guard *guard);

// leasehold_client_lock_for in shared mode, together with other shared holders.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_lock_shared_for(leasehold_client client,
                                                const char *key,
                                                size_t key_len,
                                                uint64_t wait_ms,
                                                leasehold_guard *guard);

// Makes a request for one lock. Nothing is sent to the store yet.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param request Gets the request.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_new(leasehold_client client,
                                     const char *key,
                                     size_t key_len,
                                     leasehold_request *request);

// Makes a request for one of several locks, whichever is free first: leasehold_request_add_key names them, and
// leasehold_guard_key says which one it was.
// \param request Gets the request.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_new_any(leasehold_client client,
                                         leasehold_request *request);

// Makes a request for all of several locks, held together: leasehold_request_add_key names them, and
// leasehold_request_lock_all and leasehold_request_try_lock_all end it. They are taken one after the other in the
// order of their keys, so two requests with crossed orders never wait for each other.
// \param request Gets the request.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_new_all(leasehold_client client,
                                         leasehold_request *request);

// Adds a key to a request made by leasehold_request_new_any or leasehold_request_new_all; LEASEHOLD_CODE_INVALID_INPUT
// for any other request.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_request_add_key(leasehold_request request,
                                         const char *key,
                                         size_t key_len);

// Tries the keys as they were added, each time from the first one on. Defaults to random order.
LEASEHOLD_API leasehold_code leasehold_request_set_in_order(leasehold_request request);

// Asks for the lock in shared mode: others may hold it in shared mode at the same time. Defaults to exclusive.
LEASEHOLD_API
leasehold_code leasehold_request_set_shared(leasehold_request request);

// Asks for the lock in shared mode, and only while fewer than `n` hold it. A request with a larger limit, or with
// none, can still join them. Defaults to no limit.
LEASEHOLD_API
leasehold_code leasehold_request_set_max_holders(leasehold_request request,
                                                 uint32_t n);

// What others see as the holder, for people to read: 1 to 1,024 bytes. Defaults to the client's owner.
// \param owner `owner_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_request_set_owner(leasehold_request request,
                                           const char *owner,
                                           size_t owner_len);

// A note that others see in the lock's status: 1 to 1,024 bytes. Defaults to none.
// \param comment `comment_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_request_set_comment(leasehold_request request,
                                             const char *comment,
                                             size_t comment_len);

// Puts the lock into a group: anyone who knows the lock id can renew and release all its locks. A key has at most one
// holder with the same lock id, shared holders included: another request with that id is refused, or waits. Defaults
// to a random id.
// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_request_set_lock_id(leasehold_request request,
                                             const char *lock_id,
                                             size_t lock_id_len);

// For how long the lock is held without a renewal, in milliseconds. Defaults to the client's lease.
LEASEHOLD_API leasehold_code leasehold_request_set_lease(leasehold_request request, uint64_t ms);

// The lease ends at this time, in milliseconds since 1970, and is not renewed past it. Defaults to the client's lease.
LEASEHOLD_API
leasehold_code leasehold_request_set_lease_until(leasehold_request request,
                                                 uint64_t unix_ms);

// The lock is held until it is released: when the process dies, an operator has to do that. Defaults to the client's
// lease.
LEASEHOLD_API
leasehold_code leasehold_request_set_lease_forever(leasehold_request request);

// Takes the lock away from an exclusive holder that has the same owner. That holder finds out at its next heartbeat;
// until then only the fencing token protects what the lock is for. An owner must have been set, and the option is
// refused for a shared lock. Defaults to waiting for such a holder as for any other.
LEASEHOLD_API
leasehold_code leasehold_request_set_replace_same_owner(leasehold_request request);

// For how many milliseconds leasehold_request_lock waits while others hold the lock; with 0 it tries once. The calls
// that try once ignore this. Defaults to no limit.
LEASEHOLD_API
leasehold_code leasehold_request_set_wait(leasehold_request request,
                                          uint64_t ms);

// Until when leasehold_request_lock waits: `ms` milliseconds from this call on, not from the call that waits. So
// several waits can share one deadline. A call after the deadline tries once. Defaults to no limit.
LEASEHOLD_API
leasehold_code leasehold_request_set_deadline_in(leasehold_request request,
                                                 uint64_t ms);

// Gives the request a token: leasehold_cancel_fire ends its waits with LEASEHOLD_CODE_CANCELLED. The handle stays
// yours to free. A later one replaces it. Defaults to none.
LEASEHOLD_API
leasehold_code leasehold_request_set_cancel(leasehold_request request,
                                            leasehold_cancel cancel);

// For how many milliseconds the lock may be held at most. Then it is lost, even while its process lives: this is for a
// worker that hangs. For all of several locks the time counts from when all of them are held. Defaults to no limit.
LEASEHOLD_API
leasehold_code leasehold_request_set_max_hold(leasehold_request request,
                                              uint64_t ms);

// How many milliseconds the lock stays in the store at least, counted from its grant by the store's clock; at most 30
// days. Until then it stays there even after a release, the end of the guard or of the client, or the death of the
// process; after such an end nobody renews it. So a job that is over in a second does not run again on a host that
// starts it a little later. It is refused with a lease without end or until a time, by leasehold_request_acquire, and
// for all of several keys (for those see leasehold_guards_hold_at_least). On Cloud Spanner with fleet=mixed only the
// lease itself, spindle_duration, is accepted. Defaults to no minimum.
LEASEHOLD_API
leasehold_code leasehold_request_set_hold_at_least(leasehold_request request,
                                                   uint64_t ms);

// Sets a function that is called with `user`, once for each guard of the request whose lock is lost, on a thread of
// the library's. It is not called after a release, but a call that was about to begin when the release returned may
// still run. It may call every function of this header, also to free the guard or close the client. It must return: no
// exception, longjmp() or pthread_exit(). Once leasehold_guard_free has returned, the function is not running and is
// not called any more, unless it freed the guard itself; then `user` can be freed. The same applies once a call has
// returned that gave no guard. If no thread can be started, the function is called only once one can be;
// leasehold_guard_is_held and leasehold_guard_loss_descriptor need no thread. NULL for none, which is the default.
// \param on_loss Any thread may call it with `user` until each guard of the request is freed.
LEASEHOLD_API
leasehold_code leasehold_request_set_on_loss(leasehold_request request,
                                             leasehold_on_loss on_loss,
                                             void *user);

// Warns if renewals fail and only `left_ms` milliseconds are left until the loss, and again only after a renewal has
// succeeded: in the log, as an event, and the first time for each guard by a function that is called with `user` on a
// thread of the library's, unless it is NULL. `left_ms` must be less than the lease minus the margin. With several locks each of them warns, also while the call still waits
// for others. The rules for the function are those of leasehold_request_set_on_loss. Defaults to no warning.
// \param on_warning Any thread may call it with `user` until each guard of the request is freed.
LEASEHOLD_API
leasehold_code leasehold_request_set_warn_before(leasehold_request request,
                                                 uint64_t left_ms,
                                                 leasehold_on_warning on_warning,
                                                 void *user);

// Sets a function that is called with `user` while a call of this request waits, when the wait begins and then every
// `every_ms` milliseconds, at least 10. It is called on the thread that waits, so it should return soon. It may call
// every function of this header, also to fire the cancel token or free the request, and must return: no exception,
// longjmp() or pthread_exit(). NULL for none, which is the default.
// \param on_wait Called with `user` only during calls that wait.
LEASEHOLD_API
leasehold_code leasehold_request_set_on_wait(leasehold_request request,
                                             uint64_t every_ms,
                                             leasehold_on_wait on_wait,
                                             void *user);

// Waits for all locks of a request made by leasehold_request_new_all; the wait that was set is for all of them
// together. Locks that were obtained already are renewed meanwhile, and keep others waiting. If one of them is not
// obtained, all are released in the background: a program that ends soon after that must call leasehold_client_close
// first. Codes as of leasehold_request_lock; LEASEHOLD_CODE_LOST when one was lost while the call waited for others.
// The loss callback is called for the first of them that is lost; the others stay held until they are released or
// freed.
// \param guards Gets the guard of all of them.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_lock_all(leasehold_request request,
                                          leasehold_guards *guards);

// leasehold_request_lock_all that tries once for each lock: LEASEHOLD_CODE_HELD when others hold one of them.
// \param guards Gets the guard of all of them.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_try_lock_all(leasehold_request request,
                                              leasehold_guards *guards);

// Waits for the lock, and gives a guard as leasehold_client_lock does. LEASEHOLD_CODE_TIMED_OUT when the wait that was
// set is over, LEASEHOLD_CODE_LOST as by leasehold_request_try_lock, LEASEHOLD_CODE_CANCELLED, or
// LEASEHOLD_CODE_ALREADY_HELD when this client holds the key with the same lock id.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_lock(leasehold_request request,
                                      leasehold_guard *guard);

// Tries once, and does not wait for other holders: LEASEHOLD_CODE_HELD when there are some, or other calls of this
// client wait for the lock already, LEASEHOLD_CODE_TIMED_OUT when the store answered too late for the lock to be held,
// LEASEHOLD_CODE_LOST when it was taken away again before its lease of more than a minute was set,
// LEASEHOLD_CODE_ALREADY_HELD when this client holds it with the same lock id.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_try_lock(leasehold_request request,
                                          leasehold_guard *guard);

// Tries once, and gives the lock as data: nothing renews or releases it by itself. Options for guards, like
// leasehold_request_set_max_hold, have no effect, except that leasehold_request_set_hold_at_least is refused.
// LEASEHOLD_CODE_HELD when others hold it, LEASEHOLD_CODE_ALREADY_HELD when this client holds it with the same lock
// id. See leasehold_client_heartbeat, leasehold_client_release and leasehold_client_adopt.
// \param lock Gets the data.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_acquire(leasehold_request request,
                                         leasehold_lock *lock);

// leasehold_client_adopt with the owner, comment, lease and loss callback of the request, which must be for the same
// key.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_request_adopt(leasehold_request request,
                                       leasehold_lock lock,
                                       leasehold_guard *guard);

// Frees the request. Guards that it gave, and calls that wait, go on.
LEASEHOLD_API leasehold_code leasehold_request_free(leasehold_request request);

// Makes a token that is not cancelled yet.
// \param cancel Gets the token.
LEASEHOLD_API LEASEHOLD_NODISCARD leasehold_code leasehold_cancel_new(leasehold_cancel *cancel);

// Ends every call that was started with the token, now and later, with LEASEHOLD_CODE_CANCELLED. Any thread may call
// it, but not a signal handler. Doing it again changes nothing.
LEASEHOLD_API
leasehold_code leasehold_cancel_fire(leasehold_cancel cancel);

// Frees the token, and cancels nothing: waits of requests that were given it can't be cancelled any more.
LEASEHOLD_API leasehold_code leasehold_cancel_free(leasehold_cancel cancel);

// Writes whether the lock is held. It becomes false before the lease can end, or at the end of the time that
// leasehold_request_set_max_hold allows, and then stays false. So while it is true, nobody else is granted the
// lock, unless somebody takes it away on purpose, as by leasehold_client_force_release. It does not ask the store and
// does not wait. A call that fails, like one after a fork, writes false, too.
// \param held Gets the answer; false when the call fails.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_is_held(leasehold_guard guard,
                                       bool *held);

// leasehold_guard_is_held as a code: LEASEHOLD_CODE_OK while the lock is held, LEASEHOLD_CODE_LOST when it was lost,
// LEASEHOLD_CODE_CLOSED after it was released, handed over, or its client closed. Call it right before each step that
// must not overlap with another holder's.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_ensure_held(leasehold_guard guard);

// Makes sure that the lock is held for at least `ms` milliseconds from now on: renews it if less is left, which waits
// for the store. Codes as of leasehold_guard_ensure_held; LEASEHOLD_CODE_INVALID_INPUT when `ms` is more than a
// renewal gives, or than leasehold_request_set_max_hold leaves, LEASEHOLD_CODE_STORE when the renewal was not
// answered.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_ensure_held_for(leasehold_guard guard,
                                               uint64_t ms);

// Makes the lock stay in the store for at least `ms` milliseconds, counted from its grant, however the hold ends: see
// leasehold_request_set_hold_at_least. The time can be made longer, not shorter. Sends a renewal. Codes as of
// leasehold_guard_ensure_held; LEASEHOLD_CODE_STORE when the renewal was not answered: the lock is still held, and
// this function can be called again.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_hold_at_least(leasehold_guard guard,
                                             uint64_t ms);

// How many milliseconds the lock stays held if no further renewal succeeds, and no more than
// leasehold_request_set_max_hold allows: 0 when it is not held, UINT64_MAX when its lease has no end.
// \param ms Gets the milliseconds.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_remaining(leasehold_guard guard,
                                         uint64_t *ms);

// The fencing token: greater than that of every earlier grant of the key, and the same for as long as the guard lives.
// Pass it to the resource that the lock protects, which should refuse a token below the highest it has seen. That
// keeps an earlier holder out only once this token is stored there: store it before you read. It fits into an int64_t.
// \param token Gets the fencing token.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_token(leasehold_guard guard,
                                     uint64_t *token);

// How the lock is held: exclusive or shared.
// \param mode Gets the mode.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_mode(leasehold_guard guard,
                                    leasehold_mode *mode);

// The name of the lock.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_key(leasehold_guard guard,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *len);

// The group that the lock belongs to.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_lock_id(leasehold_guard guard,
                                       char *buffer,
                                       size_t capacity,
                                       size_t *len);

// A copy of the lock as data; the guard goes on. Free it with leasehold_lock_free.
// \param lock Gets the data.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_info(leasehold_guard guard,
                                    leasehold_lock *lock);

// How the lock was lost, as a number and as a text for people; LEASEHOLD_REASON_NONE and an empty text when it was not
// lost.
// \param reason Gets the reason.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_loss(leasehold_guard guard,
                                    leasehold_reason *reason,
                                    char *buffer,
                                    size_t capacity,
                                    size_t *len);

// Waits until the lock is lost, which is LEASEHOLD_CODE_OK. LEASEHOLD_CODE_TIMED_OUT when that did not happen within
// `ms` milliseconds, LEASEHOLD_CODE_CLOSED once its release or hand-over has begun, even if that then fails, or once
// its client is closed. The guard may be freed meanwhile.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_wait_loss(leasehold_guard guard,
                                         uint64_t ms);

// Gives a file descriptor for poll(), epoll or kqueue. It becomes readable when the lock is lost, and also when the
// guard is released or freed or its client closed, and stays readable: if the lock was lost, read() gives one byte and
// then 0 for the end; otherwise it gives 0 at once. It is yours: close() it, before or after the guard. Each call
// gives a new descriptor, with a byte of its own. LEASEHOLD_CODE_STORE when the process has no descriptor left. Not on
// Windows.
// \param descriptor Gets the descriptor.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_loss_descriptor(leasehold_guard guard,
                                               int32_t *descriptor);

// Stops renewing the lock and releases it, within the client's drop timeout. LEASEHOLD_CODE_LOST when the lock was not
// held any more, LEASEHOLD_CODE_CLOSED when the guard was released already: both are final. LEASEHOLD_CODE_OK also
// when closing the client has released it. After any other failure it can be called again. LEASEHOLD_CODE_STORE is
// also returned while another thread is still ending the guard. The guard stays yours to free.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_release(leasehold_guard guard);

// Stops renewing the lock and gives it as data, without releasing it: a program that gets the data must adopt the lock
// with leasehold_client_adopt before its lease ends. LEASEHOLD_CODE_LOST when the lock was not held any more,
// LEASEHOLD_CODE_CLOSED when the guard was released already, LEASEHOLD_CODE_STORE while another thread is still ending
// it. The guard stays yours to free, which then releases nothing.
// \param lock Gets the data.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_into_lock(leasehold_guard guard,
                                         leasehold_lock *lock);

// Frees the guard, and releases the lock if it is still held, within the client's drop timeout; whether the release
// succeeded is not reported. If the loss callback of this guard is running on another thread, this waits until it has
// returned, however long that takes. So do not hold a mutex that the callback takes, nor an interpreter's global lock:
// both would wait for ever. There is one exception: this does not wait for a callback that itself waits for the
// callback in which this call is made, as when two callbacks free each other's guards. Then the callback's `user` is
// in use until it returns. In a callback of the call that releases the guard, freeing leaves the release to that call.
LEASEHOLD_API
leasehold_code leasehold_guard_free(leasehold_guard guard);

// A part of the statement by which a transaction of your own asserts that the lock is held; `part` is one of
// leasehold_assertion. For a lock in PostgreSQL or SQLite, by any driver, in a transaction of the database that has
// the locks; LEASEHOLD_CODE_INVALID_INPUT for one of another store.
//
// Run it before the commit, and fetch its answer: one row with a true value while the lock is held. From then on
// nobody else is granted the lock before the transaction ends, unless you roll back to a savepoint that is older than
// the statement. No row: the lock is not held any more; roll back. An error, or a false value: roll back as well.
//
// PostgreSQL: the parameters are $1 and $2. A false value means that the table lacks an index, which
// leasehold_client_create_schema adds. The heartbeats of all holders of a shared lock wait until the transaction ends,
// so keep it shorter than what is left of their leases.
//
// SQLite, 3.38 or newer: the parameters are ?1 and ?2. The lock file must be the connection's main database. Every
// heartbeat of the file waits until the transaction ends, so keep it short. Unlike the library's own calls, the
// statement cannot tell whether the connection's file and log are still those at the path: open the connection anew
// after a restore. An SQLite of your own in this process harms the locks (see the top): let another process run the
// statement, or build this library with the system's SQLite and use that one: see the page `c` of the guide. An SQLite
// before 3.51.3 may lack the fix of a rare loss of commits, by which a lock gets two holders
// (https://sqlite.org/wal.html#walresetbug).
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guard_assertion(leasehold_guard guard,
                                         int32_t part,
                                         char *buffer,
                                         size_t capacity,
                                         size_t *len);

// How many locks there are.
// \param len Gets the number.
LEASEHOLD_API LEASEHOLD_NODISCARD leasehold_code leasehold_guards_len(leasehold_guards guards, size_t *len);

// The name of one of the locks, counted from 0; LEASEHOLD_CODE_NOT_FOUND for an index after the last.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guards_key(leasehold_guards guards,
                                    size_t index,
                                    char *buffer,
                                    size_t capacity,
                                    size_t *len);

// The fencing token of one of the locks, for what that key protects. See leasehold_guard_token.
// \param token Gets the fencing token.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guards_token(leasehold_guards guards,
                                      size_t index,
                                      uint64_t *token);

// The group that all of them belong to.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guards_lock_id(leasehold_guards guards,
                                        char *buffer,
                                        size_t capacity,
                                        size_t *len);

// Writes whether all of them are held. See leasehold_guard_is_held.
// \param held Gets the answer; false when the call fails.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guards_is_held(leasehold_guards guards,
                                        bool *held);

// leasehold_guards_is_held as a code: LEASEHOLD_CODE_OK while all of them are held, LEASEHOLD_CODE_LOST when one was
// lost, LEASEHOLD_CODE_CLOSED after they were released, or their client closed. The error names the key.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guards_ensure_held(leasehold_guards guards);

// leasehold_guard_hold_at_least for all of them, one after the other; after a failure it can be called again. Locks
// that come before the one that failed keep their time: leasehold_client_unlock_key, called before the release, frees
// them.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guards_hold_at_least(leasehold_guards guards,
                                              uint64_t ms);

// How many milliseconds all of them stay held if no further renewal succeeds, and no more than
// leasehold_request_set_max_hold allows: 0 when one is not held.
// \param ms Gets the milliseconds.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guards_remaining(leasehold_guards guards,
                                          uint64_t *ms);

// Releases all of them, within the client's drop timeout together. LEASEHOLD_CODE_LOST when one was not held any more,
// LEASEHOLD_CODE_CLOSED when they were released already, or while another thread is still releasing them. If one can't
// be released, the others are released all the same, and the library goes on trying with that one in the background:
// this function can't be called again. The guard stays yours to free.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_guards_release(leasehold_guards guards);

// Frees the guard, and releases what is still held, within the client's drop timeout. If the loss callback is running
// on another thread, this waits until it has returned: see leasehold_guard_free.
LEASEHOLD_API
leasehold_code leasehold_guards_free(leasehold_guards guards);

// The numbers of a lock: `remaining_ms` is counted by this host's wall clock, and proves nothing: whoever has only the
// data stops earlier, by a margin. `status_size` is `sizeof *status`.
// \param status Gets the numbers; `status_size` bytes.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_lock_status(leasehold_lock lock,
                                     leasehold_status *status,
                                     size_t status_size);

// A text of a lock; `text` is one of leasehold_text. LEASEHOLD_CODE_NOT_FOUND when it has none.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_lock_text(leasehold_lock lock,
                                   int32_t text,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *len);

// Writes the lock as bytes, for another process; they are as secret as the lock id. `len` gets how many bytes there
// are. If they do not fit, none is written, and the code is LEASEHOLD_CODE_BUFFER_TOO_SMALL unless `capacity` is 0.
// \param buffer Has room for `capacity` bytes; may be NULL if that is 0.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_lock_to_bytes(leasehold_lock lock,
                                       uint8_t *buffer,
                                       size_t capacity,
                                       size_t *len);

// Makes data of the bytes that another process wrote with leasehold_lock_to_bytes, or that a Rust program wrote as
// JSON. LEASEHOLD_CODE_INVALID_INPUT when they are something else.
// \param bytes `bytes_len` bytes.
// \param lock Gets the data.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_lock_from_bytes(const uint8_t *bytes,
                                         size_t bytes_len,
                                         leasehold_lock *lock);

// Frees the data. The lock itself stays held until it is released or its lease ends.
LEASEHOLD_API leasehold_code leasehold_lock_free(leasehold_lock lock);

// Makes a guard of a lock that is held as data, because a guard handed it over (leasehold_guard_into_lock) or it was
// acquired as data (leasehold_request_acquire). The lock is held without a gap, and gets a new fencing token.
// LEASEHOLD_CODE_LOST when it is not held any more, or was adopted before, LEASEHOLD_CODE_INVALID_INPUT when another
// store has granted it, LEASEHOLD_CODE_TIMED_OUT when the grant came too late for the lock to be held. After
// LEASEHOLD_CODE_AMBIGUOUS, LEASEHOLD_CODE_CANCELLED and LEASEHOLD_CODE_CLOSED, too, the lock may be gone. The data
// stays yours to free.
// \param guard Gets the guard.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_adopt(leasehold_client client,
                                      leasehold_lock lock,
                                      leasehold_guard *guard);

// Renews a lock that is held as data for this many milliseconds from now on, and updates the data.
// LEASEHOLD_CODE_LOST when it is not held any more, LEASEHOLD_CODE_INVALID_INPUT when another store has granted it, or
// when the lock has no end and would get one within a minute.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_heartbeat(leasehold_client client,
                                          leasehold_lock lock,
                                          uint64_t lease_ms);

// Releases a lock that is held as data; the data stays yours to free. LEASEHOLD_CODE_OK also when nobody holds the
// lock any more, LEASEHOLD_CODE_HELD when others do, LEASEHOLD_CODE_INVALID_INPUT when another store has granted it,
// or when this store does not have it and it was granted elsewhere: on MongoDB and PostgreSQL by none of this client's
// hosts, on DynamoDB in another region or at another endpoint, on SQLite by a path that leads to no file here. Stores
// with the same path or host name can't be told apart.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_release(leasehold_client client,
                                        leasehold_lock lock);

// What the store knows of a key: the highest fencing token that was ever issued, and every holder in the record, the
// expired ones included. LEASEHOLD_CODE_NOT_FOUND when nobody ever held it or its row was deleted. Use this to find
// out who holds a lock, not to check a lock before you take it.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param token Gets the fencing token.
// \param holders Gets the holders.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_get(leasehold_client client,
                                    const char *key,
                                    size_t key_len,
                                    uint64_t *token,
                                    leasehold_list *holders);

// Lists every lock that fits the filter, newest first. `filter` may be {0}, for all locks.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_list(leasehold_client client,
                                     leasehold_filter filter,
                                     leasehold_list *list);

// Renews all locks of a group for this many milliseconds from now on, and lists them. LEASEHOLD_CODE_LOST when there
// is none, or one of them has less than a second left.
// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_renew_group(leasehold_client client,
                                            const char *lock_id,
                                            size_t lock_id_len,
                                            uint64_t lease_ms,
                                            leasehold_list *list);

// Releases all locks of a group, newest first, and lists what was released.
// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_unlock_group(leasehold_client client,
                                             const char *lock_id,
                                             size_t lock_id_len,
                                             leasehold_list *list);

// Removes holders whose lease ended more than `older_than_ms` milliseconds ago, and lists them. It also deletes the
// rows of free keys that were last granted 30 days ago, which are not listed.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_purge(leasehold_client client,
                                      uint64_t older_than_ms,
                                      leasehold_list *list);

// Lists the holders that leasehold_client_purge would remove now, and writes nothing.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_purge_preview(leasehold_client client,
                                              uint64_t older_than_ms,
                                              leasehold_list *list);

// Creates the tables and indexes that the store needs, where they are missing. DynamoDB, MongoDB and Spanner may take
// minutes: it waits for up to ten, or until the client is closed.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_create_schema(leasehold_client client);

// What leasehold_client_create_schema would do, as a text for an administrator: for programs without the right to do
// it.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_schema(leasehold_client client,
                                       char *buffer,
                                       size_t capacity,
                                       size_t *len);

// How many holders the list has.
// \param len Gets the number.
LEASEHOLD_API LEASEHOLD_NODISCARD leasehold_code leasehold_list_len(leasehold_list list, size_t *len);

// The numbers of a holder. `index` counts from 0; LEASEHOLD_CODE_NOT_FOUND for one after the last, and for a pin.
// `status_size` is `sizeof *status`.
// \param status Gets the numbers; `status_size` bytes.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_list_status(leasehold_list list,
                                     size_t index,
                                     leasehold_status *status,
                                     size_t status_size);

// A text of a holder; `text` is one of leasehold_text. LEASEHOLD_CODE_NOT_FOUND when it has none.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_list_text(leasehold_list list,
                                   size_t index,
                                   int32_t text,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *len);

// Frees the list. Texts that were copied out of it stay.
LEASEHOLD_API leasehold_code leasehold_list_free(leasehold_list list);

// Makes a filter that fits every lock. Each function below lets fewer pass.
// \param filter Gets the filter.
LEASEHOLD_API LEASEHOLD_NODISCARD leasehold_code leasehold_filter_new(leasehold_filter *filter);

// Only this key.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_filter_set_key(leasehold_filter filter,
                                        const char *key,
                                        size_t key_len);

// Only keys that start with this text, byte by byte; the empty text fits all.
// \param prefix `prefix_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_filter_set_key_prefix(leasehold_filter filter,
                                               const char *prefix,
                                               size_t prefix_len);

// Only locks of this group.
// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_filter_set_lock_id(leasehold_filter filter,
                                            const char *lock_id,
                                            size_t lock_id_len);

// Only locks whose holder has exactly this label.
// \param owner `owner_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_filter_set_owner(leasehold_filter filter,
                                          const char *owner,
                                          size_t owner_len);

// Only exclusive holders.
LEASEHOLD_API leasehold_code leasehold_filter_set_exclusive(leasehold_filter filter);

// Only shared holders.
LEASEHOLD_API leasehold_code leasehold_filter_set_shared(leasehold_filter filter);

// Only locks whose lease, or the store's grace after it, is running.
LEASEHOLD_API leasehold_code leasehold_filter_set_live(leasehold_filter filter);

// Only locks whose lease and the store's grace have ended, and that nobody has taken or purged since.
LEASEHOLD_API leasehold_code leasehold_filter_set_expired(leasehold_filter filter);

// Only locks that were granted before this time, in milliseconds since 1970.
LEASEHOLD_API leasehold_code leasehold_filter_set_created_before(leasehold_filter filter, uint64_t unix_ms);

// Only locks that were granted at this time or later, in milliseconds since 1970.
LEASEHOLD_API leasehold_code leasehold_filter_set_created_after(leasehold_filter filter, uint64_t unix_ms);

// Only locks with fewer milliseconds than this left of their lease, the expired ones included. Leaves out endless
// locks.
LEASEHOLD_API
leasehold_code leasehold_filter_set_remaining_below(leasehold_filter filter,
                                                    uint64_t ms);

// Only locks with at least this many milliseconds left of their lease. Leaves out endless locks, also for 0.
LEASEHOLD_API leasehold_code leasehold_filter_set_remaining_at_least(leasehold_filter filter, uint64_t ms);

// Frees the filter.
LEASEHOLD_API leasehold_code leasehold_filter_free(leasehold_filter filter);

// Makes a handle for the leases of a namespace. Nothing is sent to the store; later calls fail if the namespace is not
// valid.
// \param namespace_ `namespace_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param leases Gets the namespace.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_new(leasehold_client client,
                                    const char *namespace_,
                                    size_t namespace_len,
                                    leasehold_leases *leases);

// Claims the lease for a holder, for at least `ms` milliseconds: from 1,000 (SQLite and memory: 100) to 30 days.
// LEASEHOLD_CODE_INVALID_LEASE when somebody holds it, even if that is the same holder, and even if the lease's time is
// over. After LEASEHOLD_CODE_AMBIGUOUS or LEASEHOLD_CODE_STORE the lease may be claimed, at once or a moment later:
// leasehold_leases_extend succeeds once it is; after leasehold_leases_revoke it cannot be any more.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param holder `holder_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param token Gets the fencing token of the claim.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_claim(leasehold_leases leases,
                                      const char *name,
                                      size_t name_len,
                                      const char *holder,
                                      size_t holder_len,
                                      uint64_t ms,
                                      uint64_t *token);

// Makes the lease of a holder last for `ms` milliseconds from now on; never shortens it. Its time may be over, as long
// as nobody has expired it. LEASEHOLD_CODE_INVALID_LEASE when nobody or another holds it. After
// LEASEHOLD_CODE_AMBIGUOUS or LEASEHOLD_CODE_STORE it may have been extended. The bounds of `ms` are those of a claim.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param holder `holder_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_extend(leasehold_leases leases,
                                       const char *name,
                                       size_t name_len,
                                       const char *holder,
                                       size_t holder_len,
                                       uint64_t ms);

// Ends the lease after its time. LEASEHOLD_CODE_INVALID_LEASE when nobody holds it, its time is not over, or somebody
// pins it.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_expire(leasehold_leases leases,
                                       const char *name,
                                       size_t name_len);

// Ends the lease of a holder before its time, even if somebody pins it. LEASEHOLD_CODE_INVALID_LEASE when nobody or
// another holds it; if nobody does, the row is still written, so that an earlier claim that was not answered cannot take
// effect afterwards.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param holder `holder_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_revoke(leasehold_leases leases,
                                       const char *name,
                                       size_t name_len,
                                       const char *holder,
                                       size_t holder_len);

// The lease of a name, as a list of one entry; an empty list when nobody holds it.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_get(leasehold_leases leases,
                                    const char *name,
                                    size_t name_len,
                                    leasehold_list *list);

// Lists every lease of the namespace that somebody holds, also those whose time is over, by name.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_list(leasehold_leases leases,
                                     leasehold_list *list);

// Keeps the name from being expired until leasehold_leases_unpin, on behalf of an entity. Several may pin it, and a
// pin outlasts the claim. Pinning again changes nothing, but still writes the row, so that an earlier
// leasehold_leases_unpin that was not answered cannot take effect afterwards.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param entity `entity_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_pin(leasehold_leases leases,
                                    const char *name,
                                    size_t name_len,
                                    const char *entity,
                                    size_t entity_len);

// Takes back what leasehold_leases_pin did. LEASEHOLD_CODE_OK also when there is nothing to take back; the row is still
// written, so that an earlier leasehold_leases_pin that was not answered cannot take effect afterwards.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param entity `entity_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_unpin(leasehold_leases leases,
                                      const char *name,
                                      size_t name_len,
                                      const char *entity,
                                      size_t entity_len);

// Lists who pins the name, whether it is held or not.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_pinned_by(leasehold_leases leases,
                                          const char *name,
                                          size_t name_len,
                                          leasehold_list *list);

// Waits, without limit, until the time of the lease is over, or nobody holds it. It does not expire the lease.
// LEASEHOLD_CODE_CANCELLED once leasehold_cancel_fire was called for `cancel`, which may be {0}.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_wait_until_expired(leasehold_leases leases,
                                                   const char *name,
                                                   size_t name_len,
                                                   leasehold_cancel cancel);

// Frees the handle of the namespace. Its leases stay as they are.
LEASEHOLD_API leasehold_code leasehold_leases_free(leasehold_leases leases);

// Extends the lease of a holder as leasehold_leases_extend does: now, and then again and again by a thread of the
// library's, until the keeper is freed or its client closed. That does not end the lease: it ends when somebody
// expires or revokes it.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param holder `holder_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param keeper Gets the keeper.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leases_keep(leasehold_leases leases,
                                     const char *name,
                                     size_t name_len,
                                     const char *holder,
                                     size_t holder_len,
                                     uint64_t ms,
                                     leasehold_keeper *keeper);

// Writes whether the lease surely is the holder's. It becomes false before somebody could expire the lease, and then
// stays false. That somebody has revoked the lease is found out by the next extension. It does not ask the store and
// does not wait.
// \param held Gets the answer; false when the call fails.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_keeper_is_held(leasehold_keeper keeper,
                                        bool *held);

// leasehold_keeper_is_held as a code: LEASEHOLD_CODE_OK, LEASEHOLD_CODE_LOST, or LEASEHOLD_CODE_CLOSED after its
// client was closed, which leaves the lease to its holder.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_keeper_ensure_held(leasehold_keeper keeper);

// The fencing token of the claim.
// \param token Gets the fencing token.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_keeper_token(leasehold_keeper keeper,
                                      uint64_t *token);

// How many milliseconds the lease stays the holder's if no further extension succeeds; 0 when it is not.
// \param ms Gets the milliseconds.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_keeper_remaining(leasehold_keeper keeper,
                                          uint64_t *ms);

// How the lease was lost, as a number and as a text for people; LEASEHOLD_REASON_NONE and an empty text when it was
// not lost.
// \param reason Gets the reason.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_keeper_loss(leasehold_keeper keeper,
                                     leasehold_reason *reason,
                                     char *buffer,
                                     size_t capacity,
                                     size_t *len);

// Waits until the lease is lost, which is LEASEHOLD_CODE_OK. LEASEHOLD_CODE_TIMED_OUT when that did not happen within
// `ms` milliseconds, LEASEHOLD_CODE_CLOSED once the keeper was freed, or its client closed.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_keeper_wait_loss(leasehold_keeper keeper,
                                          uint64_t ms);

// Stops extending the lease, which stays as it is, and frees the keeper.
LEASEHOLD_API leasehold_code leasehold_keeper_free(leasehold_keeper keeper);

// Frees a key, whoever holds it, and lists who held it. That breaks the promise that was given to the holder: it
// learns of its loss at its next heartbeat, and until then only the fencing token protects the resource.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_force_release(leasehold_client client,
                                              const char *key,
                                              size_t key_len,
                                              leasehold_list *list);

// Frees one key of a group, and lists who held it: what leasehold_client_unlock_group does to all of them.
// LEASEHOLD_CODE_HELD when only others hold the key.
// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param list Gets the list.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_unlock_key(leasehold_client client,
                                           const char *key,
                                           size_t key_len,
                                           const char *lock_id,
                                           size_t lock_id_len,
                                           leasehold_list *list);

// Finds out whether the store can be reached, whether its schema is right, how far its clock is off, how long a round
// trip takes, and what this client may do there: it writes a row of its own, and deletes it again. Takes at most twice
// the request timeout. The text has one line for each result, also for what is wrong. Each call asks the store anew,
// so give room for about 4,096 bytes instead of asking for the length first.
// \param well Gets whether nothing is wrong; false when the call fails.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_client_diagnose(leasehold_client client,
                                         bool *well,
                                         char *buffer,
                                         size_t capacity,
                                         size_t *len);

// Makes a node for the election of this name, which is also the key of the leader's lock. Nothing is sent to the store
// yet. Call the functions that set something before all others: after those they return LEASEHOLD_CODE_INVALID_INPUT.
// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
// \param election Gets the election.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_election_new(leasehold_client client,
                                      const char *name,
                                      size_t name_len,
                                      leasehold_election *election);

// The name by which others see this node when it leads: 1 to 1,024 bytes. Defaults to the client's owner.
// \param id `id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
LEASEHOLD_API
leasehold_code leasehold_election_set_id(leasehold_election election,
                                         const char *id,
                                         size_t id_len);

// For how many milliseconds a leader leads without a renewal, at least 1,000. When a leader dies, another node can win
// this much later. Defaults to the client's lease.
LEASEHOLD_API
leasehold_code leasehold_election_set_lease(leasehold_election election,
                                            uint64_t ms);

// Ends a term after `ms` milliseconds, so that others get their turn. Defaults to no limit.
LEASEHOLD_API leasehold_code leasehold_election_set_max_hold(leasehold_election election, uint64_t ms);

// Ends leasehold_election_run after one term. Defaults to campaigning again after each term.
LEASEHOLD_API leasehold_code leasehold_election_set_once(leasehold_election election);

// Sets a function that is called when this node has won a term, with the term's fencing token and `user`. The
// callbacks of an election run on one thread of the library's, one after the other, and each "won" is followed by one
// "lost" before the next "won". They may call every function of this header, and must return: no exception, longjmp()
// or pthread_exit(). Once leasehold_election_free has returned, none of them is running or is called any more, unless
// one of them freed the election; then `user` can be freed. NULL for none, which is the default.
// \param on_won Any thread may call it with `user` until the election is freed.
LEASEHOLD_API
leasehold_code leasehold_election_set_on_won(leasehold_election election,
                                             leasehold_on_won on_won,
                                             void *user);

// Sets a function that is called when a term that this node had won is over. See leasehold_election_set_on_won.
// \param on_lost Any thread may call it with `user` until the election is freed.
LEASEHOLD_API
leasehold_code leasehold_election_set_on_lost(leasehold_election election,
                                              leasehold_on_lost on_lost,
                                              void *user);

// Sets a function that is called when this node sees a new leader, itself included, while it campaigns or leads. See
// leasehold_election_set_on_won.
// \param on_leader Any thread may call it with `user` until the election is freed.
LEASEHOLD_API
leasehold_code leasehold_election_set_on_leader(leasehold_election election,
                                                leasehold_on_leader on_leader,
                                                void *user);

// Sets a function that answers whether this node is healthy enough to lead: it is called on a thread of its own before
// the node campaigns, and every third of the lease while it leads. When it answers false, or not within a lease, the
// node resigns, and campaigns again once it answers true. The work of leasehold_election_lead must end before the node
// resigns: while it runs, no other node leads. A call inside the health check that stops or frees the election waits
// in vain for the check's answer, for at most the drop timeout. The other rules are those of
// leasehold_election_set_on_won. NULL for always healthy, which is the default.
// \param health_check Any thread may call it with `user` until the election is freed.
LEASEHOLD_API
leasehold_code leasehold_election_set_health_check(leasehold_election election,
                                                   leasehold_health_check health_check,
                                                   void *user);

// Starts a thread that campaigns, and again after each term, until leasehold_election_stop; returns at once.
// Errors of the store do not end it. LEASEHOLD_CODE_ALREADY_HELD when this node already campaigns or leads.
LEASEHOLD_API LEASEHOLD_NODISCARD leasehold_code leasehold_election_run(leasehold_election election);

// leasehold_election_run that calls a function whenever this node has won, on a thread of its own: the work of the
// leader. While it runs, this node neither campaigns again nor lets others lead, unless the lock is lost; so it should
// look at leasehold_election_is_leader and return soon after that became false. When it returns while this node leads,
// the node resigns, and campaigns again after a moment, or ends with leasehold_election_set_once. It may call every
// function of this header; freeing the election inside it does not wait for it. It must return: no exception,
// longjmp() or pthread_exit(). Once leasehold_election_free has returned, it is not running and is not called any
// more, unless it freed the election.
// \param work Any thread may call it with the fencing token of the term and `user` until the election is freed.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_election_lead(leasehold_election election,
                                       leasehold_on_won work,
                                       void *user);

// Writes whether this node leads. It does not wait and does not ask the store. No other node can win while it is true,
// unless somebody takes the lock away: see leasehold_guard_is_held.
// \param leader Gets the answer; false when the call fails.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_election_is_leader(leasehold_election election,
                                            bool *leader);

// The fencing token of the term while this node leads, otherwise LEASEHOLD_CODE_LOST. Does not ask the store.
// \param token Gets the fencing token.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_election_token(leasehold_election election,
                                        uint64_t *token);

// Asks the store who leads, and gives that node's name and the fencing token of its term. LEASEHOLD_CODE_NOT_FOUND
// when nobody leads. Each call asks anew, so give room for 1,025 bytes, the longest name and a NUL, rather than ask
// for the length first.
// \param token Gets the fencing token.
// \param buffer Gets the text, and `len` its length: as every text, see the top.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_election_leader(leasehold_election election,
                                         uint64_t *token,
                                         char *buffer,
                                         size_t capacity,
                                         size_t *len);

// Waits, without limit, until the thread that leasehold_election_run started is over: after leasehold_election_stop or
// leasehold_client_close, or after one term with leasehold_election_set_once. Returns at once if it was not started.
LEASEHOLD_API
leasehold_code leasehold_election_wait(leasehold_election election);

// Ends this node's campaign, and resigns if it leads, so that the next node need not wait for the lease's end. Waits
// for the work and for the store for at most the drop timeout. The node can campaign again later.
// LEASEHOLD_CODE_TIMED_OUT when the work did not end in time: the lock is then not released, and ends with its lease.
// LEASEHOLD_CODE_LOST when the term was lost already, which a program can ignore at its shutdown.
LEASEHOLD_API
leasehold_code leasehold_election_stop(leasehold_election election);

// Frees the election, and stops what leasehold_election_run started, within the client's drop timeout. Other threads
// may be inside calls: their leasehold_election_campaign returns LEASEHOLD_CODE_CANCELLED. A leadership that was given
// before goes on. If a callback of this election is running on another thread, this waits until it has returned,
// however long that takes: see leasehold_guard_free.
LEASEHOLD_API
leasehold_code leasehold_election_free(leasehold_election election);

// Waits, without limit, until this node leads, and gives the term: use this or leasehold_election_run.
// leasehold_election_stop or leasehold_election_free on another thread ends the wait with LEASEHOLD_CODE_CANCELLED.
// \param leadership Gets the term.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_election_campaign(leasehold_election election,
                                           leasehold_leadership *leadership);

// leasehold_election_campaign that waits for at most `wait_ms` milliseconds; with 0 it tries once.
// LEASEHOLD_CODE_TIMED_OUT when this node does not lead by then: leasehold_error_holder says who does, if the store
// was asked.
// \param leadership Gets the term.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_election_campaign_for(leasehold_election election,
                                               uint64_t wait_ms,
                                               leasehold_leadership *leadership);

// Writes whether this node still leads. It does not wait and does not ask the store. No other node can win while it is
// true, unless somebody takes the lock away: see leasehold_guard_is_held. Once false it stays false.
// \param leader Gets the answer; false when the call fails.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leadership_is_leader(leasehold_leadership leadership,
                                              bool *leader);

// The fencing token of the term: greater than that of every earlier term of the election.
// \param token Gets the fencing token.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leadership_token(leasehold_leadership leadership,
                                          uint64_t *token);

// How many milliseconds this node goes on leading if no further renewal succeeds, and no more than
// leasehold_election_set_max_hold allows; 0 when it does not lead.
// \param ms Gets the milliseconds.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leadership_remaining(leasehold_leadership leadership,
                                              uint64_t *ms);

// Waits until the leadership is lost, which is LEASEHOLD_CODE_OK. LEASEHOLD_CODE_TIMED_OUT when that did not happen
// within `ms` milliseconds, LEASEHOLD_CODE_CLOSED once this node has resigned, or its client was closed.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leadership_wait_loss(leasehold_leadership leadership,
                                              uint64_t ms);

// Gives the leadership up within the client's drop timeout, so that the next node need not wait for the lease's end.
// LEASEHOLD_CODE_LOST when the term was lost before, LEASEHOLD_CODE_CLOSED when this node has resigned already (also
// by leasehold_election_stop or a close of the client), or while another thread is still resigning. The leadership
// stays yours to free.
LEASEHOLD_API
LEASEHOLD_NODISCARD
leasehold_code leasehold_leadership_resign(leasehold_leadership leadership);

// Frees the leadership, and resigns if this node still leads, within the client's drop timeout.
LEASEHOLD_API leasehold_code leasehold_leadership_free(leasehold_leadership leadership);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LEASEHOLD_H */
