use hmac::{Hmac, KeyInit, Mac};
use rustls::crypto::{GetRandomFailed, aws_lc_rs};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::Grant;
use crate::model::Digest;

/// The persistent key from which every path and token of the spool is derived.
///
/// It lives in the Secret `golden-catalog-spool-key`, so that any leader computes the same addresses and an importer that
/// a former leader started goes on with the new one.
#[derive(Clone)]
pub struct SpoolKey(Zeroizing<[u8; SpoolKey::LENGTH]>);

/// The path and the bearer token under which one golden's importer, and nobody else, gets its disk.
#[derive(Clone)]
pub struct Address {
    path: String,
    token: Zeroizing<String>,
}

/// A key of another length than [`SpoolKey::LENGTH`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the spool's key has {0} bytes, {length} are needed; delete the Secret to have it made anew", length = SpoolKey::LENGTH)]
pub struct WrongKeyLength(pub usize);

impl SpoolKey {
    /// Bytes in a key: as many as HMAC-SHA256 puts out (RFC 2104 section 3 advises no fewer).
    pub const LENGTH: usize = 32;

    /// A new key from the system's random source.
    ///
    /// # Errors
    /// When the system has no random bytes to give.
    pub fn generate() -> Result<Self, GetRandomFailed> {
        let mut key = Zeroizing::new([0; Self::LENGTH]);
        aws_lc_rs::default_provider().secure_random.fill(key.as_mut_slice())?;
        Ok(Self(key))
    }

    /// The key that a Secret holds.
    ///
    /// # Errors
    /// When it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WrongKeyLength> {
        bytes.try_into().map(|key| Self(Zeroizing::new(key))).map_err(|_| WrongKeyLength(bytes.len()))
    }

    /// The key's bytes, to be written into its Secret.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// The address of one golden's disk. The same grant has the same address for as long as the key stays.
    pub fn address(&self, grant: &Grant) -> Address {
        let path = Digest::from_bytes(self.derive("path", grant)).hex();
        let token = Digest::from_bytes(self.derive("token", grant)).hex();
        Address { path: format!("{}{path}", Address::PREFIX), token: Zeroizing::new(token) }
    }

    /// HMAC-SHA256 over the purpose and the grant's parts, each preceded by its length so that no two grants run together.
    fn derive(&self, purpose: &str, grant: &Grant) -> [u8; 32] {
        // HMAC pads a key that is shorter than the hash's block with zeros (RFC 2104 section 2); done here, it cannot fail.
        let mut block = Zeroizing::new([0; 64]);
        block[..Self::LENGTH].copy_from_slice(self.0.as_slice());
        let mut mac = <Hmac<Sha256> as KeyInit>::new((&*block).into());
        let uid = grant.uid.as_bytes();
        for part in
            [b"golden-catalog/spool/v1".as_slice(), purpose.as_bytes(), uid, grant.golden.as_str().as_bytes(), grant.disk.as_bytes()]
        {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl std::fmt::Debug for SpoolKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SpoolKey(…)")
    }
}

impl Address {
    /// What every disk's path begins with.
    pub const PREFIX: &str = crate::model::DISK_PATH;

    /// The path to append to the spool's advertised URL. It cannot be guessed, and it must not be shown.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The value of the `Authorization` header.
    pub fn authorization(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("Bearer {}", self.token.as_str()))
    }

    /// The whole header line, as CDI wants it in a Secret named by `secretExtraHeaders`.
    pub fn header_line(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("Authorization: Bearer {}", self.token.as_str()))
    }

    /// Whether `authorization` is this address's header value, in a time that does not tell where it differs.
    pub(super) fn accepts(&self, authorization: &[u8]) -> bool {
        // The scheme's name is case-insensitive (RFC 9110 section 11.1) and no secret.
        let Some((scheme, token)) = authorization.split_at_checked("Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(token.ct_eq(self.token.as_bytes()))
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Grant, SpoolKey, WrongKeyLength};
    use crate::model::Digest;

    fn grant(uid: &str, golden: &str, disk: &[u8]) -> Grant {
        Grant { uid: uid.into(), golden: golden.parse().expect("name"), disk: Digest::of(disk) }
    }

    #[test]
    fn any_leader_computes_the_same_address_and_no_two_grants_share_one() {
        let key = SpoolKey::generate().expect("random");
        let again = SpoolKey::from_bytes(key.as_bytes()).expect("length");
        let grants =
            [grant("u1", "golden-a", b"x"), grant("u1", "golden-ab", b"x"), grant("u1g", "olden-a", b"x"), grant("u1", "golden-a", b"y")];
        let mut seen = BTreeSet::new();
        for grant in &grants {
            let (one, two) = (key.address(grant), again.address(grant));
            assert_eq!((one.path(), one.authorization()), (two.path(), two.authorization()));
            assert!(seen.insert(one.path().to_owned()) && seen.insert(one.token.to_string()));
        }
        let other = SpoolKey::generate().expect("random");
        assert_ne!(other.address(&grants[0]).path(), key.address(&grants[0]).path());
    }

    #[test]
    fn accepts_its_token_only() {
        let key = SpoolKey::generate().expect("random");
        let (mine, other) = (key.address(&grant("u", "a", b"x")), key.address(&grant("u", "b", b"x")));
        assert!(mine.accepts(mine.authorization().as_bytes()));
        assert!(mine.accepts(mine.authorization().replace("Bearer", "bearer").as_bytes()));
        for wrong in ["", "Bearer ", "Basic x", &other.authorization(), &mine.authorization()[..40], &format!("{}0", *mine.authorization())]
        {
            assert!(!mine.accepts(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{mine:?}{key:?}").contains(&*mine.token));
    }

    #[test]
    fn a_key_of_another_length_is_refused() {
        assert_eq!(SpoolKey::from_bytes(&[0; 31]).map(|_| ()), Err(WrongKeyLength(31)));
    }

    /// The derivation is a contract between versions: an importer outlives an upgrade of the daemon. Computed with
    /// `openssl dgst -sha256 -mac HMAC -macopt hexkey:…` over the length-prefixed parts.
    #[test]
    fn the_derivation_does_not_change() {
        let key = SpoolKey::from_bytes(&[7; 32]).expect("length");
        let address = key.address(&grant("6f1c", "golden-a", b""));
        assert_eq!(address.path(), "/v1/disks/7f0a95cd4701e3821b39fc5f5232a6afe4e256252af52f3c71fd9132ad9e6b3a");
        assert_eq!(&**address.header_line(), "Authorization: Bearer 736dce56269e1ecede25048ff4cfd8a70eb312a1062285a4e66519315c82a2a0");
    }
}
