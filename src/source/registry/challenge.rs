//! `WWW-Authenticate` (RFC 9110 §11.6.1): which way of showing who one is a registry asks for.

use http::{HeaderMap, header};

/// What a registry asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token of a service.
    Bearer {
        /// Where tokens are given out, as it was written.
        realm: String,
        /// What the token is for.
        service: Option<String>,
        /// What it must allow.
        scope: Option<String>,
    },
}

impl Challenge {
    /// The challenge in an answer's headers: a token is asked for where both are offered.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(header::WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let all: Vec<_> = values.flat_map(parse).collect();
        let bearer = all.iter().find(|challenge| matches!(challenge, Self::Bearer { .. }));
        bearer.or_else(|| all.first()).cloned()
    }

    fn new(scheme: &str, parameters: &[(String, String)]) -> Option<Self> {
        let get = |key: &str| parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value.clone());
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        scheme.eq_ignore_ascii_case("bearer").then(|| get("realm")).flatten().map(|realm| Self::Bearer {
            realm,
            service: get("service"),
            scope: get("scope"),
        })
    }
}

/// The challenges of one header value, those of other schemes left out.
fn parse(text: &str) -> Vec<Challenge> {
    let mut challenges = Vec::new();
    let mut scheme: Option<(String, Vec<(String, String)>)> = None;
    let mut rest = text.trim_start_matches([' ', '\t', ',']);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            // Nothing that this grammar knows: what came before still counts.
            break;
        }
        let spaced = after.trim_start_matches([' ', '\t']);
        if let Some(value) = spaced.strip_prefix('=') {
            let Some((value, after)) = value_of(value.trim_start_matches([' ', '\t'])) else { break };
            if let Some((_, parameters)) = &mut scheme {
                parameters.push((word.to_owned(), value));
            }
            rest = after.trim_start_matches([' ', '\t', ',']);
        } else {
            challenges.extend(scheme.take().and_then(|(scheme, parameters)| Challenge::new(&scheme, &parameters)));
            scheme = Some((word.to_owned(), Vec::new()));
            rest = spaced.trim_start_matches(',').trim_start_matches([' ', '\t']);
        }
    }
    challenges.extend(scheme.and_then(|(scheme, parameters)| Challenge::new(&scheme, &parameters)));
    challenges
}

/// A token or quoted string, and what follows.
fn value_of(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c: char| !is_token(c) && !"/:".contains(c)).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        // `token68`, which ends in padding, is not one of ours.
        return Some((value.to_owned(), rest.trim_start_matches('=')));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
}

const fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '!' | '#' | '$' | '%' | '&' | '\'' | '*' | '+' | '-' | '.' | '^' | '_' | '`' | '|' | '~')
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use rstest::rstest;

    use super::Challenge;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned), scope: scope.map(str::to_owned) })
    }

    #[rstest]
    #[case(&["Basic realm=\"Registry Realm\""], Some(Challenge::Basic))]
    #[case(&["basic"], Some(Challenge::Basic))]
    #[case(
        &["Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\",scope=\"repository:a/b:pull\""],
        bearer("https://auth.docker.io/token", Some("registry.docker.io"), Some("repository:a/b:pull"))
    )]
    #[case(&["Bearer realm=\"https://a.example/t\", service=\"with, comma\""], bearer("https://a.example/t", Some("with, comma"), None))]
    #[case(&["Bearer realm=https://a.example/t"], bearer("https://a.example/t", None, None))]
    #[case(&["Bearer realm=\"a\\\"b\""], bearer("a\"b", None, None))]
    #[case(&["Basic realm=\"x\", Bearer realm=\"https://a.example/t\",service=\"s\""], bearer("https://a.example/t", Some("s"), None))]
    #[case(&["Negotiate", "Basic realm=\"x\""], Some(Challenge::Basic))]
    #[case(&["Negotiate oYG=, Basic realm=\"x\""], Some(Challenge::Basic))]
    #[case(&["Bearer service=\"no realm\""], None)]
    #[case(&["Bearer realm=\"never closed"], None)]
    #[case(&[""], None)]
    #[case(&["\u{1}"], None)]
    #[case(&[], None)]
    fn challenges(#[case] values: &[&str], #[case] expected: Option<Challenge>) {
        let mut headers = HeaderMap::new();
        for value in values {
            if let Ok(value) = value.parse() {
                headers.append("www-authenticate", value);
            }
        }
        assert_eq!(Challenge::of(&headers), expected);
    }
}
