//! Which notes are news, which are repeats, and which are too many. Pure: time is passed in.

use super::{Note, Severity};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How long after its last repeat a note is news again, as in client-go.
const SERIES: Duration = Duration::from_secs(6 * 60);
/// How many Events about one object may come at once, and how often one more (client-go's spam filter).
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(5 * 60);
/// How many series and objects are remembered.
const REMEMBERED: usize = 2048;

/// Notes that are the same. The text belongs to it: another text is news, not a repeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    object: Object,
    severity: Severity,
    reason: String,
    action: &'static str,
    text: String,
}

/// The object a note is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Object {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

impl Key {
    pub fn of(note: &Note) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let regarding = &note.regarding;
        let object = Object {
            kind: text(&regarding.kind),
            namespace: text(&regarding.namespace),
            name: text(&regarding.name),
            uid: text(&regarding.uid),
        };
        Self { object, severity: note.severity, reason: note.reason.clone(), action: note.action, text: note.text.clone() }
    }
}

/// What to do with a note.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Publish it as an Event of its own.
    First,
    /// Count it in the Event of this name.
    Again {
        /// The Event.
        name: String,
        /// How often it has now been told.
        count: i32,
    },
    /// Drop it.
    Refused,
}

#[derive(Debug)]
struct Told {
    name: String,
    count: i32,
    last: Instant,
}

#[derive(Debug)]
struct Bucket {
    left: u32,
    filled: Instant,
}

/// What was told lately.
#[derive(Debug, Default)]
pub(super) struct Series {
    told: HashMap<Key, Told>,
    buckets: HashMap<Object, Bucket>,
}

impl Series {
    /// Decides on a note at `now`.
    pub fn next(&mut self, key: Key, now: Instant) -> Next {
        self.forget(now);
        if !self.take(&key.object, now) {
            return Next::Refused;
        }
        match self.told.get_mut(&key) {
            Some(told) => {
                told.count = told.count.saturating_add(1);
                told.last = now;
                Next::Again { name: told.name.clone(), count: told.count }
            }
            None => Next::First,
        }
    }

    /// Notes under which name it was published; a new name begins a new series.
    pub fn published(&mut self, key: Key, name: String) {
        let now = Instant::now();
        match self.told.get_mut(&key) {
            Some(told) if told.name == name => {}
            _ => drop(self.told.insert(key, Told { name, count: 1, last: now })),
        }
    }

    /// Takes one from the object's bucket.
    fn take(&mut self, object: &Object, now: Instant) -> bool {
        let bucket = self.buckets.entry(object.clone()).or_insert(Bucket { left: BURST, filled: now });
        let refills = now.saturating_duration_since(bucket.filled).as_secs() / REFILL.as_secs();
        if refills > 0 {
            bucket.left = bucket.left.saturating_add(u32::try_from(refills).unwrap_or(BURST)).min(BURST);
            bucket.filled = now;
        }
        let some = bucket.left > 0;
        bucket.left = bucket.left.saturating_sub(1);
        some
    }

    /// Forgets what is old, and everything when there is too much: to repeat oneself then is better than to grow.
    fn forget(&mut self, now: Instant) {
        self.told.retain(|_, told| now.saturating_duration_since(told.last) < SERIES);
        if self.told.len() >= REMEMBERED {
            self.told.clear();
        }
        if self.buckets.len() >= REMEMBERED {
            self.buckets.retain(|_, bucket| now.saturating_duration_since(bucket.filled) < REFILL);
        }
        if self.buckets.len() >= REMEMBERED {
            self.buckets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ObjectReference;

    fn key(name: &str, text: &str) -> Key {
        let regarding = ObjectReference { name: Some(name.into()), ..ObjectReference::default() };
        Key::of(&Note { regarding, severity: Severity::Normal, reason: "Ready".into(), action: "Import", text: text.into() })
    }

    #[test]
    fn the_same_note_is_counted_and_another_text_is_news() {
        let (mut series, now) = (Series::default(), Instant::now());
        assert_eq!(series.next(key("a", "one"), now), Next::First);
        series.published(key("a", "one"), "a.1".into());
        assert_eq!(series.next(key("a", "one"), now), Next::Again { name: "a.1".into(), count: 2 });
        series.published(key("a", "one"), "a.1".into());
        assert_eq!(series.next(key("a", "one"), now), Next::Again { name: "a.1".into(), count: 3 });
        assert_eq!(series.next(key("a", "two"), now), Next::First);
        assert_eq!(series.next(key("b", "one"), now), Next::First);
        // The Event was deleted and made anew.
        series.published(key("a", "one"), "a.2".into());
        assert_eq!(series.next(key("a", "one"), now), Next::Again { name: "a.2".into(), count: 2 });
    }

    #[test]
    fn what_could_not_be_published_is_still_news() {
        let (mut series, now) = (Series::default(), Instant::now());
        assert_eq!(series.next(key("a", "one"), now), Next::First);
        assert_eq!(series.next(key("a", "one"), now), Next::First);
    }

    #[test]
    fn a_series_ends_after_six_quiet_minutes() {
        let (mut series, now) = (Series::default(), Instant::now());
        series.published(key("a", "one"), "a.1".into());
        assert!(matches!(series.next(key("a", "one"), now + SERIES / 2), Next::Again { .. }));
        assert!(matches!(series.next(key("a", "one"), now + SERIES), Next::Again { .. }), "counted from the last one");
        assert_eq!(series.next(key("a", "one"), now + 3 * SERIES), Next::First);
    }

    #[test]
    fn one_object_cannot_flood_and_does_not_take_from_others() {
        let (mut series, now) = (Series::default(), Instant::now());
        let published = |series: &mut Series, now| (0..100).filter(|n| series.next(key("a", &n.to_string()), now) != Next::Refused).count();
        assert_eq!(published(&mut series, now), BURST as usize);
        assert_eq!(series.next(key("b", "one"), now), Next::First);
        assert_eq!(published(&mut series, now + REFILL), 1);
        assert_eq!(published(&mut series, now + 100 * REFILL), BURST as usize);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut series, now) = (Series::default(), Instant::now());
        for n in 0..10_000 {
            series.next(key(&n.to_string(), "one"), now);
            series.published(key(&n.to_string(), "one"), n.to_string());
        }
        assert!(series.told.len() <= REMEMBERED && series.buckets.len() <= REMEMBERED);
    }
}
