/* Locks and data are in one file. A holder that comes too late asserts its lock in its transaction, and writes nothing. */
#include <unistd.h>

#include "check.h"

/* The SQLite that the library has: a second one in the process would harm the locks. */
#ifdef __cplusplus
extern "C" {
#endif
typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
int sqlite3_open(const char *file, sqlite3 **database);
int sqlite3_close(sqlite3 *database);
int sqlite3_busy_timeout(sqlite3 *database, int ms);
int sqlite3_exec(sqlite3 *database, const char *sql, void *row, void *user, char **error);
int sqlite3_prepare_v2(sqlite3 *database, const char *sql, int len, sqlite3_stmt **statement, const char **rest);
int sqlite3_bind_text(sqlite3_stmt *statement, int at, const char *text, int len, void (*release)(void *));
int sqlite3_step(sqlite3_stmt *statement);
int sqlite3_column_int(sqlite3_stmt *statement, int at);
int sqlite3_finalize(sqlite3_stmt *statement);
#ifdef __cplusplus
}
#endif
enum { DONE = 101, ROW = 100, BUSY = 5 };

static sqlite3 *database;

static int runs(const char *sql) { return sqlite3_exec(database, sql, NULL, NULL, NULL); }

static int number(const char *sql) {
  sqlite3_stmt *statement = NULL;
  CHECK(sqlite3_prepare_v2(database, sql, -1, &statement, NULL) == 0 && sqlite3_step(statement) == ROW);
  int number = sqlite3_column_int(statement, 0);
  CHECK(sqlite3_finalize(statement) == 0);
  return number;
}

/* Whether the assertion of a guard that stood then says that it is held. */
static bool stands(const struct assertion *made) {
  sqlite3_stmt *statement = NULL;
  CHECK(sqlite3_prepare_v2(database, made->part[LEASEHOLD_ASSERTION_SQL], -1, &statement, NULL) == 0);
  CHECK(sqlite3_bind_text(statement, 1, made->part[LEASEHOLD_ASSERTION_FIRST], -1, NULL) == 0);
  CHECK(sqlite3_bind_text(statement, 2, made->part[LEASEHOLD_ASSERTION_SECOND], -1, NULL) == 0);
  int row = sqlite3_step(statement);
  CHECK(row == ROW || row == DONE);
  bool stands = row == ROW && sqlite3_column_int(statement, 0) == 1;
  CHECK(row == DONE || sqlite3_step(statement) == DONE);
  CHECK(sqlite3_finalize(statement) == 0);
  return stands;
}

/* Writes, unless the lock of this assertion is not held. */
static bool writes(const struct assertion *made) {
  CHECK(runs("BEGIN IMMEDIATE") == 0 && runs("UPDATE report SET writes = writes + 1") == 0);
  bool may = stands(made);
  CHECK(runs(may ? "COMMIT" : "ROLLBACK") == 0);
  return may;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(600);
  leasehold_client client = connected(argv[1]), rival = connected(argv[1]);
  CHECK(sqlite3_open(strchr(argv[1], ':') + 1, &database) == 0 && sqlite3_busy_timeout(database, 60000) == 0);
  CHECK(runs("CREATE TABLE report (writes INTEGER); INSERT INTO report VALUES (0)") == 0);

  leasehold_guard guard = {0}, other = {0};
  OK(leasehold_client_lock(client, TEXT("report"), &guard));
  OK(leasehold_client_lock_shared(client, TEXT("shared"), &other));
  struct assertion held = assertion_of(guard), shared = assertion_of(other);
  CHECK(writes(&held) && writes(&shared));
  /* Nobody is granted it between the assertion and the commit. */
  leasehold_list list = {0};
  sqlite3 *second = NULL;
  CHECK(sqlite3_open(strchr(argv[1], ':') + 1, &second) == 0);
  CHECK(runs("BEGIN") == 0 && stands(&held));
  CHECK(sqlite3_exec(second, "BEGIN IMMEDIATE", NULL, NULL, NULL) == BUSY);
  CHECK(runs("COMMIT") == 0 && sqlite3_close(second) == 0);

  /* It is taken away, and the late write is not made. */
  OK(leasehold_client_force_release(rival, TEXT("report"), &list));
  OK(leasehold_list_free(list));
  CHECK(!writes(&held));
  leasehold_guard taken = {0};
  OK(leasehold_client_lock(rival, TEXT("report"), &taken));
  CHECK(!writes(&held));
  held = assertion_of(taken);
  CHECK(writes(&held));
  OK(leasehold_guard_release(other));
  CHECK(!writes(&shared) && number("SELECT writes FROM report") == 3);
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_guard_assertion(other, LEASEHOLD_ASSERTION_SQL, NULL, 0, NULL));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_guard_assertion(taken, 3, NULL, 0, NULL));

  /* Another store has no SQL. */
  leasehold_client memory = connected("memory:");
  leasehold_guard there = {0};
  OK(leasehold_client_lock(memory, TEXT("report"), &there));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_guard_assertion(there, LEASEHOLD_ASSERTION_SQL, NULL, 0, NULL));
  OK(leasehold_guard_free(there));
  OK(leasehold_client_free(memory));
  CHECK(sqlite3_close(database) == 0);
  OK(leasehold_guard_free(guard));
  OK(leasehold_guard_free(other));
  OK(leasehold_guard_free(taken));
  OK(leasehold_client_free(client));
  OK(leasehold_client_free(rival));
  printf("proof: who asserts its lock writes, and nobody else does\n");
  return 0;
}
