/* Four worker processes share out twenty jobs; each is done exactly once. */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { WORKERS = 4, JOBS = 20 };

/* Does the job, unless it is done. */
static void do_once(leasehold_guard guard, const char *folder, int job, int worker) {
  char path[512];
  snprintf(path, sizeof path, "%s/done-%d", folder, job);
  if (access(path, F_OK) != 0) {
    uint64_t token = 0;
    OK(leasehold_guard_ensure_held(guard)); /* right before the step that must not overlap */
    OK(leasehold_guard_token(guard, &token));
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    CHECK(file >= 0); /* else another has done it meanwhile */
    dprintf(file, "worker %d, token %llu\n", worker, (unsigned long long)token);
    CHECK(close(file) == 0);
  }
  OK(leasehold_guard_release(guard));
  OK(leasehold_guard_free(guard));
}

static void work(const char *url, const char *folder, int worker) {
  char owner[32];
  snprintf(owner, sizeof owner, "worker-%d", worker);
  leasehold_builder builder = {0};
  leasehold_client client = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
  OK(leasehold_builder_set_owner(builder, TEXT(owner)));
  OK(leasehold_builder_set_request_timeout(builder, 60000)); /* disks can be slow */
  OK(leasehold_builder_connect(builder, &client));
  OK(leasehold_builder_free(builder));
  /* First what nobody does, then what the others have not finished: they may have died. */
  for (int round = 0; round < 2; round++) {
    for (int job = 0; job < JOBS; job++) {
      char key[64];
      snprintf(key, sizeof key, "job-%d", job);
      leasehold_guard guard = {0};
      leasehold_code code = round == 0 ? leasehold_client_try_lock(client, TEXT(key), &guard)
                                       : leasehold_client_lock(client, TEXT(key), &guard);
      if (code != LEASEHOLD_CODE_HELD) {
        OK(code);
        do_once(guard, folder, job, worker);
      }
    }
  }
  OK(leasehold_client_close(client));
  OK(leasehold_client_free(client));
}

int main(int argc, char **argv) {
  CHECK(argc == 3); /* the store's URL and a folder for the results */
  for (int worker = 0; worker < WORKERS; worker++) {
    pid_t child = fork(); /* before anything is connected */
    CHECK(child >= 0);
    if (child == 0) {
      work(argv[1], argv[2], worker);
      return 0;
    }
  }
  for (int worker = 0; worker < WORKERS; worker++) {
    int status = 0;
    CHECK(wait(&status) > 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  for (int job = 0; job < JOBS; job++) {
    char path[512];
    snprintf(path, sizeof path, "%s/done-%d", argv[2], job);
    CHECK(access(path, F_OK) == 0);
  }
  printf("proof: %d jobs, each done once by one of %d processes\n", JOBS, WORKERS);
  return 0;
}
