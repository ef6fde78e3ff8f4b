/* Every function, called wrongly: always a code, never harm, and nothing is written. */
#include "check.h"

enum { BUILDER, CLIENT, REQUEST, GUARD, LOCK, LIST, FILTER, CANCEL, ELECTION, LEADERSHIP, TYPES };

static uint64_t live[TYPES];
static uint64_t freed[TYPES];

/* `call` uses `h`, which must be a handle of this type. */
#define WITH_BAD_HANDLES(type, call)                                                                                   \
  do {                                                                                                                 \
    uint64_t h = 0;                                                                                                    \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h = 1;                                                                                                             \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h = UINT64_MAX;                                                                                                    \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h = (uint64_t)(uintptr_t)&live; /* a pointer in its place */                                                       \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h = live[type] + 4096; /* an index that was never given out */                                                     \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h = live[type] + ((uint64_t)9 << 24); /* a generation that is still to come */                                     \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h = live[(type + 1) % TYPES];                                                                                      \
    EXPECT(LEASEHOLD_CODE_WRONG_HANDLE, call);                                                                         \
    h = freed[type];                                                                                                   \
    EXPECT(LEASEHOLD_CODE_STALE_HANDLE, call);                                                                         \
    char said[256];                                                                                                    \
    size_t said_len = 0;                                                                                               \
    CHECK(leasehold_error_code() == LEASEHOLD_CODE_STALE_HANDLE);                                                      \
    OK(leasehold_error_message(said, sizeof said, &said_len));                                                         \
    CHECK(said_len > 0 && strlen(said) == said_len);                                                                   \
  } while (0)

/* `call` uses `t` and `n`, which must be a text. */
#define WITH_BAD_TEXTS(call)                                                                                           \
  do {                                                                                                                 \
    const char *t = NULL;                                                                                              \
    size_t n = 0;                                                                                                      \
    EXPECT(LEASEHOLD_CODE_NULL_POINTER, call);                                                                         \
    n = 3;                                                                                                             \
    EXPECT(LEASEHOLD_CODE_NULL_POINTER, call);                                                                         \
    t = "a\xff";                                                                                                       \
    n = 2;                                                                                                             \
    EXPECT(LEASEHOLD_CODE_BAD_UTF8, call);                                                                             \
    t = "\xe2\x82"; /* cut in the middle of a character */                                                             \
    EXPECT(LEASEHOLD_CODE_BAD_UTF8, call);                                                                             \
    n = SIZE_MAX; /* -1 as a size */                                                                                   \
    EXPECT(LEASEHOLD_CODE_INVALID_INPUT, call);                                                                        \
  } while (0)

/* `call` uses `b`, `c` and `l`, a buffer for a text that is longer than one byte. */
#define WITH_BAD_BUFFERS(call)                                                                                         \
  do {                                                                                                                 \
    char room[2] = {'x', 'x'};                                                                                         \
    char *b = NULL;                                                                                                    \
    size_t c = 1, len = 7;                                                                                             \
    size_t *l = &len;                                                                                                  \
    EXPECT(LEASEHOLD_CODE_NULL_POINTER, call);                                                                         \
    CHECK(len == 7);                                                                                                   \
    b = room;                                                                                                          \
    c = 2;                                                                                                             \
    EXPECT(LEASEHOLD_CODE_BUFFER_TOO_SMALL, call);                                                                     \
    CHECK(room[0] != 'x' && room[1] == 0 && len >= 2);                                                                 \
    l = NULL;                                                                                                          \
    EXPECT(LEASEHOLD_CODE_BUFFER_TOO_SMALL, call);                                                                     \
    c = 0;                                                                                                             \
    b = NULL;                                                                                                          \
    OK(call);                                                                                                          \
  } while (0)

static void handles(void) {
  uint64_t h2 = 77, n = 77;
  bool held = true;
  int fd = 77;
  size_t len = 77;
  leasehold_mode mode = LEASEHOLD_MODE_SHARED;
  leasehold_reason reason = LEASEHOLD_REASON_GONE;
  leasehold_status status;
  char b[64] = "untouched";

  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_owner(h, TEXT("me")));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_lease(h, 1000));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_heartbeat(h, 1000));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_margin(h, 1000));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_poll(h, 1, 2));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_request_timeout(h, 1000));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_drop_timeout(h, 1000));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_must_exist(h));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_set_create_schema(h));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_connect(h, &h2));
  WITH_BAD_HANDLES(BUILDER, leasehold_builder_free(h));

  WITH_BAD_HANDLES(CLIENT, leasehold_client_close(h));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_free(h));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_lock(h, TEXT("k"), &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_try_lock(h, TEXT("k"), &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_lock_for(h, TEXT("k"), 1, &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_lock_shared(h, TEXT("k"), &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_try_lock_shared(h, TEXT("k"), &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_lock_shared_for(h, TEXT("k"), 1, &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_adopt(h, live[LOCK], &h2));
  WITH_BAD_HANDLES(LOCK, leasehold_client_adopt(live[CLIENT], h, &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_heartbeat(h, live[LOCK], 1000));
  WITH_BAD_HANDLES(LOCK, leasehold_client_heartbeat(live[CLIENT], h, 1000));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_release(h, live[LOCK]));
  WITH_BAD_HANDLES(LOCK, leasehold_client_release(live[CLIENT], h));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_get(h, TEXT("k"), &n, &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_list(h, live[FILTER], &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_renew_group(h, TEXT("id"), 1000, &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_unlock_group(h, TEXT("id"), &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_purge(h, 0, &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_create_schema(h));
  WITH_BAD_HANDLES(CLIENT, leasehold_client_schema(h, b, sizeof b, &len));

  WITH_BAD_HANDLES(CLIENT, leasehold_request_new(h, TEXT("k"), &h2));
  WITH_BAD_HANDLES(CLIENT, leasehold_request_new_any(h, &h2));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_add_key(h, TEXT("k")));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_in_order(h));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_shared(h));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_max_holders(h, 2));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_owner(h, TEXT("me")));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_comment(h, TEXT("me")));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_lock_id(h, TEXT("me")));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_lease(h, 1000));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_lease_until(h, 1000));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_lease_forever(h));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_replace_same_owner(h));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_wait(h, 1000));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_deadline_in(h, 1000));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_cancel(h, live[CANCEL]));
  WITH_BAD_HANDLES(CANCEL, leasehold_request_set_cancel(live[REQUEST], h));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_max_hold(h, 1000));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_set_on_loss(h, NULL, NULL));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_lock(h, &h2));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_try_lock(h, &h2));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_acquire(h, &h2));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_adopt(h, live[LOCK], &h2));
  WITH_BAD_HANDLES(LOCK, leasehold_request_adopt(live[REQUEST], h, &h2));
  WITH_BAD_HANDLES(REQUEST, leasehold_request_free(h));

  WITH_BAD_HANDLES(GUARD, leasehold_guard_is_held(h, &held));
  CHECK(!held); /* a program that does not look at the code must not go on */
  held = true;
  WITH_BAD_HANDLES(GUARD, leasehold_guard_ensure_held(h));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_ensure_held_for(h, 1));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_remaining(h, &n));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_token(h, &n));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_mode(h, &mode));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_key(h, b, sizeof b, &len));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_lock_id(h, b, sizeof b, &len));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_info(h, &h2));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_loss(h, &reason, b, sizeof b, &len));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_wait_loss(h, 1));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_loss_descriptor(h, &fd));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_release(h));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_into_lock(h, &h2));
  WITH_BAD_HANDLES(GUARD, leasehold_guard_free(h));

  WITH_BAD_HANDLES(LOCK, leasehold_lock_status(h, &status, sizeof status));
  WITH_BAD_HANDLES(LOCK, leasehold_lock_text(h, LEASEHOLD_TEXT_KEY, b, sizeof b, &len));
  WITH_BAD_HANDLES(LOCK, leasehold_lock_to_bytes(h, NULL, 0, &len));
  WITH_BAD_HANDLES(LOCK, leasehold_lock_free(h));

  WITH_BAD_HANDLES(LIST, leasehold_list_len(h, &len));
  WITH_BAD_HANDLES(LIST, leasehold_list_status(h, 0, &status, sizeof status));
  WITH_BAD_HANDLES(LIST, leasehold_list_text(h, 0, LEASEHOLD_TEXT_KEY, b, sizeof b, &len));
  WITH_BAD_HANDLES(LIST, leasehold_list_free(h));

  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_key(h, TEXT("k")));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_key_prefix(h, TEXT("k")));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_lock_id(h, TEXT("k")));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_owner(h, TEXT("k")));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_exclusive(h));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_shared(h));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_live(h));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_expired(h));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_created_before(h, 1));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_created_after(h, 1));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_remaining_below(h, 1));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_set_remaining_at_least(h, 1));
  WITH_BAD_HANDLES(FILTER, leasehold_filter_free(h));

  WITH_BAD_HANDLES(CANCEL, leasehold_cancel_fire(h));
  WITH_BAD_HANDLES(CANCEL, leasehold_cancel_free(h));

  WITH_BAD_HANDLES(CLIENT, leasehold_election_new(h, TEXT("e"), &h2));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_set_id(h, TEXT("me")));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_set_lease(h, 1000));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_set_max_hold(h, 1000));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_set_once(h));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_set_on_won(h, NULL, NULL));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_set_on_lost(h, NULL, NULL));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_run(h));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_is_leader(h, &held));
  CHECK(!held); /* a program that does not look at the code must not go on */
  held = true;
  WITH_BAD_HANDLES(ELECTION, leasehold_election_token(h, &n));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_leader(h, &n, b, sizeof b, &len));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_wait(h));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_stop(h));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_campaign(h, &h2));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_campaign_for(h, 1, &h2));
  WITH_BAD_HANDLES(ELECTION, leasehold_election_free(h));
  WITH_BAD_HANDLES(LEADERSHIP, leasehold_leadership_is_leader(h, &held));
  CHECK(!held); /* a program that does not look at the code must not go on */
  held = true;
  WITH_BAD_HANDLES(LEADERSHIP, leasehold_leadership_token(h, &n));
  WITH_BAD_HANDLES(LEADERSHIP, leasehold_leadership_remaining(h, &n));
  WITH_BAD_HANDLES(LEADERSHIP, leasehold_leadership_wait_loss(h, 1));
  WITH_BAD_HANDLES(LEADERSHIP, leasehold_leadership_resign(h));
  WITH_BAD_HANDLES(LEADERSHIP, leasehold_leadership_free(h));

  CHECK(h2 == 77 && n == 77 && fd == 77 && len == 77 && strcmp(b, "untouched") == 0);
  CHECK(mode == LEASEHOLD_MODE_SHARED && reason == LEASEHOLD_REASON_GONE);
}

static void texts(void) {
  uint64_t h2 = 77, n2 = 77;

  WITH_BAD_TEXTS(leasehold_builder_new(t, n, &h2));
  WITH_BAD_TEXTS(leasehold_builder_set_owner(live[BUILDER], t, n));
  WITH_BAD_TEXTS(leasehold_client_connect(t, n, &h2));
  WITH_BAD_TEXTS(leasehold_client_lock(live[CLIENT], t, n, &h2));
  WITH_BAD_TEXTS(leasehold_client_try_lock(live[CLIENT], t, n, &h2));
  WITH_BAD_TEXTS(leasehold_client_lock_for(live[CLIENT], t, n, 1, &h2));
  WITH_BAD_TEXTS(leasehold_client_lock_shared(live[CLIENT], t, n, &h2));
  WITH_BAD_TEXTS(leasehold_client_try_lock_shared(live[CLIENT], t, n, &h2));
  WITH_BAD_TEXTS(leasehold_client_lock_shared_for(live[CLIENT], t, n, 1, &h2));
  WITH_BAD_TEXTS(leasehold_client_get(live[CLIENT], t, n, &n2, &h2));
  WITH_BAD_TEXTS(leasehold_client_renew_group(live[CLIENT], t, n, 1000, &h2));
  WITH_BAD_TEXTS(leasehold_client_unlock_group(live[CLIENT], t, n, &h2));
  WITH_BAD_TEXTS(leasehold_request_new(live[CLIENT], t, n, &h2));
  WITH_BAD_TEXTS(leasehold_request_add_key(live[REQUEST], t, n));
  WITH_BAD_TEXTS(leasehold_request_set_owner(live[REQUEST], t, n));
  WITH_BAD_TEXTS(leasehold_request_set_comment(live[REQUEST], t, n));
  WITH_BAD_TEXTS(leasehold_request_set_lock_id(live[REQUEST], t, n));
  WITH_BAD_TEXTS(leasehold_election_new(live[CLIENT], t, n, &h2));
  WITH_BAD_TEXTS(leasehold_election_set_id(live[ELECTION], t, n));
  WITH_BAD_TEXTS(leasehold_filter_set_key(live[FILTER], t, n));
  WITH_BAD_TEXTS(leasehold_filter_set_key_prefix(live[FILTER], t, n));
  WITH_BAD_TEXTS(leasehold_filter_set_lock_id(live[FILTER], t, n));
  WITH_BAD_TEXTS(leasehold_filter_set_owner(live[FILTER], t, n));
  CHECK(h2 == 77 && n2 == 77);

  WITH_BAD_BUFFERS(leasehold_guard_key(live[GUARD], b, c, l));
  WITH_BAD_BUFFERS(leasehold_guard_lock_id(live[GUARD], b, c, l));
  WITH_BAD_BUFFERS(leasehold_lock_text(live[LOCK], LEASEHOLD_TEXT_KEY, b, c, l));
  WITH_BAD_BUFFERS(leasehold_list_text(live[LIST], 0, LEASEHOLD_TEXT_LOCK_ID, b, c, l));
  WITH_BAD_BUFFERS(leasehold_client_schema(live[CLIENT], b, c, l));
  uint64_t none = 0;
  OK(leasehold_client_lock(live[CLIENT], TEXT("k"), &none));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(live[CLIENT], TEXT("k"), &h2));
  WITH_BAD_BUFFERS(leasehold_error_message(b, c, l));
  WITH_BAD_BUFFERS(leasehold_error_store(b, c, l));
  WITH_BAD_BUFFERS(leasehold_error_holder(b, c, l));
  char key[8];
  OK(leasehold_error_key(key, sizeof key, NULL));
  CHECK(strcmp(key, "k") == 0 && leasehold_error_code() == LEASEHOLD_CODE_HELD);
  EXPECT(LEASEHOLD_CODE_NULL_POINTER, leasehold_error_key(NULL, 1, NULL));
  CHECK(!leasehold_error_is_retryable());
  CHECK(leasehold_error_held_by_this_client()); /* it was to wait for itself */
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_lock(live[CLIENT], "", 0, &h2));
  CHECK(!leasehold_error_held_by_this_client());
  OK(leasehold_guard_free(none));
}

static void pointers(void) {
  uint64_t n = 77;
#define NULL_POINTER(call) EXPECT(LEASEHOLD_CODE_NULL_POINTER, call)
  NULL_POINTER(leasehold_builder_new(TEXT("memory:"), NULL));
  NULL_POINTER(leasehold_builder_connect(live[BUILDER], NULL));
  NULL_POINTER(leasehold_client_connect(TEXT("memory:"), NULL));
  NULL_POINTER(leasehold_client_from_env(NULL));
  NULL_POINTER(leasehold_client_lock(live[CLIENT], TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_try_lock(live[CLIENT], TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_lock_for(live[CLIENT], TEXT("p"), 1, NULL));
  NULL_POINTER(leasehold_client_lock_shared(live[CLIENT], TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_try_lock_shared(live[CLIENT], TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_lock_shared_for(live[CLIENT], TEXT("p"), 1, NULL));
  NULL_POINTER(leasehold_client_adopt(live[CLIENT], live[LOCK], NULL));
  NULL_POINTER(leasehold_client_get(live[CLIENT], TEXT("p"), NULL, &n));
  NULL_POINTER(leasehold_client_get(live[CLIENT], TEXT("p"), &n, NULL));
  NULL_POINTER(leasehold_client_list(live[CLIENT], 0, NULL));
  NULL_POINTER(leasehold_client_renew_group(live[CLIENT], TEXT("p"), 1000, NULL));
  NULL_POINTER(leasehold_client_unlock_group(live[CLIENT], TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_purge(live[CLIENT], 0, NULL));
  NULL_POINTER(leasehold_request_new(live[CLIENT], TEXT("p"), NULL));
  NULL_POINTER(leasehold_request_new_any(live[CLIENT], NULL));
  NULL_POINTER(leasehold_request_lock(live[REQUEST], NULL));
  NULL_POINTER(leasehold_request_try_lock(live[REQUEST], NULL));
  NULL_POINTER(leasehold_request_acquire(live[REQUEST], NULL));
  NULL_POINTER(leasehold_request_adopt(live[REQUEST], live[LOCK], NULL));
  NULL_POINTER(leasehold_guard_is_held(live[GUARD], NULL));
  NULL_POINTER(leasehold_guard_remaining(live[GUARD], NULL));
  NULL_POINTER(leasehold_guard_token(live[GUARD], NULL));
  NULL_POINTER(leasehold_guard_mode(live[GUARD], NULL));
  NULL_POINTER(leasehold_guard_info(live[GUARD], NULL));
  NULL_POINTER(leasehold_guard_loss(live[GUARD], NULL, NULL, 0, NULL));
  NULL_POINTER(leasehold_guard_loss_descriptor(live[GUARD], NULL));
  NULL_POINTER(leasehold_guard_into_lock(live[GUARD], NULL));
  NULL_POINTER(leasehold_lock_status(live[LOCK], NULL, sizeof(leasehold_status)));
  NULL_POINTER(leasehold_lock_to_bytes(live[LOCK], NULL, 9, NULL));
  NULL_POINTER(leasehold_lock_from_bytes(NULL, 9, &n));
  NULL_POINTER(leasehold_lock_from_bytes((const uint8_t *)"{}", 2, NULL));
  NULL_POINTER(leasehold_list_len(live[LIST], NULL));
  NULL_POINTER(leasehold_list_status(live[LIST], 0, NULL, sizeof(leasehold_status)));
  NULL_POINTER(leasehold_filter_new(NULL));
  NULL_POINTER(leasehold_cancel_new(NULL));
  NULL_POINTER(leasehold_error_holders(NULL));
  NULL_POINTER(leasehold_election_new(live[CLIENT], TEXT("e"), NULL));
  NULL_POINTER(leasehold_election_is_leader(live[ELECTION], NULL));
  NULL_POINTER(leasehold_election_token(live[ELECTION], NULL));
  NULL_POINTER(leasehold_election_leader(live[ELECTION], NULL, NULL, 0, NULL));
  NULL_POINTER(leasehold_election_campaign(live[ELECTION], NULL));
  NULL_POINTER(leasehold_election_campaign_for(live[ELECTION], 1, NULL));
  NULL_POINTER(leasehold_leadership_is_leader(live[LEADERSHIP], NULL));
  NULL_POINTER(leasehold_leadership_token(live[LEADERSHIP], NULL));
  NULL_POINTER(leasehold_leadership_remaining(live[LEADERSHIP], NULL));
  CHECK(n == 77);

  /* None of these has ended the lock. */
  bool held = false;
  OK(leasehold_guard_is_held(live[GUARD], &held));
  CHECK(held);
}

/* A program that was compiled with another version's header has a struct of another size. */
static void sizes(void) {
  struct {
    leasehold_status known;
    uint64_t later[2];
  } status;
  memset(&status, 0xff, sizeof status);
  OK(leasehold_lock_status(live[LOCK], &status.known, sizeof status.known));
  CHECK(status.known.token > 0 && status.known.reserved == 0 && status.later[0] == UINT64_MAX);
  status.known.token = 0;
  OK(leasehold_list_status(live[LIST], 0, &status.known, sizeof status));
  CHECK(status.known.token > 0 && status.later[0] == 0 && status.later[1] == 0);
  status.known.token = 77;
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_lock_status(live[LOCK], &status.known, sizeof status.known - 1));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_list_status(live[LIST], 0, &status.known, 0));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_list_status(live[LIST], 0, &status.known, SIZE_MAX));
  CHECK(status.known.token == 77);
}

static void values(void) {
  uint64_t n = 77;
  leasehold_status status;
  leasehold_guard guard = 0;
  leasehold_request any = 0;
  leasehold_lock lock = 0;
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_lock(live[CLIENT], "", 0, &n));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_lock(live[CLIENT], "a\0b", 3, &n));
  EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_connect(TEXT("nosuch:store"), &n));
  EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_connect(TEXT("mongodb://localhost/locks"), &n));
  char advice[256];
  OK(leasehold_error_message(advice, sizeof advice, NULL));
  CHECK(strstr(advice, "FEATURES=mongodb") != NULL); /* what a C programmer can do about it */
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_lock_from_bytes((const uint8_t *)"no lock", 7, &n));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_lock_text(live[LOCK], 99, NULL, 0, NULL));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_list_text(live[LIST], 0, -1, NULL, 0, NULL));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_lock_text(live[LOCK], LEASEHOLD_TEXT_COMMENT, NULL, 0, NULL));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_list_status(live[LIST], 1, &status, sizeof status));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_list_status(live[LIST], SIZE_MAX, &status, sizeof status));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_client_get(live[CLIENT], TEXT("never"), &n, &n));
  OK(leasehold_error_key(advice, sizeof advice, NULL));
  CHECK(strcmp(advice, "never") == 0);
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_add_key(live[REQUEST], TEXT("second")));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_guard_ensure_held_for(live[GUARD], UINT64_MAX));

  OK(leasehold_request_set_max_holders(live[REQUEST], 0));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(live[REQUEST], &n));
  OK(leasehold_request_set_max_holders(live[REQUEST], 1));
  OK(leasehold_request_set_lease(live[REQUEST], UINT64_MAX));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(live[REQUEST], &n));
  OK(leasehold_request_set_lease_until(live[REQUEST], 5));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(live[REQUEST], &n));
  OK(leasehold_request_set_lease(live[REQUEST], 20000));
  OK(leasehold_request_set_deadline_in(live[REQUEST], UINT64_MAX));
  OK(leasehold_request_lock(live[REQUEST], &guard));
  /* A request is used again and again: what asks once does so, whatever wait the others have. */
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_try_lock(live[REQUEST], &n));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_acquire(live[REQUEST], &n));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_adopt(live[REQUEST], live[LOCK], &n)); /* of another key */
  OK(leasehold_cancel_fire(live[CANCEL]));
  OK(leasehold_request_set_cancel(live[REQUEST], live[CANCEL]));
  EXPECT(LEASEHOLD_CODE_CANCELLED, leasehold_request_lock(live[REQUEST], &n));
  OK(leasehold_guard_free(guard));
  CHECK(n == 77);

  /* One of several keys, and the group that it is in. */
  char key[8];
  leasehold_list list = 0;
  size_t len = 0;
  OK(leasehold_request_new_any(live[CLIENT], &any));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(any, &n));
  OK(leasehold_request_add_key(any, TEXT("held")));
  OK(leasehold_request_add_key(any, TEXT("free")));
  OK(leasehold_request_set_in_order(any));
  OK(leasehold_request_set_lock_id(any, TEXT("some")));
  OK(leasehold_request_try_lock(any, &guard));
  OK(leasehold_guard_key(guard, key, sizeof key, NULL));
  CHECK(strcmp(key, "free") == 0);
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_try_lock(any, &n));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_adopt(any, live[LOCK], &n));
  OK(leasehold_client_renew_group(live[CLIENT], TEXT("some"), 60000, &list));
  OK(leasehold_list_len(list, &len));
  CHECK(len == 1);
  OK(leasehold_list_free(list));
  OK(leasehold_filter_set_key_prefix(live[FILTER], TEXT("fr")));
  OK(leasehold_filter_set_live(live[FILTER]));
  OK(leasehold_client_list(live[CLIENT], live[FILTER], &list));
  OK(leasehold_list_text(list, 0, LEASEHOLD_TEXT_KEY, key, sizeof key, &len));
  CHECK(strcmp(key, "free") == 0 && len == 4);
  OK(leasehold_list_free(list));
  OK(leasehold_client_purge(live[CLIENT], 0, &list));
  OK(leasehold_list_free(list));

  /* A guard that is over. */
  OK(leasehold_guard_release(guard));
  bool held = true;
  OK(leasehold_guard_is_held(guard, &held));
  OK(leasehold_guard_remaining(guard, &n));
  CHECK(!held && n == 0);
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_release(guard));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_into_lock(guard, &lock));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_ensure_held(guard));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_ensure_held_for(guard, 1));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_wait_loss(guard, UINT64_MAX));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_wait_loss(guard, 0));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_release(guard));
  OK(leasehold_error_key(key, sizeof key, NULL));
  char store[256];
  OK(leasehold_error_store(store, sizeof store, NULL));
  CHECK(strcmp(key, "free") == 0 && strncmp(store, "sqlite:/", 8) == 0);
  OK(leasehold_guard_free(guard));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_guard_free(guard));
  OK(leasehold_request_free(any));
  CHECK(lock == 0);

  /* The data of a lock knows its store: elsewhere it is nobody's lock. */
  leasehold_builder elsewhere = 0;
  leasehold_client other = 0;
  OK(leasehold_builder_new(TEXT("memory:elsewhere"), &elsewhere));
  OK(leasehold_builder_set_create_schema(elsewhere));
  OK(leasehold_builder_connect(elsewhere, &other));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_adopt(other, live[LOCK], &n));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_heartbeat(other, live[LOCK], 20000));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_release(other, live[LOCK]));
  OK(leasehold_error_message(advice, sizeof advice, NULL));
  CHECK(strstr(advice, "the one that granted the lock, \"sqlite:/") != NULL);
  OK(leasehold_client_free(other));
  OK(leasehold_builder_set_must_exist(elsewhere));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_builder_connect(elsewhere, &other));
  OK(leasehold_builder_free(elsewhere));

  /* A number is never given out twice, however often its place is used again. */
  leasehold_cancel first = 0, next = 0;
  OK(leasehold_cancel_new(&first));
  OK(leasehold_cancel_free(first));
  for (int i = 0; i < 1000; i++) {
    OK(leasehold_cancel_new(&next));
    CHECK(next != first);
    EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_cancel_fire(first));
    OK(leasehold_cancel_free(next));
  }
}

/* Makes one of each. */
static void make(const char *url, const char *key, uint64_t *made) {
  OK(leasehold_builder_new(TEXT(url), &made[BUILDER]));
  OK(leasehold_builder_set_request_timeout(made[BUILDER], 60000));
  OK(leasehold_builder_set_drop_timeout(made[BUILDER], 60000));
  OK(leasehold_builder_connect(made[BUILDER], &made[CLIENT]));
  OK(leasehold_request_new(made[CLIENT], TEXT("asked"), &made[REQUEST]));
  OK(leasehold_client_lock(made[CLIENT], TEXT(key), &made[GUARD]));
  OK(leasehold_guard_info(made[GUARD], &made[LOCK]));
  OK(leasehold_client_list(made[CLIENT], 0, &made[LIST]));
  OK(leasehold_filter_new(&made[FILTER]));
  OK(leasehold_cancel_new(&made[CANCEL]));
  OK(leasehold_election_new(made[CLIENT], TEXT("elected"), &made[ELECTION]));
  OK(leasehold_election_campaign(made[ELECTION], &made[LEADERSHIP]));
}

static void free_all(uint64_t *made) {
  OK(leasehold_builder_free(made[BUILDER]));
  OK(leasehold_request_free(made[REQUEST]));
  OK(leasehold_guard_free(made[GUARD]));
  OK(leasehold_lock_free(made[LOCK]));
  OK(leasehold_list_free(made[LIST]));
  OK(leasehold_filter_free(made[FILTER]));
  OK(leasehold_cancel_free(made[CANCEL]));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_election_set_lease(made[ELECTION], 5000)); /* too late */
  OK(leasehold_leadership_free(made[LEADERSHIP]));
  OK(leasehold_election_free(made[ELECTION]));
  OK(leasehold_client_close(made[CLIENT]));
  OK(leasehold_client_close(made[CLIENT]));
  uint64_t n = 0;
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_client_lock(made[CLIENT], TEXT("k"), &n));
  OK(leasehold_client_free(made[CLIENT]));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  CHECK(leasehold_error_code() == LEASEHOLD_CODE_OK);
  int version[3];
  CHECK(sscanf(leasehold_version(), "%d.%d.%d", &version[0], &version[1], &version[2]) == 3);
  CHECK(strcmp(leasehold_code_name(LEASEHOLD_CODE_LOST), "LEASEHOLD_CODE_LOST") == 0);
  CHECK(strcmp(leasehold_code_name(-7), "LEASEHOLD_CODE_?") == 0);

  make(argv[1], "freed", freed);
  free_all(freed);
  make(argv[1], "held", live);
  handles();
  texts();
  pointers();
  sizes();
  values();
  free_all(live);
  printf("proof: every wrong handle, pointer and text was answered with its code\n");
  return 0;
}
