/* Every function, called wrongly: always a code, never harm, and nothing is written. */
#include "check.h"

/* One of each. */
struct all {
  leasehold_builder builder;
  leasehold_client client;
  leasehold_request request;
  leasehold_guard guard;
  leasehold_guards guards;
  leasehold_lock lock;
  leasehold_list list;
  leasehold_filter filter;
  leasehold_cancel cancel;
  leasehold_election election;
  leasehold_leadership leadership;
  leasehold_log log;
  leasehold_leases leases;
  leasehold_keeper keeper;
};

static struct all live, freed;
/* Where results would go, and what must stay there. */
static struct all out, none;
static const char *url;
static const leasehold_filter every = {0}; /* no filter */

static void works(uint64_t token, void *user) {
  (void)token;
  (void)user;
}

/* `call` uses `h`, which must be a handle of this type. */
#define WITH_BAD_HANDLES(type, call)                                                                                   \
  do {                                                                                                                 \
    leasehold_##type h = {0};                                                                                          \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h.id = 1;                                                                                                          \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h.id = UINT64_MAX;                                                                                                 \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h.id = (uint64_t)(uintptr_t)&live; /* a pointer in its place */                                                    \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h.id = live.type.id + 4096; /* an index that was never given out */                                                \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h.id = live.type.id + ((uint64_t)9 << 24); /* a generation that is still to come */                                \
    EXPECT(LEASEHOLD_CODE_BAD_HANDLE, call);                                                                           \
    h.id = live.type.id == live.client.id ? live.guard.id : live.client.id;                                            \
    EXPECT(LEASEHOLD_CODE_WRONG_HANDLE, call);                                                                         \
    h.id = freed.type.id;                                                                                              \
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
    n = SIZE_MAX; /* its NUL ends it */                                                                                \
    EXPECT(LEASEHOLD_CODE_BAD_UTF8, call);                                                                             \
    n = SIZE_MAX - 1; /* -2 as a size */                                                                               \
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
  uint64_t n = 77;
  bool held = true;
  int fd = 77;
  size_t len = 77;
  leasehold_mode mode = LEASEHOLD_MODE_SHARED;
  leasehold_reason reason = LEASEHOLD_REASON_GONE;
  leasehold_status status;
  char b[64] = "untouched";

  WITH_BAD_HANDLES(builder, leasehold_builder_set_owner(h, TEXT("me")));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_lease(h, 1000));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_heartbeat(h, 1000));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_margin(h, 1000));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_poll(h, 1, 2));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_request_timeout(h, 1000));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_drop_timeout(h, 1000));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_must_exist(h));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_create_schema(h));
  WITH_BAD_HANDLES(builder, leasehold_builder_set_on_event(h, NULL, NULL));
  WITH_BAD_HANDLES(builder, leasehold_builder_connect(h, &out.client));
  WITH_BAD_HANDLES(builder, leasehold_builder_free(h));

  WITH_BAD_HANDLES(client, leasehold_client_close(h));
  WITH_BAD_HANDLES(client, leasehold_client_free(h));
  WITH_BAD_HANDLES(client, leasehold_client_lock(h, TEXT("k"), &out.guard));
  WITH_BAD_HANDLES(client, leasehold_client_try_lock(h, TEXT("k"), &out.guard));
  WITH_BAD_HANDLES(client, leasehold_client_lock_for(h, TEXT("k"), 1, &out.guard));
  WITH_BAD_HANDLES(client, leasehold_client_lock_shared(h, TEXT("k"), &out.guard));
  WITH_BAD_HANDLES(client, leasehold_client_try_lock_shared(h, TEXT("k"), &out.guard));
  WITH_BAD_HANDLES(client, leasehold_client_lock_shared_for(h, TEXT("k"), 1, &out.guard));
  WITH_BAD_HANDLES(client, leasehold_client_adopt(h, live.lock, &out.guard));
  WITH_BAD_HANDLES(lock, leasehold_client_adopt(live.client, h, &out.guard));
  WITH_BAD_HANDLES(client, leasehold_client_heartbeat(h, live.lock, 1000));
  WITH_BAD_HANDLES(lock, leasehold_client_heartbeat(live.client, h, 1000));
  WITH_BAD_HANDLES(client, leasehold_client_release(h, live.lock));
  WITH_BAD_HANDLES(lock, leasehold_client_release(live.client, h));
  WITH_BAD_HANDLES(client, leasehold_client_get(h, TEXT("k"), &n, &out.list));
  WITH_BAD_HANDLES(client, leasehold_client_list(h, live.filter, &out.list));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_client_list(live.client, freed.filter, &out.list)); /* {0} is none */
  WITH_BAD_HANDLES(client, leasehold_client_renew_group(h, TEXT("id"), 1000, &out.list));
  WITH_BAD_HANDLES(client, leasehold_client_unlock_group(h, TEXT("id"), &out.list));
  WITH_BAD_HANDLES(client, leasehold_client_purge(h, 0, &out.list));
  WITH_BAD_HANDLES(client, leasehold_client_purge_preview(h, 0, &out.list));
  WITH_BAD_HANDLES(client, leasehold_client_force_release(h, TEXT("k"), &out.list));
  WITH_BAD_HANDLES(client, leasehold_client_unlock_key(h, TEXT("k"), TEXT("id"), &out.list));
  WITH_BAD_HANDLES(client, leasehold_client_diagnose(h, &held, b, sizeof b, &len));
  CHECK(!held);
  held = true;
  WITH_BAD_HANDLES(client, leasehold_client_create_schema(h));
  WITH_BAD_HANDLES(client, leasehold_client_schema(h, b, sizeof b, &len));

  WITH_BAD_HANDLES(client, leasehold_request_new(h, TEXT("k"), &out.request));
  WITH_BAD_HANDLES(client, leasehold_request_new_any(h, &out.request));
  WITH_BAD_HANDLES(client, leasehold_request_new_all(h, &out.request));
  WITH_BAD_HANDLES(request, leasehold_request_add_key(h, TEXT("k")));
  WITH_BAD_HANDLES(request, leasehold_request_set_in_order(h));
  WITH_BAD_HANDLES(request, leasehold_request_set_shared(h));
  WITH_BAD_HANDLES(request, leasehold_request_set_max_holders(h, 2));
  WITH_BAD_HANDLES(request, leasehold_request_set_owner(h, TEXT("me")));
  WITH_BAD_HANDLES(request, leasehold_request_set_comment(h, TEXT("me")));
  WITH_BAD_HANDLES(request, leasehold_request_set_lock_id(h, TEXT("me")));
  WITH_BAD_HANDLES(request, leasehold_request_set_lease(h, 1000));
  WITH_BAD_HANDLES(request, leasehold_request_set_lease_until(h, 1000));
  WITH_BAD_HANDLES(request, leasehold_request_set_lease_forever(h));
  WITH_BAD_HANDLES(request, leasehold_request_set_replace_same_owner(h));
  WITH_BAD_HANDLES(request, leasehold_request_set_wait(h, 1000));
  WITH_BAD_HANDLES(request, leasehold_request_set_deadline_in(h, 1000));
  WITH_BAD_HANDLES(request, leasehold_request_set_cancel(h, live.cancel));
  WITH_BAD_HANDLES(cancel, leasehold_request_set_cancel(live.request, h));
  WITH_BAD_HANDLES(request, leasehold_request_set_max_hold(h, 1000));
  WITH_BAD_HANDLES(request, leasehold_request_set_hold_at_least(h, 1000));
  WITH_BAD_HANDLES(request, leasehold_request_set_on_loss(h, NULL, NULL));
  WITH_BAD_HANDLES(request, leasehold_request_set_warn_before(h, 1000, NULL, NULL));
  WITH_BAD_HANDLES(request, leasehold_request_set_on_wait(h, 1000, NULL, NULL));
  WITH_BAD_HANDLES(request, leasehold_request_lock_all(h, &out.guards));
  WITH_BAD_HANDLES(request, leasehold_request_try_lock_all(h, &out.guards));
  WITH_BAD_HANDLES(request, leasehold_request_lock(h, &out.guard));
  WITH_BAD_HANDLES(request, leasehold_request_try_lock(h, &out.guard));
  WITH_BAD_HANDLES(request, leasehold_request_acquire(h, &out.lock));
  WITH_BAD_HANDLES(request, leasehold_request_adopt(h, live.lock, &out.guard));
  WITH_BAD_HANDLES(lock, leasehold_request_adopt(live.request, h, &out.guard));
  WITH_BAD_HANDLES(request, leasehold_request_free(h));

  WITH_BAD_HANDLES(guard, leasehold_guard_is_held(h, &held));
  CHECK(!held); /* a program that does not look at the code must not go on */
  held = true;
  WITH_BAD_HANDLES(guard, leasehold_guard_ensure_held(h));
  WITH_BAD_HANDLES(guard, leasehold_guard_ensure_held_for(h, 1));
  WITH_BAD_HANDLES(guard, leasehold_guard_hold_at_least(h, 1));
  WITH_BAD_HANDLES(guard, leasehold_guard_remaining(h, &n));
  WITH_BAD_HANDLES(guard, leasehold_guard_token(h, &n));
  WITH_BAD_HANDLES(guard, leasehold_guard_mode(h, &mode));
  WITH_BAD_HANDLES(guard, leasehold_guard_key(h, b, sizeof b, &len));
  WITH_BAD_HANDLES(guard, leasehold_guard_lock_id(h, b, sizeof b, &len));
  WITH_BAD_HANDLES(guard, leasehold_guard_info(h, &out.lock));
  WITH_BAD_HANDLES(guard, leasehold_guard_loss(h, &reason, b, sizeof b, &len));
  WITH_BAD_HANDLES(guard, leasehold_guard_wait_loss(h, 1));
  WITH_BAD_HANDLES(guard, leasehold_guard_loss_descriptor(h, &fd));
  WITH_BAD_HANDLES(guard, leasehold_guard_release(h));
  WITH_BAD_HANDLES(guard, leasehold_guard_into_lock(h, &out.lock));
  WITH_BAD_HANDLES(guard, leasehold_guard_free(h));

  WITH_BAD_HANDLES(guards, leasehold_guards_len(h, &len));
  WITH_BAD_HANDLES(guards, leasehold_guards_key(h, 0, b, sizeof b, &len));
  WITH_BAD_HANDLES(guards, leasehold_guards_token(h, 0, &n));
  WITH_BAD_HANDLES(guards, leasehold_guards_lock_id(h, b, sizeof b, &len));
  WITH_BAD_HANDLES(guards, leasehold_guards_is_held(h, &held));
  CHECK(!held);
  held = true;
  WITH_BAD_HANDLES(guards, leasehold_guards_ensure_held(h));
  WITH_BAD_HANDLES(guards, leasehold_guards_hold_at_least(h, 1));
  WITH_BAD_HANDLES(guards, leasehold_guards_remaining(h, &n));
  WITH_BAD_HANDLES(guards, leasehold_guards_release(h));
  WITH_BAD_HANDLES(guards, leasehold_guards_free(h));

  WITH_BAD_HANDLES(lock, leasehold_lock_status(h, &status, sizeof status));
  WITH_BAD_HANDLES(lock, leasehold_lock_text(h, LEASEHOLD_TEXT_KEY, b, sizeof b, &len));
  WITH_BAD_HANDLES(lock, leasehold_lock_to_bytes(h, NULL, 0, &len));
  WITH_BAD_HANDLES(lock, leasehold_lock_free(h));

  WITH_BAD_HANDLES(list, leasehold_list_len(h, &len));
  WITH_BAD_HANDLES(list, leasehold_list_status(h, 0, &status, sizeof status));
  WITH_BAD_HANDLES(list, leasehold_list_text(h, 0, LEASEHOLD_TEXT_KEY, b, sizeof b, &len));
  WITH_BAD_HANDLES(list, leasehold_list_free(h));

  WITH_BAD_HANDLES(filter, leasehold_filter_set_key(h, TEXT("k")));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_key_prefix(h, TEXT("k")));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_lock_id(h, TEXT("k")));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_owner(h, TEXT("k")));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_exclusive(h));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_shared(h));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_live(h));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_expired(h));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_created_before(h, 1));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_created_after(h, 1));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_remaining_below(h, 1));
  WITH_BAD_HANDLES(filter, leasehold_filter_set_remaining_at_least(h, 1));
  WITH_BAD_HANDLES(filter, leasehold_filter_free(h));

  WITH_BAD_HANDLES(cancel, leasehold_cancel_fire(h));
  WITH_BAD_HANDLES(cancel, leasehold_cancel_free(h));
  WITH_BAD_HANDLES(log, leasehold_log_free(h));

  WITH_BAD_HANDLES(client, leasehold_leases_new(h, TEXT("units"), &out.leases));
  WITH_BAD_HANDLES(leases, leasehold_leases_claim(h, TEXT("l"), TEXT("me"), 60000, &n));
  WITH_BAD_HANDLES(leases, leasehold_leases_extend(h, TEXT("l"), TEXT("me"), 60000));
  WITH_BAD_HANDLES(leases, leasehold_leases_expire(h, TEXT("l")));
  WITH_BAD_HANDLES(leases, leasehold_leases_revoke(h, TEXT("l"), TEXT("me")));
  WITH_BAD_HANDLES(leases, leasehold_leases_get(h, TEXT("l"), &out.list));
  WITH_BAD_HANDLES(leases, leasehold_leases_list(h, &out.list));
  WITH_BAD_HANDLES(leases, leasehold_leases_pin(h, TEXT("l"), TEXT("me")));
  WITH_BAD_HANDLES(leases, leasehold_leases_unpin(h, TEXT("l"), TEXT("me")));
  WITH_BAD_HANDLES(leases, leasehold_leases_wait_until_expired(h, TEXT("l"), live.cancel));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_leases_wait_until_expired(live.leases, TEXT("l"), freed.cancel));
  WITH_BAD_HANDLES(leases, leasehold_leases_pinned_by(h, TEXT("l"), &out.list));
  WITH_BAD_HANDLES(leases, leasehold_leases_keep(h, TEXT("l"), TEXT("me"), 60000, &out.keeper));
  WITH_BAD_HANDLES(leases, leasehold_leases_free(h));

  held = true;
  WITH_BAD_HANDLES(keeper, leasehold_keeper_is_held(h, &held));
  CHECK(!held);
  WITH_BAD_HANDLES(keeper, leasehold_keeper_ensure_held(h));
  WITH_BAD_HANDLES(keeper, leasehold_keeper_token(h, &n));
  WITH_BAD_HANDLES(keeper, leasehold_keeper_remaining(h, &n));
  WITH_BAD_HANDLES(keeper, leasehold_keeper_loss(h, &reason, b, sizeof b, &len));
  WITH_BAD_HANDLES(keeper, leasehold_keeper_wait_loss(h, 0));
  WITH_BAD_HANDLES(keeper, leasehold_keeper_free(h));
  WITH_BAD_HANDLES(guard, leasehold_guard_assertion(h, LEASEHOLD_ASSERTION_SQL, b, sizeof b, &len));

  WITH_BAD_HANDLES(client, leasehold_election_new(h, TEXT("e"), &out.election));
  WITH_BAD_HANDLES(election, leasehold_election_set_id(h, TEXT("me")));
  WITH_BAD_HANDLES(election, leasehold_election_set_lease(h, 1000));
  WITH_BAD_HANDLES(election, leasehold_election_set_max_hold(h, 1000));
  WITH_BAD_HANDLES(election, leasehold_election_set_once(h));
  WITH_BAD_HANDLES(election, leasehold_election_set_on_won(h, NULL, NULL));
  WITH_BAD_HANDLES(election, leasehold_election_set_on_lost(h, NULL, NULL));
  WITH_BAD_HANDLES(election, leasehold_election_set_on_leader(h, NULL, NULL));
  WITH_BAD_HANDLES(election, leasehold_election_set_health_check(h, NULL, NULL));
  WITH_BAD_HANDLES(election, leasehold_election_run(h));
  WITH_BAD_HANDLES(election, leasehold_election_lead(h, works, NULL));
  WITH_BAD_HANDLES(election, leasehold_election_is_leader(h, &held));
  CHECK(!held); /* a program that does not look at the code must not go on */
  held = true;
  WITH_BAD_HANDLES(election, leasehold_election_token(h, &n));
  WITH_BAD_HANDLES(election, leasehold_election_leader(h, &n, b, sizeof b, &len));
  WITH_BAD_HANDLES(election, leasehold_election_wait(h));
  WITH_BAD_HANDLES(election, leasehold_election_stop(h));
  WITH_BAD_HANDLES(election, leasehold_election_campaign(h, &out.leadership));
  WITH_BAD_HANDLES(election, leasehold_election_campaign_for(h, 1, &out.leadership));
  WITH_BAD_HANDLES(election, leasehold_election_free(h));
  WITH_BAD_HANDLES(leadership, leasehold_leadership_is_leader(h, &held));
  CHECK(!held); /* a program that does not look at the code must not go on */
  held = true;
  WITH_BAD_HANDLES(leadership, leasehold_leadership_token(h, &n));
  WITH_BAD_HANDLES(leadership, leasehold_leadership_remaining(h, &n));
  WITH_BAD_HANDLES(leadership, leasehold_leadership_wait_loss(h, 1));
  WITH_BAD_HANDLES(leadership, leasehold_leadership_resign(h));
  WITH_BAD_HANDLES(leadership, leasehold_leadership_free(h));

  CHECK(memcmp(&out, &none, sizeof out) == 0 && n == 77 && fd == 77 && len == 77 && strcmp(b, "untouched") == 0);
  CHECK(mode == LEASEHOLD_MODE_SHARED && reason == LEASEHOLD_REASON_GONE);
}

/* Only what is lost has a text of its loss. */
static void of_losses(void) {
  leasehold_request request = {0};
  leasehold_guard guard = {0};
  leasehold_keeper keeper = {0};
  leasehold_reason reason = LEASEHOLD_REASON_NONE;
  uint64_t token = 0;
  OK(leasehold_request_new(live.client, TEXT("lost"), &request));
  OK(leasehold_request_set_max_hold(request, 100));
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_request_free(request));
  OK(leasehold_guard_wait_loss(guard, UINT64_MAX));
  WITH_BAD_BUFFERS((CHECK(reason == LEASEHOLD_REASON_NONE), leasehold_guard_loss(guard, &reason, b, c, l)));
  CHECK(reason == LEASEHOLD_REASON_MAX_HOLD);
  OK(leasehold_guard_free(guard));

  OK(leasehold_leases_claim(live.leases, TEXT("lost"), TEXT("me"), 60000, &token));
  OK(leasehold_leases_keep(live.leases, TEXT("lost"), TEXT("me"), 3000, &keeper));
  OK(leasehold_leases_revoke(live.leases, TEXT("lost"), TEXT("me")));
  OK(leasehold_keeper_wait_loss(keeper, UINT64_MAX));
  reason = LEASEHOLD_REASON_NONE;
  WITH_BAD_BUFFERS((CHECK(reason == LEASEHOLD_REASON_NONE), leasehold_keeper_loss(keeper, &reason, b, c, l)));
  CHECK(reason != LEASEHOLD_REASON_NONE);
  OK(leasehold_keeper_free(keeper));
}

static void texts(void) {
  uint64_t n2 = 77;

  WITH_BAD_TEXTS(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, t, n, &out.builder));
  WITH_BAD_TEXTS(leasehold_builder_set_owner(live.builder, t, n));
  WITH_BAD_TEXTS(leasehold_client_connect(LEASEHOLD_VERSION_NUMBER, t, n, &out.client));
  WITH_BAD_TEXTS(leasehold_client_lock(live.client, t, n, &out.guard));
  WITH_BAD_TEXTS(leasehold_client_try_lock(live.client, t, n, &out.guard));
  WITH_BAD_TEXTS(leasehold_client_lock_for(live.client, t, n, 1, &out.guard));
  WITH_BAD_TEXTS(leasehold_client_lock_shared(live.client, t, n, &out.guard));
  WITH_BAD_TEXTS(leasehold_client_try_lock_shared(live.client, t, n, &out.guard));
  WITH_BAD_TEXTS(leasehold_client_lock_shared_for(live.client, t, n, 1, &out.guard));
  WITH_BAD_TEXTS(leasehold_client_get(live.client, t, n, &n2, &out.list));
  WITH_BAD_TEXTS(leasehold_client_renew_group(live.client, t, n, 1000, &out.list));
  WITH_BAD_TEXTS(leasehold_client_unlock_group(live.client, t, n, &out.list));
  WITH_BAD_TEXTS(leasehold_client_force_release(live.client, t, n, &out.list));
  WITH_BAD_TEXTS(leasehold_client_unlock_key(live.client, t, n, TEXT("id"), &out.list));
  WITH_BAD_TEXTS(leasehold_client_unlock_key(live.client, TEXT("k"), t, n, &out.list));
  WITH_BAD_TEXTS(leasehold_request_new(live.client, t, n, &out.request));
  WITH_BAD_TEXTS(leasehold_request_add_key(live.request, t, n));
  WITH_BAD_TEXTS(leasehold_request_set_owner(live.request, t, n));
  WITH_BAD_TEXTS(leasehold_request_set_comment(live.request, t, n));
  WITH_BAD_TEXTS(leasehold_request_set_lock_id(live.request, t, n));
  WITH_BAD_TEXTS(leasehold_election_new(live.client, t, n, &out.election));
  WITH_BAD_TEXTS(leasehold_election_set_id(live.election, t, n));
  WITH_BAD_TEXTS(leasehold_leases_new(live.client, t, n, &out.leases));
  WITH_BAD_TEXTS(leasehold_leases_claim(live.leases, t, n, TEXT("me"), 60000, &n2));
  WITH_BAD_TEXTS(leasehold_leases_claim(live.leases, TEXT("l"), t, n, 60000, &n2));
  WITH_BAD_TEXTS(leasehold_leases_extend(live.leases, t, n, TEXT("me"), 60000));
  WITH_BAD_TEXTS(leasehold_leases_extend(live.leases, TEXT("l"), t, n, 60000));
  WITH_BAD_TEXTS(leasehold_leases_expire(live.leases, t, n));
  WITH_BAD_TEXTS(leasehold_leases_revoke(live.leases, t, n, TEXT("me")));
  WITH_BAD_TEXTS(leasehold_leases_revoke(live.leases, TEXT("l"), t, n));
  WITH_BAD_TEXTS(leasehold_leases_get(live.leases, t, n, &out.list));
  WITH_BAD_TEXTS(leasehold_leases_pin(live.leases, t, n, TEXT("me")));
  WITH_BAD_TEXTS(leasehold_leases_pin(live.leases, TEXT("l"), t, n));
  WITH_BAD_TEXTS(leasehold_leases_unpin(live.leases, t, n, TEXT("me")));
  WITH_BAD_TEXTS(leasehold_leases_unpin(live.leases, TEXT("l"), t, n));
  WITH_BAD_TEXTS(leasehold_leases_pinned_by(live.leases, t, n, &out.list));
  WITH_BAD_TEXTS(leasehold_leases_keep(live.leases, t, n, TEXT("me"), 60000, &out.keeper));
  WITH_BAD_TEXTS(leasehold_leases_keep(live.leases, TEXT("l"), t, n, 60000, &out.keeper));
  WITH_BAD_TEXTS(leasehold_leases_wait_until_expired(live.leases, t, n, live.cancel));
  WITH_BAD_TEXTS(leasehold_filter_set_key(live.filter, t, n));
  WITH_BAD_TEXTS(leasehold_filter_set_key_prefix(live.filter, t, n));
  WITH_BAD_TEXTS(leasehold_filter_set_lock_id(live.filter, t, n));
  WITH_BAD_TEXTS(leasehold_filter_set_owner(live.filter, t, n));
  CHECK(memcmp(&out, &none, sizeof out) == 0 && n2 == 77);

  WITH_BAD_BUFFERS(leasehold_guard_key(live.guard, b, c, l));
  WITH_BAD_BUFFERS(leasehold_guard_lock_id(live.guard, b, c, l));
  WITH_BAD_BUFFERS(leasehold_guard_assertion(live.guard, LEASEHOLD_ASSERTION_SECOND, b, c, l));
  WITH_BAD_BUFFERS(leasehold_lock_text(live.lock, LEASEHOLD_TEXT_KEY, b, c, l));
  WITH_BAD_BUFFERS(leasehold_list_text(live.list, 0, LEASEHOLD_TEXT_LOCK_ID, b, c, l));
  WITH_BAD_BUFFERS(leasehold_client_schema(live.client, b, c, l));
  WITH_BAD_BUFFERS(leasehold_guards_key(live.guards, 0, b, c, l));
  WITH_BAD_BUFFERS(leasehold_guards_lock_id(live.guards, b, c, l));
  of_losses();
  uint64_t token = 77;
  WITH_BAD_BUFFERS((CHECK(token == 77), leasehold_election_leader(live.election, &token, b, c, l)));
  CHECK(token != 77);
  bool well = false;
  WITH_BAD_BUFFERS(leasehold_client_diagnose(live.client, &well, b, c, l));
  CHECK(well);
  leasehold_guard held = {0};
  OK(leasehold_client_lock(live.client, TEXT("k"), &held));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(live.client, TEXT("k"), &out.guard));
  WITH_BAD_BUFFERS(leasehold_error_message(b, c, l));
  WITH_BAD_BUFFERS(leasehold_error_store(b, c, l));
  WITH_BAD_BUFFERS(leasehold_error_holder(b, c, l));
  char key[8];
  OK(leasehold_error_key(key, sizeof key, NULL));
  CHECK(strcmp(key, "k") == 0 && leasehold_error_code() == LEASEHOLD_CODE_HELD);
  EXPECT(LEASEHOLD_CODE_NULL_POINTER, leasehold_error_key(NULL, 1, NULL));
  CHECK(!leasehold_error_is_retryable());
  CHECK(leasehold_error_held_by_this_client()); /* it was to wait for itself */
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_lock(live.client, "", 0, &out.guard));
  CHECK(!leasehold_error_held_by_this_client());
  OK(leasehold_guard_free(held));
}

static void ignores(const leasehold_log_record *record, void *user) { (void)record, (void)user; }

static void pointers(void) {
  uint64_t n = 77;
#define NULL_POINTER(call) EXPECT(LEASEHOLD_CODE_NULL_POINTER, call)
  NULL_POINTER(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT("memory:"), NULL));
  NULL_POINTER(leasehold_builder_connect(live.builder, NULL));
  NULL_POINTER(leasehold_client_connect(LEASEHOLD_VERSION_NUMBER, TEXT("memory:"), NULL));
  NULL_POINTER(leasehold_client_from_env(LEASEHOLD_VERSION_NUMBER, NULL));
  NULL_POINTER(leasehold_client_lock(live.client, TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_try_lock(live.client, TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_lock_for(live.client, TEXT("p"), 1, NULL));
  NULL_POINTER(leasehold_client_lock_shared(live.client, TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_try_lock_shared(live.client, TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_lock_shared_for(live.client, TEXT("p"), 1, NULL));
  NULL_POINTER(leasehold_client_adopt(live.client, live.lock, NULL));
  NULL_POINTER(leasehold_client_get(live.client, TEXT("p"), NULL, &out.list));
  NULL_POINTER(leasehold_client_get(live.client, TEXT("p"), &n, NULL));
  NULL_POINTER(leasehold_client_list(live.client, every, NULL));
  NULL_POINTER(leasehold_client_renew_group(live.client, TEXT("p"), 1000, NULL));
  NULL_POINTER(leasehold_client_unlock_group(live.client, TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_purge(live.client, 0, NULL));
  NULL_POINTER(leasehold_client_purge_preview(live.client, 0, NULL));
  NULL_POINTER(leasehold_leases_new(live.client, TEXT("units"), NULL));
  NULL_POINTER(leasehold_leases_claim(live.leases, TEXT("l"), TEXT("me"), 60000, NULL));
  NULL_POINTER(leasehold_leases_get(live.leases, TEXT("l"), NULL));
  NULL_POINTER(leasehold_leases_list(live.leases, NULL));
  NULL_POINTER(leasehold_leases_pinned_by(live.leases, TEXT("l"), NULL));
  NULL_POINTER(leasehold_leases_keep(live.leases, TEXT("l"), TEXT("me"), 60000, NULL));
  NULL_POINTER(leasehold_keeper_is_held(live.keeper, NULL));
  NULL_POINTER(leasehold_keeper_token(live.keeper, NULL));
  NULL_POINTER(leasehold_keeper_remaining(live.keeper, NULL));
  NULL_POINTER(leasehold_keeper_loss(live.keeper, NULL, NULL, 0, NULL));
  NULL_POINTER(leasehold_election_lead(live.election, NULL, NULL));
  NULL_POINTER(leasehold_client_force_release(live.client, TEXT("p"), NULL));
  NULL_POINTER(leasehold_client_unlock_key(live.client, TEXT("p"), TEXT("id"), NULL));
  NULL_POINTER(leasehold_client_diagnose(live.client, NULL, NULL, 0, NULL));
  NULL_POINTER(leasehold_request_new_all(live.client, NULL));
  NULL_POINTER(leasehold_request_lock_all(live.request, NULL));
  NULL_POINTER(leasehold_request_try_lock_all(live.request, NULL));
  NULL_POINTER(leasehold_guards_len(live.guards, NULL));
  NULL_POINTER(leasehold_guards_token(live.guards, 0, NULL));
  NULL_POINTER(leasehold_guards_is_held(live.guards, NULL));
  NULL_POINTER(leasehold_guards_remaining(live.guards, NULL));
  NULL_POINTER(leasehold_log_new(LEASEHOLD_LOG_LEVEL_WARN, NULL, NULL, &out.log));
  NULL_POINTER(leasehold_log_new(LEASEHOLD_LOG_LEVEL_WARN, ignores, NULL, NULL));
  NULL_POINTER(leasehold_request_new(live.client, TEXT("p"), NULL));
  NULL_POINTER(leasehold_request_new_any(live.client, NULL));
  NULL_POINTER(leasehold_request_lock(live.request, NULL));
  NULL_POINTER(leasehold_request_try_lock(live.request, NULL));
  NULL_POINTER(leasehold_request_acquire(live.request, NULL));
  NULL_POINTER(leasehold_request_adopt(live.request, live.lock, NULL));
  NULL_POINTER(leasehold_guard_is_held(live.guard, NULL));
  NULL_POINTER(leasehold_guard_remaining(live.guard, NULL));
  NULL_POINTER(leasehold_guard_token(live.guard, NULL));
  NULL_POINTER(leasehold_guard_mode(live.guard, NULL));
  NULL_POINTER(leasehold_guard_info(live.guard, NULL));
  NULL_POINTER(leasehold_guard_loss(live.guard, NULL, NULL, 0, NULL));
  NULL_POINTER(leasehold_guard_loss_descriptor(live.guard, NULL));
  NULL_POINTER(leasehold_guard_into_lock(live.guard, NULL));
  NULL_POINTER(leasehold_lock_status(live.lock, NULL, sizeof(leasehold_status)));
  NULL_POINTER(leasehold_lock_to_bytes(live.lock, NULL, 9, NULL));
  NULL_POINTER(leasehold_lock_from_bytes(NULL, 9, &out.lock));
  NULL_POINTER(leasehold_lock_from_bytes((const uint8_t *)"{}", 2, NULL));
  NULL_POINTER(leasehold_list_len(live.list, NULL));
  NULL_POINTER(leasehold_list_status(live.list, 0, NULL, sizeof(leasehold_status)));
  NULL_POINTER(leasehold_filter_new(NULL));
  NULL_POINTER(leasehold_cancel_new(NULL));
  NULL_POINTER(leasehold_error_holders(NULL));
  NULL_POINTER(leasehold_election_new(live.client, TEXT("e"), NULL));
  NULL_POINTER(leasehold_election_is_leader(live.election, NULL));
  NULL_POINTER(leasehold_election_token(live.election, NULL));
  NULL_POINTER(leasehold_election_leader(live.election, NULL, NULL, 0, NULL));
  NULL_POINTER(leasehold_election_campaign(live.election, NULL));
  NULL_POINTER(leasehold_election_campaign_for(live.election, 1, NULL));
  NULL_POINTER(leasehold_leadership_is_leader(live.leadership, NULL));
  NULL_POINTER(leasehold_leadership_token(live.leadership, NULL));
  NULL_POINTER(leasehold_leadership_remaining(live.leadership, NULL));
  CHECK(n == 77);

  /* None of these has ended the lock. */
  bool held = false;
  OK(leasehold_guard_is_held(live.guard, &held));
  CHECK(held);
}

/* A program that was compiled with another version's header has a struct of another size. */
static void sizes(void) {
  struct {
    leasehold_status known;
    uint64_t later[2];
  } status;
  memset(&status, 0xff, sizeof status);
  OK(leasehold_lock_status(live.lock, &status.known, sizeof status.known));
  CHECK(status.known.token > 0 && status.known.reserved == 0 && status.later[0] == UINT64_MAX);
  status.known.token = 0;
  OK(leasehold_list_status(live.list, 0, &status.known, sizeof status));
  CHECK(status.known.token > 0 && status.later[0] == 0 && status.later[1] == 0);
  status.known.token = 77;
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_lock_status(live.lock, &status.known, sizeof status.known - 1));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_list_status(live.list, 0, &status.known, 0));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_list_status(live.list, 0, &status.known, SIZE_MAX));
  CHECK(status.known.token == 77);
}

static void values(void) {
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_log_new(0, ignores, NULL, &out.log));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_log_new(6, ignores, NULL, &out.log));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock_all(live.request, &out.guards));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_guards_key(live.guards, 1, NULL, 0, NULL));
  /* A header of another library. */
  uint32_t other_version = LEASEHOLD_VERSION_NUMBER + 1000;
  EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_builder_new(other_version, TEXT("memory:"), &out.builder));
  EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_connect(other_version, TEXT("memory:"), &out.client));
  EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_from_env(0, &out.client));
  uint64_t n = 77;
  leasehold_status status;
  leasehold_guard guard = {0};
  leasehold_request any = {0};
  leasehold_lock lock = {0};
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_lock(live.client, "", 0, &out.guard));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_lock(live.client, "a\0b", 3, &out.guard));
  EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_connect(LEASEHOLD_VERSION_NUMBER, TEXT("nosuch:store"), &out.client));
  EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_connect(LEASEHOLD_VERSION_NUMBER, TEXT("mongodb://localhost/locks"), &out.client));
  char advice[256];
  OK(leasehold_error_message(advice, sizeof advice, NULL));
  CHECK(strstr(advice, "FEATURES=mongodb") != NULL); /* what a C programmer can do about it */
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_lock_from_bytes((const uint8_t *)"no lock", 7, &out.lock));
  const char newer[] = "{\"version\":\"9.0\",\"key\":7}";
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_lock_from_bytes((const uint8_t *)newer, sizeof newer - 1, &out.lock));
  OK(leasehold_error_message(advice, sizeof advice, NULL));
  CHECK(strstr(advice, "another version") != NULL);
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_lock_text(live.lock, 99, NULL, 0, NULL));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_list_text(live.list, 0, -1, NULL, 0, NULL));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_lock_text(live.lock, LEASEHOLD_TEXT_COMMENT, NULL, 0, NULL));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_list_status(live.list, 1, &status, sizeof status));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_list_status(live.list, SIZE_MAX, &status, sizeof status));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_client_get(live.client, TEXT("never"), &n, &out.list));
  OK(leasehold_error_key(advice, sizeof advice, NULL));
  CHECK(strcmp(advice, "never") == 0);
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_add_key(live.request, TEXT("second")));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_guard_ensure_held_for(live.guard, UINT64_MAX));

  OK(leasehold_request_set_max_holders(live.request, 0));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(live.request, &out.guard));
  OK(leasehold_request_set_max_holders(live.request, 1));
  OK(leasehold_request_set_lease(live.request, UINT64_MAX));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(live.request, &out.guard));
  OK(leasehold_request_set_lease_until(live.request, 5));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(live.request, &out.guard));
  OK(leasehold_request_set_lease(live.request, 20000));
  OK(leasehold_request_set_deadline_in(live.request, UINT64_MAX));
  OK(leasehold_request_lock(live.request, &guard));
  /* A request is used again and again: what asks once does so, whatever wait the others have. */
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_try_lock(live.request, &out.guard));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_acquire(live.request, &out.lock));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_adopt(live.request, live.lock, &out.guard)); /* of another key */
  leasehold_request again = {0};
  leasehold_guard adopted = {0};
  OK(leasehold_request_new(live.client, TEXT("to be adopted"), &again));
  OK(leasehold_request_set_wait(again, 5));
  OK(leasehold_request_set_comment(again, "\xc3\xa9t\xc3\xa9", SIZE_MAX));
  OK(leasehold_request_acquire(again, &lock));
  OK(leasehold_request_adopt(again, lock, &adopted));
  /* A text is cut between characters. */
  char cut[6];
  memset(cut, 'x', sizeof cut);
  EXPECT(LEASEHOLD_CODE_BUFFER_TOO_SMALL, leasehold_lock_text(lock, LEASEHOLD_TEXT_COMMENT, cut, 5, NULL));
  CHECK(strcmp(cut, "\xc3\xa9t") == 0);
  OK(leasehold_guard_free(adopted));
  OK(leasehold_lock_free(lock));
  OK(leasehold_request_free(again));
  lock.id = 0;
  OK(leasehold_cancel_fire(live.cancel));
  OK(leasehold_request_set_cancel(live.request, live.cancel));
  EXPECT(LEASEHOLD_CODE_CANCELLED, leasehold_request_lock(live.request, &out.guard));
  OK(leasehold_guard_free(guard));
  CHECK(n == 77);

  /* One of several keys, and the group that it is in. */
  char key[8];
  leasehold_list list = {0};
  size_t len = 0;
  OK(leasehold_request_new_any(live.client, &any));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(any, &out.guard));
  OK(leasehold_request_add_key(any, TEXT("held")));
  OK(leasehold_request_add_key(any, TEXT("free")));
  OK(leasehold_request_set_in_order(any));
  OK(leasehold_request_set_lock_id(any, TEXT("some")));
  OK(leasehold_request_try_lock(any, &guard));
  OK(leasehold_guard_key(guard, key, sizeof key, NULL));
  CHECK(strcmp(key, "free") == 0);
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_try_lock(any, &out.guard));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_adopt(any, live.lock, &out.guard));
  OK(leasehold_client_renew_group(live.client, TEXT("some"), 60000, &list));
  OK(leasehold_list_len(list, &len));
  CHECK(len == 1);
  OK(leasehold_list_free(list));
  OK(leasehold_filter_set_key_prefix(live.filter, TEXT("fr")));
  OK(leasehold_filter_set_live(live.filter));
  OK(leasehold_client_list(live.client, live.filter, &list));
  OK(leasehold_list_text(list, 0, LEASEHOLD_TEXT_KEY, key, sizeof key, &len));
  CHECK(strcmp(key, "free") == 0 && len == 4);
  OK(leasehold_list_free(list));
  OK(leasehold_client_purge(live.client, 0, &list));
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
  CHECK(strcmp(key, "free") == 0 && is_of(store, url));
  OK(leasehold_guard_free(guard));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_guard_free(guard));
  OK(leasehold_request_free(any));
  CHECK(lock.id == 0);

  /* The data of a lock knows its store: elsewhere it is nobody's lock. */
  leasehold_builder elsewhere = {0};
  leasehold_client other = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT("memory:elsewhere"), &elsewhere));
  OK(leasehold_builder_set_create_schema(elsewhere));
  OK(leasehold_builder_connect(elsewhere, &other));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_adopt(other, live.lock, &out.guard));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_heartbeat(other, live.lock, 20000));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_client_release(other, live.lock));
  OK(leasehold_error_message(advice, sizeof advice, NULL));
  const char *granted = strstr(advice, "the one that granted the lock, \"");
  CHECK(granted != NULL && is_of(strchr(granted, '"') + 1, url));
  OK(leasehold_client_free(other));
  OK(leasehold_builder_set_must_exist(elsewhere));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_builder_connect(elsewhere, &other));
  OK(leasehold_builder_free(elsewhere));

  /* A number is never given out twice, however often its place is used again. */
  leasehold_cancel first = {0}, next = {0};
  OK(leasehold_cancel_new(&first));
  OK(leasehold_cancel_free(first));
  for (int i = 0; i < 1000; i++) {
    OK(leasehold_cancel_new(&next));
    CHECK(next.id != first.id);
    EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_cancel_fire(first));
    OK(leasehold_cancel_free(next));
  }
}

/* Makes one of each. */
static void make(const char *url, const char *key, struct all *made) {
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &made->builder));
  OK(leasehold_builder_set_request_timeout(made->builder, 60000));
  OK(leasehold_builder_set_drop_timeout(made->builder, 60000));
  OK(leasehold_builder_connect(made->builder, &made->client));
  OK(leasehold_request_new(made->client, TEXT("asked"), &made->request));
  OK(leasehold_client_lock(made->client, TEXT(key), &made->guard));
  OK(leasehold_guard_info(made->guard, &made->lock));
  OK(leasehold_log_new(LEASEHOLD_LOG_LEVEL_TRACE, ignores, NULL, &made->log));
  OK(leasehold_client_list(made->client, every, &made->list));
  leasehold_request several = {0};
  OK(leasehold_request_new_all(made->client, &several));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_lock(several, &out.guard));
  OK(leasehold_request_add_key(several, "one of several", SIZE_MAX));
  OK(leasehold_request_lock_all(several, &made->guards));
  OK(leasehold_request_free(several));
  OK(leasehold_filter_new(&made->filter));
  OK(leasehold_cancel_new(&made->cancel));
  OK(leasehold_leases_new(made->client, TEXT("units"), &made->leases));
  uint64_t token = 0;
  OK(leasehold_leases_claim(made->leases, TEXT(key), TEXT("me"), 60000, &token));
  OK(leasehold_leases_keep(made->leases, TEXT(key), TEXT("me"), 60000, &made->keeper));
  OK(leasehold_election_new(made->client, TEXT("elected"), &made->election));
  OK(leasehold_election_campaign(made->election, &made->leadership));
}

static void free_all(struct all *made) {
  OK(leasehold_builder_free(made->builder));
  OK(leasehold_request_free(made->request));
  OK(leasehold_guard_free(made->guard));
  OK(leasehold_guards_free(made->guards));
  OK(leasehold_log_free(made->log));
  OK(leasehold_lock_free(made->lock));
  OK(leasehold_list_free(made->list));
  OK(leasehold_filter_free(made->filter));
  OK(leasehold_cancel_free(made->cancel));
  OK(leasehold_leases_free(made->leases));
  OK(leasehold_keeper_free(made->keeper));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_election_set_lease(made->election, 5000)); /* too late */
  OK(leasehold_leadership_free(made->leadership));
  OK(leasehold_election_free(made->election));
  OK(leasehold_client_close(made->client));
  OK(leasehold_client_close(made->client));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_client_lock(made->client, TEXT("k"), &out.guard));
  OK(leasehold_client_free(made->client));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  CHECK(leasehold_error_code() == LEASEHOLD_CODE_OK);
  memset(&none, 77, sizeof none);
  memset(&out, 77, sizeof out);
  CHECK(strcmp(leasehold_version(), LEASEHOLD_VERSION) == 0);
  CHECK(leasehold_version_number() == LEASEHOLD_VERSION_NUMBER);
  int version[3];
  CHECK(sscanf(leasehold_version(), "%d.%d.%d", &version[0], &version[1], &version[2]) == 3);
  CHECK(strcmp(leasehold_code_name(LEASEHOLD_CODE_LOST), "LEASEHOLD_CODE_LOST") == 0);
  CHECK(strcmp(leasehold_code_name(-7), "LEASEHOLD_CODE_?") == 0);

  url = argv[1];
  make(url, "freed", &freed);
  free_all(&freed);
  make(url, "held", &live);
  handles();
  texts();
  pointers();
  sizes();
  values();
  free_all(&live);
  CHECK(memcmp(&out, &none, sizeof out) == 0);
  printf("proof: every wrong handle, pointer and text was answered with its code\n");
  return 0;
}
