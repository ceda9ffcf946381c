use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

use super::{facts::Kind, names::NameId, pages::Pages};
use crate::rules::{consumers::Evidence, copied::CopyCause};

/// No row, no group.
pub(super) const NONE: u32 = u32::MAX;

/// What rows are found by, beside their own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum GroupKind {
    /// A claim in the catalog namespace.
    Claim,
    /// A VolumeSnapshot in the catalog namespace.
    Snapshot,
    /// A VolumeCloneSource in the catalog namespace.
    CloneSource,
    /// A DataSource.
    DataSource,
    /// An image's identity.
    Identity,
    /// A machine template.
    Template,
    /// A pool, by its text.
    Pool,
    /// A VirtualMachine whose disks they are.
    Machine,
    /// What cannot be read and may refer to anything.
    Anything,
}

/// What rows are found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) kind: GroupKind,
    /// [`NameId::NONE`] where the kind implies it.
    pub(super) namespace: NameId,
    pub(super) name: NameId,
}

/// Rows that have something in common, as a doubly linked list through the rows.
pub(super) struct Group {
    pub(super) key: GroupKey,
    pub(super) head: u32,
}

/// A row's place in a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) group: u32,
    pub(super) next: u32,
    pub(super) previous: u32,
}

impl Link {
    pub(super) const NONE: Self = Self { group: NONE, next: NONE, previous: NONE };
}

/// Which of a row's two groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// What it refers to.
    Target,
    /// Whom it belongs to.
    Pool,
}

/// Bits of [`Row::flags`].
pub(super) mod flag {
    pub(in super::super) const TERMINATING: u8 = 1;
    pub(in super::super) const ENDED: u8 = 2;
    pub(in super::super) const BOUND: u8 = 4;
    pub(in super::super) const LOST: u8 = 8;
    pub(in super::super) const WAITS: u8 = 16;
    pub(in super::super) const LACKS_CLASS: u8 = 32;
    pub(in super::super) const PREPOPULATED: u8 = 64;
    pub(in super::super) const BLOCK: u8 = 128;
}

/// One reference of one object, and what is known of the object; an object with several references has a chain of rows.
pub(super) struct Row {
    pub(super) uid: [u8; 16],
    pub(super) namespace: NameId,
    pub(super) name: NameId,
    /// The object's next row.
    pub(super) next: u32,
    pub(super) target: Link,
    pub(super) pool: Link,
    pub(super) golden_mark: NameId,
    pub(super) pool_mark: NameId,
    pub(super) class: NameId,
    pub(super) driver: NameId,
    /// Seconds since 1970; enough until 2106.
    pub(super) created: u32,
    /// The relist in which it was last seen.
    pub(super) epoch: u32,
    /// Why a disk's content came over the network.
    pub(super) copied: Option<CopyCause>,
    pub(super) kind: Kind,
    pub(super) evidence: Evidence,
    pub(super) flags: u8,
}

impl Row {
    pub(super) const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) const fn link(&self, side: Side) -> Link {
        match side {
            Side::Target => self.target,
            Side::Pool => self.pool,
        }
    }

    const fn link_mut(&mut self, side: Side) -> &mut Link {
        match side {
            Side::Target => &mut self.target,
            Side::Pool => &mut self.pool,
        }
    }
}

/// An object by kind and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectKey {
    pub(super) kind: Kind,
    pub(super) namespace: NameId,
    pub(super) name: NameId,
}

/// The rows, by object and by group.
#[derive(Default)]
pub(super) struct Rows {
    rows: Pages<Row>,
    objects: HashTable<u32>,
    groups: Pages<Group>,
    group_index: HashTable<u32>,
    hasher: RandomState,
}

fn object_of(row: &Row) -> ObjectKey {
    ObjectKey { kind: row.kind, namespace: row.namespace, name: row.name }
}

impl Rows {
    pub(super) fn get(&self, row: u32) -> Option<&Row> {
        self.rows.get(row)
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn end(&self) -> u32 {
        self.rows.end()
    }

    /// The object's first row.
    pub(super) fn find(&self, key: ObjectKey) -> Option<u32> {
        self.objects.find(self.hasher.hash_one(key), |row| self.rows.get(*row).is_some_and(|row| object_of(row) == key)).copied()
    }

    /// Whether this row is its object's first.
    pub(super) fn is_first(&self, row: u32) -> bool {
        self.rows.get(row).is_some_and(|found| self.find(object_of(found)) == Some(row))
    }

    /// The object's rows, from its first.
    pub(super) fn chain(&self, first: u32) -> impl Iterator<Item = (u32, &Row)> {
        std::iter::successors(self.rows.get(first).map(|row| (first, row)), |(_, row)| self.rows.get(row.next).map(|next| (row.next, next)))
    }

    /// Adds a row to an object's.
    pub(super) fn append(&mut self, first: u32, mut row: Row, target: GroupKey) {
        let Some(next) = self.rows.get(first).map(|first| first.next) else { return };
        row.next = next;
        let added = self.rows.insert(row);
        if let Some(first) = self.rows.get_mut(first) {
            first.next = added;
        }
        self.join(added, Side::Target, Some(target));
    }

    /// Says that an object was seen in this relist.
    pub(super) fn touch(&mut self, first: u32, epoch: u32) {
        let mut next = first;
        while let Some(row) = self.rows.get_mut(next) {
            row.epoch = epoch;
            next = row.next;
        }
    }

    /// Adds an object's rows; it must not be there.
    pub(super) fn insert_chain(&mut self, rows: Vec<Row>, groups: Vec<(Option<GroupKey>, Option<GroupKey>)>) {
        let mut next = NONE;
        for (mut row, (target, pool)) in rows.into_iter().zip(groups).rev() {
            row.next = next;
            next = self.rows.insert(row);
            self.join(next, Side::Target, target);
            self.join(next, Side::Pool, pool);
        }
        if let Some(key) = self.rows.get(next).map(object_of) {
            let hash = self.hasher.hash_one(key);
            let (rows, hasher) = (&self.rows, &self.hasher);
            self.objects.insert_unique(hash, next, |row| rows.get(*row).map_or(0, |row| hasher.hash_one(object_of(row))));
        }
    }

    /// Takes an object's rows out, and the keys of groups that are empty now.
    pub(super) fn remove_chain(&mut self, first: u32) -> (Vec<Row>, Vec<GroupKey>) {
        let Some(key) = self.rows.get(first).map(object_of) else { return (Vec::new(), Vec::new()) };
        if let Ok(entry) = self.objects.find_entry(self.hasher.hash_one(key), |row| *row == first) {
            entry.remove();
        }
        let (mut rows, mut emptied, mut next) = (Vec::new(), Vec::new(), first);
        while next != NONE {
            emptied.extend(self.leave(next, Side::Target));
            emptied.extend(self.leave(next, Side::Pool));
            let Some(row) = self.rows.remove(next) else { break };
            next = row.next;
            rows.push(row);
        }
        (rows, emptied)
    }

    /// The rows of a group, newest first.
    pub(super) fn group(&self, key: GroupKey, side: Side) -> impl Iterator<Item = (u32, &Row)> {
        let head = self.find_group(key).and_then(|group| self.groups.get(group)).map_or(NONE, |group| group.head);
        std::iter::successors(self.rows.get(head).map(|row| (head, row)), move |(_, row)| {
            let next = row.link(side).next;
            self.rows.get(next).map(|row| (next, row))
        })
    }

    /// What a row refers to, or whom it belongs to.
    pub(super) fn key_of(&self, row: &Row, side: Side) -> Option<GroupKey> {
        self.groups.get(row.link(side).group).map(|group| group.key)
    }

    /// Whether a group of this key exists, so that whoever makes one can hold its names once.
    pub(super) fn has_group(&self, key: GroupKey) -> bool {
        self.find_group(key).is_some()
    }

    fn find_group(&self, key: GroupKey) -> Option<u32> {
        self.group_index.find(self.hasher.hash_one(key), |group| self.groups.get(*group).is_some_and(|group| group.key == key)).copied()
    }

    fn join(&mut self, row: u32, side: Side, key: Option<GroupKey>) {
        let Some(key) = key else { return };
        let group = self.find_group(key).unwrap_or_else(|| {
            let group = self.groups.insert(Group { key, head: NONE });
            let hash = self.hasher.hash_one(key);
            let (groups, hasher) = (&self.groups, &self.hasher);
            self.group_index.insert_unique(hash, group, |group| groups.get(*group).map_or(0, |group| hasher.hash_one(group.key)));
            group
        });
        let Some(head) = self.groups.get_mut(group).map(|group| std::mem::replace(&mut group.head, row)) else { return };
        if let Some(first) = self.rows.get_mut(head) {
            first.link_mut(side).previous = row;
        }
        if let Some(row) = self.rows.get_mut(row) {
            *row.link_mut(side) = Link { group, next: head, previous: NONE };
        }
    }

    /// Takes a row out of its group; the group's key if it is empty now and gone.
    fn leave(&mut self, row: u32, side: Side) -> Option<GroupKey> {
        let link = self.rows.get_mut(row).map(|row| std::mem::replace(row.link_mut(side), Link::NONE))?;
        if let Some(next) = self.rows.get_mut(link.next) {
            next.link_mut(side).previous = link.previous;
        }
        if let Some(previous) = self.rows.get_mut(link.previous) {
            previous.link_mut(side).next = link.next;
            return None;
        }
        let group = self.groups.get_mut(link.group)?;
        group.head = link.next;
        if link.next != NONE {
            return None;
        }
        let key = self.groups.remove(link.group)?.key;
        if let Ok(entry) = self.group_index.find_entry(self.hasher.hash_one(key), |group| *group == link.group) {
            entry.remove();
        }
        Some(key)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.rows.heap_bytes() + self.objects.allocation_size() + self.groups.heap_bytes() + self.group_index.allocation_size()
    }
}
