/* What a callback may do: anything, also what ends that which it belongs to. */
#include <pthread.h>
#include <unistd.h>

#include "check.h"

struct talk {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  leasehold_client client;
  leasehold_election election;
  leasehold_guard again;
  bool done;
  bool has_guard; /* the call that took the lock has returned */
};

/* Sets `done` or `has_guard` of `talk`. */
static void set(struct talk *talk, bool *what) {
  pthread_mutex_lock(&talk->mutex);
  *what = true;
  pthread_cond_broadcast(&talk->changed);
  pthread_mutex_unlock(&talk->mutex);
}

/* Waits until it is set, and takes it back. */
static void wait_for(struct talk *talk, bool *what) {
  pthread_mutex_lock(&talk->mutex);
  while (!*what) {
    pthread_cond_wait(&talk->changed, &talk->mutex);
  }
  *what = false;
  pthread_mutex_unlock(&talk->mutex);
}

static void finish(struct talk *talk) { set(talk, &talk->done); }

static void wait_until_done(struct talk *talk) { wait_for(talk, &talk->done); }

/* Takes the lock again. */
static void locks_again(const leasehold_loss *loss, void *user) {
  struct talk *talk = (struct talk *)user;
  wait_for(talk, &talk->has_guard);
  OK(leasehold_client_lock(talk->client, loss->key, loss->key_len, &talk->again));
  finish(talk);
}

/* Ends the client, and so what the callback belongs to; but not the call that takes the lock, which a slow machine may
   still be in. */
static void closes(const leasehold_loss *loss, void *user) {
  struct talk *talk = (struct talk *)user;
  wait_for(talk, &talk->has_guard);
  CHECK(loss->reason == LEASEHOLD_REASON_MAX_HOLD);
  OK(leasehold_client_close(talk->client));
  OK(leasehold_client_free(talk->client));
  finish(talk);
}

static void stops(uint64_t token, void *user) {
  struct talk *talk = (struct talk *)user;
  CHECK(token > 0);
  OK(leasehold_election_stop(talk->election));
  OK(leasehold_election_wait(talk->election));
}

static void stopped(uint64_t token, const char *text, size_t text_len, void *user) {
  CHECK(token > 0 && text_len == strlen(text));
  finish((struct talk *)user);
}

static void frees(uint64_t token, void *user) {
  struct talk *talk = (struct talk *)user;
  CHECK(token > 0);
  OK(leasehold_election_free(talk->election));
  OK(leasehold_client_close(talk->client));
  finish(talk);
}

/* On the thread of the checks. */
static bool frees_when_asked(void *user) {
  struct talk *talk = (struct talk *)user;
  OK(leasehold_election_free(talk->election));
  finish(talk);
  return true;
}

static void frees_when_led(uint64_t token, const char *id, size_t id_len, void *user) {
  CHECK(token > 0 && id_len == strlen(id));
  frees(token, user);
}

/* What ends by its own limit is no renewal that fails. */
static void warned(uint64_t left_ms, void *user) {
  (void)left_ms, (void)user;
  CHECK(!"it warned");
}

static leasehold_guard lost_soon(struct talk *talk, leasehold_on_loss on_loss) {
  leasehold_request request = {0};
  leasehold_guard guard = {0};
  OK(leasehold_request_new(talk->client, TEXT("k"), &request));
  OK(leasehold_request_set_max_hold(request, 50));
  OK(leasehold_request_set_on_loss(request, on_loss, talk));
  OK(leasehold_request_set_warn_before(request, 1000, warned, talk));
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_request_free(request));
  set(talk, &talk->has_guard);
  return guard;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(600); /* what waits for itself ends the program */
  struct talk talk;
  memset(&talk, 0, sizeof talk);
  CHECK(pthread_mutex_init(&talk.mutex, NULL) == 0 && pthread_cond_init(&talk.changed, NULL) == 0);

  talk.client = connected(argv[1]);
  leasehold_guard guard = lost_soon(&talk, locks_again);
  wait_until_done(&talk);
  OK(leasehold_guard_ensure_held(talk.again));
  OK(leasehold_guard_free(talk.again));
  OK(leasehold_guard_free(guard));
  guard = lost_soon(&talk, closes);
  wait_until_done(&talk);
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_ensure_held(guard));
  OK(leasehold_guard_free(guard));

  talk.client = connected(argv[1]);
  OK(leasehold_election_new(talk.client, TEXT("job"), &talk.election));
  OK(leasehold_election_set_on_won(talk.election, stops, &talk));
  OK(leasehold_election_set_on_lost(talk.election, stopped, &talk));
  OK(leasehold_election_run(talk.election));
  wait_until_done(&talk);
  OK(leasehold_election_free(talk.election));
  OK(leasehold_election_new(talk.client, TEXT("job"), &talk.election));
  OK(leasehold_election_set_on_won(talk.election, frees, &talk));
  OK(leasehold_election_run(talk.election));
  wait_until_done(&talk);
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_election_free(talk.election));
  OK(leasehold_client_free(talk.client));

  talk.client = connected(argv[1]);
  OK(leasehold_election_new(talk.client, TEXT("job"), &talk.election));
  OK(leasehold_election_set_lease(talk.election, 1000)); /* for so long an answer is waited for */
  OK(leasehold_election_set_health_check(talk.election, frees_when_asked, &talk));
  OK(leasehold_election_run(talk.election));
  wait_until_done(&talk);
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_election_free(talk.election));
  OK(leasehold_election_new(talk.client, TEXT("job"), &talk.election));
  OK(leasehold_election_set_on_leader(talk.election, frees_when_led, &talk));
  OK(leasehold_election_run(talk.election));
  wait_until_done(&talk);
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_election_free(talk.election));
  OK(leasehold_client_free(talk.client));
  printf("proof: callbacks lock, close, stop and free\n");
  return 0;
}
