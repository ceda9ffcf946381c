//! What is to be written on consumers (R25, R15): walked in pieces, so that ten thousand disks make no write storm.

use super::{
    Ledger,
    facts::{Kind, format_uid},
    links::GoldenLink,
    names::NameId,
    rows::{ObjectKey, Row, flag},
};
use crate::rules::{
    clone::Known,
    consumers::Evidence,
    pool::Pool,
    repair::{CloneOf, FoundMarks, Repair, repair},
};

/// Marks to be written on one disk's DataVolume or claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkRepair {
    /// [`Kind::DataVolume`] or [`Kind::Claim`].
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, so that a disk made anew under the name is not written to.
    pub uid: Option<String>,
    /// What to write.
    pub repair: Repair,
}

/// A machine template whose class is to be recorded on it (R15).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UnrecordedTemplate {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Option<String>,
}

/// A walk over the ledger that goes on where it stopped. Objects that come and go meanwhile are met by the next walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walk(u32);

/// How many rows one call of [`Ledger::mark_repairs`] looks at: some milliseconds.
const ROWS_AT_ONCE: u32 = 20_000;

impl Ledger {
    /// The next disks whose marks are missing or wrong (R25), at most `most`; `None` for the walk when it has met every row. One call looks at a bounded number of rows, because watches wait meanwhile.
    ///
    /// # Errors
    /// While the kinds that tell golden and pool are not all known: nothing is written from half of the truth.
    pub fn mark_repairs(&self, walk: Walk, most: usize) -> Known<(Vec<MarkRepair>, Option<Walk>)> {
        self.known(&[Kind::DataVolume, Kind::Claim, Kind::VirtualMachine, Kind::DataSource, Kind::Snapshot, Kind::CloneSource])?;
        let mut found = Vec::new();
        for row in walk.0..self.rows.end() {
            if found.len() >= most || row - walk.0 >= ROWS_AT_ONCE {
                return Ok((found, Some(Walk(row))));
            }
            if self.rows.is_first(row) {
                found.extend(self.mark_repair(row));
            }
        }
        Ok((found, None))
    }

    /// What is to be written on this one disk, by its name.
    ///
    /// # Errors
    /// As [`Self::mark_repairs`].
    pub fn mark_repair_of(&self, kind: Kind, namespace: &str, name: &str) -> Known<Option<MarkRepair>> {
        self.known(&[Kind::DataVolume, Kind::Claim, Kind::VirtualMachine, Kind::DataSource, Kind::Snapshot, Kind::CloneSource])?;
        Ok(self.object(kind, namespace, name).and_then(|row| self.mark_repair(row)))
    }

    /// Machine templates that clone a golden and whose class is neither stated nor recorded (R15), of pools that are known: whose template it is decides on its class, and a template may be there a moment before its MachineDeployment.
    ///
    /// # Errors
    /// While machine templates, or what names them, are not all known.
    pub fn templates_without_class(&self) -> Known<Vec<UnrecordedTemplate>> {
        self.known(&[Kind::MachineTemplate, Kind::MachineDeployment, Kind::MachineSet])?;
        let lacks = |row: &u32| {
            let found = self.rows.get(*row);
            let asks = |row: &Row| row.kind == Kind::MachineTemplate && row.is(flag::LACKS_CLASS) && !row.is(flag::TERMINATING);
            found.is_some_and(asks) && self.rows.is_first(*row)
        };
        let rows = (0..self.rows.end()).filter(lacks).filter_map(|row| self.rows.get(row));
        let rows = rows.filter(|row| self.pool_of(row) != Pool::Unknown);
        Ok(rows
            .map(|row| {
                let uid = u128::from_be_bytes(row.uid);
                UnrecordedTemplate {
                    namespace: self.names.get(row.namespace).to_owned(),
                    name: self.names.get(row.name).to_owned(),
                    uid: (uid != 0).then(|| format_uid(uid)),
                }
            })
            .collect())
    }

    fn mark_repair(&self, first: u32) -> Option<MarkRepair> {
        let row = self.rows.get(first)?;
        let in_catalog = self.names.get(row.namespace) == self.catalog_namespace;
        if !matches!(row.kind, Kind::DataVolume | Kind::Claim) || row.is(flag::TERMINATING) || in_catalog {
            return None;
        }
        let link = self.clone_link(first, row)?;
        let clone_of = match link.evidence {
            Evidence::Spec | Evidence::CloneRecord => CloneOf::Named(self.names.get(link.golden)),
            Evidence::DataSource | Evidence::Mark => CloneOf::Pointed(self.names.get(link.golden)),
            Evidence::Identity | Evidence::Unreadable | Evidence::Unknown => return None,
        };
        let text = |id: NameId| id.some().map(|id| self.names.get(id));
        let found = FoundMarks { golden: text(row.golden_mark), pool: text(row.pool_mark) };
        let repair = repair(found, clone_of, self.names.get(row.namespace), &self.pool_of(row))?;
        let uid = u128::from_be_bytes(row.uid);
        Some(MarkRepair {
            kind: row.kind,
            namespace: self.names.get(row.namespace).to_owned(),
            name: self.names.get(row.name).to_owned(),
            uid: (uid != 0).then(|| format_uid(uid)),
            repair,
        })
    }

    /// The golden of a disk; a claim's by its DataVolume before its own record or mark.
    fn clone_link(&self, first: u32, row: &Row) -> Option<GoldenLink> {
        if row.kind == Kind::Claim {
            let key = ObjectKey { kind: Kind::DataVolume, namespace: row.namespace, name: row.name };
            let volume = self.rows.find(key).and_then(|volume| self.golden_of(volume));
            return [volume, self.golden_of(first)].into_iter().flatten().min_by_key(|link| link.rank());
        }
        self.golden_of(first)
    }
}
