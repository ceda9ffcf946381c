//! From what the watches know to what the page shows.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use std::collections::{BTreeMap, BTreeSet};

use super::{ImageView, Page, User};
use crate::{
    api::GoldenImage,
    catalog,
    daemon::list::LIST,
    golden::observe,
    rules::{Reason, clone::Known},
    world::{
        Cluster, ConsumerWatch,
        ledger::{GoldenKey, Storage},
    },
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
pub fn users(cluster: &Cluster, consumers: &ConsumerWatch, image: &GoldenImage) -> Known<Vec<User>> {
    let classes = observe::classes(cluster);
    let independent = BTreeSet::new();
    let storage = Storage { classes: &classes, independent: &independent, now: Timestamp::now().as_second() };
    let status = image.status.as_ref();
    let identity = status.and_then(|status| status.identity.as_ref()).and_then(|identity| identity.parse().ok());
    let ledger = consumers.read();
    let mut pools: BTreeMap<String, User> = BTreeMap::new();
    for golden in status.into_iter().flat_map(|status| &status.targets).filter_map(|target| target.golden.as_deref()) {
        for used in ledger.consumers(GoldenKey { name: golden, identity: identity.as_ref() }, storage)?.pools {
            let name = used.pool.to_string();
            let user = pools.entry(name.clone()).or_insert(User { pool: name, consumers: 0, blocking: 0 });
            user.consumers += used.consumers.len();
            user.blocking += used.blocking;
        }
    }
    let mut users: Vec<_> = pools.into_values().collect();
    users.sort_by(|a, b| (a.blocking == 0, &a.pool).cmp(&(b.blocking == 0, &b.pool)));
    Ok(users)
}
