//! Whether upstream serves other bytes now than when an artifact was fetched (R6).

use super::Facts;

/// What is on record of a fetched artifact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded<'a> {
    /// Where the bytes came from, in its public form.
    pub resolved_url: Option<&'a str>,
    /// The whole file's length in bytes.
    pub length: Option<u64>,
    /// The `ETag`.
    pub etag: Option<&'a str>,
    /// The `Last-Modified`.
    pub last_modified: Option<&'a str>,
}

/// How upstream stands to the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The same bytes, as far as upstream's word goes.
    Same,
    /// Other bytes; in which respect, in words.
    Differs(String),
    /// Nothing that both name can be compared.
    Unknown,
}

impl Facts {
    /// These facts as a record that later ones are compared with.
    pub fn recorded(&self) -> Recorded<'_> {
        Recorded {
            resolved_url: Some(&self.resolved_url),
            length: self.length,
            etag: self.etag.as_deref(),
            last_modified: self.last_modified.as_deref(),
        }
    }

    /// Compares what upstream says now with what is on record.
    ///
    /// Tags and dates of different servers say nothing about each other, lengths do.
    pub fn compared_with(&self, recorded: &Recorded<'_>) -> Comparison {
        let differs = |what: &str, was: &dyn std::fmt::Display, now: &dyn std::fmt::Display| {
            Comparison::Differs(format!("Upstream's {what} was {was} when the image was fetched and is {now} now."))
        };
        let same_server = recorded.resolved_url == Some(self.resolved_url.as_str());
        if let (true, Some(now), Some(was)) = (same_server, self.etag.as_deref(), recorded.etag) {
            return if now == was { Comparison::Same } else { differs("ETag", &was, &now) };
        }
        if let (Some(now), Some(was)) = (self.length, recorded.length)
            && now != was
        {
            return differs("length in bytes", &was, &now);
        }
        match (same_server, self.last_modified.as_deref(), recorded.last_modified) {
            (true, Some(now), Some(was)) if now == was => Comparison::Same,
            (true, Some(now), Some(was)) => differs("date of change", &was, &now),
            _ if self.length.is_some() && recorded.length.is_some() => Comparison::Same,
            _ => Comparison::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Comparison, Recorded};
    use crate::source::{Facts, open::samples::facts as now};

    const A: &str = "https://a.example/x";
    const B: &str = "https://b.example/x";

    fn was<'a>(url: &'a str, length: Option<u64>, etag: Option<&'a str>, modified: Option<&'a str>) -> Recorded<'a> {
        Recorded { resolved_url: Some(url), length, etag, last_modified: modified }
    }

    #[rstest]
    #[case::same_tag(now(A, Some(1), Some("a"), None), was(A, Some(1), Some("a"), None), Some(None))]
    #[case::other_tag(now(A, Some(1), Some("b"), None), was(A, Some(1), Some("a"), None), Some(Some("ETag was a")))]
    #[case::tag_of_another_server(now(B, Some(1), Some("b"), None), was(A, Some(1), Some("a"), None), Some(None))]
    #[case::length_of_another_server(now(B, Some(2), Some("a"), None), was(A, Some(1), Some("a"), None), Some(Some("was 1")))]
    #[case::date(now(A, Some(1), None, Some("m1")), was(A, Some(1), None, Some("m2")), Some(Some("date of change was m2")))]
    #[case::same_date(now(A, None, None, Some("m1")), was(A, Some(1), None, Some("m1")), Some(None))]
    #[case::date_of_another_server(now(B, None, None, Some("m1")), was(A, Some(1), None, Some("m2")), None)]
    #[case::nothing_in_common(now(A, None, None, None), was(A, Some(1), Some("a"), None), None)]
    #[case::nothing_on_record(now(A, Some(1), Some("a"), None), Recorded::default(), None)]
    fn r6_upstream_changed(#[case] now: Facts, #[case] was: Recorded<'_>, #[case] expected: Option<Option<&str>>) {
        match (now.compared_with(&was), expected) {
            (Comparison::Unknown, None) | (Comparison::Same, Some(None)) => {}
            (Comparison::Differs(how), Some(Some(part))) => assert!(how.contains(part), "{how}"),
            (found, _) => panic!("{found:?}"),
        }
    }
}
