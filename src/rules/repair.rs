//! Marks that are missing or wrong on a consumer's disk (R25).

use super::pool::{Pool, plausible_pool};

/// The golden a disk is a clone of, and how surely that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloneOf<'a> {
    /// The spec names it.
    Named(&'a str),
    /// A DataSource leads to it now, or only a mark says so, here or on the disk's other object. The pointer may have moved since the clone was made, so a mark that says otherwise is believed.
    Pointed(&'a str),
}

/// The marks an object carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FoundMarks<'a> {
    /// The golden.
    pub golden: Option<&'a str>,
    /// The pool.
    pub pool: Option<&'a str>,
}

/// One mark to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    /// The value to write.
    pub write: String,
    /// What stands there and contradicts the spec, which is told; `None` where the mark is merely absent.
    pub instead_of: Option<String>,
}

/// Marks to be written on one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repair {
    /// The golden's name.
    pub golden: Option<Fix>,
    /// The pool.
    pub pool: Option<Fix>,
}

/// What is to be written on a clone's DataVolume or claim (R25); `None` when its marks are right.
///
/// `pool` is what the object's labels, its VM and its owners tell ([`super::pool::disk_pool`]); a plausible pool mark wins over it and so is never wrong.
pub fn repair(found: FoundMarks<'_>, clone_of: CloneOf<'_>, namespace: &str, pool: &Pool) -> Option<Repair> {
    let fix = |found: Option<&str>, wanted: &str| {
        (found != Some(wanted)).then(|| Fix { write: wanted.to_owned(), instead_of: found.map(str::to_owned) })
    };
    let golden = match clone_of {
        CloneOf::Named(name) => fix(found.golden, name),
        CloneOf::Pointed(name) if found.golden.is_none() => fix(None, name),
        CloneOf::Pointed(_) => None,
    };
    let is_plausible = found.pool.is_some_and(|text| plausible_pool(text, namespace).is_some());
    let pool = if is_plausible { None } else { fix(found.pool, &pool.to_string()) };
    (golden.is_some() || pool.is_some()).then_some(Repair { golden, pool })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const POOL: &str = "tenant-a/KubernetesNodes/demo-md0";

    #[rstest]
    #[case::all_right(Some("g"), Some(POOL), CloneOf::Named("g"), true, None, None)]
    #[case::older_than_the_daemon(None, None, CloneOf::Named("g"), true, Some(("g", None)), Some((POOL, None)))]
    #[case::golden_taken_off(None, Some(POOL), CloneOf::Named("g"), true, Some(("g", None)), None)]
    #[case::pool_taken_off(Some("g"), None, CloneOf::Named("g"), true, None, Some((POOL, None)))]
    #[case::contradicts_the_spec(Some("h"), Some(POOL), CloneOf::Named("g"), true, Some(("g", Some("h"))), None)]
    #[case::pointer(None, Some(POOL), CloneOf::Pointed("g"), true, Some(("g", None)), None)]
    #[case::pointer_moved_on(Some("h"), Some(POOL), CloneOf::Pointed("g"), true, None, None)]
    #[case::only_the_mark(Some("h"), None, CloneOf::Pointed("h"), true, None, Some((POOL, None)))]
    #[case::unknown_is_said(Some("g"), None, CloneOf::Named("g"), false, None, Some(("unknown", None)))]
    #[case::unknown_stays(Some("g"), Some("unknown"), CloneOf::Named("g"), false, None, None)]
    #[case::learned_later(Some("g"), Some("unknown"), CloneOf::Named("g"), true, None, Some((POOL, Some("unknown"))))]
    #[case::another_namespace(Some("g"), Some("tenant-b/VMDisk/x"), CloneOf::Named("g"), true, None, Some((POOL, Some("tenant-b/VMDisk/x"))))]
    #[case::a_plausible_mark_wins(Some("g"), Some("tenant-a/VMDisk/x"), CloneOf::Named("g"), true, None, None)]
    fn r25(
        #[case] golden: Option<&str>,
        #[case] pool: Option<&str>,
        #[case] clone_of: CloneOf<'_>,
        #[case] known: bool,
        #[case] fix_golden: Option<(&str, Option<&str>)>,
        #[case] fix_pool: Option<(&str, Option<&str>)>,
    ) {
        let told = if known { Pool::new("tenant-a", Pool::WORKERS, "demo-md0") } else { Pool::Unknown };
        let fix =
            |fix: Option<(&str, Option<&str>)>| fix.map(|(write, old)| Fix { write: write.into(), instead_of: old.map(str::to_owned) });
        let expected = Repair { golden: fix(fix_golden), pool: fix(fix_pool) };
        let found = repair(FoundMarks { golden, pool }, clone_of, "tenant-a", &told);
        assert_eq!(found.clone().unwrap_or_default(), expected);
        if let Some(repair) = found {
            let written = |fix: &Option<Fix>, old| fix.as_ref().map_or(old, |fix| Some(fix.write.clone()));
            let (golden, pool) = (written(&repair.golden, golden.map(str::to_owned)), written(&repair.pool, pool.map(str::to_owned)));
            let again = FoundMarks { golden: golden.as_deref(), pool: pool.as_deref() };
            assert_eq!(super::repair(again, clone_of, "tenant-a", &told), None, "written once, nothing is left to write");
        }
    }
}
