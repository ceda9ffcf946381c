//! A private certificate authority for tests.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// An authority that no system trusts.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key in PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::<String>::new()).expect("parameters");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
        let key = KeyPair::generate().expect("key");
        Self { issuer: CertifiedIssuer::self_signed(parameters, key).expect("authority") }
    }

    /// The authority's certificate, what a `caBundleRef` would hold.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A server's certificate for host names and addresses.
    pub fn issue(&self, names: &[&str]) -> Pair {
        self.issue_with(names, |_| {})
    }

    /// As [`Self::issue`], with the parameters bent (expired, for instance).
    pub fn issue_with(&self, names: &[&str], bend: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut parameters = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).expect("parameters");
        bend(&mut parameters);
        let key = KeyPair::generate().expect("key");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("certificate");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A server side for a certificate of [`Self::issue`].
    pub fn acceptor(&self, names: &[&str]) -> tokio_rustls::TlsAcceptor {
        acceptor(&self.issue(names))
    }
}

/// A server side for a certificate.
pub fn acceptor(pair: &Pair) -> tokio_rustls::TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("certificate");
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("key");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("pair");
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}
