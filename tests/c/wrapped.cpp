// The C++ header: what is held ends with its scope, what fails throws.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

// As in <windows.h>.
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
#include <leasehold.hpp>
#undef max
#undef min

using namespace std::chrono_literals;

#define CHECK(what) ((what) ? (void)0 : failed(#what, __LINE__))

static void failed(const char *what, int line) {
  std::fprintf(stderr, "wrapped.cpp:%d: %s\n", line, what);
  std::exit(1);
}

// The code of the error that `work` throws.
template <typename Work>
static leasehold_code thrown(Work work) {
  try {
    work();
  } catch (const leasehold::error &error) {
    CHECK(error.what()[0] != '\0');
    return error.code();
  }
  return LEASEHOLD_CODE_OK;
}

// What `wait` gives for a time that it waits in vain. One that was over before the store had answered, as on a busy
// machine, says so of the store: then with a longer one.
template <typename Wait>
static auto in_vain(Wait wait) {
  for (leasehold::milliseconds time = 1s;; time *= 4) {
    try {
      return wait(time);
    } catch (const leasehold::error &error) {
      if (error.code() != LEASEHOLD_CODE_STORE || time > 60s) {
        throw;
      }
      CHECK(error.is_retryable());
    }
  }
}

struct seen {
  std::mutex mutex;
  std::condition_variable changed;
  int losses = 0;
  leasehold::guard guard;
};

static void scopes(const leasehold::client &client, const leasehold::client &rival) {
  uint64_t first = 0;
  {
    const auto guard = client.lock("k");
    CHECK(guard.is_held() && guard.key() == "k" && guard.remaining() > 0ms);
    guard.ensure_held();
    guard.ensure_held_for(100ms);
    first = guard.token();
    CHECK(!rival.try_lock("k") && !guard.wait_loss(0ms));
    CHECK(!in_vain([&](auto time) { return rival.try_lock_for("k", time); }));
    try {
      (void)in_vain([&](auto time) { return rival.request("k").wait(time).lock(); });
      CHECK(!"two hold it");
    } catch (const leasehold::error &error) {
      CHECK(error.code() == LEASEHOLD_CODE_TIMED_OUT && error.key() == "k" && error.holder() == "me");
      CHECK(!error.is_retryable());
    }
  }
  (void)client.request("least").hold_at_least(1h).lock();
  client.lock("done").hold_at_least(1h);
  client.request_all({"both"}).lock_all().hold_at_least(1h);
  CHECK(!rival.try_lock("least") && !rival.try_lock("done") && !rival.try_lock("both"));
  auto guard = rival.try_lock("k");
  CHECK(guard && guard->token() > first);
  guard->release();
  CHECK(!guard->is_held() && thrown([&] { guard->release(); }) == LEASEHOLD_CODE_CLOSED);
  try {
    const auto held = client.lock("k");
    throw std::runtime_error("the work failed");
  } catch (const leasehold::error &) {
    CHECK(!"it is no error of the library");
  } catch (const std::runtime_error &) {
  }
  CHECK(client.try_lock("k"));
}

static void moves(const leasehold::client &client) {
  auto guard = client.lock("moved");
  leasehold::guard other = std::move(guard);
  CHECK(!guard && other && other.is_held() && !guard.is_held());
  CHECK(thrown([&] { guard.token(); }) == LEASEHOLD_CODE_BAD_HANDLE);
  other = client.lock("another"); // which releases the first
  CHECK(client.try_lock("moved") && other.key() == "another");
  const auto &self = other;
  other = std::move(const_cast<leasehold::guard &>(self));
  CHECK(other.is_held());
  other = leasehold::guard();
  CHECK(client.try_lock("another"));
}

static void losses(const leasehold::client &client) {
  seen seen;
  {
    auto request = client.request("short");
    request.max_hold(300ms).comment("to be lost").call_on_loss([&seen](const leasehold::loss &loss) {
      CHECK(loss.key == "short" && loss.token > 0 && loss.reason == LEASEHOLD_REASON_MAX_HOLD && !loss.text.empty());
      const std::lock_guard<std::mutex> lock(seen.mutex);
      seen.guard = leasehold::guard(); // ends what it belongs to
      seen.losses++;
      seen.changed.notify_all();
    });
    std::unique_lock<std::mutex> lock(seen.mutex);
    seen.guard = request.lock();
    CHECK(seen.changed.wait_for(lock, 60s, [&] { return seen.losses == 1; }));
    CHECK(!seen.guard);
    // A function that is set later is not that of a guard that stands.
    auto guard = request.lock();
    request.call_on_loss([](const leasehold::loss &) { CHECK(!"it is for later guards"); });
    CHECK(seen.changed.wait_for(lock, 60s, [&] { return seen.losses == 2; }));
    CHECK(guard.wait_loss(0ms) && !guard.is_held());
    CHECK(thrown([&] { guard.ensure_held(); }) == LEASEHOLD_CODE_LOST);
  }
  CHECK(seen.losses == 2);
  // None, as NULL in C.
  auto request = client.request("unheard");
  request.max_hold(100ms).call_on_loss([](const leasehold::loss &) { CHECK(!"it was taken back"); });
  CHECK(request.call_on_loss(nullptr).lock().wait_loss(60s));
  const leasehold::guard unheard(request.lock());
  CHECK(unheard.wait_loss(60s));
}

// A lock that was data, with the function of the request that takes it up.
static leasehold::guard adopted(const leasehold::client &client, seen &seen, const std::string &name) {
  auto guard = client.lock("adopted");
  leasehold_lock lock{};
  leasehold::check(leasehold_guard_into_lock(guard.get(), &lock));
  auto request = client.request("adopted");
  request.max_hold(100ms).call_on_loss([&seen, name](const leasehold::loss &loss) {
    CHECK(loss.key == "adopted" && name == std::string(200, 'n'));
    const std::lock_guard<std::mutex> locked(seen.mutex);
    seen.losses++;
    seen.changed.notify_all();
  });
  auto taken = request.adopt(lock);
  leasehold::check(leasehold_lock_free(lock));
  return taken;
}

static void adopts(const leasehold::client &client) {
  seen seen;
  auto guard = adopted(client, seen, std::string(200, 'n'));
  std::unique_lock<std::mutex> lock(seen.mutex);
  CHECK(seen.changed.wait_for(lock, 60s, [&] { return seen.losses == 1; }));
}

static void several(const leasehold::client &client, const leasehold::client &rival) {
  auto request = client.request_all({"b", "a"});
  auto guards = request.lock_all();
  CHECK(guards.is_held() && guards.size() == 2 && guards.token(0) > 0);
  CHECK(guards.key(0) == "a" && guards.key(1) == "b");
  guards.ensure_held();
  CHECK(!request.try_lock_all() && !rival.try_lock("a"));
  CHECK(rival.request_any({"a", "c"}).try_lock()->key() == "c");
  guards.release();
  CHECK(rival.try_lock("a"));
  CHECK(request.try_lock_all());
  CHECK(thrown([&] { (void)request.lock(); }) == LEASEHOLD_CODE_INVALID_INPUT);
}

static void waits(const leasehold::client &client) {
  const auto guard = client.lock("waited for");
  leasehold::cancel cancel;
  std::thread fires([&] { cancel.fire(); });
  CHECK(thrown([&] { (void)client.request("waited for").cancel_by(cancel).lock(); }) == LEASEHOLD_CODE_CANCELLED);
  fires.join();
}

static void leases(const leasehold::client &client) {
  const auto leases = client.leases("wrapped");
  const auto token = leases.claim("app", "unit/0", 1h);
  CHECK(thrown([&] { leases.claim("app", "unit/1", 1h); }) == LEASEHOLD_CODE_INVALID_LEASE);
  CHECK(thrown([&] { leases.expire("app"); }) == LEASEHOLD_CODE_INVALID_LEASE);
  leases.extend("app", "unit/0", 2h);
  const auto found = leases.find("app");
  CHECK(found && found->key == "app" && found->owner == "unit/0" && found->token == token && found->remaining > 1h);
  CHECK(leases.list().size() == 1 && !leases.find("nobody's"));
  leases.pin("app", "backup");
  CHECK(leases.pinned_by("app") == std::vector<std::string>{"backup"});
  leases.unpin("app", "backup");
  CHECK(leases.pinned_by("app").empty());
  {
    const auto keeper = leases.keep("app", "unit/0", 3s);
    keeper.ensure_held();
    CHECK(keeper.is_held() && keeper.token() == token && keeper.remaining() > 1h && !keeper.wait_loss(0ms));
    leases.revoke("app", "unit/0");
    CHECK(keeper.wait_loss(leasehold::milliseconds::max()) && !keeper.is_held());
    CHECK(thrown([&] { keeper.ensure_held(); }) == LEASEHOLD_CODE_LOST);
  }
  leases.wait_until_expired("app");
  leases.claim("app", "unit/1", 1h);
  leasehold::cancel cancel;
  cancel.fire();
  CHECK(thrown([&] { leases.wait_until_expired("app", cancel); }) == LEASEHOLD_CODE_CANCELLED);
}

static void leads(const leasehold::client &client) {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t term = 0;
  {
    auto election = client.election("leader");
    election.id("node").lease(5s).once();
    CHECK(thrown([&] { election.lead({}); }) == LEASEHOLD_CODE_NULL_POINTER);
    election.lead([&, name = std::string(200, 'n')](uint64_t token) {
      CHECK(name == std::string(200, 'n'));
      const std::lock_guard<std::mutex> lock(mutex);
      CHECK(token > 0 && election.is_leader());
      term = token;
      changed.notify_all();
    });
    CHECK(thrown([&] { election.lease(5s); }) == LEASEHOLD_CODE_INVALID_INPUT);
    std::unique_lock<std::mutex> lock(mutex);
    CHECK(changed.wait_for(lock, 60s, [&] { return term > 0; }));
    lock.unlock();
    election.wait(); // for the one term
    CHECK(!election.is_leader());
    // Its work goes as the next one is accepted.
    auto kept = std::make_shared<int>(7);
    const std::weak_ptr<int> watched = kept;
    election.lead([kept](uint64_t) { CHECK(*kept == 7); });
    kept.reset();
    election.wait();
    election.lead([](uint64_t) {});
    CHECK(watched.expired());
    election.wait();
    election.run();
    CHECK(thrown([&] { election.lead([](uint64_t) {}); }) == LEASEHOLD_CODE_ALREADY_HELD);
    election.stop();
  }
  CHECK(client.lock("leader").token() > term);
}

static void previews() {
  const leasehold::client client(std::string_view("memory:"));
  leasehold_lock lock{};
  auto request = client.request("purged");
  leasehold::check(leasehold_request_acquire(request.lease(100ms).get(), &lock));
  leasehold::check(leasehold_lock_free(lock));
  const auto is_there = [](const std::vector<leasehold::holder> &all) {
    return all.size() == 1 && all[0].key == "purged" && all[0].token > 0 && all[0].remaining == 0ms;
  };
  while (client.purge_preview(0ms).empty()) {
    std::this_thread::sleep_for(10ms); // its lease ends
  }
  CHECK(is_there(client.purge_preview(0ms)) && client.purge_preview(1h).empty());
  CHECK(is_there(client.purge(0ms)) && client.purge_preview(0ms).empty());
}

static void asserts(const leasehold::client &client) {
  const auto guard = client.lock("asserted");
  const auto assertion = guard.assertion();
  CHECK(assertion.sql.find("?2") != std::string::npos && assertion.first == "asserted" && !assertion.second.empty());
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  CHECK(leasehold::to_ms(leasehold::milliseconds::max()) == UINT64_MAX && leasehold::to_ms(-1ms) == 0);
  CHECK(leasehold::to_ms(std::chrono::seconds::max()) == UINT64_MAX && leasehold::to_ms(std::chrono::hours(-1)) == 0);
  CHECK(leasehold::to_ms(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())) == 0);
  CHECK(leasehold::to_ms(std::chrono::nanoseconds::max()) == UINT64_MAX && leasehold::to_ms(1500us) == 1);
  CHECK(leasehold::to_ms(2s) == 2000 && leasehold::to_ms(std::chrono::hours(10000000)) == 36000000000000u);
  CHECK(leasehold::to_ms(std::chrono::hours::max() / 2) == UINT64_MAX && leasehold::to_ms(0.5s) == 500);
  CHECK(leasehold::from_ms(UINT64_MAX) == leasehold::milliseconds::max() && leasehold::from_ms(7) == 7ms);
  CHECK(thrown([] { leasehold::client("nosuch:store"); }) == LEASEHOLD_CODE_CONFIG);
  leasehold_builder builder{};
  leasehold_client made{}, others{};
  leasehold::check(leasehold_builder_new(LEASEHOLD_VERSION_NUMBER, argv[1], SIZE_MAX, &builder));
  leasehold::check(leasehold_builder_set_request_timeout(builder, 60000));
  leasehold::check(leasehold_builder_set_drop_timeout(builder, 60000));
  leasehold::check(leasehold_builder_connect(builder, &others));
  leasehold::check(leasehold_builder_set_owner(builder, "me", SIZE_MAX));
  leasehold::check(leasehold_builder_connect(builder, &made));
  leasehold::check(leasehold_builder_free(builder));
  const leasehold::client client(made), rival(others);
  CHECK(leasehold::client(std::string_view(argv[1])).try_lock("first"));
  scopes(client, rival);
  moves(client);
  losses(client);
  adopts(client);
  several(client, rival);
  waits(client);
  leases(client);
  leads(client);
  previews();
  asserts(client);
  client.close();
  CHECK(thrown([&] { (void)client.lock("k"); }) == LEASEHOLD_CODE_CLOSED);
  std::printf("proof: what is held ends with its scope, and what fails throws\n");
  return 0;
}
