//! What is wrong with a YAML text, and what to do where the reader's own bounds stop it.

use serde_saphyr::{Error, budget::BudgetBreach};

use crate::model::public_words;

/// What to do with a text of which only one document is read.
pub const ONE_DOCUMENT: &str = "take out the `---` that begins another one, even an empty one";

/// Why `error` ended the reading, in one line, with what to do where the reader's own words are about the reader. Nothing of the
/// text is repeated but a key or a value, without the secrets of an address.
pub fn yaml_fault(error: &Error) -> String {
    let error = error.without_snippet();
    let remedy = match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{}` is given twice: keep one of them", public_words(key)),
        Error::MultipleDocuments { .. } => format!("it is more than one document: {ONE_DOCUMENT}"),
        Error::NonFiniteFloat { value, .. } => {
            format!("`{}` is a number that cannot be told from infinity: write another, or put it in quotes", public_words(value))
        }
        Error::SerdeUnknownField { field, expected, .. } => {
            format!("`{}` is not known here; there are {}", public_words(field), expected.join(", "))
        }
        other => match remedy(other) {
            Some(remedy) => remedy.to_owned(),
            None => return public_words(&error.to_string()),
        },
    };
    let line = error.location().map(|at| format!("line {}: ", at.line())).unwrap_or_default();
    format!("{line}{remedy}")
}

/// The bounds keep a few lines of YAML from unfolding into gigabytes; what breaks them is mostly repeated anchors.
fn remedy(error: &Error) -> Option<&'static str> {
    const REPEATS: &str = "it repeats anchors (`&`, `*`, `<<`) more often than is read: write the values out";
    match error {
        Error::AliasError { error, .. } => remedy(error),
        Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => Some(REPEATS),
        Error::RecursiveReferencesRequireWeakTypes { .. } => Some("an anchor (`&`) holds itself (`*`): write the value out"),
        Error::UnknownAnchor { .. } => {
            Some("it repeats an anchor (`*`) that stands nowhere before it: define it by `&` above, or write the value out")
        }
        Error::Unexpected { expected, .. } if expected.contains("scalar") => {
            Some("a map or a list stands where only text can, such as `{{ … }}` of a template that was not rendered: put it in quotes")
        }
        Error::DuplicateMappingKey { .. } => Some("a key is given twice in one map: keep one of them"),
        Error::MergeValueNotMapOrSeqOfMaps { .. } => Some("what is merged by `<<` must be a map, or a list of maps: write the value out"),
        Error::NullIntoString { .. } => Some("a key or a text is empty or `null`: give it a name, or put it in quotes"),
        Error::InvalidBinaryBase64 { .. }
        | Error::BinaryNotUtf8 { .. }
        | Error::BytesNotSupportedMissingBinaryTag { .. }
        | Error::TaggedScalarCannotDeserializeIntoString { .. }
        | Error::UnsupportedTag { .. }
        | Error::UnsupportedIncludeForm { .. }
        | Error::ResolverError { .. }
        | Error::CyclicInclude { .. }
        | Error::TaggedEnumMismatch { .. }
        | Error::TaggedStructFieldName { .. } => {
            Some("it has a tag (`!…`) that is not read here: take the tag out and write the value as plain YAML")
        }
        Error::Budget { breach, .. } => Some(match breach {
            BudgetBreach::Aliases { .. }
            | BudgetBreach::Anchors { .. }
            | BudgetBreach::AliasAnchorRatio { .. }
            | BudgetBreach::MergeKeys { .. }
            | BudgetBreach::RecordedAnchorEvents { .. }
            | BudgetBreach::RecordedAnchorBytes { .. } => REPEATS,
            BudgetBreach::Depth { .. } => "it nests maps and lists deeper than is read: lists of images are far flatter",
            BudgetBreach::Documents { .. } => "it has more documents than are read: give them as several files",
            _ => "with everything that its anchors (`*`) repeat it is larger than is read: repeat less, or give it as several files",
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::yaml_fault;

    /// Every bound is told with what to do, and in no words of the parser's insides.
    #[rstest]
    #[case::alias_bomb((0..12).fold("a0: &a0 [x]\n".to_owned(), |text, n| text + &format!("a{}: &a{} [{}]\n", n + 1, n + 1, vec![format!("*a{n}"); 12].join(","))), "repeat less")]
    #[case::ratio(format!("a: &a 1\nb: [{}]\n", vec!["*a"; 2000].join(",")), "write the values out")]
    #[case::deep(format!("{}{}", "[".repeat(100), "]".repeat(100)), "deeper than is read")]
    #[case::unknown("a: *nowhere\n".to_owned(), "stands nowhere before it")]
    #[case::many(format!("[{}]", vec!["1"; 300_000].join(",")), "several files")]
    #[case::syntax("a: [\n".to_owned(), "line")]
    #[case::documents("a: 1\n---\nb: 1\n".to_owned(), "it is more than one document: take out the `---`")]
    #[case::ended("a: 1\n---\n".to_owned(), "it is more than one document")]
    #[case::twice("a: 1\na: 1\n".to_owned(), "line 2: the key `a` is given twice")]
    #[case::key_no_text("? [a]\n: 1\n".to_owned(), "line 1: a map or a list stands where only text can")]
    #[case::template("a:\n- {{ range }}\n".to_owned(), "line 2: a map or a list stands where only text can")]
    #[case::infinite("a: 1\nb: 1e400\n".to_owned(), "line 2: `1e400` is a number")]
    #[case::not_a_number("a: .nan\n".to_owned(), "line 1: `.nan` is a number")]
    #[case::merge("a: {<<: 5}\n".to_owned(), "merged by `<<`")]
    #[case::binary("a: !!binary '*'\n".to_owned(), "take the tag out")]
    #[case::no_text("a: !!binary gIA=\n".to_owned(), "take the tag out")]
    #[case::no_key("~: 1\n".to_owned(), "give it a name")]
    #[case::secret("a: 1\n'https://u:hunter2@e.example/': [}\n".to_owned(), "line")]
    fn bounds_are_told_with_a_remedy(#[case] text: String, #[case] expected: &str) {
        let error = serde_saphyr::from_str::<Value>(&text).expect_err(expected);
        let told = yaml_fault(&error);
        // Names of a library's functions and options are nobody's to write.
        let of_library = ["budget", "Options", "Policy", "_str", "Option<", "hunter2", "\n"];
        assert!(told.contains(expected) && !of_library.iter().any(|word| told.contains(word)), "{told}");
    }
}
