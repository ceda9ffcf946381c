//! From what the watches know to what the page shows.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::{ImageView, Page, User};
use crate::{
    api::GoldenImage,
    catalog,
    daemon::list::LIST,
    golden::Goldens,
    rules::{Reason, clone::Known, consumers::PoolUse},
    world::{Cluster, ConsumerWatch, ledger::Storage},
};

/// The page of this moment. `users` says who uses an image.
pub fn look(cluster: &Cluster, namespace: &str, leads: bool, users: impl Fn(&GoldenImage) -> Known<Vec<User>>) -> Page {
    let mut images = cluster.images.all();
    images.sort_by_key(|image| image.name_any());
    Page {
        made: Some(Timestamp::now()),
        leads,
        unknown: cluster.unknown().map(|kind| format!("{kind} are not synced")),
        refused: refused(cluster, namespace),
        images: images.iter().map(|image| ImageView::new(image, users(image))).collect(),
    }
}

/// The entries of the list that become nothing, as the leader's plan finds them.
fn refused(cluster: &Cluster, namespace: &str) -> Vec<(String, String)> {
    let Some(facts) = cluster.config_maps.get(namespace, LIST.0) else { return Vec::new() };
    let list = match catalog::read_list(facts.data.get(LIST.1).map(String::as_str).unwrap_or_default()) {
        Ok(list) => list,
        Err(error) => return vec![(Reason::InvalidEntry.to_string(), error.to_string())],
    };
    let existing: Vec<_> = cluster.images.all().iter().map(|image| (**image).clone()).collect();
    let plan = catalog::plan(&list, &existing, &format!("{namespace}/{}", LIST.0));
    plan.problems.into_iter().map(|problem| (problem.reason.to_string(), problem.message)).collect()
}

/// Who uses an image's goldens, by pool, whoever keeps them first.
///
/// # Errors
/// While not all consumers are known: unknown is never nobody.
pub fn users(consumers: &ConsumerWatch, goldens: &Goldens, storage: Storage<'_>) -> Known<Vec<User>> {
    // Blockers first, as the ledger has them.
    let used = consumers.read().consumers_of(goldens.keys(), storage)?;
    let user = |used: PoolUse| User { pool: used.pool.to_string(), consumers: used.consumers.len(), blocking: used.blocking };
    Ok(used.pools.into_iter().map(user).collect())
}
