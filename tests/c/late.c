/* What ends late, and without being asked: by a close, in a thread's and in the process's own end. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static leasehold_client to_close;
static leasehold_guard at_end;

static void says(const leasehold_log_record *record, void *user) {
  (void)record, (void)user;
}

static struct {
  leasehold_guard guard;
  leasehold_election election, campaigned;
  leasehold_leadership leadership;
  leasehold_log log;
} last;

static int tells[2];

static void lost(uint64_t token, const char *text, size_t text_len, void *user) {
  (void)token, (void)text, (void)text_len, (void)user;
  CHECK(write(tells[1], "l", 1) == 1);
}

static pthread_key_t key;
static int rounds;

/* What a thread frees that took no lock itself: what it needs to try again it may have to make then. */
static struct {
  const char *url;
  leasehold_guard before, released;
  leasehold_guards all;
  int rounds;
} strange;
static pthread_key_t strange_key;

/* At last, when nothing is left of what the library had for the thread. */
static void frees(void *unused) {
  if (++rounds < 3) {
    CHECK(pthread_setspecific(key, unused) == 0);
    return;
  }
  OK(leasehold_guard_free(last.guard));
  OK(leasehold_election_free(last.election));
  OK(leasehold_leadership_free(last.leadership));
  OK(leasehold_election_free(last.campaigned));
  OK(leasehold_log_free(last.log));
}

static void is_written(const char *url, int ms);
static pid_t writer;

static void ended(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
}

static void releases(void *unused) {
  if (++strange.rounds < 3) {
    CHECK(pthread_setspecific(strange_key, unused) == 0);
    return;
  }
  is_written(strange.url, 1000);
  OK(leasehold_guard_release(strange.released));
  ended(writer);
  is_written(strange.url, 1000);
  OK(leasehold_guards_free(strange.all));
  ended(writer);
}

static void *only_releases(void *unused) {
  /* It waits, which makes what the thread is known by, and tries nothing again. */
  is_written(strange.url, 1000);
  OK(leasehold_guard_release(strange.before));
  ended(writer);
  CHECK(pthread_setspecific(strange_key, &strange) == 0);
  return unused;
}

/* Requests that are given up soon, and repeated for long. */
static void is_released_by_a_thread_that_took_nothing(const char *url) {
  leasehold_builder builder = {0};
  leasehold_client client = {0}, patient = connected(url);
  leasehold_request request = {0};
  leasehold_code code = LEASEHOLD_CODE_STORE;
  pthread_t thread;
  strange.url = url;
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
  OK(leasehold_builder_set_request_timeout(builder, 100));
  OK(leasehold_builder_set_drop_timeout(builder, 60000));
  while (is_silent(code)) { /* on a busy machine */
    code = leasehold_builder_connect(builder, &client);
  }
  OK(code);
  OK(leasehold_builder_free(builder));
  OK(leasehold_client_lock(patient, TEXT("before"), &strange.before));
  OK(leasehold_client_lock(client, TEXT("released"), &strange.released));
  OK(leasehold_request_new_all(client, &request));
  OK(leasehold_request_add_key(request, TEXT("one of all")));
  OK(leasehold_request_add_key(request, TEXT("all")));
  OK(leasehold_request_lock_all(request, &strange.all));
  OK(leasehold_request_free(request));
  CHECK(pthread_key_create(&strange_key, releases) == 0);
  CHECK(pthread_create(&thread, NULL, only_releases, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0 && pthread_key_delete(strange_key) == 0);
  const char *keys[] = {"before", "released", "one of all", "all"};
  for (int i = 0; i < 4; i++) {
    leasehold_guard guard = {0};
    OK(leasehold_client_try_lock(patient, TEXT(keys[i]), &guard));
    OK(leasehold_guard_free(guard));
  }
  OK(leasehold_guard_free(strange.before));
  OK(leasehold_guard_free(strange.released));
  OK(leasehold_client_free(client));
  OK(leasehold_client_free(patient));
}

/* A guard that a thread renews, the last one of its client. */
static leasehold_guard renewed(const char *url) {
  leasehold_builder builder = {0};
  leasehold_client client = {0};
  leasehold_guard guard = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
  OK(leasehold_builder_set_request_timeout(builder, 60000));
  OK(leasehold_builder_set_drop_timeout(builder, 60000)); /* for as long as `is_written` may take */
  OK(leasehold_builder_set_heartbeat(builder, 50));
  OK(leasehold_builder_connect(builder, &client));
  OK(leasehold_builder_free(builder));
  OK(leasehold_client_lock(client, TEXT("thread"), &guard));
  OK(leasehold_client_free(client));
  uint64_t before = 0, left = UINT64_MAX;
  do {
    poll(NULL, 0, 1);
    before = left;
    OK(leasehold_guard_remaining(guard, &left));
  } while (left <= before);
  return guard;
}

/* Another process writes for so long: what is to be released has to wait. */
static void is_written(const char *url, int ms) {
  char byte, index[4096];
  int begun[2];
  struct flock lock;
  memset(&lock, 0, sizeof lock);
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET;
  lock.l_start = 120, lock.l_len = 1; /* as SQLite has it */
  CHECK(snprintf(index, sizeof index, "%s-shm", strchr(url, ':') + 1) < (int)sizeof index && pipe(begun) == 0);
  writer = fork();
  CHECK(writer >= 0);
  if (writer == 0) {
    int file = open(index, O_RDWR);
    if (file >= 0 && fcntl(file, F_SETLKW, &lock) == 0 && write(begun[1], "w", 1) == 1) {
      poll(NULL, 0, ms);
    }
    kill(getpid(), SIGKILL); /* whatever it has of its parent's stays as it is */
  }
  CHECK(close(begun[1]) == 0 && read(begun[0], &byte, 1) == 1 && close(begun[0]) == 0);
}

static void *ends(void *url) {
  leasehold_guard guard = {0};
  /* What the library keeps for the thread is gone before the guard: an error, and what a release leaves to do. */
  OK(leasehold_client_lock(to_close, TEXT("thread"), &guard));
  OK(leasehold_guard_free(guard));
  EXPECT(LEASEHOLD_CODE_STALE_HANDLE, leasehold_guard_free(guard));
  last.guard = renewed((const char *)url);
  /* To free it waits for the end of its term, and for the callback. */
  bool leads = false;
  OK(leasehold_election_new(to_close, TEXT("led"), &last.election));
  OK(leasehold_election_set_on_lost(last.election, lost, NULL));
  OK(leasehold_election_run(last.election));
  while (!leads) {
    poll(NULL, 0, 1);
    OK(leasehold_election_is_leader(last.election, &leads));
  }
  OK(leasehold_election_new(to_close, TEXT("campaigned"), &last.campaigned));
  OK(leasehold_election_set_on_lost(last.campaigned, lost, NULL));
  OK(leasehold_election_campaign(last.campaigned, &last.leadership));
  OK(leasehold_log_new(LEASEHOLD_LOG_LEVEL_WARN, says, NULL, &last.log));
  CHECK(pthread_setspecific(key, &last) == 0);
  is_written((const char *)url, 300);
  return NULL;
}

static void closes(void) {
  OK(leasehold_client_close(to_close));
  OK(leasehold_guard_free(at_end));
  OK(leasehold_client_free(to_close));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(600);
  /* A child that ends by exit(), whose handler closes. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    to_close = connected(argv[1]);
    OK(leasehold_client_lock(to_close, TEXT("exit"), &at_end));
    CHECK(atexit(closes) == 0);
    exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  to_close = connected(argv[1]);
  leasehold_guard guard = {0};
  OK(leasehold_client_try_lock(to_close, TEXT("exit"), &guard));
  OK(leasehold_guard_free(guard));

  /* A thread whose last deed is to free, and to wait for that. */
  pthread_t thread;
  char byte, told[2];
  CHECK(pipe(tells) == 0 && pthread_key_create(&key, frees) == 0);
  CHECK(pthread_create(&thread, NULL, ends, argv[1]) == 0);
  CHECK(pthread_join(thread, NULL) == 0 && pthread_key_delete(key) == 0);
  CHECK(read(tells[0], told, 2) == 2 && waitpid(writer, &status, 0) == writer);
  const char *freed_keys[] = {"thread", "led", "campaigned"};
  for (int i = 0; i < 3; i++) {
    OK(leasehold_client_try_lock(to_close, TEXT(freed_keys[i]), &guard));
    OK(leasehold_guard_free(guard));
  }

  is_released_by_a_thread_that_took_nothing(argv[1]);

  /* A loss that nobody wants to hear of any more. */
  leasehold_request request = {0};
  int descriptor = -1;
  OK(leasehold_request_new(to_close, TEXT("lost"), &request));
  OK(leasehold_request_set_max_hold(request, 50));
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  CHECK(close(descriptor) == 0);
  OK(leasehold_guard_wait_loss(guard, UINT64_MAX));
  OK(leasehold_guard_free(guard));
  OK(leasehold_request_free(request));

  /* What is handed over is nothing to poll for any more. */
  leasehold_lock lock = {0};
  OK(leasehold_client_lock(to_close, TEXT("handed over"), &guard));
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  OK(leasehold_guard_into_lock(guard, &lock));
  for (int i = 0; i < 2; i++) {
    struct pollfd ended = {descriptor, POLLIN, 0};
    CHECK(poll(&ended, 1, 10000) == 1);
    CHECK(read(descriptor, &byte, 1) == 0 && close(descriptor) == 0);
    OK(leasehold_guard_loss_descriptor(guard, &descriptor)); /* too late, but it says so */
  }
  CHECK(close(descriptor) == 0);
  OK(leasehold_guard_free(guard));
  OK(leasehold_client_release(to_close, lock));
  OK(leasehold_lock_free(lock));

  /* Nor is what is freed. */
  OK(leasehold_client_lock(to_close, TEXT("freed"), &guard));
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  OK(leasehold_guard_free(guard));
  struct pollfd freed = {descriptor, POLLIN, 0};
  CHECK(poll(&freed, 1, 10000) == 1);
  CHECK(read(descriptor, &byte, 1) == 0 && close(descriptor) == 0);

  /* The client is closed while a loop polls for the end of the guard. */
  OK(leasehold_client_lock(to_close, TEXT("closed"), &guard));
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  OK(leasehold_client_close(to_close));
  struct pollfd closed = {descriptor, POLLIN, 0};
  CHECK(poll(&closed, 1, 10000) == 1);
  CHECK(read(descriptor, &byte, 1) == 0 && close(descriptor) == 0);
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_wait_loss(guard, 10000));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_ensure_held(guard));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_into_lock(guard, &lock));
  OK(leasehold_guard_release(guard)); /* closing has done it */
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_release(guard));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_into_lock(guard, &lock));
  OK(leasehold_guard_free(guard));
  OK(leasehold_client_free(to_close));
  printf("proof: closed by exit(), by a thread's end and under a poll()\n");
  return 0;
}
