/* A program that its environment tells the store, which it sets up: what it asks for there is what it gets. */
#include "check.h"

static void is_held(leasehold_guard guard) {
  uint64_t token = 0;
  OK(leasehold_guard_ensure_held_for(guard, 1000));
  OK(leasehold_guard_token(guard, &token));
  CHECK(token > 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  CHECK(strcmp(leasehold_version(), LEASEHOLD_VERSION) == 0);
  CHECK(leasehold_version_number() == LEASEHOLD_VERSION_NUMBER);
  CHECK(leasehold_error_code() == LEASEHOLD_CODE_OK);

  leasehold_client client = {0};
  char text[200];
  CHECK(setenv("LEASEHOLD_STORE", "sqlite:/tmp/caf\xe9.db", 1) == 0);
  EXPECT(LEASEHOLD_CODE_CONFIG, leasehold_client_from_env(LEASEHOLD_VERSION_NUMBER, &client));
  OK(leasehold_error_message(text, sizeof text, NULL));
  CHECK(strstr(text, "LEASEHOLD_STORE is not UTF-8") != NULL && client.id == 0);
  CHECK(leasehold_error_code() == LEASEHOLD_CODE_CONFIG);
  CHECK(setenv("LEASEHOLD_STORE", argv[1], 1) == 0);
  OK(leasehold_client_from_env(LEASEHOLD_VERSION_NUMBER, &client));

  /* The whole text, by the length that was told before. */
  size_t len = 0;
  OK(leasehold_client_schema(client, NULL, 0, &len));
  char *schema = (char *)malloc(len + 1);
  CHECK(schema != NULL);
  OK(leasehold_client_schema(client, schema, len + 1, NULL));
  CHECK(strlen(schema) == len && strstr(schema, "CREATE TABLE") != NULL);
  free(schema);
  OK(leasehold_client_create_schema(client));

  /* A group is renewed by what its guard says of it. */
  leasehold_request request = {0};
  leasehold_guard guard = {0}, none = {0};
  leasehold_list list = {0};
  OK(leasehold_request_new(client, TEXT("ours"), &request));
  OK(leasehold_request_set_lock_id(request, TEXT("our group")));
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_request_free(request));
  is_held(guard);
  OK(leasehold_guard_lock_id(guard, text, sizeof text, &len));
  CHECK(strcmp(text, "our group") == 0 && len == strlen(text));
  OK(leasehold_client_renew_group(client, TEXT(text), 60000, &list));
  OK(leasehold_list_text(list, 0, LEASEHOLD_TEXT_KEY, text, sizeof text, NULL));
  CHECK(strcmp(text, "ours") == 0);
  OK(leasehold_list_free(list));

  /* It was the store of that name: another client there is refused. */
  leasehold_builder builder = {0};
  leasehold_client other = {0};
  OK(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, TEXT(argv[1]), &builder));
  OK(leasehold_builder_set_create_schema(builder));
  OK(leasehold_builder_connect(builder, &other));
  OK(leasehold_builder_free(builder));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(other, TEXT("ours"), &none));
  OK(leasehold_guard_free(guard));
  OK(leasehold_client_lock_for(other, TEXT("ours"), 600000, &guard));
  is_held(guard);
  OK(leasehold_guard_free(guard));
  OK(leasehold_client_free(other));
  OK(leasehold_client_free(client));
  printf("proof: the store that the environment names was set up and locked\n");
  return 0;
}
