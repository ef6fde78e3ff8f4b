/* From nothing to a held lock. */
#include <inttypes.h>
#include <stdio.h>

#include <leasehold.h>

int main(int argc, char **argv) {
  const char *url = argc > 1 ? argv[1] : "sqlite:locks.db", *key = "nightly-report";
  leasehold_client client = {0};
  leasehold_guard guard = {0};
  uint64_t token = 0;

  /* SIZE_MAX: the text ends with a NUL. leasehold_client_lock() waits; a thread then renews the lock. */
  if (leasehold_client_connect(LEASEHOLD_VERSION_NUMBER, url, SIZE_MAX, &client) != LEASEHOLD_CODE_OK ||
      leasehold_client_lock(client, key, SIZE_MAX, &guard) != LEASEHOLD_CODE_OK ||
      leasehold_guard_token(guard, &token) != LEASEHOLD_CODE_OK) {
    char why[512];
    leasehold_error_message(why, sizeof why, NULL);
    fprintf(stderr, "%s\n", why);
  } else {
    printf("proof: %s is ours, with the token %" PRIu64 "\n", key, token);
  }
  leasehold_guard_free(guard); /* releases it; {0} does no harm */
  leasehold_client_free(client);
  return token > 0 ? 0 : 1;
}
