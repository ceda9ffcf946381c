//! Container images in OCI registries: resolved for one architecture, each document held against its digest, layers opened
//! like any other artifact.
//!
//! The distribution protocol is spoken over [`Egress`], so that addresses, redirects, bounds and messages are those of
//! every other upstream; documents are read with the types of `oci-spec`. A [`Registry`] lives for one attempt at one
//! image and has that image's credentials only: no token of it is ever used for another.

mod auth;
mod blob;
mod challenge;
mod document;
mod fault;

use std::collections::HashMap;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};

use self::{auth::Session, document::Document};
use super::{
    Egress, OpenRequest, Response,
    error::{At, Fault, SourceError},
    mirror::Place,
};
use crate::model::{Architecture, ContainerReference, Digest, HttpUrl, VirtualMachineDefaults};

pub use fault::RegistryFault;

/// The largest manifest or image configuration that is read: what registries must accept at least (distribution-spec).
const LARGEST_DOCUMENT: usize = 4 << 20;

/// How deep indexes may lie in each other.
const DEEPEST: usize = 3;

/// Every kind of manifest that is understood, so that no registry converts one into something else.
const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// One image of a registry, as long as one attempt lasts.
pub struct Registry<'a> {
    egress: &'a Egress,
    request: OpenRequest<'a>,
    reference: &'a ContainerReference,
    architecture: Architecture,
    /// What each server was shown and took, by its origin and whether it is the image's own registry.
    sessions: HashMap<(String, bool), Session>,
}

/// A container image of one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerImage {
    /// The index that was chosen from, where the reference's digest is one.
    pub index: Option<Digest>,
    /// The manifest for the architecture.
    pub manifest: Digest,
    /// Its layers, the lowest first; at least one.
    pub layers: Vec<Layer>,
    /// KubeVirt's instance type and preference, where the image names them.
    pub defaults: VirtualMachineDefaults,
}

/// A layer by its manifest's word; nothing but its digest is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Of the bytes as they are stored.
    pub digest: Digest,
    /// How many there are.
    pub size: u64,
}

impl Egress {
    /// The image of `reference` for `architecture`, asked for with what `request` says.
    pub fn registry<'a>(
        &'a self,
        request: &OpenRequest<'a>,
        reference: &'a ContainerReference,
        architecture: Architecture,
    ) -> Registry<'a> {
        Registry { egress: self, request: *request, reference, architecture, sessions: HashMap::new() }
    }
}

impl Registry<'_> {
    /// The image's documents, each verified by its digest.
    ///
    /// # Errors
    /// As [`Egress::open`], and what makes the image none that a disk can be taken from ([`RegistryFault`]).
    pub async fn image(&mut self) -> Result<ContainerImage, SourceError> {
        let pinned = *self.reference.digest();
        let (mut digest, mut index) = (pinned, None);
        for _ in 0..DEEPEST {
            let (bytes, at) = self.document("manifests", &digest).await?;
            let failed = |fault: RegistryFault| SourceError::new(Fault::Registry(Box::new(fault)), at.clone());
            match Document::parse(&bytes).map_err(failed)? {
                Document::Index(list) => {
                    index.get_or_insert(digest);
                    digest = document::choose(&list, self.architecture).map_err(failed)?;
                }
                Document::Manifest(manifest) => {
                    let parts = document::parts(&manifest).map_err(failed)?;
                    let (config, at) = self.document("blobs", &parts.config).await?;
                    let failed = |fault: RegistryFault| SourceError::new(Fault::Registry(Box::new(fault)), at.clone());
                    let defaults = document::config(&config, self.architecture).map_err(failed)?;
                    return Ok(ContainerImage { index, manifest: digest, layers: parts.layers, defaults });
                }
            }
        }
        let at = At::new(self.url("manifests", &digest).url(), "");
        let what = format!("more than {DEEPEST} indexes lie in each other");
        Err(SourceError::new(Fault::Registry(Box::new(RegistryFault::Unreadable { what })), at))
    }

    /// Where the registry has a manifest or blob.
    fn url(&self, kind: &str, digest: &Digest) -> HttpUrl {
        let repository = self.reference.repository().split('/');
        let digest = digest.to_string();
        self.reference.api_url().join(["v2"].into_iter().chain(repository).chain([kind, digest.as_str()]))
    }

    /// The places that serve a document or layer.
    fn places(&self, url: &HttpUrl) -> Vec<Place> {
        self.egress.settings().mirrors.registry_places(url, self.request.resume.map(|resume| &resume.from), self.request.demoted)
    }

    /// A document with this digest, and where it came from.
    async fn document(&mut self, kind: &str, digest: &Digest) -> Result<(Vec<u8>, At), SourceError> {
        let url = self.url(kind, digest);
        let places = self.places(&url);
        let mut failures = Vec::new();
        for place in &places {
            match self.document_at(place, digest).await {
                Ok(found) => return Ok(found),
                Err(error) => {
                    tracing::info!(%error, request_id = error.request_id(), "a registry did not serve");
                    let is_last = !error.is_worth_another_mirror();
                    failures.push(error);
                    if is_last {
                        break;
                    }
                }
            }
        }
        Err(all_failed(failures, &places, &url))
    }

    async fn document_at(&mut self, place: &Place, digest: &Digest) -> Result<(Vec<u8>, At), SourceError> {
        let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(ACCEPT))]);
        let response = self.ask(place, &headers, true).await?;
        if response.status != StatusCode::OK {
            return Err(self.refusal(response, place).await);
        }
        let at = response.at();
        let failed = |fault: RegistryFault| SourceError::new(Fault::Registry(Box::new(fault)), at.clone());
        let bytes = response.body.whole(LARGEST_DOCUMENT).await.map_err(|error| match error.fault() {
            Fault::TooLarge { .. } => failed(RegistryFault::DocumentTooLarge { limit: LARGEST_DOCUMENT }),
            _ => error,
        })?;
        let found = Digest::from_bytes(Sha256::digest(&bytes).into());
        if found != *digest {
            return Err(failed(RegistryFault::Mismatch { expected: *digest, found, size: bytes.len() }));
        }
        Ok((bytes.to_vec(), at))
    }

    /// An answer that is not what was asked for, as an error: what a registry's codes mean, and without any secret.
    async fn refusal(&self, response: Response, place: &Place) -> SourceError {
        let meaning = self.meaning(&response, place);
        auth::refusal(response, self.request.credentials, |_| meaning).await
    }
}

/// The one error for the failures of several places.
fn all_failed(failures: Vec<SourceError>, places: &[Place], url: &HttpUrl) -> SourceError {
    let origin = places.iter().position(|place| place.is_origin).unwrap_or_default().min(failures.len().saturating_sub(1));
    SourceError::of_all(failures, origin).unwrap_or_else(|| SourceError::new(Fault::UnfitAddress, At::new(url.url(), "")))
}
