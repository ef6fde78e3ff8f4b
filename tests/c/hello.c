/* From nothing to a held lock; the README shows it. */
#include <stdio.h>
#include <string.h>

#include "leasehold.h"

int main(int argc, char **argv) {
  const char *url = argc > 1 ? argv[1] : "sqlite:locks.db";
  const char *key = "nightly-report";
  leasehold_client client = 0;
  leasehold_guard guard = 0;
  uint64_t token = 0;
  int failed = 1;

  if (leasehold_client_connect(url, strlen(url), &client) == LEASEHOLD_CODE_OK &&
      leasehold_client_lock(client, key, strlen(key), &guard) == LEASEHOLD_CODE_OK && /* waits; a thread renews it */
      leasehold_guard_token(guard, &token) == LEASEHOLD_CODE_OK) {
    printf("proof: %s is ours, with token %s\n", key, token > 0 ? "above zero" : "zero");
    failed = 0;
  } else {
    char why[512];
    leasehold_error_message(why, sizeof why, NULL);
    fprintf(stderr, "%s\n", why);
  }
  leasehold_guard_free(guard); /* releases it; without a guard it does nothing */
  leasehold_client_free(client);
  return failed;
}
