//! Layers: opened, gone on with, or only begun.

use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::{Layer, Registry, RegistryFault, all_failed};
use crate::{
    model::Digest,
    source::{
        Facts, Opened, Response, Resume, Validator, content_length,
        error::{Fault, SourceError},
        mirror::Place,
        probe::is_odd_part,
        range,
    },
};

impl Registry<'_> {
    /// Opens a layer for download; with a resume of the same layer, from where it broke off: a blob is named by its digest,
    /// so that a part of it is a part of the same bytes, which the digest of the whole then proves.
    ///
    /// # Errors
    /// Why no place would serve it, see [`SourceError::reason`].
    pub async fn open(&mut self, layer: &Layer) -> Result<Opened, SourceError> {
        let url = self.url("blobs", &layer.digest);
        let places = self.places(&url);
        let mut failures = Vec::new();
        for place in &places {
            let resume = self.request.resume.filter(|resume| resume.from == place.url && is_of(resume, &layer.digest));
            match self.open_at(place, layer, resume).await {
                Ok(opened) => return Ok(opened),
                Err(error) => {
                    tracing::info!(%error, request_id = error.request_id(), "a registry did not serve a layer");
                    failures.push(error);
                }
            }
        }
        Err(all_failed(failures, &places, &url))
    }

    async fn open_at(&mut self, place: &Place, layer: &Layer, resume: Option<&Resume>) -> Result<Opened, SourceError> {
        if let Some(resume) = resume.filter(|resume| resume.offset < layer.size) {
            let response = self.ask(place, &part(resume.offset, None), false).await?;
            match response.status {
                StatusCode::PARTIAL_CONTENT => {
                    match range::check_rest(&response.headers, resume.offset, Some(layer.size), &resume.validator) {
                        Ok(_) => return self.opened(response, place, layer, resume.offset),
                        Err(what) => tracing::debug!(what, "the rest of a layer is not what it should be: starting over"),
                    }
                }
                StatusCode::OK => return self.opened(response, place, layer, 0),
                StatusCode::RANGE_NOT_SATISFIABLE => {}
                _ => return Err(self.refusal(response, place).await),
            }
        }
        let response = self.ask(place, &HeaderMap::new(), false).await?;
        if response.status != StatusCode::OK {
            return Err(self.refusal(response, place).await);
        }
        if let Some(announced) = content_length(&response.headers).filter(|announced| *announced != layer.size) {
            let fault = RegistryFault::WrongLength { expected: layer.size, announced };
            return Err(response.error(Fault::Registry(Box::new(fault))));
        }
        self.opened(response, place, layer, 0)
    }

    fn opened(&self, response: Response, place: &Place, layer: &Layer, offset: u64) -> Result<Opened, SourceError> {
        self.egress.check_bytes(&response, place, Some(layer.size))?;
        let facts = facts(&response, place, layer);
        let mut body = response.body;
        body.limit(layer.size.saturating_sub(offset));
        body.expect(layer.size.saturating_sub(offset));
        Ok(Opened { facts, offset, body, schematic_id: None })
    }

    /// Opens the first `most` bytes of a layer; a registry that knows no ranges sends more, and whoever reads stops. Also gives
    /// why places that were asked before did not serve.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn begin(&mut self, layer: &Layer, most: usize) -> Result<(Opened, Vec<SourceError>), SourceError> {
        let url = self.url("blobs", &layer.digest);
        let places = self.places(&url);
        let mut failures = Vec::new();
        for place in &places {
            match self.begin_at(place, layer, most).await {
                Ok(opened) => return Ok((opened, failures)),
                Err(error) => failures.push(error),
            }
        }
        Err(all_failed(failures, &places, &url))
    }

    async fn begin_at(&mut self, place: &Place, layer: &Layer, most: usize) -> Result<Opened, SourceError> {
        let mut response = self.ask(place, &part(0, Some(most)), true).await?;
        if response.status == StatusCode::RANGE_NOT_SATISFIABLE || is_odd_part(&response, most) {
            response = self.ask(place, &HeaderMap::new(), true).await?;
        }
        // By its manifest the layer has so many bytes, whatever is announced.
        let (announced, expected) = match response.status {
            StatusCode::OK => (content_length(&response.headers), layer.size),
            StatusCode::PARTIAL_CONTENT if !is_odd_part(&response, most) => match range::content_range(&response.headers) {
                Some(part) => (part.total, part.last.saturating_add(1).min(layer.size)),
                None => (None, layer.size),
            },
            StatusCode::PARTIAL_CONTENT => {
                return Err(response.error(Fault::WrongPart { what: "another part than the one asked for".to_owned() }));
            }
            _ => return Err(self.refusal(response, place).await),
        };
        if let Some(announced) = announced.filter(|announced| *announced != layer.size) {
            let fault = RegistryFault::WrongLength { expected: layer.size, announced };
            return Err(response.error(Fault::Registry(Box::new(fault))));
        }
        self.egress.check_bytes(&response, place, Some(layer.size))?;
        let facts = facts(&response, place, layer);
        let mut body = response.body;
        body.expect(expected);
        Ok(Opened { facts, offset: 0, body, schematic_id: None })
    }
}

/// A request for a part.
fn part(from: u64, most: Option<usize>) -> HeaderMap {
    let last = most.map(|most| (from + most as u64).saturating_sub(1).to_string()).unwrap_or_default();
    HeaderValue::from_str(&format!("bytes={from}-{last}")).map(|range| HeaderMap::from_iter([(header::RANGE, range)])).unwrap_or_default()
}

/// Whether what a former attempt left is of this layer.
fn is_of(resume: &Resume, digest: &Digest) -> bool {
    matches!(&resume.validator, Validator::Digest(known) if known == digest)
}

/// What is known of a layer: its length and digest are its manifest's, so that no header of a store behind the registry counts.
fn facts(response: &Response, place: &Place, layer: &Layer) -> Facts {
    let facts = Facts::of(response, place, Some(layer.size));
    Facts { validator: Some(Validator::Digest(layer.digest)), etag: None, last_modified: None, ..facts }
}
