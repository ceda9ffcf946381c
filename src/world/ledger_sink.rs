//! The ledger as the end of its watches.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::watch;

use super::{
    Sink,
    evidence::Observe,
    ledger::{CloneEnd, Kind, Ledger},
};

/// A ledger that several watches fill and others ask.
#[derive(Clone)]
pub struct LedgerSink {
    ledger: Arc<RwLock<Ledger>>,
    changes: Arc<watch::Sender<u64>>,
}

impl LedgerSink {
    /// Shares a ledger.
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger: Arc::new(RwLock::new(ledger)), changes: Arc::new(watch::Sender::new(0)) }
    }

    /// The ledger, to be asked. Watches wait meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, Ledger> {
        self.ledger.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the cluster has no such kind (any more).
    pub fn not_installed(&self, kind: Kind) {
        self.with(|ledger| ledger.not_installed(kind));
    }

    /// Says why the kind's watch cannot be believed now, or that it can.
    pub fn doubt(&self, kind: Kind, why: Option<String>) {
        if self.read().doubted(kind) != why.as_deref() {
            self.with(|ledger| ledger.doubt(kind, why));
        }
    }

    /// Begins or ends to keep the ends of clones for [`Self::take_ends`].
    pub fn follow_ends(&self, follow: bool) {
        self.ledger.write().unwrap_or_else(PoisonError::into_inner).follow_ends(follow);
    }

    /// As [`Ledger::take_ends`].
    pub fn take_ends(&self) -> Vec<CloneEnd> {
        self.ledger.write().unwrap_or_else(PoisonError::into_inner).take_ends()
    }

    /// Wakes whenever the ledger may answer otherwise than before.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn with(&self, change: impl FnOnce(&mut Ledger)) {
        change(&mut self.ledger.write().unwrap_or_else(PoisonError::into_inner));
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl<K: Observe> Sink<K> for LedgerSink {
    fn begin(&mut self) {
        self.with(|ledger| ledger.begin(K::KIND));
    }

    fn apply(&mut self, object: K) {
        self.with(|ledger| ledger.observe(&object));
    }

    fn delete(&mut self, namespace: Option<&str>, name: &str) {
        self.with(|ledger| ledger.delete(K::KIND, namespace.unwrap_or_default(), name));
    }

    fn odd(&mut self, namespace: Option<&str>, name: &str, _: &str) {
        self.with(|ledger| ledger.unreadable(K::KIND, namespace.unwrap_or_default(), name));
    }

    fn synced(&mut self) {
        self.with(|ledger| ledger.commit(K::KIND));
    }

    fn not_installed(&mut self) {
        self.with(|ledger| ledger.not_installed(K::KIND));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::{
        foreign::DataVolume,
        rules::class::Classes,
        world::ledger::{GoldenKey, KindState, Storage},
    };

    #[test]
    fn a_watch_fills_the_ledger_and_an_unreadable_object_counts_for_every_golden_until_it_can_be_read() {
        let mut sink = LedgerSink::new(Ledger::new("cozy-public"));
        for kind in Kind::ALL {
            sink.not_installed(kind);
        }
        let disk = |name: &str| -> DataVolume {
            serde_json::from_value(json!({"metadata": {"namespace": "a", "name": name}, "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}}))
                .expect("a DataVolume")
        };
        let count = |sink: &LedgerSink| {
            let (classes, independent) = (Classes::new(), BTreeSet::new());
            let storage = Storage { classes: &classes, independent: &independent, now: 0 };
            sink.read().consumers(GoldenKey::named("g"), storage).map(|consumers| consumers.blocking())
        };
        Sink::<DataVolume>::begin(&mut sink);
        sink.apply(disk("x"));
        sink.apply(disk("y"));
        assert!(count(&sink).is_err());
        Sink::<DataVolume>::synced(&mut sink);
        assert_eq!(count(&sink), Ok(2));
        Sink::<DataVolume>::begin(&mut sink);
        Sink::<DataVolume>::odd(&mut sink, Some("a"), "x", "why");
        Sink::<DataVolume>::odd(&mut sink, Some("a"), "never seen", "why");
        Sink::<DataVolume>::synced(&mut sink);
        assert_eq!(count(&sink), Ok(2), "unknown is never none");
        Sink::<DataVolume>::odd(&mut sink, Some("a"), "x", "why");
        assert_eq!(count(&sink), Ok(2));
        sink.apply(disk("x"));
        Sink::<DataVolume>::delete(&mut sink, Some("a"), "never seen");
        assert_eq!((count(&sink), sink.read().len()), (Ok(1), 1), "nothing is left of what was not known");
        let mut changes = sink.changes();
        sink.doubt(Kind::DataVolume, Some("why".to_owned()));
        assert!(changes.has_changed().expect("the ledger is there"), "what is doubted answers otherwise");
        changes.mark_unchanged();
        sink.doubt(Kind::DataVolume, Some("why".to_owned()));
        assert!(!changes.has_changed().expect("the ledger is there"));
        assert_eq!(sink.read().state(Kind::DataVolume), KindState::Stale);
        sink.doubt(Kind::DataVolume, None);
        Sink::<DataVolume>::delete(&mut sink, Some("a"), "x");
        assert_eq!(count(&sink), Ok(0));
    }
}
