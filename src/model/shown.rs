//! Addresses as a message may repeat them: without credentials, query content and fragment, also where they cannot be read.

use url::Url;

/// Stands for what is not repeated.
const LEFT_OUT: &str = "…";

/// `url` as it may be shown in a status, an event or a log: without credentials, query content and fragment.
pub fn public_url(url: &Url) -> String {
    let mut shown = url.clone();
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_fragment(None);
    if shown.query().is_some() {
        shown.set_query(Some(LEFT_OUT));
    }
    shown.to_string().replace("%E2%80%A6", LEFT_OUT)
}

/// What was given as an address, as a message may repeat it: `…` where it cannot be read and may hide a secret.
pub fn public_address(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) if url.has_host() => public_url(&url),
        _ if may_hide_a_secret(text) => LEFT_OUT.to_owned(),
        _ => text.to_owned(),
    }
}

/// Words of somebody else, with the addresses in them reduced to what may be shown, and without what looks like a token.
pub fn public_words(text: &str) -> String {
    text.split(' ').map(public_word).collect::<Vec<_>>().join(" ")
}

fn public_word(word: &str) -> String {
    if let Some(at) = word.find("://") {
        let begin = word[..at].rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
        let end = word.trim_end_matches(['"', '\'', ')', ']', '}', '>', ',', '.', ';', ':', '`']).len().max(at + 3);
        return format!("{}{}{}", &word[..begin], public_address_of(&word[begin..end]), &word[end..]);
    }
    if is_json_web_token(word) {
        return LEFT_OUT.to_owned();
    }
    if let Some((before, after)) = word.rsplit_once('@')
        && before.contains(':')
        && !is_digest(after)
    {
        return format!("{LEFT_OUT}@{after}");
    }
    match word.split_once('?') {
        Some((before, query)) if query.contains('=') => format!("{before}?{LEFT_OUT}"),
        _ => word.to_owned(),
    }
}

/// Of two addresses run together, and of what cannot be read, nothing is sure.
fn public_address_of(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) if url.has_host() && text.matches("://").count() == 1 => public_url(&url),
        _ => LEFT_OUT.to_owned(),
    }
}

/// RFC 7519: three parts in base64url, the first of which begins with `{"`.
fn is_json_web_token(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    word.len() > 8 && word.starts_with("eyJ")
}

/// Whether what stands behind an `@` pins an image.
fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty() && algorithm.bytes().all(|c| c.is_ascii_alphanumeric()) && hex.bytes().all(|c| c.is_ascii_hexdigit())
    })
}

/// OCI distribution specification, "Pulling manifests": what a tag is made of.
fn is_tag(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-'))
}

/// Credentials stand before an `@` or behind a colon that begins no port, signatures behind a `?`.
fn may_hide_a_secret(text: &str) -> bool {
    let rest = match text.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|c| c.is_ascii_alphanumeric()) => rest,
        _ => text,
    };
    // The digest of an image, and the tag before it, are none.
    let (rest, is_pinned) = match rest.rsplit_once('@') {
        Some((name, digest)) if is_digest(digest) => (name, true),
        _ => (rest, false),
    };
    let is_port = |after: &str| {
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && matches!(after.as_bytes().get(digits), None | Some(b'/'))
    };
    // A tag closes the last part of a path; without a path before it, `name:…` may as well be a user and a password.
    let is_tag = |at: usize| (is_pinned || rest[..at].contains('/')) && is_tag(&rest[at + 1..]);
    rest.contains(['@', '?', '#']) || rest.match_indices(':').any(|(at, _)| !is_port(&rest[at + 1..]) && !is_tag(at))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{public_address, public_words};

    const DIGEST: &str = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";

    #[rstest]
    #[case("example.org/a", "example.org/a")]
    #[case("example.org:8080/a", "example.org:8080/a")]
    #[case("htps:/example.org/a", "…")]
    #[case("https://u:hunter2@example.org/a?t=hunter2#hunter2", "https://example.org/a?…")]
    #[case("http://user:hunter2@ bad host/x", "…")]
    #[case("user:hunter2@host/x", "…")]
    #[case("http://x:hunter2:80/", "…")]
    #[case("https://user:hunter2@[bad/x?X-Amz-Signature=hunter2", "…")]
    #[case("https://[bad/x?X-Amz-Signature=hunter2", "…")]
    #[case("ftp://u:hunter2@example.org/a", "ftp://example.org/a")]
    #[case("file:///etc/passwd", "file:///etc/passwd")]
    fn addresses_are_shown_without_secrets(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(public_address(text), shown);
    }

    #[rstest]
    #[case("r.example:5000/a/b:1.0@DIGEST", "r.example:5000/a/b:1.0@DIGEST")]
    #[case("r.example/a/b@sha512:0123", "r.example/a/b@sha512:0123")]
    #[case("r.example/a/b:v1.35.6", "r.example/a/b:v1.35.6")]
    #[case("r.example:5000/a/b:v1.35.6", "r.example:5000/a/b:v1.35.6")]
    #[case("user:hunter2", "…")]
    #[case("https:/user:hunter2/x", "…")]
    #[case("user:hunter2@r.example/x@DIGEST", "…")]
    #[case("user:hunter2@r.example/x", "…")]
    #[case("r.example/a?sig=hunter2@DIGEST", "…")]
    fn references_are_shown_without_secrets(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(public_address(&text.replace("DIGEST", DIGEST)), shown.replace("DIGEST", DIGEST));
    }

    #[rstest]
    #[case("slow down", "slow down")]
    #[case("what? no", "what? no")]
    #[case("see https://u:hunter2@h/?X-Amz-Signature=hunter2 and bearer eyJhunter2hunter2.x.y", "see https://h/?… and bearer …")]
    #[case("(see \"https://h/a?t=hunter2\").", "(see \"https://h/a?…\").")]
    #[case("slow down user:hunter2@x", "slow down …@x")]
    #[case("GET /a?token=hunter2 failed", "GET /a?… failed")]
    #[case("at https://[hunter2 now", "at … now")]
    #[case("https://a/,https://u:hunter2@b/", "…")]
    #[case("ask ops@example.org", "ask ops@example.org")]
    #[case("r.example/a:1@sha256:0123 is unknown", "r.example/a:1@sha256:0123 is unknown")]
    fn words_are_shown_without_secrets(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(public_words(text), shown);
    }
}
