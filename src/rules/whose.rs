//! Whose golden an object is (R7, R23, R24): the one question that the fence, a retirement, the view of a golden and the end of imports
//! that were left behind ask. The name of an image alone answers nothing: one that was made again under the name may be of another source.
//! The identity alone is enough to be taken over ([`super::adopt`]) and for who may clone it (R18), and never to be taken away.

use std::collections::BTreeMap;

use super::marks;

/// An image, as far as an object can be its golden.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its identity; `None` while that is not known.
    pub identity: Option<&'a str>,
    /// The UID that it has on record under the golden's name.
    pub recorded: Option<&'a str>,
}

/// Whose golden an object is, asked for one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The image's.
    Its,
    /// Not the image's.
    Another,
    /// It is marked for the image's name, and the image does not know yet what it is: nothing is done to it on the image's word, nor as if
    /// it were nobody's.
    Unknown,
}

/// Whose golden an object of these labels and this UID is: the image's by its record, or by our mark with the image's name and identity.
pub fn whose(owner: Owner<'_>, labels: &BTreeMap<String, String>, uid: Option<&str>) -> Whose {
    if owner.recorded.is_some() && owner.recorded == uid {
        return Whose::Its;
    }
    if !marks::is_marked(labels) || labels.get(marks::IMAGE).is_none_or(|image| image != owner.name) {
        return Whose::Another;
    }
    match (labels.get(marks::IDENTITY), owner.identity) {
        (Some(marked), Some(own)) if marked == own => Whose::Its,
        (Some(_), None) => Whose::Unknown,
        // Whoever marks a golden knows its identity: without one a hand was there.
        (Some(_) | None, _) => Whose::Another,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::by_mark(Some("i"), None, &[(marks::IMAGE, "a"), (marks::IDENTITY, "i")], Whose::Its)]
    #[case::made_again_of_another_source(Some("j"), None, &[(marks::IMAGE, "a"), (marks::IDENTITY, "i")], Whose::Another)]
    #[case::of_another_name(Some("i"), None, &[(marks::IMAGE, "b"), (marks::IDENTITY, "i")], Whose::Another)]
    #[case::not_known_yet(None, None, &[(marks::IMAGE, "a"), (marks::IDENTITY, "i")], Whose::Unknown)]
    #[case::without_identity(Some("i"), None, &[(marks::IMAGE, "a")], Whose::Another)]
    #[case::neither_knows(None, None, &[(marks::IMAGE, "a")], Whose::Another)]
    #[case::not_marked(Some("i"), None, &[(marks::GOLDEN, "false"), (marks::IMAGE, "a"), (marks::IDENTITY, "i")], Whose::Another)]
    #[case::on_record(Some("j"), Some("uid"), &[(marks::IMAGE, "b"), (marks::IDENTITY, "i")], Whose::Its)]
    #[case::on_record_without_a_mark(None, Some("uid"), &[], Whose::Its)]
    #[case::another_volume_on_record(Some("j"), Some("former"), &[(marks::IMAGE, "a"), (marks::IDENTITY, "i")], Whose::Another)]
    #[case::restored_with_its_mark(Some("i"), Some("former"), &[(marks::IMAGE, "a"), (marks::IDENTITY, "i")], Whose::Its)]
    fn r24_whose_a_golden_is(
        #[case] identity: Option<&str>,
        #[case] recorded: Option<&str>,
        #[case] labels: &[(&str, &str)],
        #[case] expected: Whose,
    ) {
        let mut all = BTreeMap::from([(marks::GOLDEN.to_owned(), marks::GOLDEN_VALUE.to_owned())]);
        all.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        assert_eq!(whose(Owner { name: "a", identity, recorded }, &all, Some("uid")), expected);
    }
}
