//! One verdict from what is known, however it was read: from watches and live reads (admission), from lists or files (`explain`).

use std::collections::BTreeMap;

use crate::{
    rules::{
        class::Classes,
        clone::{Access, CloneRequest, Known, PoolFacts, Profile, Situation, SourceFacts, Verdict, asks_of_pool, judge},
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

/// What the pool that asks is like, as far as the verdict hangs on it.
///
/// # Errors
/// While what tells it is not all known.
pub fn pool_facts(request: &CloneRequest, source: &Known<SourceFacts>, ledger: &Ledger) -> Known<PoolFacts> {
    if !asks_of_pool(request, source) {
        return Ok(PoolFacts::default());
    }
    let golden = match source {
        Ok(SourceFacts::Golden(golden)) => golden.name.as_str(),
        _ => request.source.name(),
    };
    ledger.pool_facts(&request.pool, golden)
}

/// Decides on one clone.
pub fn verdict_on(
    request: &CloneRequest,
    source: Known<SourceFacts>,
    namespace_labels: Known<&BTreeMap<String, String>>,
    pool: Known<PoolFacts>,
    view: &View<'_>,
) -> Verdict {
    let situation = Situation {
        catalog_namespace: view.catalog,
        source,
        classes: view.classes.clone(),
        profiles: view.profiles.clone(),
        overheads: view.overheads,
        pool,
        namespace_labels,
        node_local: view.node_local,
    };
    judge(request, &situation)
}
