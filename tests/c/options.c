/* Every option of a client, a request, a filter and an election does what it says. */
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { HOUR = 3600 * 1000 };

static leasehold_client client;

static leasehold_status status_of(leasehold_guard guard) {
  leasehold_lock lock = {0};
  leasehold_status status;
  OK(leasehold_guard_info(guard, &lock));
  OK(leasehold_lock_status(lock, &status, sizeof status));
  OK(leasehold_lock_free(lock));
  return status;
}

/* A text of what a guard holds, as the data and a listing have it. */
static void is_text(leasehold_guard guard, int32_t text, const char *wanted) {
  char of_lock[64], of_list[64], key[64];
  uint64_t token = 0;
  leasehold_lock lock = {0};
  leasehold_list list = {0};
  OK(leasehold_guard_info(guard, &lock));
  OK(leasehold_guard_key(guard, key, sizeof key, NULL));
  OK(leasehold_client_get(client, TEXT(key), &token, &list));
  OK(leasehold_lock_text(lock, text, of_lock, sizeof of_lock, NULL));
  OK(leasehold_list_text(list, 0, text, of_list, sizeof of_list, NULL));
  CHECK(strcmp(of_lock, of_list) == 0 && (wanted == NULL || strcmp(of_lock, wanted) == 0));
  OK(leasehold_lock_free(lock));
  OK(leasehold_list_free(list));
}

/* What a guard of this request may still hold without a renewal, in milliseconds. */
static uint64_t left(leasehold_request request) {
  leasehold_guard guard = {0};
  OK(leasehold_request_try_lock(request, &guard));
  uint64_t left = status_of(guard).remaining_ms;
  OK(leasehold_guard_free(guard));
  return left;
}

static void of_clients(const char *url) {
  char missing[512];
  leasehold_builder builder = {0};
  leasehold_client other = {0};
  leasehold_guard guard = {0};
  uint64_t ms = 0;
  leasehold_code (*const refused[])(leasehold_builder, uint64_t) = {
      leasehold_builder_set_request_timeout, leasehold_builder_set_drop_timeout, leasehold_builder_set_margin};
  const uint64_t wrong[] = {0, 0, HOUR};
  for (int i = 0; i < 4; i++) {
    OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
    OK(i < 3 ? refused[i](builder, wrong[i]) : leasehold_builder_set_poll(builder, 10, 5));
    EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_builder_connect(builder, &other));
    OK(leasehold_builder_free(builder));
  }
  snprintf(missing, sizeof missing, "%s.missing", url);
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(missing), &builder));
  OK(leasehold_builder_set_must_exist(builder));
  const leasehold_code no_store = is_of("sqlite:", url) ? LEASEHOLD_CODE_CONFIG : LEASEHOLD_CODE_SCHEMA;
  EXPECT(no_store, leasehold_builder_connect(builder, &other));
  OK(leasehold_builder_free(builder));

  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
  OK(leasehold_builder_set_owner(builder, TEXT("ann")));
  OK(leasehold_builder_set_lease(builder, HOUR));
  OK(leasehold_builder_set_heartbeat(builder, 100)); /* the default would be 20 minutes */
  OK(leasehold_builder_set_margin(builder, HOUR / 2));
  OK(leasehold_builder_connect(builder, &other));
  OK(leasehold_builder_free(builder));
  OK(leasehold_client_lock(other, TEXT("of a client"), &guard));
  is_text(guard, LEASEHOLD_TEXT_OWNER, "ann");
  leasehold_status status = status_of(guard);
  OK(leasehold_guard_token(guard, &ms));
  CHECK(status.token == ms);
  OK(leasehold_guard_remaining(guard, &ms));
  CHECK(status.remaining_ms > HOUR - HOUR / 10 && status.remaining_ms <= HOUR && ms <= HOUR / 2 && ms > HOUR / 3);
  CHECK(status.leased_until_ms > status.created_ms + HOUR - 60000 && status.mode == LEASEHOLD_MODE_EXCLUSIVE);
  CHECK(status.created_ms / 1000 + 600 > (uint64_t)time(NULL) && status.created_ms / 1000 < (uint64_t)time(NULL) + 600);
  while (status_of(guard).renewed_ms < status.created_ms) {
    EXPECT(LEASEHOLD_CODE_TIMED_OUT, leasehold_guard_wait_loss(guard, 10));
  }
  OK(leasehold_guard_free(guard));
  OK(leasehold_client_free(other));
}

static void of_requests(void) {
  char why[512];
  leasehold_request request = {0}, other = {0};
  leasehold_guard guard = {0}, none = {0};
  leasehold_mode mode = LEASEHOLD_MODE_EXCLUSIVE;
  OK(leasehold_request_new(client, TEXT("of a request"), &request));
  OK(leasehold_request_set_owner(request, TEXT("bob")));
  OK(leasehold_request_set_comment(request, TEXT("why")));
  OK(leasehold_request_set_lock_id(request, TEXT("a group")));
  OK(leasehold_request_lock(request, &guard));
  is_text(guard, LEASEHOLD_TEXT_KEY, "of a request");
  is_text(guard, LEASEHOLD_TEXT_OWNER, "bob");
  is_text(guard, LEASEHOLD_TEXT_COMMENT, "why");
  is_text(guard, LEASEHOLD_TEXT_LOCK_ID, "a group");
  is_text(guard, LEASEHOLD_TEXT_HOST, NULL);

  /* It waits for itself, for as long as it is allowed to. */
  OK(leasehold_request_new(client, TEXT("of a request"), &other));
  RUNS_OUT(limit, 1000, (OK(leasehold_request_set_wait(other, limit)), leasehold_request_lock(other, &none)));
  CHECK(leasehold_error_held_by_this_client());
  OK(leasehold_request_free(other));
  OK(leasehold_request_new(client, TEXT("of a request"), &other));
  RUNS_OUT(limit, 1000, (OK(leasehold_request_set_deadline_in(other, limit)), leasehold_request_lock(other, &none)));
  OK(leasehold_request_set_owner(other, TEXT("bob")));
  OK(leasehold_request_set_replace_same_owner(other));
  OK(leasehold_request_set_wait(other, 60000));
  OK(leasehold_request_lock(other, &none));
  OK(leasehold_guard_free(none));
  OK(leasehold_guard_free(guard));
  OK(leasehold_request_free(other));

  OK(leasehold_request_set_lease(request, 0));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_try_lock(request, &guard));
  OK(leasehold_error_message(why, sizeof why, NULL));
  CHECK(strstr(why, "or without end") != NULL && strstr(why, "lease_forever") == NULL);
  OK(leasehold_request_set_lease(request, HOUR / 2));
  CHECK(left(request) <= HOUR / 2 && left(request) > HOUR / 3);
  OK(leasehold_request_set_lease_until(request, ((uint64_t)time(NULL) + 7200) * 1000));
  CHECK(left(request) <= 2 * HOUR && left(request) > HOUR);
  OK(leasehold_request_set_lease_forever(request));
  CHECK(left(request) == UINT64_MAX);
  OK(leasehold_request_try_lock(request, &guard));
  leasehold_list list = {0};
  leasehold_status unending;
  uint64_t highest = 0;
  OK(leasehold_client_get(client, TEXT("of a request"), &highest, &list));
  OK(leasehold_list_status(list, 0, &unending, sizeof unending));
  CHECK(unending.remaining_ms == UINT64_MAX && unending.leased_until_ms == UINT64_MAX && unending.token == highest);
  OK(leasehold_list_free(list));
  OK(leasehold_guard_free(guard));
  OK(leasehold_request_free(request));

  OK(leasehold_request_new(client, TEXT("of a request"), &request));
  OK(leasehold_request_set_shared(request));
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_guard_mode(guard, &mode));
  CHECK(mode == LEASEHOLD_MODE_SHARED && status_of(guard).mode == LEASEHOLD_MODE_SHARED);
  OK(leasehold_request_set_max_holders(request, 1));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_try_lock(request, &none));
  OK(leasehold_guard_free(guard));
  OK(leasehold_request_free(request));

  /* Any order would give them all in turn. */
  OK(leasehold_request_new_any(client, &request));
  OK(leasehold_request_add_key(request, TEXT("first")));
  OK(leasehold_request_add_key(request, TEXT("second")));
  OK(leasehold_request_set_in_order(request));
  for (int i = 0; i < 30; i++) {
    OK(leasehold_request_try_lock(request, &guard));
    is_text(guard, LEASEHOLD_TEXT_KEY, "first");
    OK(leasehold_guard_free(guard));
  }
  OK(leasehold_request_free(request));
}

/* How many locks fit. */
static size_t found(leasehold_filter filter) {
  leasehold_list list = {0};
  size_t len = 0;
  OK(leasehold_client_list(client, filter, &list));
  OK(leasehold_list_len(list, &len));
  OK(leasehold_list_free(list));
  OK(leasehold_filter_free(filter));
  return len;
}

static leasehold_filter all(void) {
  leasehold_filter filter = {0};
  OK(leasehold_filter_new(&filter));
  OK(leasehold_filter_set_key_prefix(filter, TEXT("list/")));
  return filter;
}

#define FINDS(n, call)                                                                                                 \
  do {                                                                                                                 \
    leasehold_filter f = all();                                                                                        \
    OK(call);                                                                                                          \
    CHECK(found(f) == (n));                                                                                            \
  } while (0)

/* One that is held alone, one that is shared, one that is over. */
static void of_filters(void) {
  const char *keys[] = {"list/exclusive", "list/shared", "list/over"};
  leasehold_lock locks[3];
  uint64_t now = (uint64_t)time(NULL) * 1000;
  for (int i = 0; i < 3; i++) {
    leasehold_request request = {0};
    OK(leasehold_request_new(client, TEXT(keys[i]), &request));
    OK(leasehold_request_set_owner(request, TEXT(keys[i])));
    OK(leasehold_request_set_lock_id(request, TEXT(keys[i])));
    OK(leasehold_request_set_lease(request, i == 2 ? 1000 : HOUR));
    if (i == 1) {
      OK(leasehold_request_set_shared(request));
    }
    OK(leasehold_request_acquire(request, &locks[i]));
    OK(leasehold_request_free(request));
  }
  leasehold_filter over = {0};
  do {
    over = all();
    OK(leasehold_filter_set_expired(over));
  } while (found(over) == 0);
  CHECK(found(all()) == 3);
  FINDS(1, leasehold_filter_set_key(f, TEXT("list/shared")));
  FINDS(1, leasehold_filter_set_key_prefix(f, TEXT("list/o")));
  FINDS(1, leasehold_filter_set_lock_id(f, TEXT("list/over")));
  FINDS(1, leasehold_filter_set_owner(f, TEXT("list/exclusive")));
  FINDS(2, leasehold_filter_set_exclusive(f));
  FINDS(1, leasehold_filter_set_shared(f));
  FINDS(2, leasehold_filter_set_live(f));
  FINDS(1, leasehold_filter_set_expired(f));
  FINDS(0, leasehold_filter_set_created_before(f, now - HOUR));
  FINDS(3, leasehold_filter_set_created_before(f, now + HOUR));
  FINDS(3, leasehold_filter_set_created_after(f, now - HOUR));
  FINDS(0, leasehold_filter_set_created_after(f, now + HOUR));
  FINDS(1, leasehold_filter_set_remaining_below(f, HOUR / 2));
  FINDS(2, leasehold_filter_set_remaining_at_least(f, HOUR / 2));
  /* A renewal of what is held as data is noted in it. */
  leasehold_status status;
  OK(leasehold_client_heartbeat(client, locks[0], 2 * HOUR));
  OK(leasehold_lock_status(locks[0], &status, sizeof status));
  CHECK(status.renewed_ms >= status.created_ms && status.remaining_ms > HOUR);
  for (int i = 0; i < 3; i++) {
    OK(leasehold_client_release(client, locks[i]));
    OK(leasehold_lock_free(locks[i]));
  }
  CHECK(found(all()) == 0);
}

static void of_elections(void) {
  leasehold_election election = {0};
  leasehold_leadership term = {0};
  leasehold_guard guard = {0};
  uint64_t ms = 0;
  OK(leasehold_election_new(client, TEXT("elected"), &election));
  OK(leasehold_election_set_lease(election, HOUR));
  OK(leasehold_election_campaign_for(election, 60000, &term));
  OK(leasehold_leadership_remaining(term, &ms));
  CHECK(ms > HOUR / 2 && ms <= HOUR);
  OK(leasehold_leadership_free(term)); /* resigns */
  OK(leasehold_election_free(election));

  OK(leasehold_election_new(client, TEXT("elected"), &election));
  OK(leasehold_election_set_max_hold(election, 100));
  OK(leasehold_election_campaign_for(election, 60000, &term));
  OK(leasehold_leadership_wait_loss(term, UINT64_MAX));
  OK(leasehold_leadership_free(term));
  OK(leasehold_election_free(election));

  OK(leasehold_election_new(client, TEXT("elected"), &election));
  OK(leasehold_election_set_max_hold(election, 100));
  OK(leasehold_election_set_once(election));
  OK(leasehold_client_lock(client, TEXT("elected"), &guard)); /* else the term might be over when it is run again */
  OK(leasehold_election_run(election));
  EXPECT(LEASEHOLD_CODE_ALREADY_HELD, leasehold_election_run(election));
  OK(leasehold_guard_free(guard));
  OK(leasehold_election_wait(election)); /* for one term */
  OK(leasehold_election_run(election));
  OK(leasehold_election_free(election));
}

static void never(const leasehold_waiting *waiting, void *user) {
  (void)waiting, (void)user;
  CHECK(!"it was taken back");
}

/* None is none, and what the client itself ended is not lost. */
static void of_ends(const char *url) {
  leasehold_client other = connected(url);
  leasehold_request request = {0};
  leasehold_guard guard = {0};
  leasehold_guards guards = {0};
  OK(leasehold_request_new(other, TEXT("ended"), &request));
  OK(leasehold_request_set_on_wait(request, 10, never, NULL));
  OK(leasehold_request_set_on_wait(request, 0, NULL, NULL));
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_request_free(request));
  OK(leasehold_request_new_all(other, &request));
  OK(leasehold_request_add_key(request, TEXT("a")));
  OK(leasehold_request_add_key(request, TEXT("b")));
  OK(leasehold_request_lock_all(request, &guards));
  OK(leasehold_client_close(other));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_ensure_held(guard));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guards_ensure_held(guards));
  OK(leasehold_request_free(request));
  OK(leasehold_guard_free(guard));
  OK(leasehold_guards_free(guards));
  OK(leasehold_client_free(other));
}

/* How many holders a list has, which is freed. */
static size_t len_of(leasehold_list list) {
  size_t len = 0;
  OK(leasehold_list_len(list, &len));
  OK(leasehold_list_free(list));
  return len;
}

/* Others do not get what its holder has released. */
static void stands(const char *key) {
  leasehold_guard guard = {0};
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(client, TEXT(key), &guard));
}

static void of_minimum_holds(void) {
  leasehold_request request = {0};
  leasehold_guard guard = {0};
  leasehold_guards guards = {0};
  leasehold_lock lock = {0};
  OK(leasehold_request_new(client, TEXT("least"), &request));
  OK(leasehold_request_set_hold_at_least(request, HOUR));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_request_acquire(request, &lock));
  OK(leasehold_request_try_lock(request, &guard));
  OK(leasehold_guard_release(guard));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_hold_at_least(guard, HOUR));
  OK(leasehold_guard_free(guard));
  OK(leasehold_request_free(request));
  stands("least");
  /* Also once the work is done. */
  OK(leasehold_client_try_lock(client, TEXT("done"), &guard));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_guard_hold_at_least(guard, UINT64_MAX));
  OK(leasehold_guard_hold_at_least(guard, HOUR));
  OK(leasehold_guard_free(guard));
  stands("done");
  OK(leasehold_request_new_all(client, &request));
  OK(leasehold_request_add_key(request, TEXT("both-1")));
  OK(leasehold_request_add_key(request, TEXT("both-2")));
  OK(leasehold_request_try_lock_all(request, &guards));
  OK(leasehold_guards_hold_at_least(guards, HOUR));
  OK(leasehold_guards_release(guards));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guards_hold_at_least(guards, HOUR));
  OK(leasehold_guards_free(guards));
  OK(leasehold_request_free(request));
  stands("both-1");
  stands("both-2");
}

/* What all of several locks have together. */
static void of_several(void) {
  leasehold_request request = {0};
  leasehold_guards guards = {0};
  char lock_id[64];
  OK(leasehold_request_new_all(client, &request));
  OK(leasehold_request_add_key(request, TEXT("several-1")));
  OK(leasehold_request_add_key(request, TEXT("several-2")));
  OK(leasehold_request_set_lock_id(request, TEXT("their group")));
  OK(leasehold_request_try_lock_all(request, &guards));
  OK(leasehold_guards_lock_id(guards, lock_id, sizeof lock_id, NULL));
  CHECK(strcmp(lock_id, "their group") == 0);
  OK(leasehold_guards_free(guards));
  OK(leasehold_request_free(request));
}

static void of_previews(void) {
  leasehold_client other = connected("memory:preview");
  leasehold_request request = {0};
  leasehold_lock lock = {0};
  leasehold_list list = {0};
  size_t expired = 0;
  OK(leasehold_request_new(other, TEXT("expires"), &request));
  OK(leasehold_request_set_lease(request, 100));
  OK(leasehold_request_acquire(request, &lock));
  OK(leasehold_request_free(request));
  OK(leasehold_lock_free(lock));
  while (expired == 0) {
    OK(leasehold_client_purge_preview(other, 0, &list));
    expired = len_of(list);
    const struct timespec pause = {0, 10 * 1000 * 1000};
    nanosleep(&pause, NULL);
  }
  /* Nothing was written. */
  OK(leasehold_client_purge(other, 0, &list));
  CHECK(expired == 1 && len_of(list) == 1);
  OK(leasehold_client_purge_preview(other, 0, &list));
  CHECK(len_of(list) == 0);
  OK(leasehold_client_free(other));
}

/* A lease that a thread extends. */
static void of_keepers(leasehold_leases leases) {
  leasehold_keeper keeper = {0}, other = {0};
  leasehold_reason reason = LEASEHOLD_REASON_GONE;
  uint64_t claimed = 0, token = 0, ms = 0;
  bool held = false;
  char text[256];
  EXPECT(LEASEHOLD_CODE_INVALID_LEASE, leasehold_leases_keep(leases, TEXT("kept"), TEXT("unit/0"), HOUR, &keeper));
  OK(leasehold_leases_claim(leases, TEXT("kept"), TEXT("unit/0"), 1000, &claimed));
  OK(leasehold_leases_keep(leases, TEXT("kept"), TEXT("unit/0"), 9000, &keeper));
  OK(leasehold_leases_keep(leases, TEXT("kept"), TEXT("unit/0"), HOUR, &other));
  OK(leasehold_keeper_is_held(keeper, &held));
  OK(leasehold_keeper_ensure_held(keeper));
  OK(leasehold_keeper_token(keeper, &token));
  OK(leasehold_keeper_remaining(other, &ms));
  OK(leasehold_keeper_loss(keeper, &reason, text, sizeof text, NULL));
  CHECK(held && token == claimed && ms > HOUR / 2 && reason == LEASEHOLD_REASON_NONE && text[0] == 0);
  EXPECT(LEASEHOLD_CODE_TIMED_OUT, leasehold_keeper_wait_loss(keeper, 10));
  OK(leasehold_keeper_free(other));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_keeper_wait_loss(other, UINT64_MAX));
  /* A heartbeat finds it out. */
  OK(leasehold_leases_revoke(leases, TEXT("kept"), TEXT("unit/0")));
  OK(leasehold_keeper_wait_loss(keeper, UINT64_MAX));
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_keeper_ensure_held(keeper));
  OK(leasehold_keeper_loss(keeper, &reason, text, sizeof text, NULL));
  OK(leasehold_keeper_is_held(keeper, &held));
  OK(leasehold_keeper_remaining(keeper, &ms));
  CHECK(reason != LEASEHOLD_REASON_NONE && text[0] != 0 && !held && ms == 0);
  OK(leasehold_keeper_free(keeper));
}

/* A lease that a name holds. */
static void of_leases(void) {
  leasehold_client other = connected("memory:leases");
  leasehold_leases leases = {0};
  leasehold_list list = {0};
  leasehold_cancel cancel = {0};
  const leasehold_cancel none = {0};
  leasehold_status status;
  uint64_t token = 0, unused = 0;
  char text[32];
  OK(leasehold_leases_new(other, TEXT("leader"), &leases));
  OK(leasehold_client_free(other)); /* the namespace keeps it */
  OK(leasehold_leases_claim(leases, TEXT("app"), TEXT("unit/0"), HOUR, &token));
  CHECK(token > 0);
  EXPECT(LEASEHOLD_CODE_INVALID_LEASE, leasehold_leases_claim(leases, TEXT("app"), TEXT("unit/1"), HOUR, &unused));
  OK(leasehold_error_holder(text, sizeof text, NULL));
  CHECK(strcmp(text, "unit/0") == 0);
  OK(leasehold_error_holders(&list));
  OK(leasehold_list_text(list, 0, LEASEHOLD_TEXT_OWNER, text, sizeof text, NULL));
  CHECK(strcmp(text, "unit/0") == 0 && len_of(list) == 1 && unused == 0);
  OK(leasehold_leases_extend(leases, TEXT("app"), TEXT("unit/0"), 2 * HOUR));
  EXPECT(LEASEHOLD_CODE_INVALID_LEASE, leasehold_leases_extend(leases, TEXT("app"), TEXT("unit/1"), HOUR));
  EXPECT(LEASEHOLD_CODE_INVALID_LEASE, leasehold_leases_expire(leases, TEXT("app")));
  OK(leasehold_leases_get(leases, TEXT("app"), &list));
  OK(leasehold_list_status(list, 0, &status, sizeof status));
  CHECK(status.token == token && status.remaining_ms > HOUR && status.renewed_ms > 0);
  OK(leasehold_list_text(list, 0, LEASEHOLD_TEXT_KEY, text, sizeof text, NULL));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_list_text(list, 0, LEASEHOLD_TEXT_LOCK_ID, NULL, 0, NULL));
  CHECK(strcmp(text, "app") == 0 && len_of(list) == 1);
  OK(leasehold_cancel_new(&cancel));
  OK(leasehold_cancel_fire(cancel));
  EXPECT(LEASEHOLD_CODE_CANCELLED, leasehold_leases_wait_until_expired(leases, TEXT("app"), cancel));
  OK(leasehold_cancel_free(cancel));
  EXPECT(LEASEHOLD_CODE_INVALID_LEASE, leasehold_leases_revoke(leases, TEXT("app"), TEXT("unit/1")));
  OK(leasehold_leases_revoke(leases, TEXT("app"), TEXT("unit/0")));
  OK(leasehold_leases_get(leases, TEXT("app"), &list));
  CHECK(len_of(list) == 0);
  /* One whose time is over lasts until somebody expires it, and nobody may while it is pinned. */
  OK(leasehold_leases_claim(leases, TEXT("short"), TEXT("unit/0"), 100, &token));
  OK(leasehold_leases_pinned_by(leases, TEXT("short"), &list));
  CHECK(len_of(list) == 0);
  OK(leasehold_leases_pin(leases, TEXT("short"), TEXT("me")));
  OK(leasehold_leases_pinned_by(leases, TEXT("short"), &list));
  OK(leasehold_list_text(list, 0, LEASEHOLD_TEXT_OWNER, text, sizeof text, NULL));
  CHECK(strcmp(text, "me") == 0);
  OK(leasehold_list_text(list, 0, LEASEHOLD_TEXT_KEY, text, sizeof text, NULL));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_list_status(list, 0, &status, sizeof status));
  CHECK(strcmp(text, "short") == 0 && len_of(list) == 1);
  OK(leasehold_leases_wait_until_expired(leases, TEXT("short"), none));
  EXPECT(LEASEHOLD_CODE_INVALID_LEASE, leasehold_leases_expire(leases, TEXT("short")));
  OK(leasehold_leases_unpin(leases, TEXT("short"), TEXT("me")));
  OK(leasehold_leases_list(leases, &list));
  CHECK(len_of(list) == 1);
  OK(leasehold_leases_expire(leases, TEXT("short")));
  of_keepers(leases);
  OK(leasehold_leases_free(leases));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(600); /* what is not set may be waited for without end */
  client = connected(argv[1]);
  of_clients(argv[1]);
  of_requests();
  of_filters();
  of_elections();
  of_minimum_holds();
  of_several();
  of_previews();
  of_leases();
  of_ends(argv[1]);
  OK(leasehold_client_free(client));
  printf("proof: every option did what it says\n");
  return 0;
}
