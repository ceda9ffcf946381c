//! One verdict from what is known, however it was read: from watches and live reads (admission), from lists or files (`explain`).

use std::collections::BTreeMap;

use crate::{
    rules::{
        class::Classes,
        clone::{Access, CloneRequest, Known, Profile, Situation, SourceFacts, Verdict, judge},
        size::Overheads,
    },
    world::ledger::Ledger,
};

/// What of the cluster every verdict reads alike.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// The namespace of the goldens.
    pub catalog: &'a str,
    /// StorageClasses.
    pub classes: Known<&'a Classes>,
    /// What CDI knows of them.
    pub profiles: Known<&'a BTreeMap<String, Profile>>,
    /// File system overheads.
    pub overheads: &'a Overheads,
    /// R17: provisioners whose volumes live on one node.
    pub node_local: &'a [String],
}

/// Whether the labels of the namespace that asks decide (R18).
pub const fn is_selected(source: &Known<SourceFacts>) -> bool {
    matches!(source, Ok(SourceFacts::Golden(golden)) if matches!(golden.access, Access::Selected(_)))
}

/// Decides on one clone.
pub fn verdict_on(
    request: &CloneRequest,
    source: Known<SourceFacts>,
    namespace_labels: Known<&BTreeMap<String, String>>,
    ledger: &Ledger,
    view: &View<'_>,
) -> Verdict {
    let golden = match &source {
        Ok(SourceFacts::Golden(golden)) => golden.name.clone(),
        _ => request.source.name().to_owned(),
    };
    let situation = Situation {
        catalog_namespace: view.catalog,
        source,
        classes: view.classes.clone(),
        profiles: view.profiles.clone(),
        overheads: view.overheads,
        pool: ledger.pool_facts(&request.pool, &golden),
        namespace_labels,
        node_local: view.node_local,
    };
    judge(request, &situation)
}
