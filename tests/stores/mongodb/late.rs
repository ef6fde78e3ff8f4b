//! A server that stalls: requests wait in its socket for longer than their sender did.

use std::time::{Duration, Instant};

use leasehold::internals::lease::Lease;
use leasehold::internals::store::{Acquired, Backend, Consistency, Renewed, Schema};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::sync::Client;

use crate::mongodb::*;
use crate::support::cluster::Cluster;
use crate::support::contract::{granted, renewal, renewed};
use crate::support::mongodb::{Rows, host};
use crate::support::proxy::{Mode as Fault, Proxy, Rule};
use crate::support::wait::wait_until;

const LEASE: Duration = Duration::from_secs(600);
/// How long the holder waits.
const SHORT: Duration = Duration::from_secs(3);

/// The holder has given up, so the renewal would keep the key locked for one more lease.
#[test]
fn a_renewal_that_was_given_up_prolongs_nothing() {
    let Some(mut cluster) = Cluster::one(&[]) else { return };
    let store = open(Rows::options_named("locks", &cluster.uri()));
    store.schema(Schema::Create, &soon()).unwrap();
    let admin = Client::with_uri_str(cluster.uri()).unwrap().database("admin");
    let run = |command: Document| admin.run_command(command).run().unwrap();
    let begun = || {
        let status = run(doc! { "serverStatus": 1 });
        let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
        commands.get_document("findAndModify").unwrap().get_i64("total").unwrap()
    };
    let is_idle = || {
        let running = run(doc! { "currentOp": 1, "command.findAndModify": { "$exists": true } });
        running.get_array("inprog").unwrap().is_empty()
    };
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&store, &mode.to_string(), mode);
        let before = granted(&store, &mut a).until;
        let so_far = begun();
        cluster.stop(0);
        let answer = store.renew(&mut a, renewal(Lease::For(LEASE)), &Deadline::after(SHORT));
        assert!(matches!(answer, Ok(Renewed::Unknown(_))), "{answer:?}");
        cluster.go_on(0);
        wait_until("it did what was sent", || begun() > so_far && is_idle());
        // This read needs a new connection, and a server that has just gone on may be too slow for one.
        let seen = sent(|| store.read(&Which::Key(a.key.clone()), None, Consistency::Strong, &soon())).records;
        assert_eq!(seen[0].record.holders().next().unwrap().1.until, before, "{mode}");
        // While a caller waits for the answer, a renewal is never too late.
        assert!(renewed(&store, &mut a, renewal(Lease::For(LEASE))) > before);
    }
}

#[test]
fn a_late_answer_makes_no_renewal_too_late() {
    needs_server!();
    let rows = Rows::fresh();
    let proxy = Proxy::raw(&host(&crate::support::servers::mongod().unwrap()));
    let store = open(rows.options_at(&format!(
        "mongodb://{}/?directConnection=true&serverMonitoringMode=poll&heartbeatFrequencyMS=600000",
        proxy.addr()
    )));
    crate::network::a_late_answer_makes_no_renewal_too_late(&store, &proxy, SHORT * 4 / 3);
}

/// If the driver gets no connection, it reports what went wrong with making one, as if a request had been sent.
#[test]
fn what_had_no_connection_is_called_undone() {
    needs_server!();
    let rows = Rows::fresh();
    let proxy = Proxy::mongodb(&host(&crate::support::servers::mongod().unwrap()));
    let brief = "directConnection=true&serverMonitoringMode=poll&heartbeatFrequencyMS=600000&maxIdleTimeMS=50&\
                 serverSelectionTimeoutMS=300";
    // Chance decides what the driver says: whether a request or its own check of the server comes first.
    for round in 0..5 {
        let store = open(rows.options_at(&format!("mongodb://{}/?{brief}", proxy.addr())));
        sent(|| store.schema(Schema::Check, &soon()));
        ["hello", "isMaster"].into_iter().for_each(|login| proxy.add(Rule::always(Fault::CutBefore).on(login)));
        let mut nth = 0;
        wait_until("no connection is left", || {
            nth += 1;
            let mut a = exclusive(&store, &format!("k{round}-{nth}"));
            let answer = store.acquire(&mut a, &soon());
            let is_sent = proxy.requests().iter().any(|request| request.has("findAndModify") && request.has(&a.key));
            assert!(is_sent || answer.is_err(), "nothing was sent: {answer:?}");
            !is_sent
        });
        // The driver says one of the two.
        assert!(proxy.clear().len() < 2, "it made no connection");
    }
}

/// The driver closes all connections of a server that it finds silent, even if a write waits there for its answer.
#[test]
fn a_write_whose_connection_the_driver_closed_is_not_called_undone() {
    let Some(mut cluster) = Cluster::one(&[]) else { return };
    // The driver checks often, and soon gives up looking for another server.
    let often = "&serverMonitoringMode=poll&heartbeatFrequencyMS=500&connectTimeoutMS=500&serverSelectionTimeoutMS=500";
    let store = open(Rows::options_named("locks", &format!("{}{often}", cluster.uri())));
    let beside = open(Rows::options_named("locks", &cluster.uri()));
    beside.schema(Schema::Create, &soon()).unwrap();
    // Otherwise an acquire would check the schema first.
    sent(|| store.schema(Schema::Check, &soon()));
    let is_closed = (0..20).any(|nth| {
        let mut a = exclusive(&store, &format!("k{nth}"));
        a.sends = 1;
        // Otherwise the store may not have a connection yet.
        sent(|| store.read(&Which::Key(a.key.clone()), None, Consistency::Strong, &soon()).map(drop));
        cluster.stop(0);
        let answer = store.acquire(&mut a, &soon());
        cluster.go_on(0);
        match answer {
            Ok(Acquired::Unknown(error)) => {
                let why = std::error::Error::source(&error).map(ToString::to_string);
                return why.is_some_and(|why| why.contains("monitor timeout"));
            }
            Ok(answer) => panic!("{answer:?}"),
            Err(error) => println!("{error}"),
        }
        let by = Instant::now() + SHORT;
        while Instant::now() < by {
            let seen = sent(|| beside.read(&Which::Key(a.key.clone()), None, Consistency::Strong, &soon())).records;
            assert_eq!(seen[0].record.holders().count(), 0, "nothing was written, it said");
        }
        false
    });
    assert!(is_closed, "the driver closed nothing");
}
