//! The class of a pool that states none (R15): frozen by its own disks, so that moving the default never fails a healthy pool.

use std::{cmp::Reverse, fmt};

/// A claim of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolDisk<'a> {
    /// Its class.
    pub class: &'a str,
    /// Whether it is bound.
    pub is_bound: bool,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Whether it is a clone of a golden.
    pub is_clone: bool,
}

/// A machine template of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolTemplate<'a> {
    /// The class its disk states, else the one recorded when it was admitted.
    pub class: Option<&'a str>,
    /// When it was created, in seconds since 1970.
    pub created: i64,
}

/// What froze a pool's class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrozenBy {
    /// All its bound disks are in it.
    Disks,
    /// Its newest bound disk is in it; others are elsewhere.
    NewestDisk,
    /// Its newest machine template.
    Template,
}

impl fmt::Display for FrozenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disks => "its own disks",
            Self::NewestDisk => "the newest of its disks",
            Self::Template => "its newest machine template",
        })
    }
}

/// A pool's class, and what froze it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolClass {
    /// The class.
    pub class: String,
    /// What says so.
    pub by: FrozenBy,
}

/// The class of a pool that states none (R15): of its own bound disks, the newest where they differ, else of its newest machine template. `None` means today's default.
///
/// Clones of goldens go before a pool's other disks: a data disk made later in another class says nothing about the system disk.
pub fn frozen_class<'a>(
    disks: impl IntoIterator<Item = PoolDisk<'a>>,
    templates: impl IntoIterator<Item = PoolTemplate<'a>>,
) -> Option<PoolClass> {
    let bound: Vec<PoolDisk<'_>> = disks.into_iter().filter(|disk| disk.is_bound && !disk.class.is_empty()).collect();
    let has_clones = bound.iter().any(|disk| disk.is_clone);
    let counted = || bound.iter().filter(|disk| disk.is_clone == has_clones);
    if let Some(newest) = counted().max_by_key(|disk| (disk.created, Reverse(disk.class))) {
        let by = if counted().all(|disk| disk.class == newest.class) { FrozenBy::Disks } else { FrozenBy::NewestDisk };
        return Some(PoolClass { class: newest.class.to_owned(), by });
    }
    let told =
        templates.into_iter().filter_map(|template| Some((template.created, Reverse(template.class.filter(|class| !class.is_empty())?))));
    let (_, Reverse(class)) = told.max()?;
    Some(PoolClass { class: class.to_owned(), by: FrozenBy::Template })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// `class@created`, `?` not bound, `~` no clone.
    fn disks(text: &str) -> Vec<PoolDisk<'_>> {
        let disk = |text: &'static str| {
            let (class, created) = text.split_once('@').expect("class@created");
            let class_name = class.trim_start_matches(['?', '~']);
            let flags = &class[..class.len() - class_name.len()];
            PoolDisk {
                class: class_name,
                is_bound: !flags.contains('?'),
                created: created.parse().expect("a number"),
                is_clone: !flags.contains('~'),
            }
        };
        text.to_owned().leak().split_whitespace().map(disk).collect()
    }

    /// `class@created`, `-` states none.
    fn templates(text: &str) -> Vec<PoolTemplate<'_>> {
        let template = |text: &'static str| {
            let (class, created) = text.split_once('@').expect("class@created");
            PoolTemplate { class: (class != "-").then_some(class), created: created.parse().expect("a number") }
        };
        text.to_owned().leak().split_whitespace().map(template).collect()
    }

    #[rstest]
    #[case::disks("r@1 r@2", "l@9", Some(("r", FrozenBy::Disks)))]
    #[case::mixed_takes_the_newest("r@1 l@5 r@3", "", Some(("l", FrozenBy::NewestDisk)))]
    #[case::same_second_is_decided("b@1 a@1", "", Some(("a", FrozenBy::NewestDisk)))]
    #[case::unbound_does_not_count("?l@9 r@1", "", Some(("r", FrozenBy::Disks)))]
    #[case::a_later_data_disk_says_nothing("r@1 ~l@9", "", Some(("r", FrozenBy::Disks)))]
    #[case::a_pool_that_only_imported_so_far("~r@1", "", Some(("r", FrozenBy::Disks)))]
    #[case::scaled_to_zero("", "r@1 l@2", Some(("l", FrozenBy::Template)))]
    #[case::newest_template_says_nothing("", "r@1 -@2", Some(("r", FrozenBy::Template)))]
    #[case::only_unbound("?r@1", "l@1", Some(("l", FrozenBy::Template)))]
    #[case::new_pool("", "-@1", None)]
    #[case::nothing("", "", None)]
    fn r15(#[case] own: &str, #[case] machines: &str, #[case] expected: Option<(&str, FrozenBy)>) {
        let frozen = frozen_class(disks(own), templates(machines));
        assert_eq!(frozen.as_ref().map(|frozen| (frozen.class.as_str(), frozen.by)), expected);
        let mut reversed = disks(own);
        reversed.reverse();
        assert_eq!(frozen_class(reversed, templates(machines)), frozen, "the order does not matter");
    }
}
