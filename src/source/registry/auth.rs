//! Showing a registry who one is: Basic, or a token that its service gives out for this repository.
//!
//! With credentials nothing of the image is ever asked for without them: a wrong password is an error, not an anonymous
//! request that happens to work. The registry is first asked which way it wants (`/v2/`, as container engines do), and each
//! of the credentials that match is tried in order. Without credentials tokens are asked for anonymously.

use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use url::Url;
use zeroize::Zeroizing;

use super::{Registry, RegistryFault, challenge::Challenge};
use crate::source::{
    Credentials, Request, Response,
    address::Trust,
    answer::{clean, retry_after},
    error::{At, Fault, SourceError, shown},
    mirror::Place,
    redirect::is_same_place,
};

/// The largest answer of a token service.
const LARGEST_TOKEN: usize = 256 << 10;

/// What one server was shown, and whether it took it.
#[derive(Clone, Default)]
pub(super) struct Session {
    /// What goes into `Authorization`.
    authorization: Option<Credentials>,
    /// Which of the image's credentials it is, or came from.
    candidate: usize,
    /// Whether it is a token that was given for them.
    is_token: bool,
    /// Whether a request with it was answered.
    proven: bool,
}

impl Registry<'_> {
    /// Asks for something of the image, with whatever the server wants to be shown.
    pub(super) async fn ask(&mut self, place: &Place, headers: &HeaderMap, small: bool) -> Result<Response, SourceError> {
        let key = (place.url.url().origin().ascii_serialization(), place.is_origin);
        let candidates = if place.is_origin { self.request.credentials } else { &[] };
        let mut session = self.sessions.get(&key).cloned().unwrap_or_default();
        if session.authorization.is_none() && !candidates.is_empty() {
            let challenge = self.ping(place).await?;
            self.next_candidate(&mut session, 0, candidates, challenge.as_ref(), place).await?;
        }
        let mut refreshed = false;
        loop {
            let request = Request {
                headers: headers.clone(),
                credentials: session.authorization.as_ref(),
                ca_bundle: self.request.ca_bundle,
                small,
                ..Request::get(place.url.url())
            };
            let response = self.egress.send(&request).await?;
            let has_next = session.candidate + 1 < candidates.len();
            match response.status {
                StatusCode::UNAUTHORIZED => {
                    let challenge = Challenge::of(&response.headers);
                    let wants_token = matches!(challenge, Some(Challenge::Bearer { .. }));
                    if session.proven && !refreshed || (wants_token && !session.is_token && !is_bearer(session.authorization.as_ref())) {
                        // The token has run out, or it is a token that is wanted.
                        refreshed |= session.proven;
                        session.proven = false;
                        let candidate = session.candidate;
                        if candidates.is_empty() {
                            if !wants_token || session.is_token && !refreshed {
                                return Err(self.refusal(response, place).await);
                            }
                            session = self.anonymous(challenge.as_ref(), place).await?;
                        } else {
                            self.next_candidate(&mut session, candidate, candidates, challenge.as_ref(), place).await?;
                        }
                    } else if has_next {
                        let next = session.candidate + 1;
                        self.next_candidate(&mut session, next, candidates, challenge.as_ref(), place).await?;
                    } else {
                        return Err(self.refusal(response, place).await);
                    }
                }
                // Another of the credentials may be allowed what this one is not.
                StatusCode::FORBIDDEN | StatusCode::NOT_FOUND if has_next && !session.proven => {
                    let challenge = self.ping(place).await?;
                    let next = session.candidate + 1;
                    self.next_candidate(&mut session, next, candidates, challenge.as_ref(), place).await?;
                }
                _ => {
                    session.proven = session.authorization.is_some() && response.status.is_success();
                    self.sessions.insert(key, session);
                    return Ok(response);
                }
            }
        }
    }

    /// How the registry wants to be shown who one is; `None` where it does not say.
    async fn ping(&self, place: &Place) -> Result<Option<Challenge>, SourceError> {
        let mut url = place.url.url().clone();
        url.set_path(&place.api_path());
        let request = Request { ca_bundle: self.request.ca_bundle, small: true, ..Request::get(&url) };
        let response = self.egress.send(&request).await?;
        match response.status {
            StatusCode::UNAUTHORIZED => Ok(Challenge::of(&response.headers)),
            status if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => Err(self.refusal(response, place).await),
            _ => Ok(None),
        }
    }

    /// What to show for the credentials from `from` on: the first that the token service takes, where there is one.
    async fn next_candidate(
        &self,
        session: &mut Session,
        from: usize,
        candidates: &[Credentials],
        challenge: Option<&Challenge>,
        place: &Place,
    ) -> Result<(), SourceError> {
        let mut last = None;
        for (candidate, credentials) in candidates.iter().enumerate().skip(from) {
            let shown = match (challenge, credentials) {
                (Some(challenge @ Challenge::Bearer { .. }), Credentials::Basic { .. }) => {
                    match self.token(challenge, Some(credentials), place).await {
                        Ok(token) => (token, true),
                        Err(error) if is_refused(&error) => {
                            last = Some(error);
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                // A token that somebody got beforehand, or a registry that takes passwords.
                _ => (credentials.clone(), false),
            };
            *session = Session { authorization: Some(shown.0), candidate, is_token: shown.1, proven: false };
            return Ok(());
        }
        Err(last.unwrap_or_else(|| SourceError::new(Fault::UnfitCredentials, At::new(place.url.url(), ""))))
    }

    /// A session with a token that anyone is given.
    async fn anonymous(&self, challenge: Option<&Challenge>, place: &Place) -> Result<Session, SourceError> {
        match challenge {
            Some(challenge @ Challenge::Bearer { .. }) => {
                let token = self.token(challenge, None, place).await?;
                Ok(Session { authorization: Some(token), is_token: true, ..Session::default() })
            }
            _ => Ok(Session::default()),
        }
    }

    /// A token to pull this repository, from where the registry says.
    async fn token(&self, challenge: &Challenge, credentials: Option<&Credentials>, place: &Place) -> Result<Credentials, SourceError> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<Zeroizing<String>>,
            access_token: Option<Zeroizing<String>>,
        }
        let Challenge::Bearer { realm, service, .. } = challenge else { return Err(self.failed(RegistryFault::NoToken, place)) };
        let (mut url, trust) = check_realm(realm, place.url.url()).map_err(|fault| self.failed(fault, place))?;
        // Whatever the registry names: `ghcr.io` answers `/v2/` with a repository that is none, and a hostile one could have
        // these credentials open somebody else's. What the realm itself would ask for goes too.
        let asked: Vec<(String, String)> = url.query_pairs().into_owned().filter(|(key, _)| key != "scope").collect();
        {
            let mut query = url.query_pairs_mut();
            query.clear().extend_pairs(asked);
            if let Some(service) = service {
                query.append_pair("service", service);
            }
            query.append_pair("scope", &format!("repository:{}:pull", place.repository()));
        }
        let request = Request { credentials, trust, ca_bundle: self.request.ca_bundle, small: true, ..Request::get(&url) };
        let response = self.egress.send(&request).await?;
        if response.status != StatusCode::OK {
            let with_credentials = credentials.is_some();
            return Err(refusal(response, self.request.credentials, |status| hint(status, with_credentials)).await);
        }
        let at = response.at();
        let no_token = || SourceError::new(Fault::Registry(Box::new(RegistryFault::NoToken)), at.clone());
        let body = response.body.whole(LARGEST_TOKEN).await.map_err(|error| match error.fault() {
            // A service in trouble, not an image that is too large.
            Fault::TooLarge { .. } => no_token(),
            _ => error,
        })?;
        let body = Zeroizing::new(body.to_vec());
        let answer: Answer = serde_json::from_slice(&body).map_err(|_| no_token())?;
        let token = answer.token.filter(|token| !token.is_empty()).or(answer.access_token).filter(|token| !token.is_empty());
        let token = Credentials::Bearer(token.ok_or_else(no_token)?);
        if token.authorization().is_some() { Ok(token) } else { Err(no_token()) }
    }

    /// What this answer means, where that is known.
    pub(super) fn meaning(&self, response: &Response, place: &Place) -> Option<&'static str> {
        let named = Challenge::of(&response.headers);
        let of_others = matches!(&named, Some(Challenge::Bearer { scope: Some(scope), .. }) if is_of_others(scope, place.repository()));
        if response.status == StatusCode::UNAUTHORIZED && of_others {
            return Some(if place.is_origin { OTHER_REPOSITORY } else { OTHER_AT_MIRROR });
        }
        hint(response.status, place.is_origin && !self.request.credentials.is_empty())
    }

    fn failed(&self, fault: RegistryFault, place: &Place) -> SourceError {
        SourceError::new(Fault::Registry(Box::new(fault)), At::new(place.url.url(), ""))
    }
}

const fn is_bearer(credentials: Option<&Credentials>) -> bool {
    matches!(credentials, Some(Credentials::Bearer(_)))
}

/// Whether a token service refused the credentials, so that the next ones may be tried.
fn is_refused(error: &SourceError) -> bool {
    matches!(error.fault(), Fault::Status { status, .. } if matches!(status.as_u16(), 400 | 401 | 403))
}

/// Whether a challenge names repositories and `own` is not among them (distribution's "Token Scope Documentation": items are
/// `type:name:actions`, and a name may hold a colon).
fn is_of_others(scope: &str, own: &str) -> bool {
    let mut names = scope.split(' ').filter_map(|item| item.strip_prefix("repository:")?.rsplit_once(':')).map(|(name, _)| name).peekable();
    names.peek().is_some() && names.all(|name| name != own)
}

/// Where tokens are asked for. The host may be another than the registry's by design, and it is the registry that names it:
/// the address guard treats it as led to, and it must be encrypted, since it is sent a password.
fn check_realm(realm: &str, registry: &Url) -> Result<(Url, Trust), RegistryFault> {
    let refuse = |realm: String, why| Err(RegistryFault::Realm { realm, why });
    let Ok(url) = Url::parse(realm) else { return refuse("no address".to_owned(), "its realm cannot be read") };
    let public = shown(&url);
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none_or(str::is_empty) {
        return refuse(public, "only https is asked for tokens");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse(public, "an address with credentials is not asked");
    }
    let same = is_same_place(registry, &url);
    if url.scheme() == "http" && !(same && registry.scheme() == "http") {
        return refuse(public, "it would be sent a password without encryption");
    }
    Ok((url, if same { Trust::Written } else { Trust::Led }))
}

/// An answer of a registry or its token service that is not what was asked for.
pub(super) async fn refusal(
    mut response: Response,
    credentials: &[Credentials],
    hint: impl FnOnce(StatusCode) -> Option<&'static str>,
) -> SourceError {
    let status = response.status;
    response.secrets.extend(credentials.iter().flat_map(Credentials::secrets));
    let settings = response.egress.settings();
    let (cap, most) = (settings.deadlines.retry_after, settings.caps.error_bytes);
    let retry_after = retry_after(&response.headers, std::time::SystemTime::now(), cap);
    let text = if response.encoding().is_none() { response.body.text(most).await } else { String::new() };
    let text = clean(&codes(&text).unwrap_or(text), &response.secrets);
    SourceError::new(Fault::Status { status, text, retry_after, hint: hint(status) }, response.at())
}

/// The codes and messages of a registry's error document (distribution-spec, "Error Codes").
fn codes(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Document {
        errors: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: Option<String>,
    }
    let document: Document = serde_json::from_str(text).ok()?;
    let items: Vec<_> = document
        .errors
        .iter()
        .take(4)
        .map(|item| match &item.message {
            Some(message) if !message.is_empty() => format!("{}: {message}", item.code),
            _ => item.code.clone(),
        })
        .collect();
    (!items.is_empty()).then(|| items.join("; "))
}

/// What it means that a registry refuses a token for the reference's own repository and names another one.
const OTHER_REPOSITORY: &str = "it wants a token for another repository, and one is asked for to pull the reference's own only: if the registry has the image under two names, write the other into the reference";

/// The same of a mirror, which keeps what it mirrors where it likes.
const OTHER_AT_MIRROR: &str = "it wants a token for another repository, and one is asked for to pull this one only: if the mirror keeps it under a prefix, write that into the mirror's address, as in `https://mirror.example.org/prefix`";

/// What a registry's refusal means: many answer the same for what is not there and for what is not for everyone.
const fn hint(status: StatusCode, with_credentials: bool) -> Option<&'static str> {
    match (status.as_u16(), with_credentials) {
        (401, true) => Some("the credentials are wrong, or the image is not there and the registry hides that"),
        (401, false) => Some("not found or no access: many registries answer this for an image that is not there"),
        (403, true) => Some("not found or no access: these credentials may not pull it, or the registry hides that it is not there"),
        (403, false) => Some("not found or no access"),
        (404, _) => Some("this repository does not have it, or hides it from who may not pull it"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use rstest::rstest;
    use url::Url;

    use super::{check_realm, codes, hint, is_of_others};
    use crate::source::address::Trust;

    #[rstest]
    #[case("https://auth.example/token", Some(Trust::Led))]
    #[case("https://r.example/token?x=y", Some(Trust::Written))]
    #[case("https://r.example:5000/token", Some(Trust::Led))]
    #[case("http://r.example/token", None)]
    #[case("http://auth.example/token", None)]
    #[case("https://u:hunter2@auth.example/token", None)]
    #[case("ftp://auth.example/token", None)]
    #[case("file:///etc/passwd", None)]
    #[case("/token", None)]
    #[case("", None)]
    fn realms(#[case] realm: &str, #[case] expected: Option<Trust>) {
        let registry = Url::parse("https://r.example/v2/").expect("URL");
        let got = check_realm(realm, &registry);
        if let Err(fault) = &got {
            assert!(!fault.to_string().contains("hunter2"), "{fault}");
        }
        assert_eq!(got.ok().map(|(_, trust)| trust), expected, "{realm}");
    }

    #[rstest]
    #[case("repository:team/disk:pull", false)]
    #[case("repository:team/disk:pull,push", false)]
    #[case("repository:other:pull repository:team/disk:pull", false)]
    #[case("repository:user/image:pull", true)]
    #[case("repository:team/disk2:pull", true)]
    #[case("repository:r.example:5000/team/disk:pull", true)]
    #[case("repository:a:pull repository:b:pull", true)]
    #[case("repository:team/disk", false)]
    #[case("registry:catalog:*", false)]
    #[case("aws", false)]
    #[case("", false)]
    fn scopes_of_other_repositories(#[case] scope: &str, #[case] others: bool) {
        assert_eq!(is_of_others(scope, "team/disk"), others);
    }

    #[rstest]
    #[case(
        r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{}}]}"#,
        Some("MANIFEST_UNKNOWN: manifest unknown")
    )]
    #[case(r#"{"errors":[{"code":"DENIED","message":null},{"code":"X","message":"y"}]}"#, Some("DENIED; X: y"))]
    #[case(r#"{"errors":[]}"#, None)]
    #[case("toomanyrequests: slow down", None)]
    #[case("", None)]
    fn error_documents(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(codes(text).as_deref(), expected);
    }

    #[rstest]
    #[case(401, true, "credentials are wrong")]
    #[case(401, false, "not found or no access")]
    #[case(403, true, "may not pull")]
    #[case(403, false, "not found or no access")]
    #[case(404, false, "does not have it")]
    fn hints(#[case] status: u16, #[case] with_credentials: bool, #[case] expected: &str) {
        assert!(hint(StatusCode::from_u16(status).expect("status"), with_credentials).expect("hint").contains(expected));
        assert_eq!(hint(StatusCode::TOO_MANY_REQUESTS, with_credentials), None);
    }
}
