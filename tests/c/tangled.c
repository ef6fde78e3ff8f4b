/* Callbacks that end what they are told of, while others do the same: nobody waits for himself, or in a circle. */
#include <pthread.h>
#include <unistd.h>

#include "check.h"

enum { LOCKS = 8, HOUR = 3600 * 1000 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static leasehold_guard guard;
static leasehold_client client;
/* When it is to be freed or released. */
static leasehold_event_kind when;
static leasehold_code (*end)(leasehold_guard guard);
static int inside, through;
/* Only what is told inside its calls is for `ends` and `logs`. */
static pthread_t main_thread;

static void count(int *number) {
  pthread_mutex_lock(&mutex);
  ++*number;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void wait_until(const int *number, int wanted) {
  pthread_mutex_lock(&mutex);
  while (*number < wanted) {
    pthread_cond_wait(&changed, &mutex);
  }
  pthread_mutex_unlock(&mutex);
}

static int now(const int *number) {
  pthread_mutex_lock(&mutex);
  int value = *number;
  pthread_mutex_unlock(&mutex);
  return value;
}

/* A store that is slow for a moment costs a callback of this no more than `drop`. */
static leasehold_client client_with(const char *url, uint64_t lease, uint64_t heartbeat, uint64_t drop,
                                    leasehold_on_event on_event) {
  leasehold_builder builder = {0};
  leasehold_client made = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
  OK(leasehold_builder_set_lease(builder, lease));
  OK(leasehold_builder_set_heartbeat(builder, heartbeat));
  OK(leasehold_builder_set_request_timeout(builder, 60000));
  OK(leasehold_builder_set_drop_timeout(builder, drop));
  OK(leasehold_builder_set_on_event(builder, on_event, NULL));
  OK(leasehold_builder_connect(builder, &made));
  OK(leasehold_builder_free(builder));
  return made;
}

/* Ends the guard inside the call that is ending it. */
static void ends(const leasehold_event *event, void *user) {
  (void)user;
  if (pthread_equal(pthread_self(), main_thread) && event->kind == when && guard.id != 0) {
    leasehold_guard mine = guard;
    guard.id = 0;
    leasehold_code code = end(mine);
    CHECK(code == LEASEHOLD_CODE_OK || (end == leasehold_guard_release && code == LEASEHOLD_CODE_CLOSED));
    through++;
  }
}

static void logs(const leasehold_log_record *record, void *user) {
  (void)user;
  if (pthread_equal(pthread_self(), main_thread) && strstr(record->text, "lost lock") != NULL && guard.id != 0) {
    leasehold_guard mine = guard;
    guard.id = 0;
    EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_release(mine));
    through++;
  }
}

static void of_one_guard(const char *url) {
  leasehold_code (*ways[])(leasehold_guard) = {leasehold_guard_free, leasehold_guard_release};
  /* No heartbeat finds anything out before the release does. */
  leasehold_client mine = client_with(url, 20 * HOUR, 10 * HOUR, 60000, ends); /* each release must be answered */
  for (size_t way = 0; way < 2; way++) {
    end = ways[way];
    leasehold_guard held = {0};
    leasehold_lock lock = {0};
    leasehold_list list = {0};
    when = LEASEHOLD_EVENT_KIND_RELEASED;
    OK(leasehold_client_lock(mine, TEXT("released"), &held));
    guard = held;
    OK(leasehold_guard_release(held));
    if (way == 1) {
      OK(leasehold_guard_free(held));
    }

    when = LEASEHOLD_EVENT_KIND_HANDED_OVER;
    OK(leasehold_client_lock(mine, TEXT("handed over"), &held));
    guard = held;
    OK(leasehold_guard_into_lock(held, &lock));
    OK(leasehold_client_release(mine, lock));
    OK(leasehold_lock_free(lock));
    if (way == 1) {
      OK(leasehold_guard_free(held));
    }

    /* What only the release finds out. */
    when = LEASEHOLD_EVENT_KIND_LOST;
    OK(leasehold_client_lock(mine, TEXT("lost"), &held));
    OK(leasehold_client_force_release(mine, TEXT("lost"), &list));
    OK(leasehold_list_free(list));
    guard = held;
    EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_release(held));
    if (way == 1) {
      OK(leasehold_guard_free(held));
    }
  }
  CHECK(through == 6 && guard.id == 0);

  leasehold_log log = {0};
  leasehold_request request = {0};
  leasehold_guard held = {0};
  leasehold_list list = {0};
  when = LEASEHOLD_EVENT_KIND_GRANTED;
  OK(leasehold_request_new(mine, TEXT("logged"), &request));
  OK(leasehold_request_set_max_hold(request, 100));
  OK(leasehold_request_lock(request, &held));
  OK(leasehold_request_free(request));
  OK(leasehold_guard_wait_loss(held, UINT64_MAX));
  OK(leasehold_client_force_release(mine, TEXT("logged"), &list));
  OK(leasehold_list_free(list));
  OK(leasehold_log_new(LEASEHOLD_LOG_LEVEL_DEBUG, logs, NULL, &log));
  guard = held;
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_release(held));
  CHECK(through == 7);
  OK(leasehold_guard_free(held));
  OK(leasehold_log_free(log));
  OK(leasehold_client_close(mine));
  OK(leasehold_client_free(mine));
}

/* Each as soon as all are inside. */
static void closes(const leasehold_event *event, void *user) {
  (void)user;
  if (event->kind == LEASEHOLD_EVENT_KIND_LOST) {
    count(&inside);
    wait_until(&inside, LOCKS);
    (void)leasehold_client_close(client);
    count(&through);
  }
}

static void of_one_client(const char *url) {
  leasehold_guard guards[LOCKS] = {{0}};
  leasehold_client operator_ = connected(url);
  inside = through = 0;
  client = client_with(url, 10000, 200, 3000, closes);
  for (int at = 0; at < LOCKS; at++) {
    char key[2] = {(char)('a' + at), 0};
    OK(leasehold_client_lock(client, key, 1, &guards[at]));
  }
  for (int at = 0; at < LOCKS; at++) {
    char key[2] = {(char)('a' + at), 0};
    leasehold_list list = {0};
    OK(leasehold_client_force_release(operator_, key, 1, &list));
    OK(leasehold_list_free(list));
  }
  wait_until(&inside, LOCKS);
  /* From outside it waits for all of them. */
  (void)leasehold_client_close(client);
  CHECK(now(&through) == LOCKS);
  for (int at = 0; at < LOCKS; at++) {
    OK(leasehold_guard_free(guards[at]));
  }
  OK(leasehold_client_free(client));
  OK(leasehold_client_free(operator_));
}

static void closes_when_lost(const leasehold_loss *loss, void *user) {
  (void)loss, (void)user;
  count(&inside);
  wait_until(&inside, 2);
  (void)leasehold_client_close(client);
  count(&through);
}

static void frees_when_told(const leasehold_event *event, void *user) {
  (void)user;
  if (event->kind == LEASEHOLD_EVENT_KIND_LOST) {
    count(&inside);
    wait_until(&inside, 2);
    OK(leasehold_guard_free(guard));
    count(&through);
  }
}

static void of_each_other(const char *url) {
  leasehold_request request = {0};
  leasehold_list list = {0};
  inside = through = 0;
  client = client_with(url, 10000, 200, 3000, frees_when_told);
  OK(leasehold_request_new(client, TEXT("crossed"), &request));
  OK(leasehold_request_set_on_loss(request, closes_when_lost, NULL));
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_request_free(request));
  OK(leasehold_client_force_release(client, TEXT("crossed"), &list));
  OK(leasehold_list_free(list));
  wait_until(&through, 2);
  (void)leasehold_client_close(client);
  OK(leasehold_client_free(client));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  main_thread = pthread_self();
  alarm(600); /* what waits for itself ends the program */
  of_one_guard(argv[1]);
  of_one_client(argv[1]);
  of_each_other(argv[1]);
  printf("proof: callbacks end what they are told of, and nobody waits for ever\n");
  return 0;
}
