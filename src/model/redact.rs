//! Other programs' messages, made fit to be shown.

/// What every disk's path on the spool begins with. What follows is as good as a key and is never shown.
pub const DISK_PATH: &str = "/v1/disks/";

/// `text` from CDI, a kubelet, a webhook or the API server without what must not be shown: the spool's unguessable paths,
/// bearer tokens, and the credentials and queries of URLs. The rest stays, because it says what is wrong.
pub fn redact(text: &str) -> String {
    let text = cut(text, DISK_PATH, is_path);
    let text = cut(&text, "Bearer ", |c| !c.is_whitespace() && !is_quote(c));
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || is_quote(c)).unwrap_or(after.len());
        let (url, tail) = after.split_at(end);
        let authority = url.find('/').unwrap_or(url.len());
        let url = url[..authority].rfind('@').map_or(url, |at| &url[at + 1..]);
        match url.split_once('?') {
            Some((path, query)) => {
                shown.push_str(path);
                shown.push_str("?…");
                // A sentence's own stop or colon is no part of the query.
                shown.push_str(&query[query.trim_end_matches([':', '.', ',', ')']).len()..]);
            }
            None => shown.push_str(url),
        }
        rest = tail;
    }
    shown.push_str(rest);
    shown
}

/// Replaces every run of `taken` characters after `mark` by an ellipsis.
fn cut(text: &str, mark: &str, taken: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(mark) {
        let (before, after) = rest.split_at(at + mark.len());
        shown.push_str(before);
        let end = after.find(|c| !taken(c)).unwrap_or(after.len());
        if end > 0 {
            shown.push('…');
        }
        rest = &after[end..];
    }
    shown.push_str(rest);
    shown
}

fn is_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '%' | '…')
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | '<' | '>' | '\\')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::{DISK_PATH, redact};

    #[rstest]
    #[case("no address at all", "no address at all")]
    #[case(
        "Get \"https://golden-catalog-spool.ns.svc:8443/v1/disks/0123abcd\": dial tcp 10.0.0.1:8443: connect: refused",
        "Get \"https://golden-catalog-spool.ns.svc:8443/v1/disks/…\": dial tcp 10.0.0.1:8443: connect: refused"
    )]
    #[case("HEAD /v1/disks/0123abcd: 404. Again /v1/disks/45.", "HEAD /v1/disks/…: 404. Again /v1/disks/….")]
    #[case("nothing follows /v1/disks/ here", "nothing follows /v1/disks/ here")]
    #[case("header Authorization: Bearer abc.def-1= is wrong", "header Authorization: Bearer … is wrong")]
    #[case("at https://user:pass@e.example/a.qcow2?token=x: 403", "at https://e.example/a.qcow2?…: 403")]
    #[case("at https://e.example/?a=1&b=http://x/y", "at https://e.example/?…")]
    #[case(
        "talos-worker-ce4c980550dd2ab1b17bbf2b08801c7e-v1.13.6 is named",
        "talos-worker-ce4c980550dd2ab1b17bbf2b08801c7e-v1.13.6 is named"
    )]
    fn what_must_not_be_shown_is_not(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(redact(text), shown);
        assert_eq!(redact(shown), shown, "twice is as once");
    }

    proptest! {
        #[test]
        fn no_path_gets_through_whatever_stands_around_it(before in ".{0,20}", after in "[ \":.,].{0,20}") {
            let key = "f00dfeedf00dfeedf00dfeed";
            let text = format!("{before}https://spool:8443{DISK_PATH}{key}{after}");
            prop_assert!(!redact(&text).contains(key));
        }
    }
}
