//! What is there: from stores, spool and jobs to the data that a decision is made from.

use std::{collections::BTreeSet, sync::PoisonError, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::ResourceExt as _;
use tokio::sync::Semaphore;

use super::{ActError, Term};
use crate::{
    api::{DeletionPolicy, GoldenImage, GoldenImageStatus, TargetStatus, parse_image},
    catalog::Listing,
    daemon::fence,
    golden::{
        self, CredentialsView, HeldBack, Leaving, Metadata, Observed, Owner, Permits, Reference, Retirement, SpooledView,
        manifest::FINALIZER, observe,
    },
    model::{Digest, DiskSize, GoldenName, Identity, Image, Target},
    rules::{ImporterFacts, Reason, access, class::Classes, marks, pods::going_message, whose::Whose},
    spool::{Grant, Record, Verified},
    world::{evidence::is_guarded, ledger::GoldenKey},
};

/// How long the spool's volume may take to say what it has.
const VOLUME_PATIENCE: Duration = Duration::from_secs(5);
/// Looks at the spool's volume at once: a volume that hangs keeps a thread for each.
static LOOKS: Semaphore = Semaphore::const_new(32);

impl Term {
    /// Everything that a decision about one image depends on.
    pub(super) async fn observe(&self, object: &GoldenImage, uid: &str, now: Timestamp) -> Result<Observed, ActError> {
        let cluster = &self.shared.cluster;
        let status = object.status.clone().unwrap_or_default();
        let name = object.name_any();
        let parsed = parse_image(object);
        let resolved = status.resolved_schematic();
        let identity = parsed.as_ref().ok().and_then(|image| image.identity(resolved.as_ref()));
        let (mut targets, mut leaving) = (Vec::new(), Vec::new());
        if let Ok(image) = &parsed {
            let storage = observe::Storage::of(cluster, &self.shared.settings.node_local_provisioners);
            for spec in &image.targets {
                let mut target = observe::target(cluster, &self.shared.catalog, image, spec, &status, &storage);
                target.taken_by = target.name.as_ref().and_then(|golden| self.shared.index.owner_before(&name, golden.as_str()));
                self.observe_importer(&mut target, uid, &status, now);
                targets.push(target);
            }
            let left = status.without_target(image);
            let classes = if left.is_empty() { Classes::default() } else { observe::classes(cluster) };
            for record in left {
                let former = Target { class: record.requested_class.parse().ok(), ..Target::default() };
                let mut target = observe::target(cluster, &self.shared.catalog, image, &former, &status, &storage);
                // What is there and cannot be read is not gone.
                let is_odd = |golden: &GoldenName| fence::unreadable(cluster, &self.shared.catalog, golden.as_str(), None).is_some();
                if target.name.as_ref().is_none_or(is_odd) {
                    continue;
                }
                self.observe_importer(&mut target, uid, &status, now);
                // Without the identity: a worker class names the image, which has another golden.
                let blockers = target.name.as_ref().and_then(|golden| self.blockers(golden.as_str(), None, &classes));
                leaving.push(Leaving { requested_class: record.requested_class.clone(), target, blockers });
            }
        }
        // A digest given later, or by a re-created image, is held against what the spool has (R9).
        let digest = parsed.as_ref().ok().and_then(|image| image.digest);
        let spooled = match &identity {
            Some(identity) => {
                let is_made = parsed.as_ref().is_ok_and(|image| is_made(image, &status));
                self.spooled(identity, uid, is_made).await?.filter(|spooled| digest.is_none_or(|digest| digest == spooled.artifact_digest))
            }
            None => None,
        };
        let fetch = self.jobs.view(uid);
        let (ca, credentials) = (self.ca_reference(parsed.as_ref().ok()), self.credentials_view(parsed.as_ref().ok()));
        let duplicate_of = identity.as_ref().and_then(|identity| self.shared.index.older_twin(&name, identity.as_str()));
        let named = [&ca, &credentials.reference];
        let is_worked_on = duplicate_of.is_none() && is_worked_on(object, parsed.as_ref().ok(), self.shared.settings.access_is_enforced);
        let comes_later = !is_worked_on || is_held_back(parsed.as_ref().ok(), &status, named, now);
        // For a target that was taken out nothing is fetched; what is fetched for another may be its disk too.
        let all = targets.iter_mut().map(|target| (target, comes_later));
        for (target, comes_later) in all.chain(leaving.iter_mut().map(|leaving| (&mut leaving.target, true))) {
            let waits =
                target.golden.volume.as_ref().is_some_and(|volume| volume.waits_for_the_spool(spooled.as_ref(), &fetch, comes_later));
            if let (true, Some(golden)) = (waits, &target.name) {
                self.memory.with(uid, |image| image.golden(golden).waits_for_us());
                target.golden.moved = Some(now);
            }
        }
        Ok(Observed {
            metadata: Metadata {
                name: name.clone(),
                uid: uid.to_owned(),
                generation: object.metadata.generation,
                retry: object.annotations().get(marks::RETRY).cloned(),
            },
            duplicate_of,
            ca,
            credentials,
            cdi_installed: cluster.volumes.state() != crate::world::StoreState::NotInstalled,
            spooled,
            fetch,
            coming_size: self.jobs.size(uid),
            hung: self.jobs.hung(uid),
            upstream: self.memory.with(uid, |image| image.upstream.clone()),
            listing: match &*self.shared.listings.read().unwrap_or_else(PoisonError::into_inner) {
                Some(known) => known.get(&name).cloned().unwrap_or_default(),
                None => Listing::on_record(&status),
            },
            usage: self.shared.usage.view(&self.shared, object),
            permits: Permits::default(),
            begun: Vec::new(),
            retirement: self.retirement(object, &targets),
            refused: self.memory.with(uid, |image| image.refused.clone()),
            image: parsed,
            status,
            targets,
            leaving,
        })
    }

    /// Who needs a golden, in words; nobody, or why that is not known.
    fn blockers(&self, golden: &str, identity: Option<&String>, classes: &Classes) -> Option<String> {
        let storage = self.shared.usage.storage(classes);
        let identity: Option<Identity> = identity.and_then(|identity| identity.parse().ok());
        match self.shared.consumers.read().consumers(GoldenKey { name: golden, identity: identity.as_ref() }, storage) {
            Ok(consumers) => consumers.blockers(10),
            Err(unknown) => Some(format!("who needs {golden} is not known now ({unknown})")),
        }
    }

    fn credentials_view(&self, image: Option<&Image>) -> CredentialsView {
        let Some(name) = image.and_then(|image| image.credentials.as_ref()) else { return CredentialsView::default() };
        match self.shared.cluster.secrets.get(&self.shared.namespace, name.as_str()) {
            Some(facts) => CredentialsView { reference: Reference::Found, version: Some(facts.version.clone()) },
            None => {
                let what = format!("The Secret {}/{name} (`credentialsSecretRef`)", self.shared.namespace);
                CredentialsView { reference: Reference::Missing(what), version: None }
            }
        }
    }

    /// Whether the image's goldens are to go, and what keeps them.
    fn retirement(&self, object: &GoldenImage, targets: &[golden::ObservedTarget]) -> Retirement {
        let (cluster, catalog) = (&self.shared.cluster, &self.shared.catalog);
        let is_wanted = fence::is_to_go(object);
        let waits_for_goldens = object.spec.deletion_policy == Some(DeletionPolicy::Delete);
        let mut retirement = Retirement {
            is_wanted,
            is_deleted: object.metadata.deletion_timestamp.is_some(),
            waits_for_goldens,
            is_forced: object.annotations().contains_key(marks::FORCE_RETIRE),
            has_finalizer: object.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
            ..Retirement::default()
        };
        let status = object.status.clone().unwrap_or_default();
        let recorded = || status.targets.iter().filter_map(|target| target.golden.as_deref());
        let foreseen = || targets.iter().filter_map(|target| target.name.as_ref()).map(GoldenName::as_str);
        retirement.trouble = self.shared.fence_troubles.of(recorded().chain(foreseen()));
        if !is_wanted {
            return retirement;
        }
        let owner = Owner::of(object);
        // What this process has just made, before the watch shows it.
        let is_made = |target: &golden::ObservedTarget| {
            target.golden.volume.as_ref().is_some_and(|volume| volume.ours) || target.golden.claim.as_ref().is_some_and(|claim| claim.ours)
        };
        retirement.is_left = targets.iter().any(is_made);
        let mut blockers = Vec::new();
        // By record, and what stands there when the record was lost, or never had it: the fence takes all that is the image's.
        let standing = targets.iter().filter(|target| is_made(target)).filter_map(|target| target.name.as_ref()).map(GoldenName::as_str);
        let claims = cluster.claims.all();
        let is_its = |meta: &ObjectMeta, whose: Whose| is_guarded(meta, catalog) && whose == Whose::Its;
        let of_claims = claims.iter().filter(|claim| is_its(&claim.metadata, owner.claim(&claim.metadata))).map(|claim| claim.name_any());
        let volumes = cluster.volumes.all();
        let of_volumes =
            volumes.iter().filter(|volume| is_its(&volume.metadata, owner.volume(&volume.metadata))).map(|volume| volume.name_any());
        let marked: BTreeSet<String> = of_claims.chain(of_volumes).collect();
        let names: BTreeSet<&str> = recorded().chain(standing).chain(marked.iter().map(String::as_str)).collect();
        let classes = observe::classes(cluster);
        for golden in names {
            // What is there and cannot be read is neither gone nor anybody's for certain.
            if let Some(odd) = fence::unreadable(cluster, catalog, golden, None) {
                retirement.is_left = true;
                blockers.push(odd);
                continue;
            }
            // One on record that lost its mark is there still: it gets the mark again, and goes by the fence.
            let on_record = status.of_golden(golden).and_then(|record| record.claim_uid.as_ref());
            let found = cluster.claims.get(catalog, golden);
            let is_on_record = on_record.is_some() && found.as_ref().and_then(|claim| claim.metadata.uid.as_ref()) == on_record;
            if !marked.contains(golden) && !is_on_record {
                continue;
            }
            retirement.is_left = true;
            let claim = found.as_ref().map(|claim| claim.metadata.deletion_timestamp.is_some());
            let volume = || cluster.volumes.get(catalog, golden).is_some_and(|volume| volume.metadata.deletion_timestamp.is_some());
            if claim.unwrap_or_else(volume) {
                let pods = cluster.pods.all();
                retirement.going.push(going_message(pods.iter().map(|pod| &**pod), catalog, golden));
                continue;
            }
            // By what the fence goes: its own label, then the record, which is lost where the image was made again.
            let identity = found.as_ref().and_then(|claim| claim.metadata.labels.as_ref()?.get(marks::IDENTITY));
            blockers.extend(self.blockers(golden, identity.or(status.identity.as_ref()), &classes));
        }
        retirement.blockers = (!blockers.is_empty()).then(|| blockers.join("; "));
        retirement
    }

    /// Adds what the spool and our own memory know of a golden.
    fn observe_importer(&self, target: &mut golden::ObservedTarget, uid: &str, status: &GoldenImageStatus, now: Timestamp) {
        let shown = target.golden.volume.take();
        let disk =
            shown.as_ref().and_then(|volume| volume.disk_digest.clone()).or_else(|| status.disk.as_ref().map(|disk| disk.digest.clone()));
        let Some(golden) = target.name.clone() else {
            target.golden.volume = shown;
            return;
        };
        let grant =
            disk.and_then(|disk| disk.parse::<Digest>().ok()).map(|disk| Grant { uid: uid.to_owned(), golden: golden.clone(), disk });
        target.golden.path = grant.as_ref().map(|grant| self.registry.path(grant));
        let facts = grant.and_then(|grant| self.registry.facts(&grant));
        if let Some(facts) = facts {
            let began = status.of_golden(golden.as_str()).and_then(|entry| entry.started_time.clone());
            let since = |at: std::time::SystemTime| {
                let seconds = at.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
                began.as_ref().is_some_and(|began| i64::try_from(seconds).unwrap_or(0) >= began.0.as_second())
            };
            // What an importer of an earlier attempt did says nothing of this one's.
            let is_of_this = facts.last_request.is_some_and(since);
            // Whoever asked again after that has begun again.
            let is_whole = |at| since(at) && facts.last_request.is_none_or(|last| last <= at);
            target.golden.is_downloaded = facts.last_download.is_some_and(is_whole);
            let refused = self.registry.handshake_failures().iter().any(|failure| failure.certificate_refused && since(failure.time));
            let lately = self.shared.settings.import_deadline / 5;
            let is_late = |at: std::time::SystemTime| at.elapsed().is_ok_and(|since| since < lately);
            target.golden.is_pulling = facts.open_requests > 0 || facts.last_request.is_some_and(is_late);
            target.golden.importer = ImporterFacts {
                connected: is_of_this,
                wrong_token: facts.last_wrong_token.is_some_and(|(at, _)| facts.last_request.is_none_or(|last| last < at)),
                tls_failed: refused && !is_of_this,
            };
        }
        self.memory.with(uid, |image| {
            let memory = image.golden(&golden);
            target.golden.grant = memory.grant.clone();
            target.golden.headers_written = memory.headers_written;
            target.golden.refused = memory.refused.clone();
            target.golden.undeleted = memory.undeleted.clone();
            target.golden.volume = memory.overlay(shown);
            if let Some(volume) = target.golden.volume.as_ref().filter(|volume| volume.phase != "Succeeded") {
                // A crash-looping importer that downloads the disk again and again does not move.
                let percent = volume.percent.unwrap_or(0);
                let known = status.of_golden(golden.as_str());
                let (disk, deadline) = (status.disk.as_ref(), self.shared.settings.import_deadline);
                let deadline = golden::patience(deadline, disk, volume, target.golden.is_downloaded);
                let stood = known.map(|known| golden::stood_still(known, volume, deadline, now)).unwrap_or_default();
                target.golden.moved = Some(memory.moved(&volume.uid, percent, now, stood));
            }
        });
        let waiting = target.golden.volume.as_ref().is_some_and(|volume| volume.phase != "Succeeded") && !target.golden.importer.connected;
        if waiting && let Some(config) = self.shared.cluster.cdi_config.get("", "config") {
            target.golden.trouble = observe::proxy_in_the_way(Some(&config), &self.shared.spool_host).map(|host| {
                let message = format!(
                    "CDI's importers use a proxy (CDIConfig `importProxy`), and the spool's host is not in its `noProxy`: add `{host}`."
                );
                (Reason::ImportProxyInTheWay, message)
            });
        }
    }

    fn ca_reference(&self, image: Option<&Image>) -> Reference {
        let Some((map, key)) = image.and_then(|image| image.ca_bundle.as_ref()) else { return Reference::NotNamed };
        match self.shared.cluster.config_maps.get(&self.shared.namespace, map) {
            Some(facts) if facts.data.contains_key(key) => Reference::Found,
            Some(_) => Reference::Missing(format!("The key {key} of ConfigMap {}/{map} (`caBundleRef`)", self.shared.namespace)),
            None => Reference::Missing(format!("The ConfigMap {}/{map} (`caBundleRef`)", self.shared.namespace)),
        }
    }

    /// What the spool has of an image. The disk is kept from eviction for as long as this image is remembered to need it.
    ///
    /// A volume that does not answer stops neither images that need nothing of it, nor those whose disk is kept already.
    async fn spooled(&self, identity: &Identity, uid: &str, is_made: bool) -> Result<Option<SpooledView>, ActError> {
        let (store, wanted) = (self.shared.store.clone(), identity.clone());
        let look = async {
            // Looks that hang hold all the places: one more would only wait as they do.
            let place = LOOKS.try_acquire().ok()?;
            // The place is free when the volume has answered, not when nobody waits for it any more.
            Some(tokio::task::spawn_blocking(move || (place, store.find(&wanted)).1).await)
        };
        let Ok(Some(found)) = tokio::time::timeout(VOLUME_PATIENCE, look).await else {
            let kept = self.memory.with(uid, |image| image.spooled.clone().filter(|_| is_made || image.disk.is_some()));
            return if kept.is_some() || is_made { Ok(kept) } else { Err(ActError::SpoolSlow) };
        };
        match found {
            Ok(Ok(Some(spooled))) => {
                let view = spooled_view(&spooled.record);
                self.memory.with(uid, |image| (image.disk, image.spooled) = (Some(spooled.lease), view.clone()));
                Ok(view)
            }
            Ok(Ok(None)) | Err(_) => Ok(None),
            Ok(Err(error)) => {
                tracing::warn!(%identity, %error, "the spool cannot be asked");
                Ok(None)
            }
        }
    }
}

/// Whether anybody fetches for an image: none for one whose goldens are to go, or that is not accepted.
fn is_worked_on(object: &GoldenImage, image: Option<&Image>, access_is_enforced: bool) -> bool {
    !fence::is_to_go(object) && image.is_some_and(|image| access::held_back(image, access_is_enforced).is_none())
}

/// Whether a disk that the spool lacks is not fetched before something changes, or before its time. `named` is what the spec names for it.
fn is_held_back(image: Option<&Image>, status: &GoldenImageStatus, named: [&Reference; 2], now: Timestamp) -> bool {
    let is_to_wait = status.fetch.as_ref().and_then(|fetch| fetch.next_attempt_time.as_ref()).is_some_and(|at| at.0 > now);
    let [ca, credentials] = named;
    is_to_wait || HeldBack::of(image.is_some_and(|image| image.suspend), ca, credentials).is_some()
}

/// Whether every golden of an image is made: nothing of the spool is needed then.
fn is_made(image: &Image, status: &GoldenImageStatus) -> bool {
    status.targets.len() >= image.targets.len() && status.targets.iter().all(TargetStatus::is_made)
}

fn spooled_view(record: &Record) -> Option<SpooledView> {
    Some(SpooledView {
        artifact_digest: record.artifact.digest,
        artifact_size: record.artifact.size,
        format: record.artifact.format.clone(),
        resolved_url: Some(record.artifact.resolved_url.clone()),
        etag: record.artifact.etag.clone(),
        resolved_time: Some(record.artifact.resolved_time),
        disk_digest: record.disk.digest,
        virtual_size: DiskSize::from_bytes(record.disk.virtual_size)?,
        digest_matched: record.verified == Verified::Digest,
        container: record.artifact.container.clone(),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{Reference, is_held_back, is_worked_on};
    use crate::api::{GoldenImage, GoldenImageStatus, parse_image};

    fn image(meta: &Value, spec: &Value) -> GoldenImage {
        let mut object = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" },
            "spec": { "source": { "http": { "url": "https://e.example/a" } } },
        });
        for (part, more) in [("metadata", meta), ("spec", spec)] {
            for (key, value) in more.as_object().expect("a map") {
                object[part][key] = value.clone();
            }
        }
        serde_json::from_value(object).expect("readable")
    }

    /// R11: an import that waits for a disk that nobody fetches does not keep its turn for good.
    #[rstest]
    #[case::accepted(json!({}), json!({}), false, true)]
    #[case::for_few_which_nothing_enforces(json!({}), few(), false, false)]
    #[case::for_few(json!({}), few(), true, true)]
    #[case::retired(json!({}), json!({ "retire": true }), true, false)]
    #[case::deleted_with_its_goldens(deleted(), json!({ "deletionPolicy": "Delete" }), true, false)]
    #[case::deleted_and_they_stay(deleted(), json!({ "deletionPolicy": "Retain" }), true, true)]
    #[case::not_to_be_read(json!({}), json!({ "source": {} }), true, false)]
    fn r11_nobody_fetches_for_an_image_that_is_not_worked_on(
        #[case] meta: Value,
        #[case] spec: Value,
        #[case] is_enforced: bool,
        #[case] expected: bool,
    ) {
        let object = image(&meta, &spec);
        assert_eq!(is_worked_on(&object, parse_image(&object).ok().as_ref(), is_enforced), expected);
    }

    fn few() -> Value {
        json!({ "access": { "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } } })
    }

    fn deleted() -> Value {
        json!({ "deletionTimestamp": "2026-11-30T10:00:00Z", "finalizers": ["f"] })
    }

    #[rstest]
    #[case::nothing(json!({}), json!({}), Reference::NotNamed, false)]
    #[case::suspended(json!({ "suspend": true }), json!({}), Reference::Found, true)]
    #[case::without_its_secret(json!({}), json!({}), Reference::Missing("s".into()), true)]
    #[case::after_a_failure(json!({}), json!({ "nextAttemptTime": "2026-11-30T10:00:01Z" }), Reference::Found, true)]
    #[case::its_time_has_come(json!({}), json!({ "nextAttemptTime": "2026-11-30T10:00:00Z" }), Reference::Found, false)]
    fn r11_what_is_not_fetched_for_now(#[case] spec: Value, #[case] fetch: Value, #[case] named: Reference, #[case] expected: bool) {
        let now: Timestamp = "2026-11-30T10:00:00Z".parse().expect("time");
        let status: GoldenImageStatus = serde_json::from_value(json!({ "fetch": fetch })).expect("a status");
        let image = parse_image(&image(&json!({}), &spec)).ok();
        assert_eq!(is_held_back(image.as_ref(), &status, [&Reference::NotNamed, &named], now), expected);
    }
}
