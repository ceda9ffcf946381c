//! The Talos Image Factory: its URLs, its schematics, and what its answers mean.
//!
//! Facts are from siderolabs/image-factory (`internal/frontend/http`, `internal/profile`), and from answers of the public one.

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::{
    Credentials, Egress, Request,
    error::{At, Fault, SourceError},
    mirror::Place,
    open::{OpenRequest, Target},
    schematic,
};
use crate::model::{Digest, HttpUrl, Schematic, SchematicId, Source, TalosFactory};

/// Where a factory serves a disk: `<factory>/image/<id>/<version>/<platform>-<arch>[-secureboot].raw.xz`.
///
/// A factory makes any disk format in any compression; `raw.xz` it is, because xz carries checks of its content from end to
/// end where the public factory offers no digest (a qcow2 has none), because every factory knows it (`zst` came in 2024), and
/// because it is what the factory's own page and the platform's charts ask for, so that caches and mirrors have it already.
pub fn image_url(factory: &TalosFactory, id: &SchematicId) -> HttpUrl {
    let flavour = if factory.secure_boot { "-secureboot" } else { "" };
    let file = format!("{}-{}{flavour}.raw.xz", factory.platform, factory.architecture);
    factory.factory_url.join(["image", id.as_str(), &factory.version.to_string(), &file])
}

/// A schematic document to be given to a factory.
#[derive(Debug, Clone, Copy)]
pub struct SchematicRequest<'a> {
    /// The factory.
    pub factory_url: &'a HttpUrl,
    /// The document.
    pub document: &'a serde_json::Value,
    /// PEM certificates trusted besides the common ones.
    pub ca_bundle: Option<&'a [u8]>,
    /// Shown to the factory itself, not to a mirror.
    pub credentials: Option<&'a Credentials>,
}

impl<'a> SchematicRequest<'a> {
    /// The document of `factory` with what `request` says; an empty document where the factory has an ID already.
    pub(super) fn of(factory: &'a TalosFactory, request: &OpenRequest<'a>) -> Self {
        const NONE: &serde_json::Value = &serde_json::Value::Null;
        let document = match &factory.schematic {
            Schematic::Document(document) => document,
            Schematic::Id(_) => NONE,
        };
        Self { factory_url: &factory.factory_url, document, ca_bundle: request.ca_bundle, credentials: request.credentials.first() }
    }
}

impl Egress {
    /// Gives a schematic document to a factory and takes the ID it returns, which alone counts: what an ID is computed from
    /// changes with the factory's age and edition. Giving it twice does no harm, and is the only way to make a factory know it.
    ///
    /// # Errors
    /// A document that the factory refuses is `InvalidSource` with the factory's text; otherwise as [`Egress::open`].
    pub async fn resolve_schematic(&self, request: &SchematicRequest<'_>) -> Result<SchematicId, SourceError> {
        let url = request.factory_url.join(["schematics"]);
        let places = self.settings().mirrors.places(&url, None, &[]);
        let origin = places.iter().position(|place| place.is_origin).unwrap_or_default();
        let mut failures = Vec::new();
        for place in &places {
            match self.give(request, place).await {
                Ok(id) => return Ok(id),
                Err(error) => failures.push(error),
            }
        }
        Err(SourceError::of_all(failures, origin).unwrap_or_else(|| SourceError::new(Fault::UnfitAddress, At::new(url.url(), ""))))
    }

    /// Gives the document to one place.
    async fn give(&self, request: &SchematicRequest<'_>, place: &Place) -> Result<SchematicId, SourceError> {
        /// An answer repeats the document, which may embed a machine configuration.
        const LONGEST: usize = 1 << 20;
        // JSON is YAML, and spares a second writer whose quoting would matter; the factory ignores the type.
        let post = Request {
            method: Method::POST,
            headers: HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]),
            credentials: request.credentials.filter(|_| place.is_origin),
            ca_bundle: request.ca_bundle,
            body: request.document.to_string().into(),
            ..Request::get(place.url.url())
        };
        let response = self.send(&post).await?;
        if !matches!(response.status, StatusCode::OK | StatusCode::CREATED) {
            return Err(response.refusal(|_, _| None).await);
        }
        let at = response.at();
        let not_a_factory = |what: &str| SourceError::new(Fault::NotAFactory { what: what.to_owned() }, at.clone());
        let body = response.body.whole(LONGEST).await?;
        let answer: serde_json::Value = serde_json::from_slice(&body).map_err(|_| not_a_factory("it is not JSON"))?;
        let id = answer.get("id").and_then(serde_json::Value::as_str).ok_or_else(|| not_a_factory("it has no `id`"))?;
        let id: SchematicId = id.parse().map_err(|_| not_a_factory("its `id` is no schematic ID"))?;
        if let Some(local) = schematic::local_schematic_id(request.document)
            && local != id
        {
            tracing::debug!(%local, %id, "the factory computes another schematic ID than we do; its own counts");
        }
        Ok(id)
    }

    /// What a failure means where the source has a schematic document: a factory that lost it, or a replica of one that has
    /// not heard of it, is given it (again), and the image is asked for a little later.
    pub(super) async fn given_again(&self, request: &OpenRequest<'_>, target: &Target, place: &Place, error: SourceError) -> SourceError {
        let (Source::TalosFactory(factory), Some(id)) = (request.source, &target.schematic_id) else { return error };
        let unknown = matches!(error.fault(), Fault::Status { status: StatusCode::NOT_FOUND, text, .. } if !text.contains(VERSION_MISSING));
        if !unknown || factory.schematic.id().is_some() {
            return error;
        }
        let Some(schematics) = schematics_url(&place.url) else { return error };
        let there = Place { url: schematics, is_origin: place.is_origin };
        let at = At::new(place.url.url(), "");
        match self.give(&SchematicRequest::of(factory, request), &there).await {
            Ok(now) if now == *id => SourceError::new(Fault::SchematicNotYetKnown { id: now }, at),
            Ok(now) => SourceError::new(Fault::SchematicIdChanged { recorded: id.clone(), now }, at),
            Err(_) => error,
        }
    }

    /// The digest that an enterprise factory states for a disk, in the file `<disk>.sha256` beside it.
    ///
    /// `None` where it states none: the community edition answers 402, and the public factory is not even
    /// asked. The factory may build the disk anew between this answer and the download, so a disk that does not match was not
    /// fetched whole or must be fetched again (`Corrupt`); it is never a final `DigestMismatch`.
    pub async fn stated_digest(&self, request: &OpenRequest<'_>) -> Option<Digest> {
        const LONGEST: usize = 4 << 10;
        let Source::TalosFactory(factory) = request.source else { return None };
        if factory.factory_url == TalosFactory::default_factory() {
            return None;
        }
        let id = factory.schematic.id().or(request.schematic_id)?;
        let disk = image_url(factory, id);
        let url = format!("{disk}.sha256").parse::<HttpUrl>().ok()?;
        let mut candidates = request.credentials.iter();
        let mut credentials = candidates.next();
        let response = loop {
            let ask = Request { credentials, ca_bundle: request.ca_bundle, ..Request::get(url.url()) };
            let response = self.send(&ask).await.ok()?;
            match response.status {
                StatusCode::OK => break response,
                // As with the disk itself: the next ones may be the right ones, and none at all never is.
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => credentials = Some(candidates.next()?),
                _ => return None,
            }
        };
        let text = response.body.whole(LONGEST).await.ok()?;
        stated(std::str::from_utf8(&text).ok()?, disk.url().path().rsplit('/').next()?)
    }
}

/// Reads `<hex>  <file>`, the form of `sha256sum`, as the digest of `file`.
fn stated(text: &str, file: &str) -> Option<Digest> {
    let mut words = text.split_whitespace();
    let (hex, name) = (words.next()?, words.next()?);
    let ours = name.trim_start_matches('*') == file && words.next().is_none();
    ours.then(|| format!("sha256:{hex}").parse().ok()).flatten()
}

/// The `/schematics` of the place that serves `image` (`…/image/<id>/<version>/<file>`).
fn schematics_url(image: &HttpUrl) -> Option<HttpUrl> {
    let mut url = image.url().clone();
    url.set_query(None);
    url.path_segments_mut().ok()?.pop().pop().pop().pop().push("schematics");
    url.as_str().parse().ok()
}

/// In the factory's text for a Talos version that it does not have.
const VERSION_MISSING: &str = "is not available";

/// What a factory's answer about an image means, where its own words do not say.
pub(super) fn hint(status: StatusCode, text: &str) -> Option<&'static str> {
    match status.as_u16() {
        404 if text.contains("schematic") && text.contains("not found") => {
            Some("this factory was never given that schematic: write the document in `schematic` instead of its ID, or post it there")
        }
        404 if text.contains(VERSION_MISSING) => Some("this factory does not have that Talos version, or not yet"),
        500 => Some("a factory answers this also for a platform it does not know"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use rstest::rstest;

    use super::{hint, image_url, schematics_url, stated};
    use crate::model::{Architecture, Digest, Schematic, TalosFactory};

    const ID: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";

    #[rstest]
    #[case(
        "https://factory.talos.dev",
        "openstack",
        Architecture::Amd64,
        false,
        "https://factory.talos.dev/image/ID/v1.13.6/openstack-amd64.raw.xz"
    )]
    #[case(
        "https://f.example/sub/",
        "metal",
        Architecture::Arm64,
        true,
        "https://f.example/sub/image/ID/v1.13.6/metal-arm64-secureboot.raw.xz"
    )]
    fn urls(
        #[case] factory: &str,
        #[case] platform: &str,
        #[case] architecture: Architecture,
        #[case] secure_boot: bool,
        #[case] expected: &str,
    ) {
        let id = ID.parse().expect("id");
        let factory = TalosFactory {
            schematic: Schematic::Id(ID.parse().expect("id")),
            version: "v1.13.6".parse().expect("version"),
            platform: platform.parse().expect("platform"),
            architecture,
            secure_boot,
            factory_url: factory.parse().expect("URL"),
        };
        let url = image_url(&factory, &id);
        assert_eq!(url.to_string(), expected.replace("ID", ID));
        assert_eq!(schematics_url(&url).expect("URL"), factory.factory_url.join(["schematics"]));
    }

    #[test]
    fn sidecars() {
        let hex = Digest::of(b"x").hex();
        assert_eq!(stated(&format!("{hex}  a.raw.xz\n"), "a.raw.xz"), Some(Digest::of(b"x")));
        assert_eq!(stated(&format!("{hex} *a.raw.xz"), "a.raw.xz"), Some(Digest::of(b"x")));
        for bad in [String::new(), hex.clone(), format!("{hex}  b.raw.xz"), format!("{hex}  a.raw.xz more"), "00  a.raw.xz".to_owned()] {
            assert_eq!(stated(&bad, "a.raw.xz"), None, "{bad}");
        }
    }

    #[rstest]
    #[case(404, "schematic ID \"aaaa\" not found", Some("never given"))]
    #[case(404, "failed to get kernel: version 9.9.9 is not available", Some("does not have that Talos version"))]
    #[case(404, "", None)]
    #[case(500, "internal server error", Some("platform"))]
    #[case(400, "error parsing profile from path", None)]
    fn hints(#[case] status: u16, #[case] text: &str, #[case] expected: Option<&str>) {
        let got = hint(StatusCode::from_u16(status).expect("status"), text);
        assert_eq!(got.is_some(), expected.is_some());
        assert!(got.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}
