use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

use super::pages::Pages;

/// A text that is stored once; valid while somebody holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NameId(pub(super) u32);

impl NameId {
    /// No text.
    pub(super) const NONE: Self = Self(u32::MAX);

    /// The id, unless it is none.
    pub(super) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

struct Entry {
    text: Box<str>,
    holders: u32,
}

/// Texts by number, each stored once and dropped with its last holder: a daemon that runs for months must not keep the name of every disk there ever was.
#[derive(Default)]
pub(super) struct Names {
    entries: Pages<Entry>,
    index: HashTable<u32>,
    hasher: RandomState,
    bytes: usize,
}

impl Names {
    /// The number of a text, held once more.
    pub(super) fn hold(&mut self, text: &str) -> NameId {
        let hash = self.hasher.hash_one(text);
        if let Some(id) = self.index.find(hash, |id| self.entries.get(*id).is_some_and(|entry| &*entry.text == text)).copied() {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.holders += 1;
            }
            return NameId(id);
        }
        let id = self.entries.insert(Entry { text: text.into(), holders: 1 });
        self.bytes += text.len();
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index.insert_unique(hash, id, |id| hasher.hash_one(entries.get(*id).map_or("", |entry| &entry.text)));
        NameId(id)
    }

    /// As [`Self::hold`], and no text for none.
    pub(super) fn hold_some(&mut self, text: Option<&str>) -> NameId {
        text.map_or(NameId::NONE, |text| self.hold(text))
    }

    /// Gives one hold back.
    pub(super) fn release(&mut self, id: NameId) {
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        entry.holders -= 1;
        if entry.holders > 0 {
            return;
        }
        let Some(entry) = self.entries.remove(id.0) else { return };
        self.bytes -= entry.text.len();
        let hash = self.hasher.hash_one(&*entry.text);
        if let Ok(found) = self.index.find_entry(hash, |found| *found == id.0) {
            found.remove();
        }
    }

    /// The number of a text that somebody holds.
    pub(super) fn find(&self, text: &str) -> Option<NameId> {
        let hash = self.hasher.hash_one(text);
        self.index.find(hash, |id| self.entries.get(*id).is_some_and(|entry| &*entry.text == text)).copied().map(NameId)
    }

    /// The text; empty for none.
    pub(super) fn get(&self, id: NameId) -> &str {
        self.entries.get(id.0).map_or("", |entry| &entry.text)
    }

    /// How many texts are held.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes on the heap: the texts (an allocator spends about eight more on each), their entries, the index.
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes + self.entries.len() * 8 + self.entries.heap_bytes() + self.index.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::{NameId, Names};

    #[test]
    fn a_text_is_stored_once_and_goes_with_its_last_holder() {
        let mut names = Names::default();
        let (a, b, again) = (names.hold("a"), names.hold("b"), names.hold("a"));
        assert_eq!((a, names.len()), (again, 2));
        assert_ne!(a, b);
        names.release(a);
        assert_eq!((names.get(a), names.find("a")), ("a", Some(a)));
        names.release(a);
        assert_eq!((names.find("a"), names.len()), (None, 1));
        let c = names.hold("c");
        assert_eq!((names.get(c), names.get(b)), ("c", "b"));
        assert_eq!((names.hold_some(None), names.get(NameId::NONE)), (NameId::NONE, ""));
        names.release(NameId::NONE);
    }
}
