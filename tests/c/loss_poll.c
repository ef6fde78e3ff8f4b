/* An event loop that waits for its own events and for the loss of its lock. */
#include <poll.h>
#include <unistd.h>

#include "check.h"

static leasehold_guard take(leasehold_client client, uint64_t max_hold_ms) {
  leasehold_request request = {0};
  leasehold_guard guard = {0};
  OK(leasehold_request_new(client, TEXT("loop"), &request));
  if (max_hold_ms > 0) {
    OK(leasehold_request_set_max_hold(request, max_hold_ms));
  }
  OK(leasehold_request_lock(request, &guard));
  OK(leasehold_request_free(request));
  return guard;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  leasehold_client client = {0};
  client = connected(argv[1]);

  int events[2];
  CHECK(pipe(events) == 0);
  leasehold_guard guard = take(client, 300);
  int descriptor = -1, second = -1, late = -1;
  OK(leasehold_guard_loss_descriptor(guard, &late));
  CHECK(close(late) == 0); /* whoever does not care any more is told nothing, and nobody is killed for it */
  OK(leasehold_guard_loss_descriptor(guard, &second));
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  OK(leasehold_guard_loss_descriptor(guard, &late));
  CHECK(close(late) == 0); /* the last one, of which the library has not heard before the loss */
  struct pollfd polled[2] = {{events[0], POLLIN, 0}, {descriptor, POLLIN, 0}};

  /* Held: only the program's own event wakes the loop. */
  CHECK(write(events[1], "x", 1) == 1);
  CHECK(poll(polled, 2, -1) >= 1);
  CHECK(polled[0].revents & POLLIN);
  char byte;
  CHECK(read(events[0], &byte, 1) == 1);

  /* Lost: readable, and one byte for each that was given out, however late. */
  CHECK(poll(polled, 2, 10000) == 1);
  CHECK(polled[0].revents == 0 && (polled[1].revents & POLLIN));
  EXPECT(LEASEHOLD_CODE_LOST, leasehold_guard_ensure_held(guard));
  OK(leasehold_guard_loss_descriptor(guard, &late));
  int lost[3] = {descriptor, second, late};
  for (int i = 0; i < 3; i++) {
    struct pollfd one = {lost[i], POLLIN, 0};
    CHECK(poll(&one, 1, 0) == 1 && (one.revents & POLLIN));
    if (i == 1) {
      OK(leasehold_guard_free(guard));
    }
    CHECK(read(lost[i], &byte, 1) == 1);
    CHECK(poll(&one, 1, 0) == 1 && (one.revents & POLLIN)); /* it stays so, at its end */
    CHECK(read(lost[i], &byte, 1) == 0);
    CHECK(close(lost[i]) == 0);
  }

  /* Released: at its end without a byte. */
  guard = take(client, 0);
  OK(leasehold_guard_loss_descriptor(guard, &descriptor));
  struct pollfd released = {descriptor, POLLIN, 0};
  CHECK(poll(&released, 1, 0) == 0);
  OK(leasehold_guard_release(guard));
  CHECK(poll(&released, 1, 10000) == 1);
  CHECK(released.revents & POLLHUP);
  CHECK(read(descriptor, &byte, 1) == 0);
  OK(leasehold_guard_free(guard));
  CHECK(close(descriptor) == 0 && close(events[0]) == 0 && close(events[1]) == 0);

  OK(leasehold_client_free(client));
  printf("proof: poll() woke at the loss, and saw the end at the release\n");
  return 0;
}
