/* Somebody else ends a lock; its holder is called. */
#include <pthread.h>

#include "check.h"

struct seen {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  leasehold_guard guard; /* to be freed by the callback, if not zero */
  leasehold_reason reason;
  uint64_t token;
  char key[64];
  int calls;
};

/* Runs on a thread of the library's. */
static void on_loss(const leasehold_loss *loss, void *user) {
  struct seen *seen = (struct seen *)user;
  pthread_mutex_lock(&seen->mutex);
  seen->reason = loss->reason;
  seen->token = loss->token;
  CHECK(loss->key_len == strlen(loss->key) && loss->text_len == strlen(loss->text) && loss->text_len > 0);
  snprintf(seen->key, sizeof seen->key, "%s", loss->key);
  leasehold_guard guard = seen->guard;
  pthread_mutex_unlock(&seen->mutex);
  if (guard.id != 0) {
    OK(leasehold_guard_free(guard));
  }
  pthread_mutex_lock(&seen->mutex);
  seen->calls++;
  pthread_cond_broadcast(&seen->changed);
  pthread_mutex_unlock(&seen->mutex);
}

static void wait_for_calls(struct seen *seen, int calls) {
  pthread_mutex_lock(&seen->mutex);
  while (seen->calls < calls) {
    pthread_cond_wait(&seen->changed, &seen->mutex);
  }
  pthread_mutex_unlock(&seen->mutex);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  leasehold_builder builder = {0};
  leasehold_client client = {0};
  leasehold_request request = {0};
  leasehold_guard guard = {0};
  leasehold_list ended = {0};
  uint64_t token = 0;
  struct seen seen;
  memset(&seen, 0, sizeof seen);
  CHECK(pthread_mutex_init(&seen.mutex, NULL) == 0 && pthread_cond_init(&seen.changed, NULL) == 0);

  /* A heartbeat that comes late, on a slow machine, still finds out why the lock is lost: its lease is much longer. */
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(argv[1]), &builder));
  OK(leasehold_builder_set_request_timeout(builder, 60000));
  OK(leasehold_builder_set_drop_timeout(builder, 60000));
  OK(leasehold_builder_set_heartbeat(builder, 1000));
  OK(leasehold_builder_connect(builder, &client));
  OK(leasehold_builder_free(builder));
  OK(leasehold_request_new(client, TEXT("report"), &request));
  OK(leasehold_request_set_lock_id(request, TEXT("group-7")));
  OK(leasehold_request_set_lease(request, 60000));
  OK(leasehold_request_set_on_loss(request, on_loss, &seen));

  /* An operator ends the lock; the next heartbeat learns of it. */
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_guard_token(guard, &token));
  OK(leasehold_client_unlock_group(client, TEXT("group-7"), &ended));
  OK(leasehold_list_free(ended));
  wait_for_calls(&seen, 1);
  CHECK(seen.token == token && strcmp(seen.key, "report") == 0);
  CHECK(seen.reason == LEASEHOLD_REASON_RELEASED_BY_OTHER);
  leasehold_reason reason;
  char text[128];
  bool held = true;
  OK(leasehold_guard_loss(guard, &reason, text, sizeof text, NULL));
  CHECK(reason == LEASEHOLD_REASON_RELEASED_BY_OTHER && strlen(text) > 0);
  OK(leasehold_guard_is_held(guard, &held));
  CHECK(!held);
  OK(leasehold_guard_wait_loss(guard, 0));
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_ensure_held(guard));
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_release(guard));
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_release(guard)); /* and stays so */
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_ensure_held(guard));
  OK(leasehold_guard_free(guard));

  /* A worker that hangs; this time the callback frees the guard. */
  OK(leasehold_request_set_max_hold(request, 200));
  pthread_mutex_lock(&seen.mutex);
  OK(leasehold_request_lock(request, &seen.guard));
  guard = seen.guard;
  pthread_mutex_unlock(&seen.mutex);
  wait_for_calls(&seen, 2);
  CHECK(seen.reason == LEASEHOLD_REASON_MAX_HOLD);
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_guard_free(guard));

  /* Never after a release: no further call, however long the lock would have been held. */
  seen.guard.id = 0;
  int calls = 2;
  for (;;) {
    OK(leasehold_request_lock(request, &guard));
    leasehold_code code = leasehold_guard_release(guard);
    if (code == LEASEHOLD_CODE_OK) break;
    /* Held for as long as it may be before a slow machine released it. */
    CHECK(code == LEASEHOLD_CODE_LOST && calls < 50);
    wait_for_calls(&seen, ++calls);
    OK(leasehold_guard_free(guard));
  }
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_wait_loss(guard, 5000));
  OK(leasehold_guard_free(guard));
  OK(leasehold_request_free(request));
  OK(leasehold_client_close(client));
  OK(leasehold_client_free(client));
  CHECK(seen.calls == calls);
  printf("proof: called at each loss, once, with its reason, and never after a release\n");
  return 0;
}
