//! Servers whose certificates only a private authority has signed, and names that the DNS does not know.

use std::time::Duration;

use leasehold::{ErrorKind, LockClient};

use crate::errors::text;
use crate::support::authority::Authority;
use crate::support::cluster::Cluster;
use crate::support::harness::{connected, patient, within};
use crate::support::nobody;

/// The error of connecting to this URL, within its deadline, once there is a reason in it.
fn refused(url: &str, has_reason: impl Fn(&leasehold::Error) -> bool) -> leasehold::Error {
    let connect = |timeout| {
        let error = within(url, timeout, || LockClient::builder(url).request_timeout(timeout).connect()).unwrap_err();
        println!("{url}: {}", text(&error));
        error
    };
    // If the server stalls for that long, nothing is known yet.
    [5, 10, 20].map(Duration::from_secs).into_iter().map(connect).find(has_reason).expect("an error that says why")
}

fn is_config(error: &leasehold::Error) -> bool {
    error.kind() == ErrorKind::Config
}

#[test]
fn a_private_authority_is_trusted_where_it_is_named() {
    let Some(ours) = Authority::new() else { return };
    ["server", "client"].iter().for_each(|name| ours.issue(name, "IP:127.0.0.1"));
    // Plain connections are allowed, because the harness uses them. Clients that use TLS must show a certificate.
    let (cert, ca) = (ours.both("server"), ours.pem("ca"));
    let options = ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", &cert, "--tlsCAFile", &ca];
    let Some(at) = Cluster::one(&options) else { return };
    let url = |options: &str| format!("mongodb://{}/app?replicaSet=rs0&tls=true{options}", at.hosts());

    let ca = format!("&tlsCAFile={ca}");
    let both = format!("{ca}&tlsCertificateKeyFile={}", ours.both("client"));
    let connect = |url: String| connected(|| patient(LockClient::builder(&url)));
    let client = connect(url(&both));
    client.create_schema().unwrap();
    let guard = client.lock("k").unwrap();
    // The same over a change stream.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(url(&both)).lock("k").unwrap().release());
        guard.release().unwrap();
        waiting.join().unwrap().unwrap();
    });

    // No known authority has signed the server's certificate.
    let error = refused(&url(""), is_config);
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false), "{}", text(&error));
    assert!(error.to_string().contains("certificate") && error.to_string().contains("tlsCAFile"), "{error}");
    assert!(text(&error).contains("UnknownIssuer"), "{}", text(&error));
    // The URL names another authority.
    let others = Authority::new().unwrap();
    let error = refused(&url(&format!("&tlsCAFile={}", others.pem("ca"))), is_config);
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("certificate"), "{}", text(&error));
    // The certificate is for another name.
    let error = refused(&url(&both).replace("127.0.0.1", "localhost"), is_config);
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("certificate"), "{}", text(&error));
    // The client has no certificate.
    let error = refused(&url(&ca), |error| error.to_string().contains("TLS"));
    assert!(error.to_string().contains("TLS"), "{}", text(&error));
    // There is no such file, or the file contains no certificate.
    let none = ours.file("none.pem");
    let nothing = ours.file("nothing.pem");
    std::fs::write(&nothing, "nothing").unwrap();
    for file in [&none, &nothing] {
        let error = refused(&url(&format!("&tlsCAFile={}", file.display())), is_config);
        assert_eq!(error.kind(), ErrorKind::Config, "{}", text(&error));
    }
}

#[test]
fn a_name_without_hosts_is_told_within_the_deadline() {
    for timeout in [1, 5] {
        let url = &format!("mongodb+srv://me:canary@{}.nowhere.invalid/app", nobody::NO_NAME);
        let timeout = Duration::from_secs(timeout);
        let error = within(url, timeout, || LockClient::builder(url).request_timeout(timeout).connect()).unwrap_err();
        println!("{}", text(&error));
        assert_eq!(error.kind(), ErrorKind::Store, "{}", text(&error));
        assert!(error.to_string().contains("hosts"), "{}", text(&error));
    }
}
