//! What a TLS Secret holds, parsed: certificates that belong to their keys, and a bundle others can trust.

use super::{Error, SELF_ISSUED, Trouble};
use k8s_openapi::{api::core::v1::Secret, jiff::Timestamp};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier, verify_server_cert_signed_by_trust_anchor},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
    sign::CertifiedKey,
};
use std::{sync::Arc, time::Duration};

pub(super) const CERT: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
pub(super) const BUNDLE: &str = "ca.crt";
pub(super) const SIGNING: (&str, &str) = ("signing-ca.crt", "signing-ca.key");
pub(super) const NEXT: (&str, &str) = ("next-ca.crt", "next-ca.key");

/// The annotation that cert-manager writes on each Secret it fills (`cmapi.CertificateNameKey`).
const CERT_MANAGER: &str = "cert-manager.io/certificate-name";

/// How far certificates are dated back, for clients whose clocks are behind.
pub(super) const BACKDATED: Duration = Duration::from_secs(3600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What certificate is wanted and how long its parts live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The DNS names and IP addresses clients call the server by; the first one is what the certificate is checked against.
    pub names: Vec<String>,
    /// How long a CA is good for: 5 years.
    pub ca_validity: Duration,
    /// How long before its end the next CA is published: 1 year.
    pub ca_rotate_before: Duration,
    /// How long the next CA is at least published before it signs: 1 day.
    pub overlap: Duration,
    /// How long a certificate is good for: 90 days.
    pub leaf_validity: Duration,
    /// How long before its end a certificate is renewed: 30 days.
    pub leaf_renew_before: Duration,
}

impl Profile {
    /// The usual lives for a server of these names.
    pub fn new(names: Vec<String>) -> Self {
        Self {
            names,
            ca_validity: 5 * 365 * DAY,
            ca_rotate_before: 365 * DAY,
            overlap: DAY,
            leaf_validity: 90 * DAY,
            leaf_renew_before: 30 * DAY,
        }
    }
}

/// A certificate with its key, known to belong together.
#[derive(Clone)]
pub struct Pair {
    pub(super) cert_pem: Vec<u8>,
    pub(super) key_pem: Vec<u8>,
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

// The key must not get into a log.
impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("not_before", &self.not_before).field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

impl Pair {
    /// Parses a chain and its key and checks that they are a pair.
    pub(super) fn parse(cert: Field<'_>, key: Field<'_>) -> Result<Self, Trouble> {
        let (cert_pem, key_pem) = (cert.bytes()?, key.bytes()?);
        let chain = certificates(cert_pem).ok_or(Trouble::Unreadable(cert.name))?;
        let key_der = PrivateKeyDer::from_pem_slice(key_pem).map_err(|_| Trouble::Unreadable(key.name))?;
        let signer = provider().key_provider.load_private_key(key_der).map_err(|_| Trouble::Unreadable(key.name))?;
        let (not_before, not_after) = chain.first().and_then(validity).ok_or(Trouble::Unreadable(cert.name))?;
        let certified = CertifiedKey::new(chain, signer);
        certified.keys_match().map_err(|_| Trouble::Mismatch(cert.name, key.name))?;
        Ok(Self { cert_pem: cert_pem.to_vec(), key_pem: key_pem.to_vec(), certified: Arc::new(certified), not_before, not_after })
    }

    /// Checks the certificate as a client that trusts `bundle` does: chain, names and dates.
    pub(super) fn trusted_by(&self, bundle: &[CertificateDer<'static>], names: &[String], now: Timestamp) -> Result<(), Trouble> {
        let untrusted = |text: String| Trouble::Untrusted(text.into());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(bundle.iter().cloned());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().map_err(|e| untrusted(e.to_string()))?;
        let now = unix(now);
        let (leaf, rest) = self.certified.cert.split_first().ok_or(Trouble::Missing(CERT))?;
        for name in names {
            let server = ServerName::try_from(name.as_str()).map_err(|_| untrusted(format!("{name} is no DNS name or address")))?;
            verifier.verify_server_cert(leaf, rest, &server, &[], now).map_err(|error| untrusted(format!("{name}: {error}")))?;
        }
        Ok(())
    }

    pub(super) fn der(&self) -> Option<&CertificateDer<'static>> {
        self.certified.cert.first()
    }
}

/// What is served and what others are told to trust.
#[derive(Debug, Clone)]
pub struct Served {
    pub(super) pair: Pair,
    bundle: String,
    provided: bool,
}

impl Served {
    /// Reads any TLS Secret, ours or not, as those do who only serve it.
    ///
    /// # Errors
    /// [`Error::Foreign`] or [`Error::Broken`] when it cannot be served.
    pub fn load(name: &str, secret: &Secret) -> Result<Self, Error> {
        Self::parse(secret).map_err(|trouble| {
            let name = name.to_owned();
            if is_ours(secret) { Error::Broken { name, trouble } } else { Error::Foreign { name, trouble } }
        })
    }

    fn parse(secret: &Secret) -> Result<Self, Trouble> {
        let pair = Pair::parse(field(secret, CERT), field(secret, KEY))?;
        let bundle = field(secret, BUNDLE).bytes()?;
        let certificates = certificates(bundle).ok_or(Trouble::Unreadable(BUNDLE))?;
        Ok(Self { pair, bundle: pem(&certificates), provided: !is_ours(secret) })
    }

    /// The certificates to trust, in PEM: for `caBundle` and for CDI's `certConfigMap`.
    pub fn bundle(&self) -> &str {
        &self.bundle
    }

    /// When the certificate ends.
    pub fn not_after(&self) -> Timestamp {
        self.pair.not_after
    }

    /// Whether the other is the same certificate with the same bundle.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.pair.certified.cert == other.pair.certified.cert && self.bundle == other.bundle
    }

    /// Whether clients that were told this bundle, in PEM, trust this certificate, whatever its names.
    pub(super) fn is_vouched_for(&self, bundle: &[u8], now: Timestamp) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(bundle).unwrap_or_default());
        let Some((leaf, rest)) = self.pair.certified.cert.split_first() else { return false };
        let Ok(leaf) = ParsedCertificate::try_from(leaf) else { return false };
        let algorithms = provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &roots, rest, unix(now), algorithms).is_ok()
    }

    /// Its bundle and that of `other`.
    pub(super) fn bundle_with(&self, other: &Self) -> String {
        let mut all = certificates(self.bundle.as_bytes()).unwrap_or_default();
        for certificate in certificates(other.bundle.as_bytes()).unwrap_or_default() {
            if !all.contains(&certificate) {
                all.push(certificate);
            }
        }
        pem(&all)
    }

    /// Whether somebody else issued it.
    pub fn is_provided(&self) -> bool {
        self.provided
    }

    /// Why clients that trust the bundle would refuse it under these names, if they would. Served all the same: a
    /// certificate of cert-manager is its issuer's business, and a wrong clock must not take a good one away.
    pub fn trouble(&self, names: &[String], now: Timestamp) -> Option<Trouble> {
        let bundle = certificates(self.bundle.as_bytes()).unwrap_or_default();
        self.pair.trusted_by(&bundle, names, now).err()
    }
}

/// A TLS Secret as found, each part on its own: one that is broken does not hide the others.
#[derive(Debug)]
pub struct Observed {
    pub(super) ours: bool,
    pub(super) leaf: Result<Pair, Trouble>,
    pub(super) bundle: Vec<CertificateDer<'static>>,
    pub(super) signing: Result<Pair, Trouble>,
    /// `None` when no change of the CA is under way.
    pub(super) next: Option<Result<Pair, Trouble>>,
}

impl Observed {
    /// Parses what is there; nothing here fails, so that a broken Secret can be mended.
    pub fn of(secret: &Secret) -> Self {
        let pair = |(cert, key)| Pair::parse(field(secret, cert), field(secret, key));
        let started = [NEXT.0, NEXT.1].iter().any(|name| field(secret, name).bytes().is_ok());
        Self {
            ours: is_ours(secret),
            leaf: pair((CERT, KEY)),
            bundle: field(secret, BUNDLE).bytes().ok().and_then(certificates).unwrap_or_default(),
            signing: pair(SIGNING),
            next: started.then(|| pair(NEXT)),
        }
    }
}

/// One field of a Secret, with its name for messages.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub name: &'static str,
    pub value: Option<&'a [u8]>,
}

impl<'a> Field<'a> {
    fn bytes(self) -> Result<&'a [u8], Trouble> {
        self.value.filter(|value| !value.is_empty()).ok_or(Trouble::Missing(self.name))
    }
}

fn field<'a>(secret: &'a Secret, name: &'static str) -> Field<'a> {
    Field { name, value: secret.data.as_ref().and_then(|data| data.get(name)).map(|value| value.0.as_slice()) }
}

/// A Secret that we issued and cert-manager took over keeps our annotation beside its own: it is cert-manager's then.
fn is_ours(secret: &Secret) -> bool {
    let Some(annotations) = &secret.metadata.annotations else { return false };
    annotations.get(SELF_ISSUED).is_some_and(|value| value == "true") && !annotations.contains_key(CERT_MANAGER)
}

/// Every certificate in a PEM text; `None` when there is none or one is broken.
pub(super) fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty() && all.iter().all(|certificate| validity(certificate).is_some()))
}

/// From when to when a certificate is good.
pub(super) fn validity(certificate: &CertificateDer<'static>) -> Option<(Timestamp, Timestamp)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    Some((at(parsed.validity().not_before)?, at(parsed.validity().not_after)?))
}

/// Certificates as PEM, without what else the text had: comments of hands, keys that do not belong there.
pub(super) fn pem(certificates: &[CertificateDer<'static>]) -> String {
    use base64::Engine;
    let mut text = String::new();
    for certificate in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let body = base64::engine::general_purpose::STANDARD.encode(certificate);
        for line in body.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

fn unix(time: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0)))
}

/// A later time; the end of time where there is none.
pub(super) fn after(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// The one cryptographic provider of this process.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
