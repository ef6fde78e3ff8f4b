//! Bad input and a server that is not there: reported within the deadline, and without secrets.

use std::time::Duration;

use leasehold::internals::lease::Lease;
use leasehold::internals::store::Schema;
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::{ErrorKind, LockClient};

use crate::errors::{are_refused, no_server_is_told, text};
use crate::postgres::*;
use crate::support::contract::{LEASE, granted, release, renewal, renewed};
use crate::support::harness::PATIENCE;
use crate::support::nobody;
use crate::support::postgres::{Rows, config, opened, sql_at, unless_late};
use crate::support::proxy::{Flow, Proxy};
use crate::support::servers::{postgres, postgres_server};

#[test]
fn what_is_wrong_in_a_url_is_said_before_anything_is_sent() {
    are_refused([
        ("postgres:", "wrong"),
        ("postgres://", "needs a host"),
        ("postgres:/me:ab=canary@localhost/app", "must begin with postgres://"),
        ("postgresql:me:ab=canary@localhost/app", "must begin with postgres://"),
        ("postgres:me:canary?canary=1", "must begin with postgres://"),
        ("postgres://me@:5433/app", "needs a host"),
        ("postgres://localhost/app?tabel=x", "did you mean \"table\""),
        ("postgres://localhost/app?sslmod=disable", "did you mean \"sslmode\""),
        ("postgres://localhost/app?sslcrl=x", "its options"),
        ("postgres://localhost/app?table=a&table=b", "twice"),
        ("postgres://localhost/app?table=", "must be like"),
        ("postgres://localhost/app?table=a.b.c", "must be like"),
        ("postgres://localhost/app?table=a%22b", "must be like"),
        ("postgres://localhost/app?table=1a", "must be like"),
        ("postgres://localhost/app?sslmode=allow", "disable, prefer, require, verify-ca, verify-full"),
        ("postgres://localhost/app?sslmode=verify-ful", "did you mean \"verify-full\""),
        ("postgres://localhost/app?sslrootcert=x", "sslmode=verify-full"),
        ("postgres://localhost/app?sslmode=prefer&sslrootcert=x", "sslmode=verify-full"),
        ("postgres://localhost/app?sslmode=require&sslrootcert=system", "needs sslmode=verify-full"),
        ("postgres://localhost/app?sslmode=require&sslrootcert=", "must be a file"),
        ("postgres://localhost/app?sslmode=require&sslrootcert=/no/where", "sslrootcert=/no/where"),
        ("postgres://localhost/app?sslmode=verify-ca", "needs sslrootcert=FILE"),
        ("postgres://localhost/app?sslcert=x", "sslkey"),
        ("postgres://localhost/app?sslcert=x&sslkey=-----BEGIN%20KEY-----canary", "sslkey must be the name of a file"),
        ("postgres://localhost/app?sslkey=x&sslcert=a%0Acanary", "sslcert must be the name of a file"),
        (
            "postgres://localhost/app?sslmode=verify-ca&sslrootcert=-----BEGIN%20canary",
            "sslrootcert must be the name of a file",
        ),
        ("postgres://localhost/app?sslcert=/no/where&sslkey=x", "sslcert=/no/where"),
        ("postgres://localhost/app?sslnegotiation=direct", "sslmode=require"),
        ("postgres://localhost/app?connect_timeout=soon", "connect_timeout"),
        ("postgres://localhost/app?target_session_attrs=any", "must be read-write"),
        ("postgres://me:canary@localhost:x/app", "port"),
        ("postgres://me:can?ary@localhost/app", "%3F"),
        ("postgres://me:can?ary=1@localhost/app", "%3F"),
        ("postgres://app:p@ss?canary@localhost/app", "%3F"),
        ("postgres://me@corp:pa?canary&x@localhost/app", "%3F"),
        ("postgres://me:c@nary@localhost/app", "%40"),
        ("postgres://localhost/app?password=ca&nary", "& as %26"),
        ("postgres://localhost/app?password=ca&nary&table=locks", "& as %26"),
        ("postgres://localhost/app?password=ab&canary=x", "& as %26"),
        ("postgres://localhost:1/app?port=2", "behind its host"),
        ("postgres://a,b:1/app?port=2", "behind its host"),
        ("postgres://a,b/app?port=1,2,3", "as many of"),
        ("postgres://me:can%00ary@localhost/app", "%00"),
        ("postgres://me%00@localhost/app", "%00"),
        ("postgres://localhost/a%00p", "%00"),
        ("postgres://localhost/app?application_name=a%00p", "%00"),
        ("postgers://me:canary@localhost/app", "did you mean"),
    ]);
}

/// As libpq accepts them.
#[test]
fn ports_and_hosts_may_stand_among_the_options() {
    // Nothing can listen at these ports of 127.0.0.1, and hardly anything does at those of ::1.
    let closed = [nobody::Closed::new(), nobody::Closed::new()];
    let [one, two] = closed.each_ref().map(|closed| closed.address().rsplit(':').next().unwrap().to_owned());
    let at = |text: &str| text.replace("ONE", &one).replace("TWO", &two);
    for (url, hosts) in [
        ("postgres://me@127.0.0.1/app?port=ONE", "127.0.0.1:ONE"),
        ("postgres://me:a%2Fb@127.0.0.1/app?port=ONE", "127.0.0.1:ONE"),
        ("postgres://[::1]/app?user=me&port=ONE", "[::1]:ONE"),
        ("postgres://me@127.0.0.1,[::1]/app?port=ONE", "127.0.0.1:ONE,[::1]:ONE"),
        ("postgres://me@127.0.0.1,[::1]/app?port=ONE,TWO", "127.0.0.1:ONE,[::1]:TWO"),
        ("postgres://me@127.0.0.1/app?hostaddr=127.0.0.1&port=ONE", "127.0.0.1:ONE"),
        ("postgres://127.0.0.1?dbname=app&port=ONE&user=me", "127.0.0.1:ONE"),
        ("postgres:///app?host=127.0.0.1,::1&port=ONE,TWO&user=me", "127.0.0.1:ONE,[::1]:TWO"),
        #[cfg(unix)]
        ("postgres://me@%2Fno%2Fwhere/app?port=ONE", "/no/where:ONE"),
    ] {
        let error = LockClient::builder(at(url)).request_timeout(Duration::from_secs(2)).connect().unwrap_err();
        let store = at(&format!("postgres://{hosts}/app.leasehold"));
        assert_eq!(error.store(), Some(store.as_str()), "{url}: {error}");
    }
}

#[test]
fn settings_with_tls_are_never_plain() {
    needs_server!();
    let server = crate::support::servers::postgres_server().unwrap();
    let mut config: leasehold::postgres::tokio_postgres::Config = server.parse().unwrap();
    config.password("canary").ssl_mode(leasehold::postgres::tokio_postgres::config::SslMode::Require);
    let error = unless_late(|| leasehold::postgres::builder(config.clone(), "locks").connect()).unwrap_err();
    assert!(error.kind() == ErrorKind::Config && text(&error).contains("offers no TLS"), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_told_in_time() {
    let at = |host: &str| LockClient::builder(format!("postgres://me:canary@{host}/app"));
    no_server_is_told(&[2], at, |host, error| {
        assert!(text(error).contains("no connection"), "{host}: {error:?}");
        assert!(error.store().is_some_and(|store| store.starts_with("postgres://")), "{host}: {error}");
    });
}

#[test]
fn a_database_or_a_table_that_is_missing_is_told() {
    needs_server!();
    let server = crate::support::servers::postgres_server().unwrap();
    let nowhere = server.replace("/postgres", "/nowhere");
    let error = unless_late(|| LockClient::connect(&nowhere)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let client = unless_late(|| LockClient::connect(&format!("{server}?table=nowhere"))).unwrap();
    let error = client.try_lock("k").unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("create_schema"), "{error}");
    assert_eq!(error.key(), Some("k"));
}

/// SQL_ASCII stores all bytes as they are, and other encodings store what they have a character for.
#[test]
fn a_database_of_another_encoding_keeps_locks_and_says_what_it_has_no_character_for() {
    needs_server!();
    for (encoding, has_all) in [("SQL_ASCII", true), ("LATIN1", false)] {
        let database = Rows::unmade().0.replace("t_", "d_");
        let admin = |sql: &str| drop(sql_at(&config(), &sql.replace("{D}", &database)));
        admin(&format!("CREATE DATABASE {{D}} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"));
        let mut theirs = config();
        theirs.dbname(&database);
        let store = opened(PostgresOptions::new(theirs, "locks").unwrap());
        store.schema(Schema::Create, &soon()).unwrap();
        for (mode, key) in
            [(Mode::Exclusive, "caf\u{e9}"), (Mode::Shared, "caf\u{e9}"), (Mode::Shared, "\u{3a9}\u{1f600}")]
        {
            let mut a = attempt(&store, key, mode);
            a.ask.labels.owner = format!("owner of {key}");
            a.ask.lock_id = format!("id of {key}");
            if !has_all && key.starts_with('\u{3a9}') {
                let error = store.acquire(&mut a, &soon()).unwrap_err();
                assert!(error.kind() == ErrorKind::InvalidInput && text(&error).contains("UTF8"), "{error}");
                continue;
            }
            granted(&store, &mut a);
            renewed(&store, &mut a, renewal(Lease::For(LEASE)));
            for which in [Which::Prefix(key.chars().take(1).collect()), Which::LockId(a.ask.lock_id.clone())] {
                let found = store.read(&which, None, Consistency::Strong, &soon()).unwrap().records;
                assert!(found.iter().any(|seen| seen.record.standing(a.grant()).is_some()), "{encoding} {which:?}");
            }
            release(&store, &mut a);
        }
        drop(store);
        admin("DROP DATABASE {D} WITH (FORCE)");
    }
}

/// Even if the server is slow: each try is another login, and a user may have only so many of them.
#[test]
fn what_a_slow_server_refuses_is_not_asked_for_again() {
    needs_server!();
    let proxy = Proxy::raw(&postgres::host(&postgres_server().unwrap()).unwrap());
    proxy.flow(Flow::Pass, Flow::Delay(Duration::from_millis(1_200)));
    let url = format!("postgres://leasehold@{}/nowhere?sslmode=disable", proxy.addr());
    let refused = || {
        let before = proxy.heard().len();
        let error = LockClient::builder(&url).request_timeout(PATIENCE).connect().unwrap_err();
        (error.kind(), proxy.heard().len() - before)
    };
    // A login that is not answered in three seconds, as on a busy machine, is repeated.
    let all = [refused(), refused(), refused()];
    assert!(all.contains(&(ErrorKind::Config, 1)), "{all:?}");
}

/// The user and the password are right then, and a repeat would not help.
#[test]
fn settings_that_the_server_refuses_are_told_as_that() {
    needs_server!();
    let server = crate::support::servers::postgres_server().unwrap();
    for (options, says) in [
        ("-c%20nosuch%3D1", "nosuch"),
        ("-c%20timezone%3DNowhere", "Nowhere"),
        ("-c%20role%3Dnosuch", "nosuch"),
        ("-c%20max_connections%3D9", "max_connections"),
        ("nosuch", "nosuch"),
    ] {
        let error = unless_late(|| LockClient::connect(&format!("{server}?options={options}"))).unwrap_err();
        let text = text(&error);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false), "{options}: {text}");
        assert!(text.contains(says) && error.to_string().contains("options="), "{options}: {text}");
    }
}
