//! Each mode of the fault proxy does what it says, and leaves nothing behind.
#![cfg(target_os = "linux")]

mod raw;
mod upstream;

use std::time::{Duration, Instant, SystemTime};

use crate::support::lateness::{measure, slack};
use crate::support::nobody;
use crate::support::proxy::{Answer, Mode, Proxy, Rule};
use crate::support::wait::wait_until;
use upstream::{Client, DATE, Got, Upstream, answer, request};

/// How long the client's connection is watched for what must not come.
const QUIET: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_millis(1000);
const PATIENCE: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::from_secs(3600);

/// A server, a proxy with the mode for the next request, and a client.
fn with(mode: Mode) -> (Upstream, Proxy, Client) {
    let server = Upstream::start();
    let proxy = Proxy::http(&server.addr);
    proxy.add(Rule::next(1, mode));
    let client = Client::connect(proxy.addr());
    (server, proxy, client)
}

/// Asserts that a later request on a new connection passes.
fn assert_heals(proxy: &Proxy) {
    let got = Client::connect(proxy.addr()).ask("Next", "healed");
    assert!(matches!(&got, Got::Answer(text) if text.ends_with(": healed")), "{got:?}");
}

/// Waits until the server has given this many answers.
fn answered(proxy: &Proxy, count: u32) {
    proxy.wait_until("the answers", |all| all.iter().map(|request| request.answered).sum::<u32>() == count);
}

/// The threads of the proxy that has this port.
fn threads(port: u16) -> Vec<String> {
    let tasks = crate::support::threads::tasks().into_iter();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.join("comm")).ok());
    names.filter(|name| name.starts_with(&format!("px-{port}-"))).collect()
}

#[test]
fn requests_pass_one_after_the_other_on_one_connection() {
    let (server, proxy, mut client) = with(Mode::Pass);
    let long = "long ".repeat(200_000);
    for (body, number) in [("a", 1), ("chunked", 2), (&*long, 3), ("", 4)] {
        assert_eq!(client.ask("Op", body), Got::Answer(format!("{number}: {body}")));
    }
    assert_eq!((server.connections(), proxy.count()), (1, 4));
    assert_eq!(client.ask("Op", "until the end"), answer("5: until the end"));
    assert_eq!(client.got(PATIENCE), Got::End);
}

#[test]
fn the_end_of_a_request_is_found_whatever_the_packets_are() {
    let (server, proxy, mut client) = with(Mode::Pass);
    for byte in request("Op", "bit by bit").bytes() {
        client.write(&[byte]);
    }
    assert_eq!(client.got(PATIENCE), answer("1: bit by bit"));
    client.write((request("Op", "two") + &request("Op", "at once")).as_bytes());
    assert_eq!((client.got(PATIENCE), client.got(PATIENCE)), (answer("2: two"), answer("3: at once")));
    let chunks = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nin\r\n7\r\n chunks\r\n0\r\n\r\n";
    client.write((chunks.to_owned() + &request("Op", "after")).as_bytes());
    assert_eq!((client.got(PATIENCE), client.got(PATIENCE)), (answer("4: in chunks"), answer("5: after")));
    assert_eq!((server.bodies().len(), proxy.count()), (5, 5));
}

#[test]
fn delay() {
    let (server, _proxy, mut client) = with(Mode::Delay(LATE));
    let started = Instant::now();
    assert_eq!(client.ask("Op", "a"), answer("1: a"));
    assert!(server.last() - started >= LATE);
}

#[test]
fn hole_to_server() {
    let (server, proxy, mut client) = with(Mode::HoleToServer);
    client.send("Op", "a");
    client.send("Op", "b");
    proxy.wait_until("the request is here", |all| all.len() == 1);
    assert_eq!(client.got(QUIET), Got::Nothing);
    assert!(server.bodies().is_empty());
    assert_heals(&proxy);
    assert_eq!(server.bodies(), ["healed"]);
}

#[test]
fn hole_to_client() {
    let (server, proxy, mut client) = with(Mode::HoleToClient);
    client.send("Op", "a");
    client.send("Op", "b");
    answered(&proxy, 2);
    assert_eq!(client.got(QUIET), Got::Nothing);
    assert_eq!(server.bodies(), ["a", "b"]);
    assert_heals(&proxy);
}

#[test]
fn cut_and_reset() {
    let cases = [
        (Mode::CutBefore, Got::End, false),
        (Mode::CutAfter, Got::End, true),
        (Mode::ResetBefore, Got::Reset, false),
        (Mode::ResetAfter, Got::Reset, true),
    ];
    for (mode, got, arrives) in cases {
        let (server, proxy, mut client) = with(mode);
        assert_eq!(client.ask("Op", "a"), got, "{mode:?}");
        assert_eq!(server.bodies().len(), usize::from(arrives), "{mode:?}");
        let seen = &proxy.requests()[0];
        assert_eq!((seen.sent, seen.answered), (arrives.into(), arrives.into()), "{mode:?}");
        assert_heals(&proxy);
    }
}

#[test]
fn drop_answer() {
    let (server, proxy, mut client) = with(Mode::DropAnswer);
    client.send("Op", "a");
    answered(&proxy, 1);
    assert_eq!(client.got(QUIET), Got::Nothing);
    assert_eq!(client.ask("Op", "b"), answer("2: b"));
    assert_eq!(server.bodies(), ["a", "b"]);
}

#[test]
fn late() {
    // Other requests are served before this time, even by a busy machine that stalls for seconds.
    const LATE: Duration = Duration::from_secs(8);
    for (mode, got) in [(Mode::Late(LATE), Got::Nothing), (Mode::CutLate(LATE), Got::End)] {
        let (server, proxy, mut client) = with(mode);
        let started = Instant::now();
        client.send("Op", "a");
        proxy.wait_until("the request is here", |all| all.len() == 1);
        // Other requests are served in between.
        assert_heals(&proxy);
        assert_eq!(server.bodies(), ["healed"], "{mode:?}");
        if got == Got::End {
            // The end comes while the request is still on its way.
            assert_eq!(client.got(PATIENCE), Got::End);
            assert_eq!(server.bodies(), ["healed"], "{mode:?}");
        }
        // It does not matter that the client has gone.
        answered(&proxy, 2);
        assert!(server.last() - started >= LATE, "{mode:?}");
        assert_eq!(server.bodies(), ["healed", "a"], "{mode:?}");
        assert_eq!(client.got(QUIET), got);
    }
}

#[test]
fn held() {
    for (mode, got) in [(Mode::Held, Got::Nothing), (Mode::CutHeld, Got::End)] {
        let (server, proxy, mut client) = with(mode);
        client.send("Op", "a");
        wait_until("the request is held", || proxy.held() == 1);
        assert_heals(&proxy);
        assert_eq!(client.got(if got == Got::End { PATIENCE } else { QUIET }), got);
        assert_eq!(server.bodies(), ["healed"], "{mode:?}");
        assert_eq!(proxy.deliver(), 1);
        assert_eq!(server.bodies(), ["healed", "a"], "{mode:?}");
        assert_eq!((proxy.deliver(), proxy.held()), (0, 1), "once only");
    }
}

#[test]
fn twice() {
    for (which, got) in [(Answer::First, "1: a"), (Answer::Second, "2: a")] {
        let (server, proxy, mut client) = with(Mode::Twice(which));
        assert_eq!(client.ask("Op", "a"), answer(got));
        assert_eq!(server.bodies(), ["a", "a"]);
        let seen = &proxy.requests()[0];
        assert_eq!((seen.sent, seen.answered, proxy.count()), (2, 2, 1));
        assert_eq!(client.ask("Op", "b"), answer("3: b"));
    }
}

#[test]
fn dates_are_moved() {
    let (_server, proxy, mut client) = with(Mode::ShiftDate(-60));
    let mut date = |body: &str| {
        client.ask("Op", body);
        let line = client.head.lines().find_map(|line| line.strip_prefix("Date: "));
        line.unwrap().to_owned()
    };
    assert_eq!(date("one of them"), "Sun, 06 Nov 1994 08:48:37 GMT");
    assert_eq!(date("the next"), DATE);
    // Over the ends of a day, a month, a year, and of February.
    let moves = [
        (24 * 3600, "Mon, 07 Nov 1994 08:49:37 GMT"),
        (60 * 24 * 3600, "Thu, 05 Jan 1995 08:49:37 GMT"),
        (-7 * 24 * 3600 + 23, "Sun, 30 Oct 1994 08:50:00 GMT"),
        (951_827_696 - 784_111_777, "Tue, 29 Feb 2000 12:34:56 GMT"),
        (1_709_251_199 - 784_111_777, "Thu, 29 Feb 2024 23:59:59 GMT"),
        (-784_111_777, "Thu, 01 Jan 1970 00:00:00 GMT"),
    ];
    for (seconds, moved) in moves {
        proxy.shift_dates(seconds);
        assert_eq!(date("all"), moved);
    }
    // Both shifts add up.
    proxy.shift_dates(1);
    proxy.add(Rule::next(1, Mode::ShiftDate(1)));
    assert_eq!(date("both"), "Sun, 06 Nov 1994 08:49:39 GMT");
}

#[test]
fn rules_choose_by_text_and_number() {
    let server = Upstream::start();
    let proxy = Proxy::http(&format!("http://{}/", server.addr));
    let passes = |operation: &str, body: &str| Client::connect(proxy.addr()).ask(operation, body) != Got::End;
    proxy.add(Rule::next(1, Mode::CutBefore).on("UpdateItem").on("\"k2\""));
    assert!(passes("UpdateItem", "\"k1\"") && passes("GetItem", "\"k2\""));
    assert!(!passes("UpdateItem", "\"k2\""));
    assert!(passes("UpdateItem", "\"k2\""));

    proxy.add(Rule::next(2, Mode::CutBefore).on("GetItem").after(1));
    let passed: Vec<bool> = (0..4).map(|_| passes("GetItem", "")).collect();
    assert_eq!(passed, [true, false, false, true]);

    // The first rule that fits applies.
    proxy.add(Rule::always(Mode::Pass).on("DescribeTable"));
    proxy.add(Rule::always(Mode::CutBefore));
    let passed: Vec<bool> = (0..4).map(|nth| passes(["DescribeTable", "GetItem"][nth % 2], "")).collect();
    assert_eq!(passed, [true, false, true, false]);
    assert!(proxy.clear().is_empty());
    assert!(passes("GetItem", ""));

    assert_eq!(proxy.count(), 13);
    let last = proxy.requests().pop().unwrap();
    assert_eq!((last.target.as_str(), last.sent), ("GetItem", 1));
    let cut: Vec<String> = proxy.requests().into_iter().filter(|r| r.sent == 0).map(|r| r.target + &r.body).collect();
    assert_eq!(cut, ["UpdateItem\"k2\"", "GetItem", "GetItem", "GetItem", "GetItem"]);
}

#[test]
fn open_connections_are_ended_amid_a_request() {
    for (reset, got) in [(false, Got::End), (true, Got::Reset)] {
        for mode in [Mode::Delay(NEVER), Mode::HoleToServer, Mode::DropAnswer] {
            let (server, proxy, mut client) = with(mode);
            client.send("Op", "a");
            proxy.wait_until("the request is here", |all| all.len() == 1);
            if mode == Mode::DropAnswer {
                answered(&proxy, 1);
            }
            if reset {
                proxy.reset_all()
            } else {
                proxy.cut_all()
            }
            assert_eq!(client.got(PATIENCE), got, "{mode:?}");
            assert_heals(&proxy);
            assert_eq!(server.bodies().len(), 1 + usize::from(mode == Mode::DropAnswer));
        }
    }
}

#[test]
fn a_server_that_is_gone_ends_the_connection() {
    // Only the idle connection ends: the next request gets a new one once the end has come, which takes longer on a
    // busy machine.
    let gets_a_new_one = |times: u32| {
        let (server, proxy, mut client) = with(Mode::Pass);
        assert_eq!(client.ask("Op", "close"), answer("1: close"));
        std::thread::sleep(times * QUIET);
        client.ask("Op", "a") == answer("2: a") && (server.connections(), proxy.count()) == (2, 2)
    };
    assert!([1, 4, 16, 64].into_iter().any(gets_a_new_one));
    // The whole server is gone.
    let closed = nobody::Closed::new();
    let proxy = Proxy::http(&closed.address());
    assert_eq!(Client::connect(proxy.addr()).ask("Op", "a"), Got::End);
}

#[test]
fn its_end_ends_everything() {
    let server = Upstream::start();
    let proxy = Proxy::http(&server.addr);
    let port = proxy.addr().port();
    let modes = [
        Mode::Pass,
        Mode::HoleToServer,
        Mode::HoleToClient,
        Mode::DropAnswer,
        Mode::Delay(NEVER),
        Mode::Late(NEVER),
        Mode::CutLate(NEVER),
        Mode::Held,
        Mode::CutHeld,
    ];
    let mut clients = Vec::new();
    for mode in modes {
        proxy.add(Rule::next(1, mode));
        let mut client = Client::connect(proxy.addr());
        client.send("Op", "a");
        proxy.wait_until("the request is here", |all| all.len() == clients.len() + 1);
        clients.push(client);
    }
    let idle = Client::connect(proxy.addr());
    assert!(matches!(clients[0].got(PATIENCE), Got::Answer(_)));
    assert!(!threads(port).is_empty());
    answered(&proxy, 3);
    measure();
    let started = Instant::now();
    drop(proxy);
    assert!(started.elapsed() < Duration::from_secs(5) + slack(started));
    // A thread that was joined may still be seen for a moment.
    while !threads(port).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(5) + slack(started), "{:?}", threads(port));
    }
    for client in clients.iter_mut().chain([&mut { idle }]) {
        assert_eq!(client.got(PATIENCE), Got::End);
    }
    assert_eq!(server.bodies().len(), 3, "what was to come later came all the same");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn it_stands_before_the_real_server() {
    let Some(url) = crate::support::servers::dynamodb_local() else { return };
    let ready = crate::support::servers::dynamodb::SERVER.ready;
    let proxy = Proxy::http(&url);
    // The proxied server has five seconds, and a busy one may stall.
    wait_until("it answers", || ready(&proxy.url()));
    assert_eq!(proxy.requests()[0].target, "ListTables");
    proxy.add(Rule::next(1, Mode::CutAfter).on("ListTables"));
    assert!(!ready(&proxy.url()));
    wait_until("it answers again", || ready(&proxy.url()));
    let mut client = Client::connect(proxy.addr());
    // To the middle of a day, so that it stays the same day however long the answer takes.
    const NOON: i64 = 963_662_400;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    proxy.shift_dates(NOON - i64::try_from(now).unwrap());
    // This is its answer to an unknown operation.
    client.send("Op", "{}");
    assert!(matches!(client.got(PATIENCE), Got::Answer(_)));
    assert!(client.head.contains(" 15 Jul 2000 "), "{}", client.head);
}
