//! Verdicts on clones (R13–R18, R21, R23): the object's requests, each completed with live reads, judged by `rules::clone`.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use super::{
    Answer, Live, Scene,
    patch::{Operation, operations},
    review::{self, Request, Verb},
    source::{Found, source_facts},
    view::{View, is_selected, pool_facts, verdict_on},
};
use crate::{
    foreign::{Claim, DataSource, DataVolume, KubevirtMachineTemplate, VirtualMachine},
    rules::{
        class::StatedClass,
        clone::{CloneRequest, Known, Rule, Source, SourceFacts, Subject, Unknown, Verdict, asks_of_pool},
        marks,
        pool::{Pool, PoolClue},
    },
    world::{
        evidence::{Observe, goes_with, machine_clue, owning_machine},
        facts,
        ledger::{Chain, Kind, Ledger, Target},
        requests::{Clones, Surroundings, controlling_volume, new_requests},
    },
};

/// The longest chain of DataSources that is read live; the ledger follows no more either.
const LONGEST_CHAIN: usize = 8;
/// At most so many DataSources of one object are read live: a VM has a handful of disks.
const MOST_POINTERS: usize = 32;
/// The most clones that one object may ask for.
const MOST_DISKS: usize = 256;
/// The most goldens that one object may clone: each is read live.
const MOST_SOURCES: usize = 32;
/// Live reads of one object at once.
const READS: usize = 8;

/// The answer on one object of any clone form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The answer.
    pub answer: Answer,
    /// The rules that a refused clone broke.
    pub broken: BTreeSet<Rule>,
    /// Whether the object has a form that no schema allows, as far as is known here.
    pub is_odd: bool,
}

impl From<Answer> for Judged {
    fn from(answer: Answer) -> Self {
        Self { answer, broken: BTreeSet::new(), is_odd: false }
    }
}

/// How an answer reaches the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The object may still be changed, and is judged again as it leaves.
    Mutating,
    /// The last look.
    Validating,
}

/// Decides on one object of any clone form.
pub async fn judge_clones(request: &Request, way: Way, scene: &Scene, live: &Live) -> Judged {
    let kind = (request.kind.group.as_str(), request.kind.kind.as_str());
    let outcome = match kind {
        ("cdi.kubevirt.io", "DataVolume") => verdict::<DataVolume>(request, way, scene, live).await,
        ("", "PersistentVolumeClaim") => verdict::<Claim>(request, way, scene, live).await,
        ("kubevirt.io", "VirtualMachine") => verdict::<VirtualMachine>(request, way, scene, live).await,
        ("infrastructure.cluster.x-k8s.io", "KubevirtMachineTemplate") => {
            verdict::<KubevirtMachineTemplate>(request, way, scene, live).await
        }
        ("cdi.kubevirt.io", "DataSource") => verdict::<DataSource>(request, way, scene, live).await,
        (group, kind) => {
            Ok(Answer::Refuse(format!("golden-catalog judges no {kind} of group {group:?}: check the webhook's rules")).into())
        }
    };
    outcome.unwrap_or_else(|unknown| Answer::from(unknown).into())
}

async fn verdict<K>(request: &Request, way: Way, scene: &Scene, live: &Live) -> Known<Judged>
where
    K: Clones + Observe + Resource<DynamicType = ()>,
{
    let Some(object) = request.object.as_ref().filter(|_| matches!(request.operation, Verb::Create | Verb::Update)) else {
        return Ok(Answer::allow().into());
    };
    let odd = |unknown: Unknown| Judged { is_odd: true, ..Answer::from(unknown).into() };
    let new: K = match review::read(object) {
        Ok(new) => new,
        Err(unknown) => return Ok(odd(unknown)),
    };
    // What goes away asks for nothing any more; its finalizers must come off. What is made is judged whatever it says of itself: a
    // server-side apply can make what looks as if it were going away.
    if request.operation == Verb::Update && new.meta().deletion_timestamp.is_some() {
        return Ok(Answer::allow().into());
    }
    let old: Option<K> =
        request.old_object.as_ref().filter(|_| request.operation == Verb::Update).map(|old| review::read(old)).transpose()?;
    let around = Read::before(&new, scene, live).await?;
    let (requests, without_token) = {
        let ledger = scene.ledger.read();
        let around = Around { ledger: &ledger, read: &around };
        let with_token = new.clone_requests(&around);
        // Of what leads elsewhere, the token is nothing to us.
        let leads_here = with_token.as_ref().map_or(true, |requests| !requests.is_empty());
        let token = new.unneeded_token().filter(|_| way == Way::Mutating && leads_here);
        let asked = if token.is_some() { new.requests_without_token(&around) } else { with_token };
        let asked = match asked {
            Err(unknown) if !new.is_readable() => return Ok(odd(unknown)),
            asked => asked?,
        };
        if let Some(refusal) = too_many(&asked) {
            return Ok(Answer::Refuse(refusal).into());
        }
        // What the old object asked for is never worth a refusal: if it cannot be told, everything counts as new.
        let before = old.map(|old| old.requests_without_token(&around).unwrap_or_default()).unwrap_or_default();
        (new_requests(&before, asked), token.map(Operation::without_annotation).into_iter().collect::<Vec<_>>())
    };
    let Some(kind) = requests.first().map(|request| request.subject.kind) else {
        return Ok(Answer::Allow { patch: without_token, warnings: Vec::new() }.into());
    };
    let sources = read_sources(&requests, scene, live).await;
    let verdict = judge_all(&requests, &sources, scene, live).await;
    let message = verdict.message().unwrap_or_default();
    let broken = match &verdict {
        Verdict::Refuse(violations) => violations.iter().map(|violation| violation.rule).collect(),
        _ => BTreeSet::new(),
    };
    let answer = match verdict {
        Verdict::Allow { patch, warnings } => {
            let mut patch = if kind.is_disk() { operations(kind, &review::read(object)?, &patch) } else { Vec::new() };
            patch.extend(without_token);
            Answer::Allow { patch, warnings }
        }
        Verdict::NotOurs => Answer::Allow { patch: without_token, warnings: Vec::new() },
        Verdict::Refuse(_) => Answer::Refuse(message),
        Verdict::Unknown(_) => Answer::Later(message),
    };
    Ok(Judged { broken, ..answer.into() })
}

/// Why an object asks for more than is judged at once: each disk, and each golden, costs a verdict time and memory, and a tenant writes how
/// many there are.
fn too_many(requests: &[CloneRequest]) -> Option<String> {
    let sources: BTreeSet<&Source> = requests.iter().map(|request| &request.source).collect();
    let subject = || Subject { disk: None, ..requests[0].subject.clone() };
    let refused = |count: usize, what: &str, most: usize| {
        format!("{} asks for {count} {what}, more than the {most} that are judged of one object: make several of it", subject())
    };
    if requests.len() > MOST_DISKS {
        Some(refused(requests.len(), "clones of golden images", MOST_DISKS))
    } else if sources.len() > MOST_SOURCES {
        Some(refused(sources.len(), "different golden images", MOST_SOURCES))
    } else {
        None
    }
}

/// What was read live of each source.
type Sources = BTreeMap<Source, Known<SourceFacts>>;

async fn read_sources(requests: &[CloneRequest], scene: &Scene, live: &Live) -> Sources {
    let sources: BTreeSet<Source> = requests.iter().map(|request| request.source.clone()).collect();
    let reads = sources.into_iter().map(|source| async move {
        let facts = read_source(&source, scene, live).await;
        (source, facts)
    });
    futures::stream::iter(reads).buffer_unordered(READS).collect().await
}

/// Reads what stands under a name.
async fn read_source(source: &Source, scene: &Scene, live: &Live) -> Known<SourceFacts> {
    let mut found = Found::default();
    let claim = match source {
        Source::Claim(name) => Some(name.clone()),
        Source::Snapshot(name) => {
            found.snapshot = live.snapshot(name).await?;
            let of =
                found.snapshot.as_ref().and_then(|snapshot| snapshot.spec.read()?.source.as_ref()?.persistent_volume_claim_name.clone());
            of.filter(|name| !name.is_empty())
        }
    };
    if let Some(name) = &claim {
        found.claim = live.claim(name).await?;
        // While it is being made, its DataVolume carries the fence too, and alone before CDI has made the claim.
        let seen = scene.volumes.get(&scene.catalog, name).filter(|volume| is_made(found.claim.as_ref(), volume));
        found.volume = match seen {
            Some(volume) => Some((*volume).clone()),
            None => live.volume(name).await?,
        };
    }
    source_facts(source, &found, &scene.images, &scene.catalog)
}

/// Whether a golden is finished for certain: by its claim as it is now, and by its DataVolume as the watch shows it.
fn is_made(claim: Option<&Claim>, volume: &DataVolume) -> bool {
    let is_bound = |claim: &Claim| facts::claim_seen(claim).phase == "Bound" && goes_with(&claim.metadata, volume.metadata.uid.as_deref());
    facts::volume_seen(volume).phase == "Succeeded" && claim.is_some_and(is_bound)
}

/// Judges each disk; what they share is looked up once.
async fn judge_all(requests: &[CloneRequest], sources: &Sources, scene: &Scene, live: &Live) -> Verdict {
    let namespace = requests.first().map_or("", |request| request.subject.namespace.as_str());
    // Only where somebody is chosen must the chosen be known.
    let labels = if sources.values().any(is_selected) { live.namespace_labels(namespace).await } else { Ok(BTreeMap::new()) };
    let (classes, profiles) = (scene.classes(), scene.profiles());
    let view = View {
        catalog: &scene.catalog,
        classes: classes.as_ref().map_err(Clone::clone),
        profiles: profiles.as_ref().map_err(Clone::clone),
        overheads: &scene.overheads(),
        node_local: &scene.node_local,
    };
    let ledger = scene.ledger.read();
    let mut pools = BTreeMap::new();
    Verdict::all(requests.iter().map(|request| {
        let source = sources.get(&request.source).cloned().unwrap_or_else(|| Err(Unknown("the source was not read".to_owned())));
        let facts = pools.entry((&request.pool, &request.source, asks_of_pool(request, &source)));
        let pool = facts.or_insert_with(|| pool_facts(request, &source, &ledger)).clone();
        verdict_on(request, source, labels.as_ref().map_err(Clone::clone), pool, &view)
    }))
}

/// What of an object's surroundings was read live, because a watch may not have it yet: DataSources that its disks point to, the VM it belongs to.
#[derive(Default)]
struct Read {
    chains: BTreeMap<(String, String), Chain>,
    machine: Option<(String, Pool)>,
    /// The DataVolume that controls a claim which asks for a clone in CDI's former way.
    volume: Option<DataVolume>,
}

impl Read {
    async fn before<K: Observe>(object: &K, scene: &Scene, live: &Live) -> Known<Self> {
        let mut read = Self::default();
        let facts = object.facts(&scene.catalog);
        let pointers = facts.iter().flat_map(|facts| &facts.references).filter_map(|reference| match &reference.target {
            Target::DataSource { namespace, name } => Some((namespace.clone(), name.clone())),
            _ => None,
        });
        let pointers: BTreeSet<_> = pointers.collect();
        let reads = pointers.into_iter().take(MOST_POINTERS).map(|pointer| async move {
            let chain = follow(&pointer.0, &pointer.1, scene, live).await?;
            Ok((pointer, chain))
        });
        read.chains = futures::stream::iter(reads).buffer_unordered(READS).try_collect().await?;
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        if let Some(machine) = owning_machine(object.meta())
            && !scene.ledger.read().has(Kind::VirtualMachine, namespace, machine)
            && let Some(found) = live.machine(namespace, machine).await?
        {
            read.machine = Some((machine.to_owned(), machine_clue(&found)));
        }
        let is_asked = |meta: &ObjectMeta| meta.annotations.as_ref().is_some_and(|notes| notes.contains_key(marks::CDI_CLONE_REQUEST));
        if let Some(owner) = controlling_volume(object.meta()).filter(|_| is_asked(object.meta())) {
            // An owner's UID may be whatever a tenant wrote.
            read.volume = live.volume_in(namespace, &owner.name).await?.filter(|found| found.metadata.uid.as_ref() == Some(&owner.uid));
        }
        Ok(read)
    }
}

/// Follows a DataSource to its end by live reads.
async fn follow(namespace: &str, name: &str, scene: &Scene, live: &Live) -> Known<Chain> {
    let mut next = (namespace.to_owned(), name.to_owned());
    for _ in 0..LONGEST_CHAIN {
        let Some(source) = live.data_source(&next.0, &next.1).await? else { break };
        let target = source.facts(&scene.catalog).and_then(|facts| facts.references.into_iter().next());
        match target.map(|reference| reference.target) {
            Some(Target::Claim(name)) => return Ok(Chain::Catalog(Source::Claim(name))),
            Some(Target::Snapshot(name)) => return Ok(Chain::Catalog(Source::Snapshot(name))),
            Some(Target::DataSource { namespace, name }) => next = (namespace, name),
            Some(Target::Anything) => return Err(Unknown(format!("DataSource {}/{} cannot be read", next.0, next.1))),
            _ => break,
        }
    }
    Ok(Chain::Elsewhere)
}

/// The ledger, with what was read live before it.
struct Around<'a> {
    ledger: &'a Ledger,
    read: &'a Read,
}

impl Surroundings for Around<'_> {
    fn catalog_namespace(&self) -> &str {
        self.ledger.catalog_namespace()
    }

    fn data_source(&self, namespace: &str, name: &str) -> Known<Chain> {
        match self.read.chains.get(&(namespace.to_owned(), name.to_owned())) {
            Some(chain) => Ok(chain.clone()),
            None => self.ledger.data_source(namespace, name),
        }
    }

    fn pool(&self, namespace: &str, clue: &PoolClue) -> Known<Pool> {
        match (clue, &self.read.machine) {
            (PoolClue::Machine(machine), Some((read, pool))) if machine == read => Ok(pool.clone()),
            _ => self.ledger.pool(namespace, clue),
        }
    }

    fn template_pool(&self, namespace: &str, name: &str) -> Known<Pool> {
        self.ledger.template_pool(namespace, name)
    }

    fn is_asked_by(&self, _: &str, _: &OwnerReference, golden: &str, class: &StatedClass) -> Known<bool> {
        // A token may have been written on it by anybody, and makes nothing of it that was judged.
        let asked = self.read.volume.as_ref().map(|volume| volume.requests_without_token(self)).transpose()?;
        Ok(asked.into_iter().flatten().any(|request| request.source.name() == golden && request.class == *class))
    }
}
