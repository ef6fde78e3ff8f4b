/* Two nodes stand for one election: one by callbacks, one by waiting for its term. */
#include <pthread.h>

#include "check.h"

struct node {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t won, lost; /* the tokens of the last term that began and of the last that ended */
};

static void on_won(uint64_t token, void *user) {
  struct node *node = (struct node *)user;
  pthread_mutex_lock(&node->mutex);
  CHECK(node->won == node->lost && token > node->won); /* each term has an end before the next */
  node->won = token;
  pthread_cond_broadcast(&node->changed);
  pthread_mutex_unlock(&node->mutex);
}

static void on_lost(uint64_t token, const char *text, size_t text_len, void *user) {
  struct node *node = (struct node *)user;
  pthread_mutex_lock(&node->mutex);
  CHECK(token == node->won && strlen(text) == text_len && text_len > 0);
  node->lost = token;
  pthread_cond_broadcast(&node->changed);
  pthread_mutex_unlock(&node->mutex);
}

static uint64_t wait_for(struct node *node, const uint64_t *token, uint64_t above) {
  pthread_mutex_lock(&node->mutex);
  while (*token <= above) {
    pthread_cond_wait(&node->changed, &node->mutex);
  }
  uint64_t seen = *token;
  pthread_mutex_unlock(&node->mutex);
  return seen;
}

/* A thread inside calls that do not end by themselves. */
struct inside {
  leasehold_election election;
  leasehold_code code;
};

static void *campaigns(void *user) {
  struct inside *inside = (struct inside *)user;
  leasehold_leadership term = {0};
  inside->code = leasehold_election_campaign(inside->election, &term);
  CHECK(term.id == 0);
  return NULL;
}

static void *waits(void *user) {
  struct inside *inside = (struct inside *)user;
  inside->code = leasehold_election_wait(inside->election);
  return NULL;
}

static void leads(uint64_t token, void *user) {
  struct node *node = (struct node *)user;
  pthread_mutex_lock(&node->mutex);
  node->won = token;
  pthread_cond_broadcast(&node->changed);
  while (node->lost < node->won) { /* the work goes on */
    pthread_cond_wait(&node->changed, &node->mutex);
  }
  pthread_mutex_unlock(&node->mutex);
}

/* The work of the leader: while it goes on nobody else leads. */
static void work(leasehold_client client, leasehold_client other, struct node *node) {
  leasehold_election led = {0};
  leasehold_guard guard = {0};
  OK(leasehold_election_new(client, TEXT("led"), &led));
  OK(leasehold_election_set_once(led));
  node->won = node->lost = 0;
  OK(leasehold_election_lead(led, leads, node));
  uint64_t token = wait_for(node, &node->won, 0), seen = 0;
  OK(leasehold_election_token(led, &seen));
  CHECK(seen == token);
  EXPECT(LEASEHOLD_CODE_ALREADY_HELD, leasehold_election_run(led));
  EXPECT(LEASEHOLD_CODE_HELD, leasehold_client_try_lock(other, TEXT("led"), &guard));
  pthread_mutex_lock(&node->mutex);
  node->lost = token;
  pthread_cond_broadcast(&node->changed);
  pthread_mutex_unlock(&node->mutex);
  OK(leasehold_election_wait(led)); /* it resigned */
  OK(leasehold_client_try_lock(other, TEXT("led"), &guard));
  OK(leasehold_guard_free(guard));
  OK(leasehold_election_free(led));
}

/* The last failure names the election, its store and what is wrong. */
static void says(const char *what, const char *url) {
  char key[32], store[256], message[512];
  OK(leasehold_error_key(key, sizeof key, NULL));
  OK(leasehold_error_store(store, sizeof store, NULL));
  OK(leasehold_error_message(message, sizeof message, NULL));
  CHECK(strcmp(key, "scheduler") == 0 && is_of(store, url));
  CHECK(strstr(message, "\"scheduler\"") != NULL && strstr(message, store) != NULL && strstr(message, what) != NULL);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  struct node node;
  memset(&node, 0, sizeof node);
  CHECK(pthread_mutex_init(&node.mutex, NULL) == 0 && pthread_cond_init(&node.changed, NULL) == 0);
  leasehold_client client = {0}, other = {0};
  leasehold_election first = {0}, second = {0};
  leasehold_leadership term = {0};
  uint64_t token = 0, seen = 0;
  bool leader = false;
  struct inside campaign, wait;
  pthread_t threads[2];
  char id[32];
  client = connected(argv[1]);
  other = connected(argv[1]);

  /* The first node stands by itself, again and again. */
  OK(leasehold_election_new(client, TEXT("scheduler"), &first));
  OK(leasehold_election_set_id(first, TEXT("node-1")));
  OK(leasehold_election_set_on_won(first, on_won, &node));
  OK(leasehold_election_set_on_lost(first, on_lost, &node));
  EXPECT(LEASEHOLD_CODE_NOT_FOUND, leasehold_election_leader(first, &token, id, sizeof id, NULL));
  says("nobody leads", argv[1]);
  OK(leasehold_election_run(first));
  EXPECT(LEASEHOLD_CODE_INVALID_INPUT, leasehold_election_set_once(first));
  says("used already", argv[1]);
  EXPECT(LEASEHOLD_CODE_ALREADY_HELD, leasehold_election_run(first));
  says("already campaigns", argv[1]);
  token = wait_for(&node, &node.won, 0);
  OK(leasehold_election_is_leader(first, &leader));
  OK(leasehold_election_token(first, &seen));
  CHECK(leader && seen == token);

  /* The second sees who leads, and waits for its own term. */
  OK(leasehold_election_new(other, TEXT("scheduler"), &second));
  OK(leasehold_election_set_id(second, TEXT("node-2")));
  OK(leasehold_election_leader(second, &seen, id, sizeof id, NULL));
  CHECK(seen == token && strcmp(id, "node-1") == 0);
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_election_token(second, &seen));
  says("does not lead", argv[1]);
  OK(leasehold_election_is_leader(second, &leader));
  CHECK(!leader);
  /* The millisecond may be over between two steps. */
  RUNS_OUT(limit, 1, leasehold_election_campaign_for(second, limit, &term));
  OK(leasehold_error_holder(id, sizeof id, NULL));
  CHECK(strcmp(id, "node-1") == 0);
  OK(leasehold_election_stop(first)); /* resigns */
  CHECK(wait_for(&node, &node.lost, 0) == token);
  OK(leasehold_election_campaign(second, &term));
  OK(leasehold_leadership_token(term, &seen));
  OK(leasehold_leadership_is_leader(term, &leader));
  CHECK(leader && seen > token);
  EXPECT(LEASEHOLD_CODE_ALREADY_HELD, leasehold_election_run(second));
  EXPECT(LEASEHOLD_CODE_TIMED_OUT, leasehold_leadership_wait_loss(term, 1));
  says("was not lost", argv[1]);

  /* Freed while other threads are inside, or just about to: one that campaigns, and one that runs. */
  OK(leasehold_election_new(client, TEXT("scheduler"), &campaign.election));
  OK(leasehold_election_new(client, TEXT("other"), &wait.election));
  OK(leasehold_election_run(wait.election));
  CHECK(pthread_create(&threads[0], NULL, campaigns, &campaign) == 0);
  CHECK(pthread_create(&threads[1], NULL, waits, &wait) == 0);
  OK(leasehold_election_free(campaign.election));
  OK(leasehold_election_free(wait.election));
  CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
  CHECK(campaign.code == LEASEHOLD_CODE_CANCELLED || campaign.code == LEASEHOLD_CODE_STALE_HANDLE);
  CHECK(wait.code == LEASEHOLD_CODE_OK || wait.code == LEASEHOLD_CODE_STALE_HANDLE);
  leasehold_guard guard = {0};
  OK(leasehold_client_try_lock(other, TEXT("other"), &guard)); /* it resigned, if it led */
  OK(leasehold_guard_free(guard));

  /* The first stands again, and leads as soon as the second resigns. */
  OK(leasehold_election_run(first));
  OK(leasehold_leadership_resign(term));
  OK(leasehold_leadership_is_leader(term, &leader));
  CHECK(!leader);
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_leadership_resign(term));
  says("resigned already", argv[1]);
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_leadership_wait_loss(term, 0));
  says("was released", argv[1]);
  OK(leasehold_leadership_remaining(term, &seen));
  CHECK(seen == 0);
  CHECK(wait_for(&node, &node.won, token) > token);
  OK(leasehold_leadership_free(term));

  /* A node's own stop is no loss. */
  OK(leasehold_election_stop(first));
  OK(leasehold_election_campaign(second, &term));
  OK(leasehold_election_stop(second));
  EXPECT(LEASEHOLD_CODE_CLOSED, leasehold_leadership_resign(term));

  OK(leasehold_leadership_free(term));
  OK(leasehold_election_free(second));
  OK(leasehold_election_free(first)); /* no callback runs after it */
  pthread_mutex_lock(&node.mutex);
  CHECK(node.lost == node.won);
  pthread_mutex_unlock(&node.mutex);
  work(client, other, &node);
  CHECK(pthread_mutex_destroy(&node.mutex) == 0 && pthread_cond_destroy(&node.changed) == 0);
  OK(leasehold_client_free(client));
  OK(leasehold_client_free(other));
  printf("proof: each term had one leader, told when it began and when it ended\n");
  return 0;
}
