/* A function that the library calls forks, and returns in the child, too: what goes on there is not the parent's. */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static pid_t parent;
/* Which kind of event forks next; negative: none. */
static int forks_at = -1;
static pid_t child = 0;

/* The end of a child. Not by exit(): what only the parent's threads had looks like a leak there. */
static void ends(void) {
  kill(getpid(), SIGKILL);
}

static void forks(const leasehold_event *event, void *user) {
  (void)user;
  if (getpid() != parent || event->kind != __atomic_load_n(&forks_at, __ATOMIC_SEQ_CST)) {
    return;
  }
  __atomic_store_n(&forks_at, -1, __ATOMIC_SEQ_CST);
  const pid_t forked = fork();
  CHECK(forked >= 0);
  if (forked == 0) {
    alarm(60); /* Where it hangs. */
    CHECK(atexit(ends) == 0);
  } else {
    __atomic_store_n(&child, forked, __ATOMIC_SEQ_CST);
  }
}

static void waits_for_child(void) {
  int status = 0;
  pid_t forked = 0;
  while ((forked = __atomic_exchange_n(&child, 0, __ATOMIC_SEQ_CST)) == 0) {
    poll(NULL, 0, 10);
  }
  CHECK(waitpid(forked, &status, 0) == forked);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
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
  __atomic_store_n(&forks_at, LEASEHOLD_EVENT_KIND_GRANTED, __ATOMIC_SEQ_CST);
  leasehold_code code = leasehold_client_lock(client, TEXT("held"), &guard);
  if (getpid() != parent) {
    if (code != LEASEHOLD_CODE_CLOSED) {
      fprintf(stderr, "the call gave %s in the child\n", leasehold_code_name(code));
      abort(); /* CHECK would exit(), which ends a child as if all were well. */
    }
    ends();
  }
  OK(code);
  waits_for_child();
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(rival, TEXT("held"), &none));
  OK(leasehold_guard_ensure_held(guard));

  /* In a heartbeat's thread, which is all that the child has. Both have the descriptor's other end. */
  int descriptor = -1;
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  __atomic_store_n(&forks_at, LEASEHOLD_EVENT_KIND_RENEWED, __ATOMIC_SEQ_CST);
  waits_for_child();
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
