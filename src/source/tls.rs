//! Whom the daemon trusts: the system's certificate authorities, the hoster's global bundle and an entry's own.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// The trust shared by all requests, and what an entry adds to it.
pub(super) struct Trusts {
    provider: Arc<CryptoProvider>,
    roots: RootCertStore,
    common: Arc<ClientConfig>,
}

impl Trusts {
    /// The system's authorities and those in `bundle`.
    ///
    /// # Errors
    /// What is wrong with `bundle`.
    pub fn new(provider: Arc<CryptoProvider>, bundle: Option<&[u8]>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(system.certs);
        if added == 0 {
            tracing::warn!("the system has no certificate authorities: only upstreams signed by a CA bundle can be trusted");
        }
        if let Some(bundle) = bundle {
            add(&mut roots, bundle)?;
        }
        let common = config(&provider, roots.clone())?;
        Ok(Self { provider, roots, common })
    }

    /// The TLS settings for an upstream, with an entry's own authorities besides the common ones: a private upstream may
    /// redirect to a public one.
    ///
    /// # Errors
    /// What is wrong with `bundle`.
    pub fn config(&self, bundle: Option<&[u8]>) -> Result<Arc<ClientConfig>, String> {
        let Some(bundle) = bundle else {
            return Ok(Arc::clone(&self.common));
        };
        let mut roots = self.roots.clone();
        add(&mut roots, bundle)?;
        config(&self.provider, roots)
    }
}

/// Adds every certificate of a PEM text; one that is no certificate is an error, since a bundle with a slip in it would
/// otherwise fail much later and elsewhere.
fn add(roots: &mut RootCertStore, bundle: &[u8]) -> Result<(), String> {
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        let certificate = certificate.map_err(|error| format!("it is not PEM: {error}"))?;
        count += 1;
        roots.add(certificate).map_err(|error| format!("certificate {count} in it is not one: {error}"))?;
    }
    if count == 0 { Err("it holds no `-----BEGIN CERTIFICATE-----`".to_owned()) } else { Ok(()) }
}

fn config(provider: &Arc<CryptoProvider>, roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A TLS error in words that say what to mend.
pub(super) fn explain(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired".to_owned(),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "its certificate is not valid yet".to_owned(),
            CertificateError::UnknownIssuer => "its certificate is signed by an authority that is not trusted here".to_owned(),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another name".to_owned()
            }
            CertificateError::Revoked => "its certificate is revoked".to_owned(),
            other => format!("its certificate is not acceptable: {}", super::answer::clean(&other.to_string(), &[])),
        },
        rustls::Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
        rustls::Error::AlertReceived(alert) => format!("it refused the handshake: {alert:?}"),
        other => super::answer::clean(&other.to_string(), &[]),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Trusts;

    #[test]
    fn a_bundle_is_read_whole_or_refused() {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = rcgen::generate_simple_self_signed(vec!["ca.test".to_owned()]).expect("certificate");
        let pem = key.cert.pem();
        assert!(Trusts::new(Arc::clone(&provider), Some(pem.as_bytes())).is_ok());
        let trusts = Trusts::new(provider, None).expect("none");
        assert!(trusts.config(Some(format!("# a comment\n{pem}{pem}").as_bytes())).is_ok());
        for bad in ["", "not PEM", &pem.replace("MII", "AAA"), &format!("{pem}{}", pem.replace("END", "ENT"))] {
            assert!(trusts.config(Some(bad.as_bytes())).is_err(), "{bad}");
        }
    }
}
