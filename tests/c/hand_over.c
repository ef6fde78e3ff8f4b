/* A lock moves to another process without a gap, as bytes through a pipe. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void taker(const char *url, int from) {
  uint8_t bytes[2048];
  size_t len = 0;
  for (ssize_t got; (got = read(from, bytes + len, sizeof bytes - len)) > 0;) {
    len += (size_t)got;
  }
  leasehold_client client = {0};
  leasehold_lock lock = {0};
  leasehold_guard guard = {0}, again = {0};
  leasehold_status status;
  uint64_t token = 0;
  client = connected(url);
  OK(leasehold_lock_from_bytes(bytes, len, &lock));
  OK(leasehold_lock_status(lock, &status, sizeof status));
  OK(leasehold_client_adopt(client, lock, &guard));
  OK(leasehold_guard_token(guard, &token));
  CHECK(token > status.token && status.remaining_ms > 0 && status.remaining_ms <= 120000);
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_client_adopt(client, lock, &again));
  CHECK(again.id == 0);
  OK(leasehold_lock_free(lock));
  OK(leasehold_guard_release(guard));
  OK(leasehold_guard_free(guard));
  OK(leasehold_client_free(client));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int ends[2];
  CHECK(pipe(ends) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(ends[1]);
    taker(argv[1], ends[0]);
    close(ends[0]);
    return 0;
  }
  close(ends[0]);

  leasehold_client client = {0};
  leasehold_request request = {0};
  leasehold_guard guard = {0};
  leasehold_lock lock = {0};
  client = connected(argv[1]);
  OK(leasehold_request_new(client, TEXT("migration"), &request));
  OK(leasehold_request_set_comment(request, TEXT("half done")));
  OK(leasehold_request_set_lease(request, 120000)); /* nobody renews it on its way */
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_guard_into_lock(guard, &lock));
  OK(leasehold_guard_free(guard)); /* it does not hold the lock any more, so this releases nothing */
  char comment[32];
  OK(leasehold_lock_text(lock, LEASEHOLD_TEXT_COMMENT, comment, sizeof comment, NULL));
  CHECK(strcmp(comment, "half done") == 0);
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(client, TEXT("migration"), &guard));

  size_t len = 0;
  OK(leasehold_lock_to_bytes(lock, NULL, 0, &len));
  uint8_t *bytes = (uint8_t *)malloc(len);
  CHECK(bytes != NULL);
  EXPECT(LEASEHOLD_CODE_BUFFER_TOO_SMALL, leasehold_lock_to_bytes(lock, bytes, len - 1, NULL));
  OK(leasehold_lock_to_bytes(lock, bytes, len, NULL));
  CHECK(write(ends[1], bytes, len) == (ssize_t)len);
  CHECK(close(ends[1]) == 0);
  free(bytes);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

  /* Without a guard: a lock as data, renewed and released by hand. */
  leasehold_lock plain = {0};
  leasehold_status before, after;
  OK(leasehold_request_acquire(request, &plain));
  OK(leasehold_lock_status(plain, &before, sizeof before));
  CHECK(before.renewed_ms == 0 && before.mode == LEASEHOLD_MODE_EXCLUSIVE);
  OK(leasehold_client_heartbeat(client, plain, 600000));
  OK(leasehold_lock_status(plain, &after, sizeof after));
  CHECK(after.renewed_ms > 0 && after.leased_until_ms > before.leased_until_ms && after.token == before.token);
  OK(leasehold_client_release(client, plain));
  OK(leasehold_client_release(client, plain));
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_client_heartbeat(client, plain, 60000));

  OK(leasehold_lock_free(plain));
  OK(leasehold_lock_free(lock));
  OK(leasehold_request_free(request));
  OK(leasehold_client_free(client));
  printf("proof: handed over without a gap, adopted once\n");
  return 0;
}
