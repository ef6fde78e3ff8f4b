/* What the programs in this folder share: calls that have to succeed, and texts with their length. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leasehold.h"

/* A text as the two arguments that the library takes. */
#define TEXT(text) (text), strlen(text)

/* Ends the program, with the library's reason, unless `call` answers `wanted`. */
#define EXPECT(wanted, call) expect((wanted), (call), #call, __FILE__, __LINE__)
#define OK(call) EXPECT(LEASEHOLD_CODE_OK, call)
#define CHECK(what) ((what) ? (void)0 : failed(#what, __FILE__, __LINE__))

static inline void failed(const char *what, const char *file, int line) {
  fprintf(stderr, "%s:%d: %s\n", file, line, what);
  exit(1);
}

static inline void expect(leasehold_code wanted, leasehold_code code, const char *call, const char *file, int line) {
  if (code != wanted) {
    char message[1024];
    leasehold_error_message(message, sizeof message, NULL);
    fprintf(stderr, "%s:%d: %s gave %s: %s\n", file, line, call, leasehold_code_name(code), message);
    exit(1);
  }
}

/* `call` waits for `limit` in vain. One that was over before the store had answered, as on a busy machine or under
   valgrind, says so of the store: then with a longer one. */
#define RUNS_OUT(limit, first, call)                                                                                   \
  do {                                                                                                                 \
    leasehold_code code_ = LEASEHOLD_CODE_STORE;                                                                       \
    for (uint64_t limit = (first); is_silent(code_) && limit < 100000; limit *= 4) {                                   \
      code_ = (call);                                                                                                  \
    }                                                                                                                  \
    expect(LEASEHOLD_CODE_TIMED_OUT, code_, #call, __FILE__, __LINE__);                                                \
  } while (0)

static inline bool is_silent(leasehold_code code) {
  return code == LEASEHOLD_CODE_STORE || code == LEASEHOLD_CODE_AMBIGUOUS;
}

/* Whether a store's name is that of this URL's kind. */
static inline bool is_of(const char *store, const char *url) { return strncmp(store, url, strcspn(url, ":") + 1) == 0; }

/* A client that bears a slow disk. */
static inline leasehold_client connected(const char *url) {
  leasehold_builder builder = {0};
  leasehold_client client = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(url), &builder));
  OK(leasehold_builder_set_request_timeout(builder, 60000));
  OK(leasehold_builder_set_drop_timeout(builder, 60000));
  OK(leasehold_builder_connect(builder, &client));
  OK(leasehold_builder_free(builder));
  return client;
}

/* What a program keeps of a guard to ask its database later. */
struct assertion {
  char part[3][512];
};

static inline struct assertion assertion_of(leasehold_guard guard) {
  struct assertion made;
  for (int part = 0; part < 3; part++) {
    OK(leasehold_guard_assertion(guard, part, made.part[part], sizeof made.part[part], NULL));
  }
  return made;
}

#endif
