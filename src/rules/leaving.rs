//! R23 for one golden of an image: what becomes of it when its target is taken out of the spec.

/// A golden on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded<'a> {
    /// The class as its target named it; empty for the cluster's default.
    pub requested_class: &'a str,
    /// Whether it can be cloned.
    pub is_ready: bool,
}

/// How a golden stands to the targets of its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A target names its class.
    Wanted,
    /// No target does, and none of those there are can be cloned: it stays open to all, because the image would be lost with it, or
    /// have to be fetched again from an upstream that may have lost it too.
    Last,
    /// No target does: it goes through the fence, when nothing needs it any more.
    Leaving,
}

impl Place {
    /// The place of the golden of `requested_class`, among the goldens on record and the classes that the targets name.
    pub fn of(requested_class: &str, recorded: &[Recorded<'_>], wanted: &[&str]) -> Self {
        if wanted.contains(&requested_class) {
            return Self::Wanted;
        }
        match recorded.iter().any(|golden| golden.is_ready && wanted.contains(&golden.requested_class)) {
            true => Self::Leaving,
            false => Self::Last,
        }
    }
}

/// What to do about a golden whose target was taken out; nothing where it waits for nobody, or stays because it is the last.
pub fn leaving_remedy(place: Place, is_needed: bool) -> &'static str {
    match (place, is_needed) {
        (Place::Leaving, true) => {
            "Move what needs it to the image's golden in another class; it goes by itself then. `golden-catalog consumers` shows who needs it."
        }
        (Place::Leaving, false) | (Place::Last | Place::Wanted, _) => "",
    }
}

/// What is told of a golden whose target was taken out. `is_open` is whether it can be cloned; `blockers` is who needs it, in words, or why that is not known.
pub fn leaving_message(golden: &str, class: &str, place: Place, is_made: bool, is_open: bool, blockers: Option<&str>) -> String {
    let what = format!("The target for StorageClass {class} was taken out");
    match (place, is_made, blockers) {
        (Place::Wanted, ..) => String::new(),
        (Place::Last, true, _) if !is_open => {
            format!(
                "{what}; its golden {golden} cannot be cloned now, and stays until another golden of the image is Ready: nothing else has the disk for sure."
            )
        }
        (Place::Last, true, _) => {
            format!(
                "{what}; its golden {golden} stays, and can be cloned, until another golden of the image is Ready: nothing else has the disk for sure."
            )
        }
        (_, false, None) => format!("{what}; its golden {golden} was not made yet, and goes when it is certain that nothing waits for it."),
        (_, false, Some(blockers)) => {
            format!("{what}; its golden {golden} was not made yet, and is given up when nothing waits for it: {blockers}.")
        }
        (Place::Leaving, true, None) => format!("{what}; nothing is seen to need its golden {golden}, which goes when that is certain."),
        (Place::Leaving, true, Some(blockers)) => {
            format!(
                "{what}; no new pools are let in to its golden {golden}, which goes by itself when nothing needs it any more: {blockers}."
            )
        }
    }
}

/// What is told of a volume that is finished, stands under the name of a golden whose target was taken out, and is not believed to be that
/// golden, and `why`. What needs it counts all the same: it goes as a golden does.
pub fn disbelieved_message(golden: &str, class: &str, place: Place, why: &str, blockers: Option<&str>) -> String {
    let what = format!(
        "The target for StorageClass {class} was taken out; what stands under the name of its golden {golden} is finished, and is not believed to be that golden ({why})"
    );
    let then = match (place, blockers) {
        (Place::Wanted, _) => return String::new(),
        (Place::Last, _) => "it stays until another golden of the image is Ready".to_owned(),
        (Place::Leaving, None) => "nothing is seen to need it, and it goes when that is certain".to_owned(),
        (Place::Leaving, Some(blockers)) => format!("it goes by itself when nothing needs it any more: {blockers}"),
    };
    format!("{what}; {then}. To keep it, put the target back: the image then says what to do about it.")
}

/// What is told of a golden whose target was taken out of an image that is not accepted.
pub fn held_message(golden: &str, class: &str, is_made: bool) -> String {
    let (now, then) = match is_made {
        true => ("stays as it is", "goes after that, when nothing needs it any more"),
        false => ("was not made yet and is left as it is", "is given up after that"),
    };
    format!("The target for StorageClass {class} was taken out; its golden {golden} {now} while the image is not accepted, and {then}.")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::named("local", &[("", true), ("local", true)], &["", "local"], Place::Wanted)]
    #[case::named_and_not_ready("", &[("", false)], &[""], Place::Wanted)]
    #[case::taken_out("local", &[("", true), ("local", true)], &[""], Place::Leaving)]
    #[case::the_first_taken_out("", &[("", true), ("local", true)], &["local"], Place::Leaving)]
    #[case::the_other_is_not_ready("", &[("", true), ("local", false)], &["local"], Place::Last)]
    #[case::the_other_is_not_begun("", &[("", true)], &["local"], Place::Last)]
    #[case::the_only_ready_one_is_taken_out_too("a", &[("a", true), ("b", true)], &["c"], Place::Last)]
    fn r23_a_golden_without_a_target_goes_when_another_can_stand_in(
        #[case] class: &str,
        #[case] recorded: &[(&str, bool)],
        #[case] wanted: &[&str],
        #[case] expected: Place,
    ) {
        let recorded: Vec<_> =
            recorded.iter().map(|(requested_class, is_ready)| Recorded { requested_class, is_ready: *is_ready }).collect();
        assert_eq!(Place::of(class, &recorded, wanted), expected);
    }

    #[test]
    fn r23_who_is_waited_for_is_named() {
        let told = leaving_message("g-local", "local", Place::Leaving, true, false, Some("tenant-a/VMDisk/db"));
        assert!(
            told.contains("StorageClass local") && told.contains("g-local") && told.ends_with("any more: tenant-a/VMDisk/db."),
            "{told}"
        );
        let last = |is_open| leaving_message("g", "a", Place::Last, true, is_open, Some("x"));
        for is_open in [true, false] {
            assert!(last(is_open).contains("until another golden of the image is Ready"));
            assert_eq!(last(is_open).contains("stays, and can be cloned"), is_open, "{}", last(is_open));
        }
        assert!(leaving_remedy(Place::Leaving, true).contains("the image's golden in another class"));
        assert_eq!((leaving_remedy(Place::Last, true), leaving_remedy(Place::Leaving, false)), ("", ""));
        assert!(leaving_message("g", "a", Place::Leaving, false, false, None).contains("goes when it is certain"));
    }

    #[rstest]
    #[case::free(Place::Leaving, None, "nothing is seen to need it")]
    #[case::needed(Place::Leaving, Some("tenant-a/VMDisk/db"), "any more: tenant-a/VMDisk/db.")]
    #[case::the_last(Place::Last, Some("x"), "until another golden of the image is Ready")]
    fn r23_what_is_finished_and_not_believed_is_not_called_unmade(
        #[case] place: Place,
        #[case] blockers: Option<&str>,
        #[case] part: &str,
    ) {
        let told = disbelieved_message("g-local", "local", place, "how it is seen", blockers);
        assert!(told.contains(part) && told.contains("(how it is seen)") && told.contains("put the target back"), "{told}");
        assert!(!told.contains("was not made yet"), "{told}");
    }

    #[test]
    fn r23_what_leaves_an_image_that_is_not_accepted_waits_for_that() {
        assert!(held_message("g", "a", true).contains("stays as it is while the image is not accepted, and goes after that"));
        assert!(
            held_message("g", "a", false).contains("was not made yet") && held_message("g", "a", false).contains("is given up after that")
        );
    }
}
