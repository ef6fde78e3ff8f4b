/* What the library says by itself: messages, events, waits, losses of several locks, and who leads. */
#include <pthread.h>
#include <unistd.h>

#include "check.h"

enum { KINDS = LEASEHOLD_EVENT_KIND_RELEASED_DATA + 1 };

struct seen {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  leasehold_client client;
  leasehold_request request;
  leasehold_cancel cancel;
  leasehold_log log;
  int messages, granted, warnings, losses, leaders, won, lost, waits, checks;
  int events[KINDS];
  bool healthy;
};

static struct seen seen;
/* Set while a callback of events asks the store itself. */
static pthread_key_t inside;

static void changed(void) {
  pthread_cond_broadcast(&seen.changed);
  pthread_mutex_unlock(&seen.mutex);
}

static void wait_until(const int *count, int wanted) {
  pthread_mutex_lock(&seen.mutex);
  while (*count < wanted) {
    pthread_cond_wait(&seen.changed, &seen.mutex);
  }
  pthread_mutex_unlock(&seen.mutex);
}

static int now(const int *count) {
  pthread_mutex_lock(&seen.mutex);
  int value = *count;
  pthread_mutex_unlock(&seen.mutex);
  return value;
}

/* Locks something itself, of which it is not told. */
static void on_log(const leasehold_log_record *record, void *user) {
  CHECK(user == &seen && record->size >= sizeof *record);
  CHECK(strlen(record->target) == record->target_len && strncmp(record->target, "leasehold", 9) == 0);
  CHECK(strlen(record->text) == record->text_len && record->text_len > 0);
  CHECK(record->level >= LEASEHOLD_LOG_LEVEL_ERROR && record->level <= LEASEHOLD_LOG_LEVEL_DEBUG);
  CHECK(strstr(record->text, "in a callback") == NULL);
  leasehold_guard guard = {0};
  if (leasehold_client_try_lock(seen.client, "in a callback", SIZE_MAX, &guard) == LEASEHOLD_CODE_OK) {
    OK(leasehold_guard_free(guard));
  }
  pthread_mutex_lock(&seen.mutex);
  seen.messages++;
  seen.granted += strstr(record->text, "granted") != NULL && strstr(record->text, "of a message") != NULL;
  seen.warnings += record->level <= LEASEHOLD_LOG_LEVEL_WARN;
  changed();
}

static void gets_warnings(const leasehold_log_record *record, void *user) {
  CHECK(record->level <= LEASEHOLD_LOG_LEVEL_WARN && user == NULL);
}

static void frees_itself(const leasehold_log_record *record, void *user) {
  CHECK(record->level == LEASEHOLD_LOG_LEVEL_DEBUG && user == NULL);
  OK(leasehold_log_free(seen.log));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_log_free(seen.log));
}

static void on_event(const leasehold_event *event, void *user) {
  CHECK(user == &seen && event->size >= sizeof *event && event->kind > 0);
  CHECK(strlen(event->key) == event->key_len && strlen(event->text) == event->text_len);
  CHECK(strlen(event->operation) == event->operation_len);
  bool requests = event->kind == LEASEHOLD_EVENT_KIND_REQUEST;
  CHECK(requests == (event->operation_len > 0) || event->kind == LEASEHOLD_EVENT_KIND_UNKNOWN);
  CHECK(event->kind != LEASEHOLD_EVENT_KIND_GRANTED || event->token > 0);
  CHECK((event->kind == LEASEHOLD_EVENT_KIND_LOST) <= (event->token > 0 && event->text_len > 0));
  if (event->kind == LEASEHOLD_EVENT_KIND_GRANTED && pthread_getspecific(inside) == NULL) {
    uint64_t token = 0;
    leasehold_list list = {0};
    CHECK(pthread_setspecific(inside, &seen) == 0);
    OK(leasehold_client_get(seen.client, event->key, event->key_len, &token, &list));
    OK(leasehold_list_free(list));
    CHECK(token == event->token && pthread_setspecific(inside, NULL) == 0);
  }
  pthread_mutex_lock(&seen.mutex);
  if ((int)event->kind < KINDS) {
    seen.events[event->kind]++;
  }
  changed();
}

static void closes(const leasehold_event *event, void *user) {
  (void)user;
  if (event->kind == LEASEHOLD_EVENT_KIND_GRANTED) {
    OK(leasehold_client_close(seen.client));
    pthread_mutex_lock(&seen.mutex);
    seen.won++;
    changed();
  }
}

/* Ends its own wait, and frees what it waits by. */
static void on_wait(const leasehold_waiting *waiting, void *user) {
  CHECK(user == &seen && waiting->size >= sizeof *waiting && strcmp(waiting->key, "waited for") == 0);
  CHECK(strcmp(waiting->holder, "holder") == 0 && waiting->holder_len == 6 && waiting->text_len == 0);
  CHECK(waiting->held_by_this_client && waiting->left_ms <= 60000 && waiting->waited_ms < 60000);
  if (++seen.waits == 2) {
    OK(leasehold_cancel_fire(seen.cancel));
    OK(leasehold_request_free(seen.request));
  }
}

static void on_loss(const leasehold_loss *loss, void *user) {
  CHECK(user == &seen && loss->size >= sizeof *loss && strcmp(loss->key, "b") == 0);
  pthread_mutex_lock(&seen.mutex);
  seen.losses++;
  changed();
}

static bool is_healthy(void *user) {
  CHECK(user == &seen);
  pthread_mutex_lock(&seen.mutex);
  bool healthy = seen.healthy;
  seen.checks++;
  changed();
  return healthy;
}

static void on_leader(uint64_t token, const char *id, size_t id_len, void *user) {
  CHECK(token > 0 && strlen(id) == id_len && strcmp(id, "node 1") == 0 && user == &seen);
  pthread_mutex_lock(&seen.mutex);
  seen.leaders++;
  changed();
}

static void on_lost(uint64_t token, const char *text, size_t text_len, void *user) {
  CHECK(token > 0 && strlen(text) == text_len && user == &seen);
  pthread_mutex_lock(&seen.mutex);
  seen.lost++;
  changed();
}

static size_t freed(leasehold_list list) {
  size_t len = 0;
  OK(leasehold_list_len(list, &len));
  OK(leasehold_list_free(list));
  return len;
}

static void of_messages(void) {
  leasehold_log log = {0}, calm = {0};
  leasehold_guard guard = {0};
  OK(leasehold_log_new(LEASEHOLD_LOG_LEVEL_DEBUG, on_log, &seen, &log));
  OK(leasehold_log_new(LEASEHOLD_LOG_LEVEL_WARN, gets_warnings, NULL, &calm)); /* beside one that gets more */
  OK(leasehold_client_lock(seen.client, TEXT("of a message"), &guard));
  CHECK(now(&seen.granted) == 1 && now(&seen.warnings) == 0);
  OK(leasehold_guard_free(guard));
  OK(leasehold_log_new(LEASEHOLD_LOG_LEVEL_DEBUG, frees_itself, NULL, &seen.log));
  OK(leasehold_client_lock(seen.client, TEXT("of a message"), &guard));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_log_free(seen.log));
  OK(leasehold_guard_free(guard));
  OK(leasehold_log_free(log));
  OK(leasehold_log_free(calm));

  int before = now(&seen.messages);
  OK(leasehold_log_new(LEASEHOLD_LOG_LEVEL_WARN, on_log, &seen, &calm));
  OK(leasehold_client_lock(seen.client, TEXT("of a message"), &guard));
  CHECK(now(&seen.messages) == before);
  leasehold_list list = {0};
  OK(leasehold_client_force_release(seen.client, TEXT("of a message"), &list));
  CHECK(freed(list) == 1);
  OK(leasehold_guard_wait_loss(guard, 60000));
  wait_until(&seen.warnings, 1);
  OK(leasehold_guard_free(guard));
  OK(leasehold_log_free(calm));
  before = now(&seen.messages);
  OK(leasehold_client_lock(seen.client, TEXT("of a message"), &guard));
  OK(leasehold_guard_free(guard));
  CHECK(now(&seen.messages) == before);
}

static void of_waits(void) {
  leasehold_request holder = {0};
  leasehold_guard held = {0}, none = {0};
  OK(leasehold_request_new(seen.client, TEXT("waited for"), &holder));
  OK(leasehold_request_set_owner(holder, TEXT("holder")));
  OK(leasehold_request_lock(holder, &held));
  OK(leasehold_request_free(holder));
  OK(leasehold_cancel_new(&seen.cancel));
  OK(leasehold_request_new(seen.client, TEXT("waited for"), &seen.request));
  OK(leasehold_request_set_cancel(seen.request, seen.cancel));
  OK(leasehold_request_set_wait(seen.request, 60000));
  OK(leasehold_request_set_on_wait(seen.request, 10, on_wait, &seen));
  EXPECT(LEASEHOLD_CODE_CANCELLED, leasehold_request_lock(seen.request, &none));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_request_free(seen.request));
  CHECK(seen.waits >= 2 && none.id == 0);
  OK(leasehold_cancel_free(seen.cancel));
  OK(leasehold_guard_free(held));
}

static void of_several(void) {
  leasehold_request request = {0};
  leasehold_guards guards = {0}, none = {0};
  leasehold_list list = {0};
  leasehold_guard guard = {0};
  char key[8], lock_id[64];
  uint64_t token = 0, ms = 0;
  size_t len = 0;
  bool held = false;
  OK(leasehold_request_new_all(seen.client, &request));
  OK(leasehold_request_add_key(request, TEXT("b")));
  OK(leasehold_request_add_key(request, TEXT("a")));
  OK(leasehold_request_set_comment(request, TEXT("together")));
  OK(leasehold_request_set_wait(request, 60000)); /* which only a call that waits goes by */
  OK(leasehold_request_set_on_loss(request, on_loss, &seen));
  OK(leasehold_request_try_lock_all(request, &guards));
  OK(leasehold_guards_len(guards, &len));
  CHECK(len == 2);
  OK(leasehold_guards_key(guards, 0, key, sizeof key, NULL));
  CHECK(strcmp(key, "a") == 0);
  OK(leasehold_guards_token(guards, 1, &token));
  OK(leasehold_guards_remaining(guards, &ms));
  OK(leasehold_guards_is_held(guards, &held));
  CHECK(token > 0 && ms > 0 && held);
  OK(leasehold_guards_ensure_held(guards));
  OK(leasehold_client_get(seen.client, TEXT("b"), &token, &list));
  OK(leasehold_list_text(list, 0, LEASEHOLD_TEXT_COMMENT, lock_id, sizeof lock_id, NULL));
  CHECK(strcmp(lock_id, "together") == 0 && freed(list) == 1);
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_try_lock_all(request, &none));
  OK(leasehold_error_key(key, sizeof key, NULL));
  CHECK(strcmp(key, "a") == 0 && leasehold_error_held_by_this_client());
  RUNS_OUT(limit, 1000, (OK(leasehold_request_set_wait(request, limit)), leasehold_request_lock_all(request, &none)));
  CHECK(none.id == 0);

  /* One of them is lost: that is told once, and the other one is held on. */
  OK(leasehold_guards_lock_id(guards, lock_id, sizeof lock_id, NULL));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_unlock_key(seen.client, TEXT("b"), TEXT("another"), &list));
  OK(leasehold_client_unlock_key(seen.client, TEXT("b"), lock_id, SIZE_MAX, &list));
  CHECK(freed(list) == 1);
  wait_until(&seen.losses, 1);
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guards_ensure_held(guards));
  OK(leasehold_guards_is_held(guards, &held));
  CHECK(!held);
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(seen.client, TEXT("a"), &guard));
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guards_release(guards));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guards_release(guards));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guards_ensure_held(guards));
  OK(leasehold_client_try_lock(seen.client, TEXT("a"), &guard));
  OK(leasehold_guard_free(guard));
  OK(leasehold_guards_free(guards));
  CHECK(now(&seen.losses) == 1);

  /* Freeing releases. */
  OK(leasehold_request_set_wait(request, 60000));
  OK(leasehold_request_lock_all(request, &guards));
  OK(leasehold_guards_free(guards));
  OK(leasehold_request_try_lock_all(request, &guards));
  OK(leasehold_guards_release(guards));
  OK(leasehold_guards_free(guards));
  OK(leasehold_request_free(request));
}

static void of_elections(void) {
  leasehold_election election = {0};
  OK(leasehold_election_new(seen.client, TEXT("job"), &election));
  OK(leasehold_election_set_id(election, TEXT("node 1")));
  OK(leasehold_election_set_lease(election, 1000));
  OK(leasehold_election_set_on_leader(election, on_leader, &seen));
  OK(leasehold_election_set_on_lost(election, on_lost, &seen));
  OK(leasehold_election_set_health_check(election, is_healthy, &seen));
  OK(leasehold_election_run(election));
  wait_until(&seen.checks, 1);
  pthread_mutex_lock(&seen.mutex);
  CHECK(seen.leaders == 0);
  seen.healthy = true;
  pthread_mutex_unlock(&seen.mutex);
  wait_until(&seen.leaders, 1);
  pthread_mutex_lock(&seen.mutex);
  seen.healthy = false;
  pthread_mutex_unlock(&seen.mutex);
  wait_until(&seen.lost, 1);
  OK(leasehold_election_free(election));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(600); /* what waits for itself ends the program */
  CHECK(pthread_mutex_init(&seen.mutex, NULL) == 0 && pthread_cond_init(&seen.changed, NULL) == 0);
  CHECK(pthread_key_create(&inside, NULL) == 0);
  leasehold_builder builder = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, argv[1], SIZE_MAX, &builder));
  OK(leasehold_builder_set_heartbeat(builder, 500)); /* which learns of a loss */
  OK(leasehold_builder_set_request_timeout(builder, 60000));
  OK(leasehold_builder_set_drop_timeout(builder, 60000));
  OK(leasehold_builder_set_on_event(builder, on_event, &seen));
  OK(leasehold_builder_connect(builder, &seen.client));
  of_messages();
  of_waits();
  of_several();
  of_elections();
  char text[2048];
  bool well = false;
  OK(leasehold_client_diagnose(seen.client, &well, text, sizeof text, NULL));
  CHECK(well && strstr(text, "acquire a lock: allowed") != NULL && strncmp(text, "store: ", 7) == 0 && is_of(text + 7, argv[1]));

  OK(leasehold_client_close(seen.client));
  pthread_mutex_lock(&seen.mutex);
  int *events = seen.events;
  CHECK(events[LEASEHOLD_EVENT_KIND_REQUEST] > 0 && events[LEASEHOLD_EVENT_KIND_REFUSED] > 0);
  CHECK(events[LEASEHOLD_EVENT_KIND_WAIT_BEGAN] > 0 && events[LEASEHOLD_EVENT_KIND_LOST] >= 2);
  CHECK(events[LEASEHOLD_EVENT_KIND_WAIT_BEGAN] == events[LEASEHOLD_EVENT_KIND_WAIT_ENDED]);
  CHECK(events[LEASEHOLD_EVENT_KIND_GRANTED] ==
        events[LEASEHOLD_EVENT_KIND_RELEASED] + events[LEASEHOLD_EVENT_KIND_LOST] + events[LEASEHOLD_EVENT_KIND_LEFT]);
  pthread_mutex_unlock(&seen.mutex);
  OK(leasehold_client_free(seen.client));

  /* An event that closes its own client. */
  leasehold_guard guard = {0};
  OK(leasehold_builder_set_on_event(builder, closes, NULL));
  OK(leasehold_builder_connect(builder, &seen.client));
  (void)(leasehold_client_lock(seen.client, TEXT("closes"), &guard) == LEASEHOLD_CODE_OK);
  wait_until(&seen.won, 1);
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_client_lock(seen.client, TEXT("closes"), &guard));
  if (guard.id != 0) {
    OK(leasehold_guard_free(guard));
  }
  OK(leasehold_client_free(seen.client));
  OK(leasehold_builder_free(builder));
  printf("proof: messages, events, waits, losses and leaders were told\n");
  return 0;
}
