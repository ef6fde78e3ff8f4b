/* After a fork() the parent's handles do nothing in the child; the child connects for itself, but not to SQLite. */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(int argc, char **argv) {
  CHECK(argc == 2);
  leasehold_client client = {0};
  leasehold_request request = {0};
  leasehold_guard guard = {0};
  leasehold_lock lock = {0};
  client = connected(argv[1]);
  OK(leasehold_request_new(client, TEXT("other"), &request));
  OK(leasehold_client_lock(client, TEXT("held"), &guard));
  OK(leasehold_guard_info(guard, &lock));

  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    leasehold_client own = {0};
    leasehold_guard own_guard = {0}, none = {0};
    bool held = true;
    EXPECT(LEASEHOLD_CODE_FORKED, leasehold_client_lock(client, TEXT("other"), &none));
    EXPECT(LEASEHOLD_CODE_FORKED, leasehold_request_lock(request, &none));
    EXPECT(LEASEHOLD_CODE_FORKED, leasehold_guard_is_held(guard, &held));
    CHECK(!held);
    EXPECT(LEASEHOLD_CODE_FORKED, leasehold_guard_ensure_held(guard));
    EXPECT(LEASEHOLD_CODE_FORKED, leasehold_guard_release(guard));
    EXPECT(LEASEHOLD_CODE_FORKED, leasehold_guard_free(guard));
    EXPECT(LEASEHOLD_CODE_FORKED, leasehold_lock_free(lock));
    /* Neither SQLite's file locks nor its mutexes outlive a fork: every file is refused. */
    bool is_file = is_of("sqlite:", argv[1]);
    if (is_file) {
      EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_connect(LEASEHOLD_VERSION_NUMBER, TEXT(argv[1]), &own));
      char url[1024];
      CHECK(snprintf(url, sizeof url, "%s-child", argv[1]) < (int)sizeof url);
      EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_connect(LEASEHOLD_VERSION_NUMBER, TEXT(url), &own));
    }
    /* Its own are new numbers, and the parent's stay what they are. */
    own = connected(is_file ? "memory:" : argv[1]);
    CHECK(own.id != client.id);
    EXPECT(LEASEHOLD_CODE_FORKED, leasehold_client_close(client));
    OK(leasehold_client_lock(own, TEXT("other"), &own_guard));
    OK(leasehold_guard_free(own_guard));
    OK(leasehold_client_free(own));
    CHECK(none.id == 0);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

  /* A child that lives on does not keep the parent's event loop from the end of a guard. */
  int descriptor = -1, lives[2];
  char byte;
  CHECK(pipe(lives) == 0);
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(close(lives[1]) == 0);
    _exit(read(lives[0], &byte, 1) == 0 ? 0 : 1);
  }
  OK(leasehold_guard_ensure_held(guard));
  OK(leasehold_guard_release(guard));
  struct pollfd released = {descriptor, POLLIN, 0};
  CHECK(poll(&released, 1, 10000) == 1);
  CHECK(read(descriptor, &byte, 1) == 0);
  CHECK(close(descriptor) == 0 && close(lives[0]) == 0 && close(lives[1]) == 0);
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(leasehold_guard_free(guard));
  OK(leasehold_lock_free(lock));
  OK(leasehold_request_free(request));
  OK(leasehold_client_free(client));
  printf("proof: dead in the child, alive in the parent\n");
  return 0;
}
