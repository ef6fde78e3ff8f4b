/* Two processes and one lock: who is refused hears who holds it, who waits is told of the release, and who loses the lock
   learns of it from the store. */
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { LEASE_MS = 120000, HEARTBEAT_MS = 1000, SOON_MS = 60000 };
static const char *KEY = "shared by two";

static leasehold_client named(const char *url, const char *owner) {
  leasehold_builder builder = {0};
  leasehold_client client = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
  OK(leasehold_builder_set_owner(builder, TEXT(owner)));
  OK(leasehold_builder_set_lease(builder, LEASE_MS));
  OK(leasehold_builder_set_heartbeat(builder, HEARTBEAT_MS));
  OK(leasehold_builder_set_request_timeout(builder, 60000));
  OK(leasehold_builder_set_drop_timeout(builder, 60000));
  /* So it is told, or comes too late. */
  OK(leasehold_builder_set_poll(builder, 90000, 90000));
  OK(leasehold_builder_connect(builder, &client));
  OK(leasehold_builder_free(builder));
  return client;
}

static void tell(int to) { CHECK(write(to, "x", 1) == 1); }

static void hear(int from) {
  char byte;
  CHECK(read(from, &byte, 1) == 1);
}

struct waited {
  int to, calls;
};

/* After a second it listens, and does not look any more. */
static void on_wait(const leasehold_waiting *waiting, void *user) {
  struct waited *waited = (struct waited *)user;
  (void)waiting;
  if (++waited->calls == 6) {
    tell(waited->to);
  }
}

/* Is refused, waits, and has the lock taken away. */
static void rival(const char *url, int from, int to) {
  leasehold_client client = named(url, "the rival");
  leasehold_guard guard = {0};
  leasehold_request request = {0};
  struct waited waited = {to, 0};
  char holder[32];
  hear(from); /* the other holds it */
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(client, TEXT(KEY), &guard));
  OK(leasehold_error_holder(holder, sizeof holder, NULL));
  CHECK(strcmp(holder, "the holder") == 0);

  OK(leasehold_request_new(client, TEXT(KEY), &request));
  OK(leasehold_request_set_wait(request, SOON_MS));
  OK(leasehold_request_set_on_wait(request, 200, on_wait, &waited));
  OK(leasehold_request_lock(request, &guard));
  leasehold_reason reason;
  tell(to);
  OK(leasehold_guard_wait_loss(guard, SOON_MS)); /* long before the end of its lease */
  OK(leasehold_guard_loss(guard, &reason, NULL, 0, NULL));
  CHECK(reason == LEASEHOLD_REASON_RELEASED_BY_OTHER);
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_ensure_held(guard));
  OK(leasehold_guard_free(guard));
  OK(leasehold_request_free(request));
  OK(leasehold_client_free(client));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int there[2], back[2];
  CHECK(pipe(there) == 0 && pipe(back) == 0);
  pid_t child = fork(); /* before anything is connected */
  CHECK(child >= 0);
  if (child == 0) {
    close(there[1]);
    close(back[0]);
    rival(argv[1], there[0], back[1]);
    return 0;
  }
  close(there[0]);
  close(back[1]); /* a rival that fails is heard of as the end */

  leasehold_client client = named(argv[1], "the holder");
  leasehold_guard guard = {0};
  leasehold_list ended = {0};
  size_t count = 0;
  OK(leasehold_client_lock(client, TEXT(KEY), &guard));
  tell(there[1]);
  hear(back[0]); /* the rival waits */
  OK(leasehold_guard_ensure_held(guard));
  OK(leasehold_guard_release(guard));
  OK(leasehold_guard_free(guard));
  hear(back[0]); /* it holds the lock */
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(client, TEXT(KEY), &guard));
  OK(leasehold_client_force_release(client, TEXT(KEY), &ended));
  OK(leasehold_list_len(ended, &count));
  CHECK(count == 1);
  OK(leasehold_list_free(ended));

  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(leasehold_client_free(client));
  printf("proof: refused by name, told of the release, and lost by order, from process to process\n");
  return 0;
}
