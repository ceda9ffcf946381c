//! Addresses as a message may repeat them: without credentials, query content and fragment, also where they cannot be read.

use base64::Engine as _;
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

/// What was given as an address, as a message may repeat it: as it was written, with `…` for its credentials and for what its
/// query holds; `…` alone where it cannot be read and may hide a secret.
pub fn public_address(text: &str) -> String {
    without_tokens(&match Url::parse(text) {
        Ok(url) if url.has_host() => as_written(text).unwrap_or_else(|| public_url(&url)),
        _ if may_hide_a_secret(text) => LEFT_OUT.to_owned(),
        _ => text.to_owned(),
    })
}

/// An address less its secrets, otherwise letter by letter. `None` where the parser reads it in another way than it looks: past
/// slashes too many, backslashes and control characters.
fn as_written(text: &str) -> Option<String> {
    if text.contains(|c: char| c == '\\' || c.is_control()) {
        return None;
    }
    let plain = !text.contains(['@', '?', '#']);
    let Some((scheme, rest)) = text.split_once("://").filter(|(_, rest)| !rest.starts_with('/')) else {
        return plain.then(|| text.to_owned());
    };
    let (rest, query) = rest.split_once(['?', '#']).map_or((rest, ""), |(before, _)| (before, if text.contains('?') { "?…" } else { "" }));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let shown = authority.rsplit_once('@').map_or_else(|| authority.to_owned(), |(_, host)| format!("{LEFT_OUT}@{host}"));
    Some(format!("{scheme}://{shown}{path}{query}"))
}

/// Words of somebody else, with the addresses in them reduced to what may be shown, and without what looks like a token or like
/// the credentials of a header. White space stays as it is, and so does what hides nothing.
pub fn public_words(text: &str) -> String {
    let mut shown = text.to_owned();
    for _ in 0..MOST_LOOKS {
        let again: String = without_header(&without_spaced_credentials(&shown))
            .split_inclusive(char::is_whitespace)
            .map(|piece| {
                let word = piece.trim_end_matches(char::is_whitespace);
                public_word(word) + &piece[word.len()..]
            })
            .collect();
        if again == shown {
            break;
        }
        shown = again;
    }
    shown
}

/// What one look leaves out may be what another looks for.
const MOST_LOOKS: usize = 8;

/// `text` less the credentials of addresses whose password has white space in it, which makes several words of one address.
fn without_spaced_credentials(text: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        rest = after;
        if let Some(end) = end_of_spaced_credentials(after) {
            shown.push_str(LEFT_OUT);
            rest = &after[end..];
        }
    }
    shown + rest
}

/// Where the `@` is that ends the credentials at the beginning of `text`, if white space stands in them: on the same line, and
/// with no other address between. What may be a port, or credentials that are whole, has them only if the very next word ends them.
fn end_of_spaced_credentials(text: &str) -> Option<usize> {
    let line = text.split(['\n', '\r']).next().unwrap_or_default();
    let line = line.find("://").map_or(line, |at| &line[..at]);
    let (word, _) = line.split_once(char::is_whitespace)?;
    let (_, password) = word.split_once(':')?;
    if word.contains(['/', '?', '#']) || word.ends_with(is_quote) {
        return None;
    }
    let later = &line[word.len()..];
    let port = password.trim_end_matches(is_closing);
    let is_port = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
    let found = later.find('@')?;
    let words_between = later[..found].split_whitespace().count();
    if (is_port || word.contains('@')) && words_between > 1 {
        return None;
    }
    // An `@` may be part of the password: the last of its word counts, before a path.
    let end = later[found..].find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#')).map_or(later.len(), |end| found + end);
    Some(word.len() + later[..end].rfind('@')?)
}

/// `text` less what stands behind `Basic`, where that is a user's name and password (RFC 7617), or behind any scheme of an
/// `Authorization` header.
fn without_header(text: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = SCHEMES.iter().filter_map(|scheme| Some(rest.to_ascii_lowercase().find(scheme)? + scheme.len())).min() {
        let (before, after) = rest.split_at(at);
        let end = after.find(|c: char| c.is_whitespace() || is_quote(c) || c == ',').unwrap_or(after.len());
        let lower = before.to_ascii_lowercase();
        let is_header =
            SCHEMES.iter().find_map(|scheme| lower.strip_suffix(scheme)).is_some_and(|head| head.trim_end().ends_with("authorization:"));
        shown.push_str(before);
        shown.push_str(if end > 0 && (is_header || is_pair(&after[..end])) { LEFT_OUT } else { &after[..end] });
        rest = &after[end..];
    }
    shown + rest
}

/// Schemes of `Authorization` that show a secret as it is, in lower case.
const SCHEMES: [&str; 2] = ["basic ", "bearer "];

/// Whether this is `user:password` in base64.
fn is_pair(text: &str) -> bool {
    let text = text.trim_end_matches(|c: char| is_closing(c) || c == '=');
    base64::engine::general_purpose::STANDARD_NO_PAD.decode(text).is_ok_and(|pair| pair.contains(&b':'))
}

/// What is left out of a word can make what is left another kind of word: it is looked at until nothing more goes, so that a
/// text that was shown once stays the same.
fn public_word(word: &str) -> String {
    let mut shown = word.to_owned();
    for _ in 0..MOST_LOOKS {
        let again = public_addresses(&without_tokens(&shown));
        if again == shown {
            break;
        }
        shown = again;
    }
    shown
}

/// `word` has no white space, but may hold several addresses: JSON has none either.
fn public_addresses(word: &str) -> String {
    let (mut shown, mut rest, mut follows) = (String::with_capacity(word.len()), word, false);
    while let Some(at) = rest.find("://") {
        let scheme = rest[..at].char_indices().rev().find(|(_, c)| !c.is_ascii_alphanumeric());
        let begin = scheme.map_or(0, |(at, c)| at + c.len_utf8());
        let end = end_of_address(rest, at + 3);
        shown.push_str(&public_bare_word(&rest[..begin], follows));
        match public_address_of(&rest[begin..end]) {
            Some(address) => shown.push_str(&address),
            // Where an address cannot be read, nobody knows where it ends either.
            None => {
                shown.push_str(LEFT_OUT);
                shown.push_str(&rest[rest.trim_end_matches(is_closing).len().max(end)..]);
                return shown;
            }
        }
        (rest, follows) = (&rest[end..], true);
    }
    shown.push_str(&public_bare_word(rest, follows));
    shown
}

/// Where the address ends whose authority begins at `authority`: at a quotation mark, as in JSON and in Go's messages, less
/// what closes a sentence. A quotation mark with an `@` behind it may as well be part of a password, and ends nothing.
fn end_of_address(word: &str, authority: usize) -> usize {
    let rest = &word[authority..];
    let is_in_password = |at: usize| !rest[..at].contains('/') && rest[at..].split('/').next().is_some_and(|part| part.contains('@'));
    let quote = rest.find(is_quote).filter(|at| !is_in_password(*at));
    let address = quote.map_or(word, |at| &word[..authority + at]);
    let end = address.trim_end_matches(is_closing).len().max(authority);
    // The bracket that closes an IPv6 address closes no sentence.
    let closes_host = word[end..].starts_with(']') && word[authority..end].rfind('[') > word[authority..end].rfind(']');
    end + usize::from(closes_host)
}

/// What is no address. Where it `follows` one, a query in it may be that address's own, in whatever form.
fn public_bare_word(word: &str, follows: bool) -> String {
    let without_query = |text: &str| match text.split_once('?') {
        Some((_, query)) if query.is_empty() || query.starts_with(LEFT_OUT) => text.to_owned(),
        Some((before, query)) if follows || query.contains('=') => format!("{before}?{LEFT_OUT}"),
        _ => text.to_owned(),
    };
    let digest = word.rsplit_once('@').filter(|(_, digest)| is_digest(digest.trim_end_matches(is_closing)));
    let (name, digest) = digest.map_or((word, ""), |(name, _)| word.split_at(name.len()));
    let name = match name.rsplit_once('@') {
        Some((before, after)) if before.contains(':') => format!("{LEFT_OUT}@{}", without_query(after)),
        _ => without_query(name),
    };
    name + digest
}

/// What of an address may be shown; `None` of two that run together and of what cannot be read, of which nothing is sure.
fn public_address_of(text: &str) -> Option<String> {
    let before_query = text.split(['?', '#']).next().unwrap_or_default();
    let url = Url::parse(text).ok().filter(|_| before_query.matches("://").count() == 1)?;
    if !url.has_host() {
        // A file or a socket of this machine, which nobody is shown credentials for.
        return (text.contains(":///") && !text.contains(['@', '?', '#'])).then(|| text.to_owned());
    }
    // What hides nothing is repeated as it was, not as `Url` writes it.
    Some(if before_query.len() == text.len() && !text.contains('@') { text.to_owned() } else { public_url(&url) })
}

/// Characters that quote something, or escape a quotation mark.
pub(super) fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | '<' | '>' | '\\')
}

/// Characters that close a sentence or a quotation and are no part of an address's end.
fn is_closing(c: char) -> bool {
    is_quote(c) || matches!(c, ')' | ']' | '}' | ',' | '.' | ';' | ':')
}

/// `text` less its JSON Web Tokens (RFC 7519): parts in base64url, the first of which begins with `{"`.
fn without_tokens(text: &str) -> String {
    const BEGIN: &str = "eyJ";
    const SHORTEST: usize = 9;
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let (before, token) = rest.split_at(at);
        let end = token.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.' | '=')).unwrap_or(token.len());
        let end = token[..end].trim_end_matches('.').len();
        let begins = !before.ends_with(|c: char| c.is_ascii_alphanumeric());
        shown.push_str(before);
        shown.push_str(if begins && end >= SHORTEST { LEFT_OUT } else { &token[..end] });
        rest = &token[end..];
    }
    shown + rest
}

/// Whether what stands behind an `@` pins an image: by one of the OCI image specification's algorithms, since a host and a port
/// look much the same.
fn is_digest(text: &str) -> bool {
    text.split_once(':')
        .is_some_and(|(algorithm, hex)| matches!(algorithm, "sha256" | "sha512" | "blake3") && hex.bytes().all(|c| c.is_ascii_hexdigit()))
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
    use proptest::prelude::*;
    use rstest::rstest;

    use super::{public_address, public_words};

    const DIGEST: &str = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";

    #[rstest]
    #[case("example.org/a", "example.org/a")]
    #[case("example.org:8080/a", "example.org:8080/a")]
    #[case("htps:/example.org/a", "…")]
    #[case("https://u:hunter2@example.org/a?t=hunter2#hunter2", "https://…@example.org/a?…")]
    #[case("HTTPS://Example.org:443/A/../b", "HTTPS://Example.org:443/A/../b")]
    #[case("https://u:hun ter2@example.org/a b", "https://…@example.org/a b")]
    #[case("https://u:hunter2@v@example.org/a@b", "https://…@example.org/a@b")]
    #[case("https:///u:hunter2@example.org/a", "https://example.org/a")]
    #[case("https:\\\\u:hunter2@example.org\\a", "https://example.org/a")]
    #[case("https:u:hunter2@example.org/a", "https://example.org/a")]
    #[case("https://u:hun\tter2@example.org/a", "https://example.org/a")]
    #[case("https:///a", "https:///a")]
    #[case("https://h#?t=hunter2", "https://h?…")]
    #[case("http://user:hunter2@ bad host/x", "…")]
    #[case("user:hunter2@host/x", "…")]
    #[case("user:hunter2@host:5000", "…")]
    #[case("http://x:hunter2:80/", "…")]
    #[case("https://user:hunter2@[bad/x?X-Amz-Signature=hunter2", "…")]
    #[case("https://[bad/x?X-Amz-Signature=hunter2", "…")]
    #[case("ftp://u:hunter2@example.org/a", "ftp://…@example.org/a")]
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
    #[case("slow down user:hunter2@x:80", "slow down …@x:80")]
    #[case("GET /a?token=hunter2 failed", "GET /a?… failed")]
    #[case("at https://[hunter2 now", "at … now")]
    #[case("https://a/,https://u:hunter2@b/", "…")]
    #[case("ask ops@example.org", "ask ops@example.org")]
    #[case("r.example/a:1@sha256:0123 is unknown", "r.example/a:1@sha256:0123 is unknown")]
    #[case("pull \"r.example/a:1@sha256:0123\": no", "pull \"r.example/a:1@sha256:0123\": no")]
    #[case("u:hunter2@r.example/a@sha256:0123", "…@r.example/a@sha256:0123")]
    // White space is kept, and each kind of it ends a word.
    #[case("at\thttps://u:hunter2@h/a\n  and https://b.example", "at\thttps://h/a\n  and https://b.example")]
    // A second address in a query goes with the query; two that run together are not told apart.
    #[case("at https://h/?a=1&b=https://u:hunter2@h/y", "at https://h/?…")]
    #[case("at https://h/#https://u:hunter2@h/y", "at https://h/")]
    // An address ends at a quotation mark, unless that may be part of a password.
    #[case(r#"{"a":"https://u:hunter2@h/","b":"https://i/?t=hunter2"}"#, r#"{"a":"https://h/","b":"https://i/?…"}"#)]
    #[case(r#"said \"https://u:hunter2@h/a\": no"#, r#"said \"https://h/a\": no"#)]
    #[case("<https://h/a?t=hunter2>; rel=next", "<https://h/a?…>; rel=next")]
    #[case(r#"at https://u:hun"ter2@h/x"#, "at https://h/x")]
    #[case(r#"at https://hun"ter2@h/x"#, "at https://h/x")]
    #[case(r#"at https://u:hunter2"/x@h/a"#, "at …")]
    #[case("it's https://h/a'b?hunter2", "it's https://h/a'b?…")]
    // What comes before an address is a word like any other.
    #[case("u:hunter2@https://h/", "…@https://h/")]
    #[case("/a?t=hunter2,https://h/", "/a?…https://h/")]
    #[case("éhttps://u:hunter2@h/é", "éhttps://h/%C3%A9")]
    #[case("…https://h/…", "…https://h/…")]
    #[case("git+https://u:hunter2@h/a", "git+https://h/a")]
    #[case("dial https://[fd00::1]: refused", "dial https://[fd00::1]: refused")]
    #[case("dial [https://h/]: refused", "dial [https://h/]: refused")]
    #[case("token=eyJhunter2hunter2.x.y, eyJhunter2hunter2.", "token=…, ….")]
    #[case("https://h/eyJhunter2hunter2/a", "https://h/…/a")]
    #[case("hey eyJ and heyJude-and-others", "hey eyJ and heyJude-and-others")]
    // White space in a password.
    #[case("at https://u:hunter2 hunter2@h/a: 403", "at https://h/a: 403")]
    #[case("at https://u:a hunter2 b@hunter2@h/a@b", "at https://h/a@b")]
    #[case("at https://u:12 hunter2@h/a", "at https://h/a")]
    #[case("at https://u:p@hunter2 hunter2@h/a", "at https://h/a")]
    #[case("https://u:hunter2\thunter2@h https://v:hunter2 x@i", "https://h/ https://i/")]
    #[case("at https://h:8443 for ops@example.org", "at https://h:8443 for ops@example.org")]
    #[case("at https://h/a, ask ops@example.org", "at https://h/a, ask ops@example.org")]
    #[case("at https://h and ops@example.org", "at https://h and ops@example.org")]
    #[case("at https://h:8443\nops@example.org", "at https://h:8443\nops@example.org")]
    // Headers.
    #[case("sent Authorization: Basic dTpodW50ZXIy, got 401", "sent Authorization: Basic …, got 401")]
    #[case("authorization: basic hunter2", "authorization: basic …")]
    #[case("Proxy-Authorization: Bearer hunter2", "Proxy-Authorization: Bearer …")]
    #[case("no such user: Basic dTpodW50ZXIy", "no such user: Basic …")]
    #[case("no such user: Basic dTpodW50ZXI=.", "no such user: Basic …")]
    #[case("Basic authentication is wanted: Basic realm=\"r\"", "Basic authentication is wanted: Basic realm=\"r\"")]
    #[case("the bearer token is missing", "the bearer token is missing")]
    // Sockets and files.
    #[case("dial unix:///run/containerd/containerd.sock: refused", "dial unix:///run/containerd/containerd.sock: refused")]
    #[case("at file:///etc/hosts.", "at file:///etc/hosts.")]
    #[case("at unix:///u:hunter2@h", "at …")]
    fn words_are_shown_without_secrets(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(public_words(text), shown);
        assert_eq!(public_words(shown), shown, "twice is as once");
    }

    /// Words out of what means something to the reader of words.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "https://",
            "a://",
            "u:",
            "p",
            "@",
            "h",
            "/",
            "?",
            "=",
            "#",
            "\"",
            "'",
            "\\",
            "[",
            "]",
            ":",
            ".",
            ",",
            " ",
            "\n",
            "é",
            "…",
            "sha256:0a",
            "eyJabcdefgh",
        ]);
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn twice_is_as_once(text in pieces()) {
            let once = public_words(&text);
            prop_assert_eq!(public_words(&once), once);
        }

        #[test]
        fn no_password_and_no_signature_gets_through_whatever_stands_around(before in pieces(), after in pieces()) {
            for secret in ["u:hunter2@h/", "hunter2@h/", "h/a?sig=hunter2", "h/a?hunter2", "u:p hunter2@h/"] {
                let text = format!("{before}https://{secret}{after}");
                prop_assert!(!public_words(&text).contains("hunter2"), "{} becomes {}", text, public_words(&text));
            }
        }

        #[test]
        fn any_text_is_read(text in ".{0,60}") {
            public_words(&text);
        }
    }
}
