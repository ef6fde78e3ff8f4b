/* Locks and data are in one database of PostgreSQL: `fenced` with its own client, libpq, as a C program has it. */
#include <dlfcn.h>
#include <unistd.h>

#include "check.h"

/* Of libpq-fe.h, which need not be installed. */
typedef struct pg_conn PGconn;
typedef struct pg_result PGresult;
enum { COMMAND_OK = 1, TUPLES_OK = 2 };

static PGconn *(*connects)(const char *url);
static PGresult *(*executes)(PGconn *, const char *sql, int params, const void *types, const char *const *values,
                             const int *lengths, const int *formats, int format);
static int (*status_of)(const PGresult *);
static int (*rows_of)(const PGresult *);
static char *(*value_of)(const PGresult *, int row, int column);
static void (*clear)(PGresult *);
static void (*finish)(PGconn *);

/* ISO C has no cast from an object's pointer to a function's. */
static void load(void *libpq, const char *name, void *function) {
  void *found = dlsym(libpq, name);
  CHECK(found != NULL);
  memcpy(function, &found, sizeof found);
}

static PGconn *database;

/* The value of the one row, or "" without a row; NULL where it failed. */
static const char *asks(PGconn *on, const char *sql, int params, const char *const *values) {
  static char value[64];
  PGresult *answer = executes(on, sql, params, NULL, values, NULL, NULL, 0);
  int status = status_of(answer);
  value[0] = '\0';
  if (status == TUPLES_OK && rows_of(answer) == 1) {
    CHECK(snprintf(value, sizeof value, "%s", value_of(answer, 0, 0)) < (int)sizeof value);
  }
  clear(answer);
  return status == COMMAND_OK || status == TUPLES_OK ? value : NULL;
}

static bool runs(const char *sql) { return asks(database, sql, 0, NULL) != NULL; }

/* Whether the assertion of a guard that stood then says that it is held. */
static bool stands(const struct assertion *made) {
  const char *values[2] = {made->part[LEASEHOLD_ASSERTION_FIRST], made->part[LEASEHOLD_ASSERTION_SECOND]};
  const char *answer = asks(database, made->part[LEASEHOLD_ASSERTION_SQL], 2, values);
  CHECK(answer != NULL);
  return strcmp(answer, "t") == 0;
}

/* Writes, unless the lock of this assertion is not held. */
static bool writes(const struct assertion *made) {
  CHECK(runs("BEGIN") && runs("UPDATE report SET writes = writes + 1"));
  bool may = stands(made);
  CHECK(runs(may ? "COMMIT" : "ROLLBACK"));
  return may;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(600);
  void *libpq = dlopen("libpq.so.5", RTLD_NOW);
  CHECK(libpq != NULL);
  load(libpq, "PQconnectdb", &connects), load(libpq, "PQexecParams", &executes);
  load(libpq, "PQresultStatus", &status_of), load(libpq, "PQntuples", &rows_of);
  load(libpq, "PQgetvalue", &value_of), load(libpq, "PQclear", &clear), load(libpq, "PQfinish", &finish);

  /* The same URL without our own option. */
  char url[512], look[512];
  const char *table = strstr(argv[1], "?table=");
  CHECK(table != NULL);
  CHECK(snprintf(url, sizeof url, "%.*s", (int)(table - argv[1]), argv[1]) < (int)sizeof url);
  CHECK(snprintf(look, sizeof look, "SELECT key FROM %s WHERE key = 'report' FOR UPDATE NOWAIT", table + 7) <
        (int)sizeof look);
  leasehold_client client = connected(argv[1]), rival = connected(argv[1]);
  database = connects(url);
  CHECK(runs("CREATE TEMP TABLE report AS SELECT 0 AS writes"));

  leasehold_guard guard = {0}, other = {0}, taken = {0};
  OK(leasehold_client_lock(client, TEXT("report"), &guard));
  OK(leasehold_client_lock_shared(client, TEXT("shared"), &other));
  struct assertion held = assertion_of(guard), shared = assertion_of(other);
  CHECK(writes(&held) && writes(&shared));
  /* Nobody is granted it between the assertion and the commit: its row is locked for as long. */
  PGconn *second = connects(url);
  CHECK(runs("BEGIN") && stands(&held));
  CHECK(asks(second, look, 0, NULL) == NULL);
  CHECK(runs("COMMIT"));
  CHECK(asks(second, look, 0, NULL) != NULL);
  finish(second);

  /* It is taken away, and the late write is not made. */
  leasehold_list list = {0};
  OK(leasehold_client_force_release(rival, TEXT("report"), &list));
  OK(leasehold_list_free(list));
  CHECK(!writes(&held));
  OK(leasehold_client_lock(rival, TEXT("report"), &taken));
  CHECK(!writes(&held));
  held = assertion_of(taken);
  CHECK(writes(&held));
  OK(leasehold_guard_release(other));
  CHECK(!writes(&shared) && strcmp(asks(database, "SELECT writes FROM report", 0, NULL), "3") == 0);

  finish(database);
  OK(leasehold_guard_free(guard));
  OK(leasehold_guard_free(other));
  OK(leasehold_guard_free(taken));
  OK(leasehold_client_free(client));
  OK(leasehold_client_free(rival));
  printf("proof: who asserts its lock writes through libpq, and nobody else does\n");
  return 0;
}
