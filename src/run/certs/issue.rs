//! Making CAs and certificates, and the Secret an action leads to.

use super::{
    Action, Error, Observed, Profile, SELF_ISSUED,
    material::{BACKDATED, BUNDLE, CERT, Field, KEY, NEXT, Pair, SIGNING, after, pem, validity},
};
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use std::{collections::BTreeMap, time::Duration};

/// The Secret `name` after `action`; everything in `secret` that is not ours to say stays as it was.
///
/// # Errors
/// [`Error::Issue`] when keys or certificates cannot be made.
pub(super) fn apply(
    action: &Action,
    name: &str,
    secret: Option<Secret>,
    observed: Option<&Observed>,
    profile: &Profile,
    now: Timestamp,
) -> Result<Secret, Error> {
    let signing = observed.and_then(|observed| observed.signing.as_ref().ok());
    let next = observed.and_then(|observed| observed.next.as_ref()?.as_ref().ok());
    let leaf = observed.and_then(|observed| observed.leaf.as_ref().ok());
    let new_ca = || authority(name, profile, now);
    let (signing, next, leaf) = match (action, signing, next, leaf) {
        (Action::Switch, _, Some(next), _) => (next.clone(), None, None),
        (Action::Prepare, Some(signing), _, leaf) => (signing.clone(), Some(new_ca()?), leaf.cloned()),
        (Action::Renew, Some(signing), next, _) => (signing.clone(), next.cloned(), None),
        (Action::Mend, Some(signing), next, leaf) => (signing.clone(), next.cloned(), leaf.cloned()),
        _ => (new_ca()?, None, None),
    };
    let leaf = match leaf {
        Some(leaf) => leaf,
        None => certificate(&signing, profile, now)?,
    };

    let former = observed.map(|observed| observed.bundle.as_slice()).unwrap_or_default();
    let bundle = bundle([Some(&signing), next.as_ref()], former, now);
    let mut data: BTreeMap<String, ByteString> = [
        (CERT, leaf.cert_pem),
        (KEY, leaf.key_pem),
        (BUNDLE, pem(&bundle).into_bytes()),
        (SIGNING.0, signing.cert_pem),
        (SIGNING.1, signing.key_pem),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), ByteString(value)))
    .collect();
    if let Some(next) = next {
        data.insert(NEXT.0.to_owned(), ByteString(next.cert_pem));
        data.insert(NEXT.1.to_owned(), ByteString(next.key_pem));
    }

    let mut secret = secret.unwrap_or_default();
    secret.metadata.name = Some(name.to_owned());
    secret.metadata.annotations.get_or_insert_default().insert(SELF_ISSUED.to_owned(), "true".to_owned());
    secret.type_.get_or_insert_with(|| "kubernetes.io/tls".to_owned());
    secret.data = Some(data);
    Ok(secret)
}

/// The CAs to trust: those in use first, then the former ones that have not ended.
fn bundle(needed: [Option<&Pair>; 2], former: &[CertificateDer<'static>], now: Timestamp) -> Vec<CertificateDer<'static>> {
    let needed = needed.into_iter().flatten().filter_map(Pair::der);
    let mut bundle: Vec<CertificateDer<'static>> = Vec::new();
    for der in needed.chain(former) {
        let holds = validity(der).is_some_and(|(_, not_after)| now < not_after);
        // Bounded: each change of the CA leaves one behind, and a hand may have pasted a whole system's.
        if holds && !bundle.contains(der) && bundle.len() < 8 {
            bundle.push(der.clone());
        }
    }
    bundle
}

/// A new CA. Its name is its own, so that clients never take one CA's key for another's.
fn authority(name: &str, profile: &Profile, now: Timestamp) -> Result<Pair, Error> {
    let key = KeyPair::generate().map_err(failed)?;
    let unique = crate::run::hex(&crate::run::random::<4>().map_err(|error| Error::Issue(error.to_string()))?);
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(format!("{name} CA {unique}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    dated(&mut params, now, after(now, profile.ca_validity))?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    pair(&certificate, &key)
}

/// A server certificate by this CA. It never outlives its CA.
fn certificate(ca: &Pair, profile: &Profile, now: Timestamp) -> Result<Pair, Error> {
    let ca_key = KeyPair::from_pem(&String::from_utf8_lossy(&ca.key_pem)).map_err(failed)?;
    let ca_params = authority_params(ca)?;
    let issuer = Issuer::from_params(&ca_params, ca_key);
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new(profile.names.clone()).map_err(failed)?;
    params.distinguished_name = common_name("golden-catalog".to_owned());
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    dated(&mut params, now, after(now, profile.leaf_validity).min(ca.not_after))?;
    let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
    pair(&certificate, &key)
}

/// What rcgen must know of a CA to sign in its name: the name, in the form it was written.
fn authority_params(ca: &Pair) -> Result<CertificateParams, Error> {
    let unreadable = || Error::Issue("the signing CA has no common name".to_owned());
    let der = ca.der().ok_or_else(unreadable)?;
    let (_, parsed) = x509_parser::parse_x509_certificate(der).map_err(|_| unreadable())?;
    let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok()).ok_or_else(unreadable)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name.to_owned());
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn common_name(name: String) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    // X.509 allows 64 characters.
    subject.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    subject
}

fn dated(params: &mut CertificateParams, from: Timestamp, until: Timestamp) -> Result<(), Error> {
    // rcgen takes the time crate's type, which is not worth a dependency: days and seconds from the epoch make it.
    let at = |timestamp: Timestamp| {
        let seconds = u64::try_from(timestamp.as_second()).map_err(|_| Error::Issue("the clock is before 1970".to_owned()))?;
        Ok::<_, Error>(rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds))
    };
    params.not_before = at(from.checked_sub(BACKDATED).unwrap_or(from))?;
    params.not_after = at(until)?;
    Ok(())
}

fn pair(certificate: &rcgen::Certificate, key: &KeyPair) -> Result<Pair, Error> {
    let (cert_pem, key_pem) = (certificate.pem(), key.serialize_pem());
    let cert = Field { name: CERT, value: Some(cert_pem.as_bytes()) };
    let key = Field { name: KEY, value: Some(key_pem.as_bytes()) };
    Pair::parse(cert, key).map_err(|trouble| Error::Issue(trouble.to_string()))
}

fn failed(error: rcgen::Error) -> Error {
    Error::Issue(error.to_string())
}
