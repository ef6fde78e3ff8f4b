//! TLS: what each `sslmode` requires of the server, and that nothing is sent in plain text where it must not be.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use leasehold::{Error, ErrorKind, LockClient};

use crate::errors::text;
use crate::postgres::*;
use crate::support::authority::Authority;
use crate::support::harness::{PATIENCE, within};
use crate::support::nobody::Closed;
use crate::support::own::Own;
use crate::support::postgres::{block_on, comes_soon, connect, connected, sql_at};
use crate::support::proxy::Proxy;
use crate::support::servers::{need, postgres, postgres_server, skip, skip::skip_part};
use crate::support::stores::unique;
use crate::support::wait::wait_until;

/// The name in the server's certificate. No resolver knows it, so the address is always given as well.
const NAME: &str = "db.test";
/// The first bytes of a client that asks for TLS, and the first byte of a handshake.
const ASKS: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
const HANDSHAKE: u8 = 0x16;

/// A server with a certificate of an authority of its own.
struct Secure {
    own: Own,
    ca: Authority,
}

impl Secure {
    fn start() -> Option<Secure> {
        let ca = Authority::new()?;
        ca.issue("server", &format!("DNS:{NAME}"));
        let secure = Secure { own: Own::start(&postgres::OWN)?, ca };
        secure.shows("server");
        Some(secure)
    }

    fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        sql_at(&self.own.url().parse().unwrap(), sql)
    }

    /// From now on the server shows this certificate.
    fn shows(&self, name: &str) {
        self.shows_of(&self.ca, name);
    }

    /// The same for a certificate that this authority has made.
    fn shows_of(&self, ca: &Authority, name: &str) {
        let folder = self.own.data().join("db");
        let owner = std::fs::metadata(&folder).unwrap();
        for (from, to) in [(ca.pem(name), "server.crt"), (ca.key(name), "server.key"), (self.ca.pem("ca"), "root.crt")]
        {
            let to = folder.join(to);
            std::fs::copy(from, &to).unwrap();
            std::fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        self.sql("ALTER SYSTEM SET ssl_ca_file = 'root.crt'");
        self.sql("ALTER SYSTEM SET ssl = on");
        self.reload();
    }

    /// Sets who may connect and how, in addition to the harness's own user.
    fn rules(&self, rules: &str) {
        let all = format!("{rules}\nhost all leasehold all trust\nlocal all all trust\n");
        let file = self.own.data().join("db/pg_hba.conf");
        std::fs::write(file, all).unwrap();
        self.reload();
        let first = rules.lines().next().unwrap();
        let count = "SELECT count(*) FROM pg_hba_file_rules WHERE error IS NULL";
        assert_eq!(self.sql(count)[0][0].as_deref(), Some((rules.lines().count() + 2).to_string().as_str()), "{first}");
    }

    /// Waits until new sessions use what was written before.
    fn reload(&self) {
        let loaded = || self.sql("SELECT pg_conf_load_time()")[0][0].clone();
        let before = loaded();
        self.sql("SELECT pg_reload_conf()");
        wait_until("it has read its files", || loaded() != before);
    }

    fn url(&self, user: &str, name: &str, options: &str) -> String {
        url(&postgres::host(&self.own.url()).unwrap(), user, name, options)
    }

    fn ca(&self) -> String {
        format!("&sslrootcert={}", self.ca.pem("ca"))
    }

    /// Whether all sessions with that name are encrypted.
    fn are_encrypted(&self, application: &str) -> bool {
        let sql = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name";
        let found = self.sql(&format!("{sql} = '{application}'"));
        assert!(!found.is_empty(), "there is no session of {application}");
        let encrypted = found.iter().filter(|row| row[0].as_deref() == Some("t")).count();
        assert!([0, found.len()].contains(&encrypted), "some of {application} are plain");
        encrypted > 0
    }
}

/// The URL of this address, with that host name.
fn url(host: &str, user: &str, name: &str, options: &str) -> String {
    let (ip, port) = host.rsplit_once(':').unwrap();
    format!("postgres://{user}@{name}:{port}/postgres?hostaddr={ip}{options}")
}

/// What connecting to this URL answers, within its deadline.
fn answer(url: &str) -> Result<LockClient, Error> {
    let timeout = Duration::from_secs(5);
    let answer = within(url, timeout, || LockClient::builder(url).request_timeout(timeout).connect());
    answer.inspect_err(|error| println!("{url}: {}", text(error)))
}

/// What it answers in the end: on a busy machine it may take longer than one connection may.
fn settled(url: &str) -> Result<LockClient, Error> {
    let mut last = answer(url);
    wait_until("the server says something", || {
        let is_slow = last.as_ref().is_err_and(|error| text(error).contains("it was not made in"));
        if is_slow {
            last = answer(url);
        }
        !is_slow
    });
    last
}

#[track_caller]
fn connects(url: &str) -> LockClient {
    settled(url).unwrap_or_else(|error| panic!("{url}: {}", text(&error)))
}

fn refused(url: &str) -> Error {
    settled(url).unwrap_err()
}

/// Asserts that the error blames the settings, with these words and with the host, and that there is no fallback.
#[track_caller]
fn wrong(url: &str, says: &[&str]) {
    let error = refused(url);
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false), "{url}: {}", text(&error));
    for word in says {
        assert!(error.to_string().contains(word), "{url}: {word}: {}", text(&error));
    }
}

#[test]
fn each_mode_checks_what_it_says() {
    let Some(secure) = Secure::start() else { return };
    let stranger = Authority::new().unwrap();
    let (ours, theirs) = (secure.ca(), format!("&sslrootcert={}", stranger.pem("ca")));
    let (plain, encrypted) = (false, true);
    let full = format!("&sslmode=verify-full{ours}");
    let is_newer = secure.sql("SHOW server_version_num")[0][0].as_deref() >= Some("170000");
    let direct = format!("{full}{}", if is_newer { "&sslnegotiation=direct" } else { "" });
    let (require, verify_ca) = (format!("&sslmode=require{ours}"), format!("&sslmode=verify-ca{ours}"));
    for (name, options, expected) in [
        (NAME, "&sslmode=disable", plain),
        (NAME, "", encrypted),
        ("other.test", "&sslmode=prefer", encrypted),
        ("other.test", "&sslmode=require", encrypted),
        ("other.test", &require, encrypted),
        ("other.test", &verify_ca, encrypted),
        (NAME, &direct, encrypted),
    ] {
        let application = unique();
        let url = secure.url("leasehold", name, &format!("{options}&application_name={application}"));
        let client = connects(&url);
        assert_eq!(secure.are_encrypted(&application), expected, "{url}");
        drop(client);
    }
    let host = format!("{NAME}:");
    wrong(&secure.url("leasehold", "other.test", &full), &["other.test:", "for other names", "verify-ca"]);
    for mode in ["require", "verify-ca", "verify-full"] {
        let options = format!("&sslmode={mode}{theirs}");
        wrong(&secure.url("leasehold", NAME, &options), &[&host, "not signed by an authority", "sslrootcert"]);
    }
    // No authority of the system has signed the certificate.
    for options in ["&sslmode=verify-full", "&sslrootcert=system"] {
        wrong(&secure.url("leasehold", NAME, options), &["sslrootcert"]);
    }
    // An address has no other name.
    let bare = secure.own.url();
    connects(&format!("{bare}?sslmode=require"));
    wrong(&format!("{bare}?sslmode=verify-full{ours}"), &["127.0.0.1:", "for other names"]);
    let hosts = postgres::host(&bare).unwrap();
    let port = hosts.rsplit_once(':').unwrap().1;
    let only_address = format!("postgres:///postgres?user=leasehold&hostaddr=127.0.0.1&port={port}&sslmode");
    connects(&format!("{only_address}=require"));
    wrong(&format!("{only_address}=verify-full{ours}"), &["127.0.0.1:", "for other names"]);
    // Nobody can listen in on a socket of this host.
    connects(&format!("postgres://leasehold@%2Ftmp:{port}/postgres?sslmode=verify-full{ours}"));
}

/// The zone says on which network this host finds the address, and the certificate does not contain it.
#[test]
fn an_address_with_a_zone_is_checked_without_it() {
    needs_server!();
    let Some(secure) = Secure::start() else { return };
    secure.ca.issue("v6", "IP:0:0:0:0:0:0:0:1");
    secure.shows("v6");
    let Ok(listens) = TcpListener::bind("[::1]:0") else { return skip_part("this machine has no address [::1]") };
    let port = listens.local_addr().unwrap().port();
    let server = postgres::host(&secure.own.url()).unwrap();
    std::thread::spawn(move || {
        for ours in listens.incoming().flatten() {
            let theirs = TcpStream::connect(&server).unwrap();
            for (mut from, mut to) in [(ours.try_clone(), theirs.try_clone()), (Ok(theirs), Ok(ours))]
                .map(|(from, to)| (from.unwrap(), to.unwrap()))
            {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    for mode in ["prefer".to_owned(), "require".to_owned(), format!("verify-full{}", secure.ca())] {
        let name = unique();
        let url = format!("postgres://leasehold@[::1%251]:{port}/postgres?application_name={name}&sslmode={mode}");
        let client = connects(&url);
        assert!(secure.are_encrypted(&name), "{mode}");
        let error = client.try_lock("k").unwrap_err();
        assert!(error.store().unwrap().contains(&format!("[::1%1]:{port}/")), "{error}");
    }
}

#[test]
fn a_server_without_tls_is_used_only_where_that_may_be() {
    needs_server!();
    let Some(ca) = Authority::new() else { return };
    let server = postgres_server().unwrap();
    let host = postgres::host(&server).unwrap();
    for options in ["", "&sslmode=prefer", "&sslmode=disable"] {
        connects(&url(&host, "leasehold", NAME, options));
    }
    let roots = format!("&sslrootcert={}", ca.pem("ca"));
    for options in ["require".to_owned(), format!("verify-ca{roots}"), format!("verify-full{roots}")] {
        let mode = options.split('&').next().unwrap();
        let says = [NAME, "offers no TLS", &format!("sslmode={mode}")];
        wrong(&url(&host, "leasehold", NAME, &format!("&sslmode={options}")), &says);
    }
    // Of several hosts, the one that has the name.
    let Some(secure) = Secure::start() else { return };
    let both = format!("{host},{}", postgres::host(&secure.own.url()).unwrap());
    connects(&format!("postgres://leasehold@{both}/postgres?sslmode=require"));
    // While that host is away, the settings are not to blame.
    let nobody = Closed::new();
    let away = nobody.address();
    for hosts in [format!("{away},{host}"), format!("{host},{away}")] {
        let error = refused(&format!("postgres://leasehold@{hosts}/postgres?sslmode=require"));
        assert!(error.is_retryable(), "{hosts}: {}", text(&error));
    }
    // A host without a name has its address.
    let secure_host = postgres::host(&secure.own.url()).unwrap();
    let (ip, port) = secure_host.rsplit_once(':').unwrap();
    let nameless = format!("postgres://leasehold@:{port}/postgres?hostaddr={ip}");
    connects(&format!("{nameless}&sslmode=require"));
    wrong(&format!("{nameless}&sslmode=verify-full{}", secure.ca()), &["127.0.0.1:", "for other names"]);
}

/// A first connection fails for good. For a client that has connected before, the certificate is wrong only for now.
#[test]
fn a_certificate_that_is_wrong_for_a_while_ends_no_client() {
    let Some(secure) = Secure::start() else { return };
    let stranger = Authority::new().unwrap();
    stranger.issue("server", &format!("DNS:{NAME}"));
    let url = secure.url("leasehold", NAME, &format!("&sslmode=verify-full{}&application_name=stays", secure.ca()));
    let client = connects(&url);
    client.create_schema().unwrap();
    secure.shows_of(&stranger, "server");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stays'";
    let mut error = None;
    wait_until("it has to connect anew", || {
        secure.sql(end);
        error = client.get("k").err();
        error.as_ref().is_some_and(|error| text(error).contains("not signed by an authority"))
    });
    let error = error.unwrap();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{}", text(&error));
    wrong(&url, &["not signed by an authority"]);
    secure.shows("server");
    wait_until("it goes on", || client.get("k").is_ok());
}

#[test]
fn a_lock_is_kept_waited_for_and_given_up_without_a_plain_byte() {
    let Some(secure) = Secure::start() else { return };
    secure.sql("CREATE ROLE app LOGIN; GRANT CREATE ON SCHEMA public TO app");
    secure.rules("hostssl all app all trust");
    let proxy = Proxy::raw(&postgres::host(&secure.own.url()).unwrap());
    let url = url(&proxy.addr().to_string(), "app", NAME, &format!("&sslmode=verify-full{}", secure.ca()));
    let holder = connected(|| LockClient::builder(&url).heartbeat(Duration::from_millis(200)));
    holder.create_schema().unwrap();
    let guard = holder.lock("canary-key").unwrap();
    wait_until("it is renewed", || {
        secure.sql("SELECT FROM leasehold WHERE key = 'canary-key' AND renewed IS NOT NULL").len() == 1
    });
    std::thread::scope(|scope| {
        let waits = || {
            let client = connected(|| LockClient::builder(&url).request_timeout(PATIENCE));
            client.lock("canary-key").unwrap().release().unwrap();
        };
        let listens = "SELECT FROM pg_stat_activity WHERE query LIKE '%unnest%' AND application_name = 'leasehold'";
        let mut waiting = Vec::new();
        // A listener that did not hear itself for a second (a stalled server) polls for minutes: another is begun.
        let is_told = (0..5).any(|_| {
            waiting.push(scope.spawn(waits));
            comes_soon(|| !secure.sql(listens).is_empty())
        });
        guard.release().unwrap();
        waiting.into_iter().for_each(|waits| waits.join().unwrap());
        assert!(is_told, "it does not listen");
    });
    assert!(secure.are_encrypted("leasehold"));

    // What is left behind is cancelled, over TLS as well.
    let leaving = format!("{url}&application_name=leaves");
    let leaves = connected(|| LockClient::builder(&leaving).request_timeout(Duration::from_secs(4)));
    let held = holder.request("canary-key").acquire().unwrap();
    block_on(async {
        let other = connect(&secure.own.url().parse().unwrap()).await;
        other.batch_execute("BEGIN; SELECT FROM leasehold FOR UPDATE").await.unwrap();
        let before = proxy.heard().len();
        wait_until("its release is sent", || leaves.release(&held).unwrap_err().kind() == ErrorKind::Ambiguous);
        let waits = "SELECT FROM pg_stat_activity WHERE application_name = 'leaves' AND wait_event_type = 'Lock'";
        wait_until("nobody waits any more", || secure.sql(waits).is_empty() && proxy.heard().len() > before);
    });
    // A connection to which the server said nothing in its time never begins.
    comes_soon(|| proxy.heard().iter().all(|said| said.len() > ASKS.len()));
    for said in proxy.heard().into_iter().filter(|said| !said.is_empty()) {
        let is_asked = said.starts_with(ASKS) && said.get(ASKS.len()).is_none_or(|byte| *byte == HANDSHAKE);
        assert!(is_asked, "{}", said.escape_ascii());
        assert!(!said.windows(6).any(|part| part == b"canary"), "a key passed plainly");
    }
}

/// Servers, or hosts between, that do not answer as they should.
#[test]
fn a_strange_answer_is_told_in_time_and_gets_nothing() {
    // The answer to the request for TLS, how it goes on, and whether a repeat may help.
    for (says, ends, is_retryable) in [
        (&b"X"[..], true, false),
        (b"X", false, false),
        (b"S", true, true),
        (b"Strange", true, false),
        (b"", true, true),
        (b"", false, true),
    ] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = server.local_addr().unwrap().to_string();
        for mode in ["require", "prefer"] {
            let url = url(&host, "me:canary", NAME, &format!("&sslmode={mode}"));
            let heard = std::thread::scope(|scope| {
                let serving = scope.spawn(|| serve(&server, says, ends));
                let is_final = mode == "require" && !is_retryable;
                let error = if is_final { refused(&url) } else { answer(&url).unwrap_err() };
                if mode == "require" {
                    assert_eq!(error.is_retryable(), is_retryable, "{says:?} {ends}: {}", text(&error));
                }
                let _ = TcpStream::connect(&host).unwrap().write_all(b"the end");
                serving.join().unwrap()
            });
            assert!(!heard.is_empty());
            for said in heard {
                let is_asked = said.starts_with(ASKS) && said.get(8).is_none_or(|byte| *byte == HANDSHAKE);
                assert!(mode == "prefer" || is_asked, "{}", said.escape_ascii());
            }
        }
    }
}

/// Answers each connection like this, until one says that it is the end. Returns what the others said.
fn serve(server: &TcpListener, says: &[u8], ends: bool) -> Vec<Vec<u8>> {
    let (mut heard, mut open) = (Vec::new(), Vec::new());
    loop {
        let mut stream = server.accept().unwrap().0;
        let mut said = [0; 8];
        let count = stream.read(&mut said).unwrap_or(0);
        if said[..count].starts_with(b"the end") {
            break;
        }
        let _ = stream.write_all(says);
        if ends {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        open.push((said[..count].to_vec(), stream));
    }
    for (mut said, mut stream) in open {
        // The client has left the connection by now.
        let _ = stream.read_to_end(&mut said);
        heard.push(said);
    }
    heard
}

#[test]
fn a_user_whom_the_server_lets_in_plainly_only_is_let_in_by_prefer_alone() {
    let Some(secure) = Secure::start() else { return };
    secure.sql("CREATE ROLE app LOGIN; CREATE ROLE safe LOGIN");
    secure.rules("hostnossl all app all trust\nhostssl all safe all trust");
    connects(&secure.url("app", NAME, ""));
    connects(&secure.url("safe", NAME, ""));
    for (user, mode) in [("app", "require"), ("safe", "disable"), ("nobody", "prefer")] {
        let error = refused(&secure.url(user, NAME, &format!("&sslmode={mode}")));
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Permission, false), "{user}: {}", text(&error));
    }
}

#[test]
fn a_certificate_that_signed_itself_is_trusted_where_it_is_named() {
    if let Err(why) = need("faketime") {
        return skip(&why);
    }
    let Some(secure) = Secure::start() else { return };
    let names = format!("DNS:{NAME}");
    secure.ca.alone("alone", &names);
    secure.ca.expired("old", &names);
    let url = |name: &str, options: &str| secure.url("leasehold", name, options);
    let named = |name: &str| format!("&sslmode=verify-full&sslrootcert={}", secure.ca.pem(name));
    secure.shows("alone");
    connects(&url(NAME, &named("alone")));
    wrong(&url("other.test", &named("alone")), &["for other names"]);
    wrong(&url(NAME, &named("ca")), &[NAME, "certificate"]);
    secure.shows("old");
    wrong(&url(NAME, &named("old")), &[NAME, "has expired"]);
    connects(&url(NAME, "&sslmode=require"));
    // An authority can also have expired, although what it signed has not.
    secure.ca.issue_by("old", "server", &names);
    secure.shows("server");
    wrong(&url(NAME, &named("old")), &[NAME, "an authority that has expired"]);
}

#[test]
fn a_client_shows_the_certificate_that_it_was_given() {
    let Some(secure) = Secure::start() else { return };
    secure.sql("CREATE ROLE app LOGIN");
    secure.rules("hostssl all app all cert");
    ["app", "other"].iter().for_each(|name| secure.ca.issue(name, "DNS:client.test"));
    let stranger = Authority::new().unwrap();
    stranger.issue("app", "DNS:client.test");
    let url = |cert: &str, key: &str| {
        secure.url("app", NAME, &format!("&sslmode=verify-full{}&sslcert={cert}&sslkey={key}", secure.ca()))
    };
    let ca = &secure.ca;
    connects(&url(&ca.pem("app"), &ca.key("app")));
    let error = refused(&secure.url("app", NAME, "&sslmode=require"));
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Permission, false), "{}", text(&error));
    let error = refused(&url(&ca.pem("other"), &ca.key("other")));
    assert_eq!(error.kind(), ErrorKind::Permission, "{}", text(&error));
    // The server may say why, or the connection ends.
    refused(&url(&stranger.pem("app"), &stranger.key("app")));
    wrong(&url(&ca.pem("app"), &ca.key("other")), &["sslkey=", "sslcert="]);
    wrong(&url(&ca.pem("app"), &ca.pem("app")), &["sslkey=", "private key"]);
    wrong(&url(&ca.key("app"), &ca.key("app")), &["sslcert=", "certificates in PEM"]);
    let none = ca.file("none").display().to_string();
    wrong(&url(&ca.pem("app"), &none), &["sslkey=", "No such file"]);
    wrong(&url(&none, &ca.key("app")), &["sslcert=", "No such file"]);
}

#[test]
fn a_password_is_bound_to_the_channel() {
    let Some(secure) = Secure::start() else { return };
    secure.sql("SET password_encryption = 'scram-sha-256'; CREATE ROLE app LOGIN PASSWORD 'canary'");
    secure.rules("host all app all scram-sha-256");
    let url = |user: &str, options: &str| secure.url(user, NAME, &format!("&channel_binding=require{options}"));
    connects(&url("app:canary", "&sslmode=require"));
    connects(&url("app:canary", ""));
    for (user, options) in [("app:canary", "&sslmode=disable"), ("app:wrong", "&sslmode=require")] {
        let error = refused(&url(user, options));
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Permission, false), "{user}: {}", text(&error));
    }
}

#[test]
fn tls_from_the_first_byte_is_said_to_need_a_newer_server() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = url(&server.local_addr().unwrap().to_string(), "me", NAME, "&sslmode=require&sslnegotiation=direct");
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let (mut said, mut stream) = (Vec::new(), server.accept().unwrap().0);
            let names = |said: &[u8]| said.windows(10).any(|part| part == b"postgresql");
            let mut bytes = [0; 4_096];
            while !names(&said) {
                let count = stream.read(&mut bytes).unwrap();
                assert_ne!(count, 0, "it names no protocol: {}", said.escape_ascii());
                said.extend_from_slice(&bytes[..count]);
            }
            said
        });
        let text = text(&answer(&url).unwrap_err());
        // A short wait is enough, except on a busy machine.
        assert!(text.contains("PostgreSQL 17") || text.contains("it was not made in"), "{text}");
        assert_eq!(serving.join().unwrap()[0], HANDSHAKE);
    });
}
