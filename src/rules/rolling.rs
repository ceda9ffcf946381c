//! R6: addresses whose content moves.

use crate::model::{Digest, HttpUrl, Source};

/// R6: what is doubtful about a source without a digest, as warnings for people; empty where nothing is.
pub fn moving_source_warnings(source: &Source, digest: Option<&Digest>) -> Vec<String> {
    let (Source::Http { url, .. }, None) = (source, digest) else { return Vec::new() };
    let mut warnings = Vec::new();
    if let Some(segment) = rolling_segment(url) {
        warnings.push(format!(
            "The address is a rolling one (`{segment}`) and no digest is given: its content may change at any time. What was fetched is recorded and never replaced; prefer an address of a dated build, or give `digest`."
        ));
    }
    if !url.is_https() {
        warnings.push("The address is plain `http://` and no digest is given: anyone on the way can change the bytes. Use `https://` or give `digest`.".to_owned());
    }
    warnings
}

/// The path segment that says that an address rolls: `current` or `latest` as a word of its own, whatever surrounds it.
fn rolling_segment(url: &HttpUrl) -> Option<&str> {
    url.url().path_segments()?.find(|segment| {
        segment
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|word| word.eq_ignore_ascii_case("current") || word.eq_ignore_ascii_case("latest"))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::moving_source_warnings;
    use crate::model::{Architecture, Digest, Source};

    #[rstest]
    #[case("https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img", 1)]
    #[case("https://dl.rockylinux.org/pub/rocky/9/images/x86_64/Rocky-9-GenericCloud-Base.latest.x86_64.qcow2", 1)]
    #[case("https://repo.almalinux.org/almalinux/9/cloud/x86_64/images/AlmaLinux-9-GenericCloud-latest.x86_64.qcow2", 1)]
    #[case("https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-generic-amd64.qcow2", 1)]
    #[case("http://e.example/latest/a", 2)]
    #[case("http://e.example/20261101/a", 1)]
    #[case("https://cloud.debian.org/images/cloud/bookworm/20261101-2000/debian-12-generic-amd64-20261101-2000.qcow2", 0)]
    #[case("https://e.example/currently/latestish.img", 0)]
    fn r6_table(#[case] url: &str, #[case] warnings: usize) {
        let source = Source::Http { url: url.parse().expect("URL"), architecture: Architecture::Amd64 };
        assert_eq!(moving_source_warnings(&source, None).len(), warnings, "{url}");
        assert_eq!(moving_source_warnings(&source, Some(&Digest::of(b""))), Vec::<String>::new());
    }
}
