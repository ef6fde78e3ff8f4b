//! Which connections are encrypted, and which certificate a server must show: libpq's `sslmode`, with rustls.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, Client, Config, Connection, Error as DriverError, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::error::{Own, PostgresError};
use crate::model::error::Result;
use crate::store::failure::{Cause, Fate};
use crate::store::url::{self, config};

/// How safe connections must be, in libpq's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

const MODES: [(&str, Mode); 5] = [
    ("disable", Mode::Disable),
    ("prefer", Mode::Prefer),
    ("require", Mode::Require),
    ("verify-ca", Mode::VerifyCa),
    ("verify-full", Mode::VerifyFull),
];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = MODES.iter().find(|(_, mode)| mode == self).map(|(name, _)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

/// The options of a URL that are about TLS, decoded.
#[derive(Debug, Default)]
pub(super) struct TlsOptions {
    pub mode: Option<String>,
    pub roots: Option<String>,
    pub cert: Option<String>,
    pub key: Option<String>,
}

/// How connections must be secured.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    mode: Mode,
    /// The authorities to trust: those of this file, or the system's.
    roots: Option<PathBuf>,
    /// Our own certificate and its key.
    own: Option<(PathBuf, PathBuf)>,
}

impl Wanted {
    /// By libpq's rules, but an option that libpq would silently ignore is an error.
    pub fn of_url(options: TlsOptions) -> Result<Wanted> {
        let TlsOptions { mode, roots, cert, key } = options;
        // A user that writes the key itself here must not find it in an error.
        for (name, value) in [("sslrootcert", &roots), ("sslcert", &cert), ("sslkey", &key)] {
            if value.as_ref().is_some_and(|value| value.contains("-----BEGIN") || value.contains(char::is_control)) {
                return Err(config(&format!("{name} must be the name of a file, not what is in it")));
            }
        }
        let known = MODES.map(|(name, _)| name);
        let given = match mode.as_deref() {
            None => None,
            Some(text) => match MODES.iter().find(|(name, _)| *name == text) {
                Some((_, mode)) => Some(*mode),
                // The value is not shown: it may be anything.
                None => {
                    let (hint, known) = (url::near(text, &known), known.join(", "));
                    return Err(config(&format!("the option sslmode must be one of {known}{hint}")));
                }
            },
        };
        let (mode, roots) = match (roots.as_deref(), given) {
            (Some(""), _) => return Err(config("the option sslrootcert must be a file, or system")),
            (None, Some(Mode::VerifyCa)) => {
                return Err(config(
                    "sslmode=verify-ca needs sslrootcert=FILE: anybody can have a certificate from the system's authorities; or \
                     write sslmode=verify-full, which checks the name",
                ));
            }
            (None, _) => (given.unwrap_or(Mode::Prefer), None),
            (Some("system"), None | Some(Mode::VerifyFull)) => (Mode::VerifyFull, None),
            (Some("system"), Some(weak)) => {
                return Err(config(&format!(
                    "sslrootcert=system needs sslmode=verify-full, but sslmode is {weak}: anybody can have a certificate \
                     from the system's authorities"
                )));
            }
            (Some(_), None | Some(Mode::Disable | Mode::Prefer)) => {
                return Err(config(
                    "sslrootcert is of no use without sslmode=verify-full, which checks the server's certificate and its \
                     name, or verify-ca or require, which check who signed it: add one of them",
                ));
            }
            // As libpq does for the sake of its older versions: `require` with a file means `verify-ca`.
            (Some(file), Some(Mode::Require)) => (Mode::VerifyCa, Some(PathBuf::from(file))),
            (Some(file), Some(mode)) => (mode, Some(PathBuf::from(file))),
        };
        let own = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) if !cert.is_empty() && !key.is_empty() => Some((cert.into(), key.into())),
            _ => return Err(config("sslcert and sslkey must both be files: a certificate, and its private key")),
        };
        Ok(Wanted { mode, roots, own })
    }

    /// As the driver's settings say: `Require` is libpq's `require`.
    pub fn of_settings(settings: &Config) -> Wanted {
        let mode = match settings.get_ssl_mode() {
            SslMode::Disable => Mode::Disable,
            SslMode::Prefer => Mode::Prefer,
            SslMode::Require => Mode::Require,
            // A mode that the driver gets one day must not be less strict than those that are known.
            _ => Mode::VerifyFull,
        };
        Wanted { mode, roots: None, own: None }
    }

    pub fn ssl_mode(&self) -> SslMode {
        match self.mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        }
    }

    /// Reads the files.
    pub fn tls(&self, negotiation: SslNegotiation) -> Result<Tls> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let broken = |error: TlsError| config(&format!("TLS can't be set up: {error}"));
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(broken)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(self.verifier(algorithms)?));
        let mut client = match &self.own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let certs = certificates("sslcert", cert)?;
                // What is in the file is not shown.
                let read = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                    let (key, why) = (key.display(), unread(&error));
                    config(&format!("sslkey={key} must be a file with a private key in PEM, without a password{why}"))
                })?;
                builder.with_client_auth_cert(certs, read).map_err(|error| {
                    let (cert, key) = (cert.display(), key.display());
                    config(&format!("sslkey={key} must be the key of the certificate sslcert={cert}: {error}"))
                })?
            }
        };
        if negotiation == SslNegotiation::Direct {
            client.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(Tls { connector: Connector(MakeRustlsConnect::new(client)), mode: self.mode })
    }

    fn verifier(&self, algorithms: WebPkiSupportedAlgorithms) -> Result<Verifier> {
        let mut verifier = Verifier { mode: self.mode, roots: RootCertStore::empty(), named: Vec::new(), algorithms };
        if !verifier.checks() {
            return Ok(verifier);
        }
        let Some(file) = &self.roots else {
            let found = rustls_native_certs::load_native_certs();
            verifier.roots.add_parsable_certificates(found.certs);
            if verifier.roots.is_empty() {
                let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
                return Err(config(&format!(
                    "the system has no certificates of authorities{why}: install them, like the package ca-certificates, or \
                     name a file by sslrootcert=.."
                )));
            }
            return Ok(verifier);
        };
        verifier.named = certificates("sslrootcert", file)?;
        for cert in &verifier.named {
            verifier.roots.add(cert.clone()).map_err(|error| {
                config(&format!("sslrootcert={} must be certificates in PEM: {error}", file.display()))
            })?;
        }
        Ok(verifier)
    }
}

/// All of a file, at least one.
fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let wrong = |error: &pem::Error| {
        config(&format!("{option}={} must be a file with certificates in PEM{}", file.display(), unread(error)))
    };
    let all = CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))?;
    let all = all.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    if all.is_empty() { Err(wrong(&pem::Error::NoItemsFound)) } else { Ok(all) }
}

/// Why the system can't read it, without a word of what is in it.
fn unread(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!(": {error}"),
        _ => String::new(),
    }
}

/// Checks the certificate of a server as far as the mode requires.
#[derive(Debug)]
struct Verifier {
    mode: Mode,
    roots: RootCertStore,
    /// The certificates of the user's file. The server's own may be one of them, if it has signed itself, as in the
    /// first example of PostgreSQL's manual. It is looked up here, since rustls does not accept an authority as a
    /// server.
    named: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn checks(&self) -> bool {
        matches!(self.mode, Mode::VerifyCa | Mode::VerifyFull)
    }

    /// The authorities of the user's file without those that have expired or are not valid yet; `None` if all are valid
    /// now.
    fn current_roots(&self, now: UnixTime) -> Option<RootCertStore> {
        // A certificate that only rustls can read counts as current.
        let is_over = |cert: &&CertificateDer<'_>| {
            let over = [CertificateError::Expired, CertificateError::NotValidYet].map(TlsError::from);
            is_current(cert, now).is_err_and(|error| over.contains(&error))
        };
        let current: Vec<_> = self.named.iter().filter(|cert| !is_over(cert)).cloned().collect();
        (current.len() < self.named.len()).then(|| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(current);
            roots
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        if self.checks() {
            let parsed = ParsedCertificate::try_from(cert)?;
            if self.named.contains(cert) {
                is_current(cert, now)?;
            } else {
                let all = self.algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, all)?;
                // That does not check whether the authority itself has expired.
                if let Some(roots) = self.current_roots(now)
                    && verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, all).is_err()
                {
                    return Err(CertificateError::ApplicationVerificationFailure.into());
                }
            }
            if self.mode == Mode::VerifyFull {
                verify_server_name(&parsed, name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn is_current(cert: &CertificateDer<'_>, now: UnixTime) -> std::result::Result<(), TlsError> {
    let parsed = Certificate::from_der(cert).map_err(|_| CertificateError::BadEncoding)?;
    let validity = parsed.tbs_certificate.validity;
    if now.as_secs() < validity.not_before.to_unix_duration().as_secs() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > validity.not_after.to_unix_duration().as_secs() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// Makes connections, encrypted or not.
#[derive(Clone)]
pub(super) struct Tls {
    connector: Connector,
    mode: Mode,
}

/// A connection, which must be polled.
pub(super) type Moving = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Makes TLS also for an address with a zone, as in `fe80::1%eth0`. The zone is this host's name for its own network,
/// and is in no certificate.
#[derive(Clone)]
struct Connector(MakeRustlsConnect);

impl MakeTlsConnect<Socket> for Connector {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, host: &str) -> std::result::Result<Self::TlsConnect, Self::Error> {
        let (name, _zone) = host.split_once('%').unwrap_or((host, ""));
        MakeTlsConnect::<Socket>::make_tls_connect(&mut self.0, name)
    }
}

impl Tls {
    /// Connects to the one host of these settings, with TLS as they say.
    pub async fn connect(&self, settings: &Config) -> std::result::Result<(Client, Moving), DriverError> {
        let first = settings.connect(self.connector.clone()).await;
        let Err(error) = first else { return first };
        // As libpq does: connects without TLS if the handshake fails, or if the rules of the server let this user in
        // only without TLS.
        let refused = error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
        if settings.get_ssl_mode() != SslMode::Prefer || !(refused || is_handshake(&error)) {
            return Err(error);
        }
        let mut plain = settings.clone();
        plain.ssl_mode(SslMode::Disable);
        let second = plain.connect(self.connector.clone()).await;
        second.map_err(|other| if refused { error } else { other })
    }

    /// Asks the server to cancel what it does on that connection, over another connection that is as safe.
    pub async fn cancel(&self, what: &CancelToken) -> std::result::Result<(), DriverError> {
        what.cancel_query(self.connector.clone()).await
    }

    /// What an error of connecting to `host` says of TLS, if it is about that and not about the network.
    pub fn classify(&self, error: &DriverError, settings: &Config, host: &str) -> Option<(Fate, PostgresError)> {
        let (cause, mode) = (Cause::of(error), self.mode);
        let wrong = |what: String| (Fate::Refused, PostgresError::Own(Own::Tls(what), Some(cause.clone())));
        if cause.says("server does not support TLS") {
            return Some(wrong(format!(
                "the server {host} offers no TLS, but sslmode={mode} needs it: set ssl = on there, or write sslmode=disable \
                 where the network is trusted"
            )));
        }
        let Some(found) = tls_error(error) else {
            if is_handshake(error) && settings.get_ssl_negotiation() == SslNegotiation::Direct {
                let hint = "sslnegotiation=direct needs PostgreSQL 17 or newer";
                let cause = Cause::from(format!("{cause}; {hint}"));
                return Some((Fate::NotDone, PostgresError::Unreachable { cause }));
            }
            return None;
        };
        let certificate = format!("the TLS certificate of the server {host}");
        Some(wrong(match found {
            // If an authority of the same name has another key, rustls finds the signature wrong.
            TlsError::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => format!(
                "{certificate} is not signed by an authority that is trusted here: name the file with the right one by \
                 sslrootcert=.."
            ),
            TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => format!(
                "{certificate} is for other names: connect to a name that is among its subjectAltNames (a common name does \
                 not count), or write sslmode=verify-ca, which checks no name"
            ),
            TlsError::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                format!("{certificate} has expired: give the server a new one, or correct this host's clock")
            }
            TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => format!(
                "{certificate} is signed by an authority that has expired, or is not valid yet: name its successor by \
                 sslrootcert=.., or correct this host's clock"
            ),
            TlsError::InvalidCertificate(_) => {
                format!("{certificate} is not accepted: give the server one that is right")
            }
            TlsError::AlertReceived(_) => format!(
                "the server {host} refuses TLS with this client: if it wants a certificate, name one that it trusts by \
                 sslcert=.. and sslkey=.."
            ),
            _ => format!("the server {host} and this client have no kind of TLS in common: check its ssl settings"),
        }))
    }
}

fn is_handshake(error: &DriverError) -> bool {
    Cause::of(error).says("error performing TLS handshake")
}

/// What rustls said, in an error of the driver.
fn tls_error(error: &DriverError) -> Option<&TlsError> {
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        let inner = source.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
        if let Some(found) = inner.and_then(|inner| inner.downcast_ref()) {
            return Some(found);
        }
        next = source.source();
    }
    None
}
