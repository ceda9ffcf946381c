//! Opening an artifact: what is known about it, and its bytes from the start or from where a download broke off.

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::{Deserialize, Serialize};
use url::Url;

use super::{
    Body, Credentials, Egress, Request, Response,
    error::{At, Fault, SourceError, shown},
    mirror::Place,
    range::{self, Validator},
    talos,
};
use crate::{
    model::{HttpUrl, SchematicId, Source},
    rules::Reason,
};

/// Which artifact to open, and with what.
#[derive(Debug, Clone, Copy)]
pub struct OpenRequest<'a> {
    /// The source.
    pub source: &'a Source,
    /// The schematic's ID, where the source has a document and it has been given to the factory before
    /// ([`Egress::resolve_schematic`]). Without it the document is given to the factory first.
    pub schematic_id: Option<&'a SchematicId>,
    /// PEM certificates trusted besides the common ones.
    pub ca_bundle: Option<&'a [u8]>,
    /// Shown to the source's own server, never to a mirror or a redirect's target.
    /// Where there are several, the next is tried when one is refused.
    pub credentials: &'a [Credentials],
    /// Where an earlier download broke off.
    pub resume: Option<&'a Resume>,
    /// Places ([`Facts::from`]) that served bad bytes during this fetch: asked after all others.
    pub demoted: &'a [HttpUrl],
}

impl<'a> OpenRequest<'a> {
    /// A request for `source` with nothing besides.
    pub const fn new(source: &'a Source) -> Self {
        Self { source, schematic_id: None, ca_bundle: None, credentials: &[], resume: None, demoted: &[] }
    }
}

impl OpenRequest<'_> {
    /// Goes on to the next credentials, if those in use were refused and there are more.
    pub(super) fn next_credentials(&mut self, error: &SourceError) -> bool {
        let refused = matches!(error.reason(), Reason::Unauthorized | Reason::Forbidden);
        match self.credentials.split_first() {
            Some((_, rest)) if refused && !rest.is_empty() => {
                self.credentials = rest;
                true
            }
            _ => false,
        }
    }
}

/// What is needed to go on with a download, also after a restart. Kept beside the bytes, not in a status: the URL may be a
/// signed one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    /// Bytes that are there.
    pub offset: u64,
    /// The whole file's length, where it was announced.
    pub total: Option<u64>,
    /// Proves that the file is still the same.
    pub validator: Validator,
    /// The place that the bytes came from; another place is asked for the whole file.
    pub from: HttpUrl,
}

/// What an answer told about the artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The place that answered: the source's URL, or the same file on a mirror.
    pub from: HttpUrl,
    /// Whether that is a mirror.
    pub is_mirror: bool,
    /// Where the bytes come from after redirects, in its public form.
    pub resolved_url: String,
    /// The whole file's length, where it is announced.
    pub length: Option<u64>,
    /// The `ETag`, strong or weak.
    pub etag: Option<String>,
    /// The `Last-Modified`.
    pub last_modified: Option<String>,
    /// Whether upstream says that it can serve parts; `None` where it says nothing.
    pub accepts_ranges: Option<bool>,
    /// A strong validator, where there is one.
    pub validator: Option<Validator>,
    /// The ID that the request was sent with.
    pub request_id: String,
}

impl Facts {
    pub(super) fn of(response: &Response, place: &Place, length: Option<u64>) -> Self {
        let headers = &response.headers;
        let ranges =
            headers.get(header::ACCEPT_RANGES).and_then(|value| value.to_str().ok()).map(|text| text.trim().eq_ignore_ascii_case("bytes"));
        let part = response.status == StatusCode::PARTIAL_CONTENT;
        Self {
            from: place.url.clone(),
            is_mirror: !place.is_origin,
            resolved_url: shown(&response.url),
            length,
            etag: range::etag(headers),
            last_modified: range::last_modified(headers),
            accepts_ranges: if part { Some(true) } else { ranges },
            validator: Validator::of(headers),
            request_id: response.request_id.clone(),
        }
    }

    /// How to go on after `offset` bytes; `None` where upstream cannot, or nothing proves that the file stays the same.
    pub fn resume_at(&self, offset: u64) -> Option<Resume> {
        let can = offset > 0 && self.accepts_ranges != Some(false);
        let validator = self.validator.clone().filter(|_| can)?;
        Some(Resume { offset, total: self.length, validator, from: self.from.clone() })
    }
}

/// An opened artifact.
#[derive(Debug)]
pub struct Opened {
    /// What is known about it.
    pub facts: Facts,
    /// Where in the file the stream starts: the resume's offset, or 0 where upstream sends the whole file.
    pub offset: u64,
    /// The bytes from there on.
    pub body: Body,
    /// The schematic's ID, for a Talos disk.
    pub schematic_id: Option<SchematicId>,
}

impl Egress {
    /// Opens an artifact for download.
    ///
    /// # Errors
    /// Why no place would serve it, see [`SourceError::reason`].
    pub async fn open(&self, request: &OpenRequest<'_>) -> Result<Opened, SourceError> {
        let mut request = *request;
        loop {
            match self.open_once(&request).await {
                Err(error) if request.next_credentials(&error) => {}
                done => return done,
            }
        }
    }

    async fn open_once(&self, request: &OpenRequest<'_>) -> Result<Opened, SourceError> {
        let mut round = self.round(request).await?;
        while let Some(place) = round.next_place() {
            let resume = request.resume.filter(|resume| resume.from == place.url);
            match self.open_place(request, &place, &round.target, resume).await {
                Ok(opened) => return Ok(opened),
                Err(error) => self.note(&mut round, request, &place, error).await,
            }
        }
        Err(round.into_error())
    }

    async fn open_place(
        &self,
        request: &OpenRequest<'_>,
        place: &Place,
        target: &Target,
        resume: Option<&Resume>,
    ) -> Result<Opened, SourceError> {
        let opened = |facts, offset, body| Opened { facts, offset, body, schematic_id: target.schematic_id.clone() };
        if let Some(resume) = resume {
            let response = self.send(&resumed(place_request(request, place, Method::GET), resume)).await?;
            match response.status {
                StatusCode::PARTIAL_CONTENT => match range::check_rest(&response.headers, resume.offset, resume.total, &resume.validator) {
                    Ok(total) => {
                        self.check_bytes(&response, place, total)?;
                        let mut facts = Facts::of(&response, place, total);
                        // A part need not repeat the validator it was asked with.
                        facts.validator = Some(resume.validator.clone());
                        let mut body = response.body;
                        body.limit(self.settings().caps.artifact_bytes.saturating_sub(resume.offset));
                        if let Some(total) = total {
                            body.expect(total.saturating_sub(resume.offset));
                        }
                        return Ok(opened(facts, resume.offset, body));
                    }
                    Err(what) => {
                        tracing::debug!(url = %shown(&response.url), what, "the rest of a download is not what it should be: starting over")
                    }
                },
                StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION => {
                    return self.whole(response, place).map(|(facts, body)| opened(facts, 0, body));
                }
                // The file is shorter than what is there: it changed.
                StatusCode::RANGE_NOT_SATISFIABLE => {}
                _ => return Err(response.refusal(target.hint).await),
            }
        }
        let response = self.send(&place_request(request, place, Method::GET)).await?;
        match response.status {
            StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION => {
                self.whole(response, place).map(|(facts, body)| opened(facts, 0, body))
            }
            StatusCode::PARTIAL_CONTENT => {
                Err(response.error(Fault::WrongPart { what: "a part, though the whole file was asked for".to_owned() }))
            }
            _ => Err(response.refusal(target.hint).await),
        }
    }

    /// The facts and bytes of an answer that is the whole file.
    fn whole(&self, response: Response, place: &Place) -> Result<(Facts, Body), SourceError> {
        let length = super::content_length(&response.headers);
        self.check_bytes(&response, place, length)?;
        let facts = Facts::of(&response, place, length);
        let mut body = response.body;
        body.limit(self.settings().caps.artifact_bytes);
        Ok((facts, body))
    }

    /// Refuses bytes that are not the file's own, or too many of them.
    pub(super) fn check_bytes(&self, response: &Response, place: &Place, length: Option<u64>) -> Result<(), SourceError> {
        if let Some((header, coding)) =
            response.encoding().filter(|(_, coding)| !is_label_of_file(coding, &[place.url.url(), &response.url]))
        {
            let coding = super::answer::clean(&coding, &[]);
            return Err(response.error(Fault::Encoded { header, coding }));
        }
        let limit = self.settings().caps.artifact_bytes;
        match length {
            Some(length) if length > limit => Err(response.error(Fault::TooLarge { limit, announced: Some(length) })),
            _ => Ok(()),
        }
    }

    /// The places to ask for an artifact, each once.
    pub(super) async fn round(&self, request: &OpenRequest<'_>) -> Result<Round, SourceError> {
        let target = self.target(request).await?;
        let places = self.settings().mirrors.places(&target.url, request.resume.map(|resume| &resume.from), request.demoted);
        Ok(Round {
            target,
            origin: places.iter().position(|place| place.is_origin).unwrap_or_default(),
            places: places.into_iter(),
            failures: Vec::new(),
        })
    }

    /// Keeps the failure of one place; a factory that does not know a document's schematic is given it.
    pub(super) async fn note(&self, round: &mut Round, request: &OpenRequest<'_>, place: &Place, error: SourceError) {
        let error = self.given_again(request, &round.target, place, error).await;
        tracing::info!(%error, request_id = error.request_id(), "an upstream did not serve");
        if !error.is_worth_another_mirror() {
            round.places = Vec::new().into_iter();
        }
        round.failures.push(error);
    }

    /// The file to ask for.
    async fn target(&self, request: &OpenRequest<'_>) -> Result<Target, SourceError> {
        match request.source {
            Source::Http { url, .. } => Ok(Target { url: url.clone(), schematic_id: None, hint: |_, _| None }),
            Source::TalosFactory(factory) => {
                let id = match factory.schematic.id().or(request.schematic_id) {
                    Some(id) => id.clone(),
                    None => self.resolve_schematic(&talos::SchematicRequest::of(factory, request)).await?,
                };
                Ok(Target { url: talos::image_url(factory, &id), schematic_id: Some(id), hint: talos::hint })
            }
            Source::ContainerDisk { reference, .. } => {
                let at = At { url: reference.to_string(), request_id: String::new() };
                Err(SourceError::new(Fault::NotAFile { what: "a container disk" }, at))
            }
        }
    }
}

/// A file to ask for, and what answers about it mean.
pub(super) struct Target {
    pub url: HttpUrl,
    pub schematic_id: Option<SchematicId>,
    pub hint: fn(StatusCode, &str) -> Option<&'static str>,
}

/// One round over the places that serve a file.
pub(super) struct Round {
    pub target: Target,
    places: std::vec::IntoIter<Place>,
    /// Which of the places is the origin.
    origin: usize,
    failures: Vec<SourceError>,
}

impl Round {
    /// The next place to ask.
    pub fn next_place(&mut self) -> Option<Place> {
        self.places.next()
    }

    /// Why the places asked so far did not serve.
    pub fn into_failures(self) -> Vec<SourceError> {
        self.failures
    }

    /// What it means that no place served.
    pub fn into_error(self) -> SourceError {
        let origin = self.origin.min(self.failures.len().saturating_sub(1));
        let none = || SourceError::new(Fault::UnfitAddress, At::new(self.target.url.url(), ""));
        SourceError::of_all(self.failures, origin).unwrap_or_else(none)
    }
}

/// A request to one place. Credentials go to the origin only.
pub(super) fn place_request<'a>(request: &OpenRequest<'a>, place: &'a Place, method: Method) -> Request<'a> {
    let credentials = request.credentials.first().filter(|_| place.is_origin);
    Request { method, credentials, ca_bundle: request.ca_bundle, ..Request::get(place.url.url()) }
}

/// `request` for the rest of the file, if it is still the same.
fn resumed<'a>(mut request: Request<'a>, resume: &Resume) -> Request<'a> {
    if let (Ok(range), Some(validator)) = (HeaderValue::from_str(&format!("bytes={}-", resume.offset)), resume.validator.header()) {
        request.headers = HeaderMap::from_iter([(header::RANGE, range), (header::IF_RANGE, validator)]);
    }
    request
}

/// Whether a `Content-Encoding` only repeats the file's own kind: servers that label `disk.raw.gz` with `gzip` (Apache's
/// `AddEncoding`) serve its stored bytes, which are the ones wanted.
fn is_label_of_file(coding: &str, urls: &[&Url]) -> bool {
    let endings: &[&str] = match coding {
        "gzip" | "x-gzip" => &[".gz"],
        "xz" | "x-xz" => &[".xz"],
        "zstd" => &[".zst", ".zstd"],
        _ => &[],
    };
    urls.iter().any(|url| endings.iter().any(|ending| url.path().to_ascii_lowercase().ends_with(ending)))
}

#[cfg(test)]
pub(super) mod samples {
    use super::Facts;
    use crate::source::Validator;

    /// What an answer from `url` told.
    pub fn facts(url: &str, length: Option<u64>, etag: Option<&str>, modified: Option<&str>) -> Facts {
        Facts {
            from: url.parse().expect(url),
            is_mirror: false,
            resolved_url: url.to_owned(),
            length,
            etag: etag.map(str::to_owned),
            last_modified: modified.map(str::to_owned),
            accepts_ranges: None,
            validator: etag.map(|etag| Validator::Etag(etag.to_owned())),
            request_id: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use url::Url;

    use super::{Facts, is_label_of_file, samples::facts};

    #[test]
    fn resumes_only_with_a_strong_validator_and_where_ranges_are_not_refused() {
        let strong = facts("https://a.example/x", Some(10), Some("\"a\""), None);
        assert_eq!(strong.resume_at(5).expect("resume").total, Some(10));
        assert_eq!(strong.resume_at(0), None);
        assert_eq!(facts("https://a.example/x", Some(10), None, Some("m")).resume_at(5), None);
        assert_eq!(Facts { accepts_ranges: Some(false), ..strong }.resume_at(5), None);
    }

    #[rstest]
    #[case("gzip", "https://a.example/disk.raw.gz?x", true)]
    #[case("x-gzip", "https://a.example/disk.raw.GZ", true)]
    #[case("zstd", "https://a.example/disk.raw.zst", true)]
    #[case("gzip", "https://a.example/disk.raw", false)]
    #[case("gzip", "https://a.example/disk.raw?x=.gz", false)]
    #[case("gzip, gzip", "https://a.example/disk.raw.gz", false)]
    #[case("br", "https://a.example/disk.raw.br", false)]
    fn labels(#[case] coding: &str, #[case] url: &str, #[case] expected: bool) {
        assert_eq!(is_label_of_file(coding, &[&Url::parse(url).expect(url)]), expected);
    }
}
