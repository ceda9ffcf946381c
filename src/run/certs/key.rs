//! The key that the spool's addresses and tokens are made with: made once, then only read.

use super::Error;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, api::PostParams};
use zeroize::Zeroizing;

/// The Secret of the spool key.
pub const SPOOL_KEY: &str = "golden-catalog-spool-key";

/// The field in it.
pub(super) const FIELD: &str = "key";

/// 32 bytes for HMAC-SHA256. Never printed, and wiped when dropped.
#[derive(Clone)]
pub struct KeptSpoolKey(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for KeptSpoolKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeptSpoolKey(…)")
    }
}

impl KeptSpoolKey {
    /// The key itself, for the one who computes the HMAC.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads the key from the Secret `name`, and makes the Secret where there is none.
    ///
    /// Only ever created, never written over: the addresses of running imports depend on the key. Where two of us create
    /// it at once, the API server lets one succeed and both then read the same.
    ///
    /// # Errors
    /// [`Error::SpoolKey`] when the Secret holds something else, [`Error::Api`].
    pub async fn obtain(api: &Api<Secret>, name: &str) -> Result<Self, Error> {
        if let Some(secret) = api.get_opt(name).await.map_err(|error| Error::api(name, error))? {
            return Self::read(name, &secret);
        }
        let fresh = Zeroizing::new(crate::run::random::<32>().map_err(|error| Error::Issue(error.to_string()))?);
        let mut secret = Secret { type_: Some("Opaque".to_owned()), ..Secret::default() };
        secret.metadata.name = Some(name.to_owned());
        // Immutable, so that a slip of a hand cannot cut off the imports under way.
        secret.immutable = Some(true);
        secret.data = Some([(FIELD.to_owned(), ByteString(fresh.to_vec()))].into());
        match api.create(&PostParams::default(), &secret).await {
            Ok(secret) => Self::read(name, &secret),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let secret = api.get(name).await.map_err(|error| Error::api(name, error))?;
                Self::read(name, &secret)
            }
            Err(error) => Err(Error::api(name, error)),
        }
    }

    fn read(name: &str, secret: &Secret) -> Result<Self, Error> {
        let value = secret.data.as_ref().and_then(|data| data.get(FIELD));
        let key = value.and_then(|value| <[u8; 32]>::try_from(value.0.as_slice()).ok());
        key.map(|key| Self(Zeroizing::new(key))).ok_or_else(|| Error::SpoolKey { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(value: Option<&[u8]>) -> Secret {
        let data = value.map(|value| [(FIELD.to_owned(), ByteString(value.to_vec()))].into());
        Secret { data, ..Secret::default() }
    }

    #[test]
    fn a_key_is_exactly_32_bytes_and_stays_out_of_logs() {
        let key = KeptSpoolKey::read("s", &secret(Some(&[7; 32]))).unwrap();
        assert_eq!(key.as_bytes(), &[7; 32]);
        assert_eq!(format!("{key:?}"), "KeptSpoolKey(…)");
        for wrong in [None, Some(&[7_u8; 31][..]), Some(&[7; 33]), Some(&[])] {
            let error = KeptSpoolKey::read("s", &secret(wrong)).unwrap_err();
            assert!(error.to_string().contains("restore it"), "{error}");
        }
    }
}
