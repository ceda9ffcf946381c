//! Faults and paces that a test gives to DataVolumes by name.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use super::cache::Key;

/// What happens to the DataVolumes that a script names. Each stays in force until [`Handle::unscript`](super::Handle::unscript), those with `times` until they were used up.
#[derive(Clone, Debug, PartialEq)]
pub enum Behaviour {
    /// The transfer stops at this percentage; after `stall_timeout` the attempt is given up and starts again from zero. At 100 it stands for a conversion that takes long. A clone stays in its phase.
    StuckAt(f64),
    /// The importer ends with this message (reason `Error`, restarted by the kubelet), this many times. A clone's phase becomes `Error`.
    Error { message: String, times: u32 },
    /// The importer ends with this message for ever and never sends a request.
    CrashLoop { message: String },
    /// The import fails for good (phase `Failed`), as CDI v1.65 does on a checksum mismatch.
    Fatal { message: String },
    /// The importer pod finds no node.
    Unschedulable,
    /// The API refuses the claim for lack of quota, with this message.
    ClaimQuota { message: String },
    /// The API refuses the importer pod for lack of quota, with this message.
    PodQuota { message: String },
    /// The API refuses the importer pod for another reason, with this message.
    ErrStartingPod { message: String },
    /// The importer is killed for memory this many times; CDI then makes a new pod with direct I/O.
    OomKilled { times: u32 },
    /// The importer's image cannot be pulled, with this message of the kubelet.
    ImagePull { message: String },
    /// The importer runs and never connects.
    NeverConnect,
    /// The importer sends other header values than the Secret's.
    WrongToken,
    /// The importer does not trust the ConfigMap's CA.
    BadCa,
    /// The importer resolves the host to an address where nobody listens.
    Refused,
    /// The importer cannot resolve the host.
    NoSuchHost,
    /// The scratch claim stays Pending with this message of its provisioner.
    NoScratch { message: String },
    /// The prime claim (clones: the tmp claim) stays Pending with this message of its provisioner.
    NoVolume { message: String },
    /// The transfer is reported in this many equal steps, each this long.
    Ticks { count: u32, every: Duration },
    /// The importer pod is deleted once, at this percentage: the import restarts from zero in a new pod, `restartCount` stays.
    PodKilledAt(f64),
    /// A claim made again under a Succeeded DataVolume is left alone.
    NotAgain,
    /// CDI's former garbage collection: after success the DataVolume is deleted and its claim stays, marked `cdi.kubevirt.io/garbageCollected`.
    GarbageCollect,
}

struct Script {
    id: u64,
    pattern: String,
    behaviour: Behaviour,
}

/// All scripts of a stand-in.
pub(super) struct Scripts {
    list: Mutex<Vec<Script>>,
    /// Uses of counted behaviours, by script and DataVolume UID.
    used: Mutex<HashMap<(u64, String), u32>>,
    next: AtomicU64,
    changed: watch::Sender<u64>,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self { list: Mutex::default(), used: Mutex::default(), next: AtomicU64::new(1), changed: watch::Sender::new(0) }
    }

    pub(super) fn add(&self, pattern: &str, behaviour: Behaviour) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.list).push(Script { id, pattern: pattern.into(), behaviour });
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn remove(&self, pattern: &str) {
        lock(&self.list).retain(|script| script.pattern != pattern);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Puts one script in the place of all of this pattern, with no moment without any.
    pub(super) fn replace(&self, pattern: &str, behaviour: Behaviour) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut list = lock(&self.list);
        list.retain(|script| script.pattern != pattern);
        list.push(Script { id, pattern: pattern.into(), behaviour });
        drop(list);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Ends waiting when any script is added or removed.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The first behaviour for `key` that `pick` wants. Counted ones are not used up by looking.
    pub(super) fn find<T>(&self, key: &Key, pick: impl Fn(&Behaviour) -> Option<T>) -> Option<T> {
        lock(&self.list).iter().filter(|script| matches(&script.pattern, key)).find_map(|script| pick(&script.behaviour))
    }

    /// Uses one of the `times` that `pick` yields, for this `uid`; `None` when there is no such script or it is used up.
    pub(super) fn take<T>(&self, key: &Key, uid: &str, pick: impl Fn(&Behaviour) -> Option<(u32, T)>) -> Option<T> {
        let list = lock(&self.list);
        let mut used = lock(&self.used);
        list.iter().filter(|script| matches(&script.pattern, key)).find_map(|script| {
            let (times, value) = pick(&script.behaviour)?;
            let count = used.entry((script.id, uid.to_owned())).or_default();
            (*count < times).then(|| {
                *count += 1;
                value
            })
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether `pattern` (a name, or `namespace/name`, with `*` for any run of characters) names `key`.
fn matches(pattern: &str, key: &Key) -> bool {
    if pattern.contains('/') { glob(pattern, &format!("{}/{}", key.namespace, key.name)) } else { glob(pattern, &key.name) }
}

fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => {
            let Some(tail) = text.strip_prefix(head) else { return false };
            tail.char_indices().map(|(at, _)| &tail[at..]).chain([""]).any(|tail| glob(rest, tail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_objects() {
        let key = Key::new("cozy-public", "talos-worker-ce4c-v1.13.6");
        for (pattern, expected) in [
            ("talos-worker-*", true),
            ("*-v1.13.6", true),
            ("*", true),
            ("cozy-public/talos*", true),
            ("other/*", false),
            ("talos-worker", false),
            ("*ce4c*6", true),
        ] {
            assert_eq!(matches(pattern, &key), expected, "{pattern}");
        }
    }

    #[test]
    fn counted_behaviours_are_used_up_by_object() {
        let scripts = Scripts::new();
        scripts.add("disk", Behaviour::OomKilled { times: 1 });
        let key = Key::new("ns", "disk");
        let pick = |behaviour: &Behaviour| if let Behaviour::OomKilled { times } = behaviour { Some((*times, ())) } else { None };
        assert!(scripts.take(&key, "uid-1", pick).is_some());
        assert!(scripts.take(&key, "uid-1", pick).is_none());
        assert!(scripts.take(&key, "uid-2", pick).is_some());
    }
}
