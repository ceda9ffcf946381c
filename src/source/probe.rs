//! Looking without downloading: the beginning of an artifact, or only what its server says about it.

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};

use super::{
    Egress, Request, Response,
    error::{Fault, SourceError},
    mirror::Place,
    open::{Facts, OpenRequest, Target, place_request},
    range,
};
use crate::model::SchematicId;

/// The beginning of an artifact.
#[derive(Debug)]
pub struct Peeked {
    /// What is known about the artifact.
    pub facts: Facts,
    /// Its first bytes.
    pub head: Bytes,
    /// Whether these are all it has.
    pub is_whole: bool,
    /// The schematic's ID, for a Talos disk.
    pub schematic_id: Option<SchematicId>,
    /// Why the places that were asked before did not serve it.
    pub failures: Vec<SourceError>,
}

impl Egress {
    /// Reads at most the first `most` bytes of an artifact (`plan` asks for 1 MiB) and hangs up.
    ///
    /// A range is asked for, so that a server that knows ranges sends no more; one that does not is cut off.
    ///
    /// # Errors
    /// Why no place would serve it, see [`SourceError::reason`].
    pub async fn peek(&self, request: &OpenRequest<'_>, most: usize) -> Result<Peeked, SourceError> {
        let mut request = OpenRequest { resume: None, ..*request };
        loop {
            match self.peek_once(&request, most).await {
                Err(error) if request.next_credentials(&error) => {}
                done => return done,
            }
        }
    }

    async fn peek_once(&self, request: &OpenRequest<'_>, most: usize) -> Result<Peeked, SourceError> {
        let mut round = self.round(request).await?;
        while let Some(place) = round.next_place() {
            match self.peek_place(request, &place, &round.target, most).await {
                Ok(peeked) => return Ok(Peeked { failures: round.into_failures(), ..peeked }),
                Err(error) => self.note(&mut round, request, &place, error).await,
            }
        }
        Err(round.into_error())
    }

    async fn peek_place(&self, request: &OpenRequest<'_>, place: &Place, target: &Target, most: usize) -> Result<Peeked, SourceError> {
        let plain = || Request { small: true, ..place_request(request, place, Method::GET) };
        let mut response = self.send(&first_bytes(plain(), most)).await?;
        // An empty file has no first byte, and some servers cannot count: both answer when asked plainly.
        if response.status == StatusCode::RANGE_NOT_SATISFIABLE || is_odd_part(&response, most) {
            response = self.send(&plain()).await?;
        }
        let length = match response.status {
            StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION => super::content_length(&response.headers),
            StatusCode::PARTIAL_CONTENT if !is_odd_part(&response, most) => {
                range::content_range(&response.headers).and_then(|part| part.total)
            }
            StatusCode::PARTIAL_CONTENT => {
                return Err(response.error(Fault::WrongPart { what: "a part, though the whole file was asked for".to_owned() }));
            }
            _ => return Err(response.refusal(target.hint).await),
        };
        self.check_bytes(&response, place, length)?;
        let facts = Facts::of(&response, place, length);
        let part = response.status == StatusCode::PARTIAL_CONTENT;
        let (head, ended) = response.body.head(most).await?;
        let read = u64::try_from(head.len()).unwrap_or(u64::MAX);
        let is_whole = length.map_or(ended && !part, |length| length == read);
        Ok(Peeked { facts, head, is_whole, schematic_id: target.schematic_id.clone(), failures: Vec::new() })
    }

    /// What upstream says about an artifact, by `HEAD`, or by a `GET` of one byte where `HEAD` is refused (presigned URLs,
    /// some caches). A factory builds the image before it answers, so this may take as long as a download's first byte.
    ///
    /// # Errors
    /// Why no place would say, see [`SourceError::reason`].
    pub async fn look(&self, request: &OpenRequest<'_>) -> Result<Facts, SourceError> {
        let mut request = OpenRequest { resume: None, ..*request };
        loop {
            match self.look_once(&request).await {
                Err(error) if request.next_credentials(&error) => {}
                done => return done,
            }
        }
    }

    async fn look_once(&self, request: &OpenRequest<'_>) -> Result<Facts, SourceError> {
        let mut round = self.round(request).await?;
        while let Some(place) = round.next_place() {
            match self.look_at(request, &place, &round.target).await {
                Ok(facts) => return Ok(facts),
                Err(error) => self.note(&mut round, request, &place, error).await,
            }
        }
        Err(round.into_error())
    }

    async fn look_at(&self, request: &OpenRequest<'_>, place: &Place, target: &Target) -> Result<Facts, SourceError> {
        let response = self.send(&place_request(request, place, Method::HEAD)).await?;
        match response.status {
            StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION => {
                return Ok(Facts::of(&response, place, super::content_length(&response.headers)));
            }
            StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {}
            _ => return Err(response.refusal(target.hint).await),
        }
        let plain = Request { small: true, ..place_request(request, place, Method::GET) };
        let response = self.send(&first_bytes(plain, 1)).await?;
        let length = match response.status {
            StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION => super::content_length(&response.headers),
            StatusCode::PARTIAL_CONTENT => range::content_range(&response.headers).and_then(|part| part.total),
            StatusCode::RANGE_NOT_SATISFIABLE => Some(range::unsatisfied_total(&response.headers).unwrap_or_default()),
            _ => return Err(response.refusal(target.hint).await),
        };
        Ok(Facts::of(&response, place, length))
    }
}

/// `request` for the first `count` bytes.
fn first_bytes(mut request: Request<'_>, count: usize) -> Request<'_> {
    if let Ok(range) = HeaderValue::from_str(&format!("bytes=0-{}", count.saturating_sub(1))) {
        request.headers.insert(header::RANGE, range);
    }
    request
}

/// Whether an answer is a part that is not the first `most` bytes, or all there are.
pub(super) fn is_odd_part(response: &Response, most: usize) -> bool {
    let is_asked_for = |part: range::ContentRange| {
        let wanted = part.total.map_or(most as u64, |total| total.min(most as u64));
        part.first == 0 && part.last.saturating_add(1) >= wanted
    };
    response.status == StatusCode::PARTIAL_CONTENT && !range::content_range(&response.headers).is_some_and(is_asked_for)
}
