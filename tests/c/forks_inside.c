/* A function that the library calls forks, and returns in the child, too: what goes on there is not the parent's. */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static pid_t parent;
/* Which kind of event forks next; negative: none. */
static volatile int forks_at = -1;
static volatile pid_t child = 0;

static void forks(const leasehold_event *event, void *user) {
  (void)user;
  if (getpid() != parent || event->kind != forks_at) {
    return;
  }
  forks_at = -1;
  pid_t forked = fork();
  CHECK(forked >= 0);
  if (forked == 0) {
    alarm(60); /* Where it hangs. */
  } else {
    child = forked;
  }
}

static void ends_well(void) {
  int status = 0;
  while (child == 0) {
    poll(NULL, 0, 10);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  child = 0;
}

static leasehold_client connects(const char *url, bool is_told) {
  leasehold_builder builder = {0};
  leasehold_client client = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
  OK(leasehold_builder_set_request_timeout(builder, 60000));
  OK(leasehold_builder_set_drop_timeout(builder, 60000));
  OK(leasehold_builder_set_lease(builder, 60000));
  OK(leasehold_builder_set_heartbeat(builder, 200));
  if (is_told) {
    OK(leasehold_builder_set_on_event(builder, forks, NULL));
  }
  OK(leasehold_builder_connect(builder, &client));
  OK(leasehold_builder_free(builder));
  return client;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  parent = getpid();
  leasehold_client client = connects(argv[1], true), rival = connects(argv[1], false);
  leasehold_guard guard = {0}, none = {0};

  /* As it is told of the grant. */
  forks_at = LEASEHOLD_EVENT_GRANTED;
  leasehold_code code = leasehold_client_lock(client, TEXT("held"), &guard);
  if (getpid() != parent) {
    _exit(code == LEASEHOLD_CODE_CLOSED || code == LEASEHOLD_CODE_FORKED ? 0 : 1);
  }
  OK(code);
  ends_well();
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(rival, TEXT("held"), &none));
  OK(leasehold_guard_ensure_held(guard));

  /* In a heartbeat's thread, which is all that the child has. Both have the descriptor's other end. */
  int descriptor = -1;
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  forks_at = LEASEHOLD_EVENT_RENEWED;
  ends_well();
  struct pollfd lost = {descriptor, POLLIN, 0};
  CHECK(poll(&lost, 1, 0) == 0);
  OK(leasehold_guard_ensure_held(guard));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(rival, TEXT("held"), &none));

  OK(leasehold_guard_release(guard));
  CHECK(close(descriptor) == 0);
  OK(leasehold_guard_free(guard));
  OK(leasehold_client_free(client));
  OK(leasehold_client_free(rival));
  printf("proof: what forks inside costs the parent nothing\n");
  return 0;
}
