use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// The server's certificate, which can be replaced while connections are open: new handshakes get the new one, and what
/// is being sent goes on. Clones are the same certificate.
#[derive(Debug, Clone)]
pub struct Certificate(Arc<ArcSwap<CertifiedKey>>);

/// A certificate or private key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Not PEM, or without a certificate or key.
    #[error("the spool's certificate or private key is not valid PEM: {0}")]
    Pem(pem::Error),
    /// A key of an unknown kind, or not the certificate's.
    #[error("the spool's certificate and private key cannot be used: {0}")]
    Key(#[from] rustls::Error),
}

impl Certificate {
    /// From a chain, leaf first, and its private key, both PEM.
    ///
    /// # Errors
    /// When they cannot be read or do not belong together.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(certified(chain, key)?))))
    }

    /// Serves another certificate from now on.
    ///
    /// # Errors
    /// As [`Certificate::from_pem`]; the former certificate then stays.
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> Result<(), CertificateError> {
        self.0.store(Arc::new(certified(chain, key)?));
        Ok(())
    }

    /// TLS 1.2 and 1.3, HTTP/1.1 only: one importer reads one file, so streams within a connection would gain nothing.
    pub(super) fn server_config(&self) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(Resolver(self.clone())));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[derive(Debug)]
struct Resolver(Certificate);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.0.load_full())
    }
}

fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()))
}

fn certified(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>().map_err(CertificateError::Pem)?;
    if chain.is_empty() {
        return Err(CertificateError::Pem(pem::Error::NoItemsFound));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificateError::Pem)?;
    Ok(CertifiedKey::from_der(chain, key, &provider())?)
}
