/* Three readers at once, and a writer that waits for them. */
#include <pthread.h>

#include "check.h"

enum { READERS = 3 };
static const char *KEY = "catalogue";

struct writer {
  leasehold_client client;
  uint64_t token;
};

static void *write_once(void *data) {
  struct writer *writer = (struct writer *)data;
  leasehold_guard guard = {0};
  OK(leasehold_client_lock(writer->client, TEXT(KEY), &guard));
  OK(leasehold_guard_token(guard, &writer->token));
  OK(leasehold_guard_free(guard));
  return NULL;
}

/* The calls without a request: two of each share, and neither gets what is held exclusively. */
static void by_one_call(leasehold_client client) {
  leasehold_guard shared[4], none = {0};
  for (int i = 0; i < 2; i++) {
    OK(leasehold_client_try_lock_shared(client, TEXT("menu"), &shared[i]));
    OK(leasehold_client_lock_shared_for(client, TEXT("menu"), 60000, &shared[2 + i]));
  }
  for (int i = 0; i < 4; i++) {
    leasehold_mode mode = LEASEHOLD_MODE_EXCLUSIVE;
    OK(leasehold_guard_mode(shared[i], &mode));
    CHECK(mode == LEASEHOLD_MODE_SHARED);
    OK(leasehold_guard_ensure_held(shared[i]));
    OK(leasehold_guard_free(shared[i]));
  }
  leasehold_guard exclusive = {0};
  OK(leasehold_client_lock(client, TEXT("menu"), &exclusive));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock_shared(client, TEXT("menu"), &none));
  RUNS_OUT(limit, 100, leasehold_client_lock_shared_for(client, TEXT("menu"), limit, &none));
  CHECK(none.id == 0);
  OK(leasehold_guard_free(exclusive));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  leasehold_client client = {0};
  client = connected(argv[1]);
  by_one_call(client);

  leasehold_request reader = {0};
  leasehold_guard readers[READERS], fourth = {0};
  OK(leasehold_request_new(client, TEXT(KEY), &reader));
  OK(leasehold_request_set_max_holders(reader, READERS));
  OK(leasehold_request_set_owner(reader, TEXT("a reader")));
  for (int i = 0; i < READERS; i++) {
    leasehold_mode mode;
    OK(leasehold_request_lock(reader, &readers[i]));
    OK(leasehold_guard_mode(readers[i], &mode));
    CHECK(mode == LEASEHOLD_MODE_SHARED);
  }
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_request_try_lock(reader, &fourth));
  CHECK(fourth.id == 0);
  char holder[32];
  OK(leasehold_error_holder(holder, sizeof holder, NULL));
  CHECK(strcmp(holder, "a reader") == 0);
  leasehold_list holders = {0};
  size_t count = 0;
  OK(leasehold_error_holders(&holders));
  OK(leasehold_list_len(holders, &count));
  CHECK(count == READERS);
  OK(leasehold_list_free(holders));
  /* Nor is a writer let in: asked before one waits, who would be a reason of its own. */
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(client, TEXT(KEY), &fourth));
  CHECK(fourth.id == 0);

  struct writer writer = {client, 0};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, write_once, &writer) == 0);
  uint64_t last = 0;
  for (int i = 0; i < READERS; i++) {
    uint64_t token = 0;
    OK(leasehold_guard_token(readers[i], &token));
    CHECK(token > last);
    last = token;
    OK(leasehold_guard_free(readers[i]));
  }
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(writer.token > last);

  OK(leasehold_request_free(reader));
  OK(leasehold_client_free(client));
  printf("proof: %d readers at once, the next refused, and the writer after them\n", READERS);
  return 0;
}
