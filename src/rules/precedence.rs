//! Which of several images of one identity is the first (R3).

/// The place of an image among those of its identity: the least one is the first. Whoever has a golden on record was first in
/// fact; then age decides, then the name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    has_no_golden: bool,
    created: i64,
    name: String,
}

impl Precedence {
    /// Of an image with this name, created at this second since 1970; one that is not made yet comes after all that are.
    pub fn new(name: impl Into<String>, created: Option<i64>, has_golden: bool) -> Self {
        Self { has_no_golden: !has_golden, created: created.unwrap_or(i64::MAX), name: name.into() }
    }

    /// The image's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Precedence;

    #[rstest]
    #[case::older(("a", Some(2), false), ("b", Some(1), false), "b")]
    #[case::golden(("a", Some(2), true), ("b", Some(1), false), "a")]
    #[case::same_age(("a", Some(1), true), ("b", Some(1), true), "a")]
    #[case::not_made_yet(("a", None, false), ("b", Some(9), false), "b")]
    fn r3(#[case] one: (&str, Option<i64>, bool), #[case] other: (&str, Option<i64>, bool), #[case] first: &str) {
        let [one, other] = [one, other].map(|(name, created, has_golden)| Precedence::new(name, created, has_golden));
        assert_eq!(one.min(other).name(), first);
    }
}
