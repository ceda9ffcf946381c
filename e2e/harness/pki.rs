//! The keys and certificates of a private control plane.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::path::{Path, PathBuf};

/// Files of a certificate authority made for one cluster, the API server's certificate, and the service-account keys.
#[derive(Debug)]
pub struct Pki {
    pub ca: PathBuf,
    pub ca_pem: String,
    pub server_certificate: PathBuf,
    pub server_key: PathBuf,
    pub service_account_key: PathBuf,
    pub service_account_public_key: PathBuf,
}

impl Pki {
    /// Makes all of it in `dir`.
    pub fn create(dir: &Path) -> Self {
        let ca_key = KeyPair::generate().expect("generate a key");
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "golden-catalog test cluster");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca_pem = ca.self_signed(&ca_key).expect("sign the authority").pem();
        let issuer = Issuer::new(ca, ca_key);

        let server_key = KeyPair::generate().expect("generate a key");
        let names = ["localhost", "127.0.0.1", "kubernetes.default.svc"].map(String::from);
        let server = CertificateParams::new(names)
            .expect("names of the API server")
            .signed_by(&server_key, &issuer)
            .expect("sign the API server's certificate");
        let accounts = KeyPair::generate().expect("generate a key");

        let write = |name: &str, text: String| {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("write a key or certificate");
            path
        };
        Self {
            ca: write("ca.crt", ca_pem.clone()),
            ca_pem,
            server_certificate: write("server.crt", server.pem()),
            server_key: write("server.key", server_key.serialize_pem()),
            service_account_key: write("service-account.key", accounts.serialize_pem()),
            service_account_public_key: write("service-account.pub", accounts.public_key_pem()),
        }
    }
}
