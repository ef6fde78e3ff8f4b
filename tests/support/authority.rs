//! Certificates for servers and clients, issued by an authority that only the tests know.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::servers::{need, skip};

/// An authority of the test's own. Its own certificate is `ca`.
pub struct Authority(tempfile::TempDir);

impl Authority {
    /// None where it can't be made; the reason was already reported.
    pub fn new() -> Option<Authority> {
        if let Err(why) = need("openssl") {
            skip(&why);
            return None;
        }
        let authority = Authority(tempfile::tempdir().expect("a folder"));
        authority.make("openssl", &[], "ca", &[]);
        Some(authority)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn pem(&self, name: &str) -> String {
        self.file(&format!("{name}.pem")).display().to_string()
    }

    pub fn key(&self, name: &str) -> String {
        self.file(&format!("{name}.key")).display().to_string()
    }

    /// The certificate and its private key, in one file.
    pub fn both(&self, name: &str) -> String {
        let both = [self.pem(name), self.key(name)].map(|file| std::fs::read_to_string(file).expect("a file"));
        let file = self.file(&format!("{name}-both.pem"));
        std::fs::write(&file, both.concat()).expect("a file");
        file.display().to_string()
    }

    /// Makes a certificate and its private key. `names` is like `DNS:db.test,IP:127.0.0.1`.
    pub fn issue(&self, name: &str, names: &str) {
        self.issue_by("ca", name, names);
    }

    /// The same, signed by the authority `ca`.
    pub fn issue_by(&self, ca: &str, name: &str, names: &str) {
        let names = format!("subjectAltName={names}");
        let (cert, key) = (self.pem(ca), self.key(ca));
        let by = ["-CA", &cert, "-CAkey", &key, "-addext", "basicConstraints=critical,CA:FALSE", "-addext", &names];
        self.make("openssl", &[], name, &by);
    }

    /// Makes a self-signed certificate, as the first recipe of many manuals does.
    pub fn alone(&self, name: &str, names: &str) {
        self.make("openssl", &[], name, &["-addext", &format!("subjectAltName={names}")]);
    }

    /// The same, but expired long ago.
    pub fn expired(&self, name: &str, names: &str) {
        let then = ["2020-01-01 12:00:00", "openssl"];
        self.make("faketime", &then, name, &["-addext", &format!("subjectAltName={names}")]);
    }

    fn make(&self, program: &str, first: &[&str], name: &str, more: &[&str]) {
        let mut openssl = Command::new(program);
        openssl.args(first).args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ]);
        openssl.args(["-days", "2", "-subj", &format!("/CN={name}"), "-keyout", &self.key(name)]);
        openssl.args(["-out", &self.pem(name)]).args(more).stdin(Stdio::null());
        // faketime fails where an earlier process with the same id left its semaphore; the next try has another id.
        let mut tries = (0..10).map(|_| openssl.output().expect("openssl"));
        let made = tries.find(|made| made.status.success() || program == "openssl").expect("a certificate");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}
