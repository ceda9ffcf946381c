//! Series that are about one image and go away with it.

use prometheus_client::{encoding::EncodeLabelSet, metrics::family::Family};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A family with an index by image, since prometheus-client can remove a series only by all its labels.
#[derive(Debug)]
pub(super) struct PerImage<L, M> {
    family: Family<L, M>,
    index: Mutex<HashMap<String, HashSet<L>>>,
}

impl<L: Clone + Eq + Hash + EncodeLabelSet, M: Default + Clone> PerImage<L, M> {
    /// Wraps a family that is registered.
    pub fn new(family: Family<L, M>) -> Self {
        Self { family, index: Mutex::default() }
    }

    /// The series of this label, made where it is not there.
    pub fn get(&self, image: &str, label: L) -> M {
        let mut index = self.lock();
        let metric = self.family.get_or_create_owned(&label);
        if let Some(labels) = index.get_mut(image) {
            labels.insert(label);
        } else {
            index.insert(image.to_owned(), HashSet::from([label]));
        }
        metric
    }

    /// Removes the series of the image that the test does not keep.
    pub fn retain(&self, image: &str, mut keep: impl FnMut(&L) -> bool) {
        let mut index = self.lock();
        let Some(labels) = index.get_mut(image) else { return };
        labels.retain(|label| {
            let keep = keep(label);
            if !keep {
                self.family.remove(label);
            }
            keep
        });
        if labels.is_empty() {
            index.remove(image);
        }
    }

    /// Removes all series of the image.
    pub fn forget(&self, image: &str) {
        self.retain(image, |_| false);
    }

    /// The images that have series.
    pub fn images(&self) -> BTreeSet<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashSet<L>>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
