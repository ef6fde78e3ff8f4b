/* What runs beside the program: a callback that takes long holds up no other lock, and one that needs much stack has
 * it. */
#include <pthread.h>
#include <unistd.h>

#include "check.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int talking, deep;
static bool over;

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

/* Does not return before the program says so. */
static void talk(void) {
  pthread_mutex_lock(&mutex);
  talking++;
  pthread_cond_broadcast(&changed);
  while (!over) {
    pthread_cond_wait(&changed, &mutex);
  }
  pthread_mutex_unlock(&mutex);
}

static void on_event(const leasehold_event *event, void *user) {
  (void)user;
  if (event->kind == LEASEHOLD_EVENT_KIND_LOST && strcmp(event->key, "first") == 0) {
    talk();
  }
  if (event->kind == LEASEHOLD_EVENT_KIND_RENEWED) {
    volatile char much[400 * 1024];
    for (size_t at = 0; at < sizeof much; at += 1024) {
      much[at] = 1;
    }
    CHECK(much[0] == 1);
    count(&deep);
  }
}

static void on_log(const leasehold_log_record *record, void *user) {
  (void)user;
  if (strstr(record->text, "\"first\" lost") != NULL) {
    talk();
  }
}

static void on_loss(const leasehold_loss *loss, void *user) {
  (void)loss;
  count((int *)user);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(600); /* what waits for ever ends the program */
  leasehold_builder builder = {0};
  leasehold_client client = {0};
  leasehold_request request = {0};
  leasehold_guard first = {0}, second = {0}, beats = {0};
  leasehold_log log = {0};
  int losses = 0;
  OK(leasehold_log_new(LEASEHOLD_LOG_LEVEL_WARN, on_log, NULL, &log));
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(argv[1]), &builder));
  OK(leasehold_builder_set_request_timeout(builder, 60000));
  OK(leasehold_builder_set_drop_timeout(builder, 60000));
  OK(leasehold_builder_set_heartbeat(builder, 300));
  OK(leasehold_builder_set_on_event(builder, on_event, NULL));
  OK(leasehold_builder_connect(builder, &client));
  OK(leasehold_builder_free(builder));

  OK(leasehold_request_new(client, TEXT("first"), &request));
  OK(leasehold_request_set_max_hold(request, 100));
  OK(leasehold_request_lock(request, &first));
  OK(leasehold_request_free(request));
  wait_until(&talking, 1);

  /* The watcher's work for others goes on: a heartbeat is started, a loss is told. */
  OK(leasehold_client_lock(client, TEXT("beats"), &beats));
  wait_until(&deep, 1);
  OK(leasehold_request_new(client, TEXT("second"), &request));
  OK(leasehold_request_set_max_hold(request, 100));
  OK(leasehold_request_set_on_loss(request, on_loss, &losses));
  OK(leasehold_request_lock(request, &second));
  OK(leasehold_request_free(request));
  wait_until(&losses, 1);

  pthread_mutex_lock(&mutex);
  over = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  wait_until(&talking, 2); /* the message and the event, one after the other */
  OK(leasehold_guard_free(first));
  OK(leasehold_guard_free(second));
  OK(leasehold_guard_free(beats));
  OK(leasehold_client_close(client));
  OK(leasehold_client_free(client));
  OK(leasehold_log_free(log));
  printf("proof: a callback that takes long holds up no other lock, and has the stack that it needs\n");
  return 0;
}
