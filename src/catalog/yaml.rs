//! What is wrong with a YAML text, and what to do where the reader's own bounds stop it.

use serde_saphyr::{Error, budget::BudgetBreach};

use crate::model::public_words;

/// Why `error` ended the reading, in one line, with what to do about a bound.
pub fn yaml_fault(error: &Error) -> String {
    let error = error.without_snippet();
    let remedy = match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{}` is given twice: keep one of them", public_words(key)),
        other => match remedy(other) {
            Some(remedy) => remedy.to_owned(),
            None => return error.to_string(),
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
    fn bounds_are_told_with_a_remedy(#[case] text: String, #[case] expected: &str) {
        let error = serde_saphyr::from_str::<Value>(&text).expect_err(expected);
        let told = yaml_fault(&error);
        assert!(told.contains(expected) && !told.contains("budget") && !told.contains('\n'), "{told}");
    }
}
