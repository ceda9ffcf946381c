//! Other programs' messages, made fit to be shown.

use super::shown::{is_quote, public_words};

/// What every disk's path on the spool begins with. What follows is as good as a key and is never shown.
pub const DISK_PATH: &str = "/v1/disks/";

/// `text` from CDI, a kubelet, a webhook or the API server without what must not be shown: the spool's unguessable paths,
/// bearer tokens, and what [`public_words`] leaves out. The rest stays, because it says what is wrong.
pub fn redact(text: &str) -> String {
    const MOST_LOOKS: usize = 8;
    let look = |text: &str| {
        let text = cut(text, DISK_PATH, is_path);
        let text = cut(&text, "Bearer ", |c| !c.is_whitespace() && !is_quote(c));
        public_words(&text)
    };
    // What one of them leaves out may be what another looks for.
    let mut shown = look(text);
    for _ in 0..MOST_LOOKS {
        let again = look(&shown);
        if again == shown {
            break;
        }
        shown = again;
    }
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
    #[case("header Authorization: Basic dTpodW50ZXIy is wrong", "header Authorization: Basic … is wrong")]
    #[case("at https://user:hunter2 hunter2@e.example/a: 403", "at https://e.example/a: 403")]
    #[case("dial unix:///run/containerd/containerd.sock: no", "dial unix:///run/containerd/containerd.sock: no")]
    #[case("at https://user:pass@e.example/a.qcow2?token=x: 403", "at https://e.example/a.qcow2?…: 403")]
    #[case("at https://e.example/?a=1&b=http://x/y", "at https://e.example/?…")]
    #[case("at https://a/,https://u:hunter2@b/ and eyJhunter2hunter2.x.y", "at … and …")]
    #[case("no\tsuch:\n  u:hunter2@r.example/a", "no\tsuch:\n  …@r.example/a")]
    #[case("image r.example/a:1@sha256:0123 is there", "image r.example/a:1@sha256:0123 is there")]
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

        #[test]
        fn twice_is_as_once(before in "[ -~…é]{0,12}", mark in "(Bearer |/v1/disks/|https://|eyJ|@|\\?)", after in "[ -~…é]{0,12}") {
            let once = redact(&format!("{before}{mark}{after}"));
            prop_assert_eq!(redact(&once), once);
        }
    }
}
