//! `golden-catalog explain`: why a disk, VM, machine template or pool is refused or waits, by the same functions as admission, from the cluster or from exported files.

mod gather;
mod show;

use std::{collections::BTreeMap, path::PathBuf};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::ResourceExt as _;

use super::{Exit, Failure, Output, client};
use crate::{
    admission::{Found, View, is_selected, pool_facts, source_facts, verdict_on},
    foreign::{Claim, DataVolume, KubevirtMachineTemplate, VirtualMachine, VolumeSnapshot},
    rules::{
        capability::NODE_LOCAL_PROVISIONERS,
        clone::{CloneRequest, Known, Source, SourceFacts, SubjectKind, Unknown, Verdict},
        marks,
        pods::holds_golden,
    },
    world::{facts, requests::Clones},
};
use gather::{Objects, Single};

/// How many disks of a pool are looked at side by side.
const READS_AT_ONCE: usize = 8;

/// Exit codes, for the end of `--help`.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 nothing stands against it, 1 refused, 2 not known or not found, 64 wrong usage.";

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArguments {
    /// What to explain: NAMESPACE/KIND/NAME, where KIND is datavolume (dv), persistentvolumeclaim (pvc), virtualmachine (vm), kubevirtmachinetemplate, or a pool's, such as KubernetesNodes or VMDisk.
    #[arg(value_name = "NAMESPACE/KIND/NAME")]
    subject: String,
    /// Read these exported files instead of the cluster: `kubectl get … -A -o yaml`.
    #[arg(long, short, value_name = "FILE", num_args = 1..)]
    file: Vec<PathBuf>,
    /// The files hold everything there is: a kind that is not in them has no objects. Without it such a kind is not known.
    #[arg(long, requires = "file")]
    complete: bool,
    /// The namespace of the goldens.
    #[arg(long, default_value = "cozy-public")]
    catalog_namespace: String,
    /// A provisioner whose volumes live on one node (R17), as in the daemon's setting `nodeLocalProvisioners`; may be repeated. One or more replace the list that is built in.
    #[arg(long = "node-local-provisioner", value_name = "PROVISIONER", default_values_t = NODE_LOCAL_PROVISIONERS.map(str::to_owned), hide_default_value = true)]
    node_local: Vec<String>,
    /// The form of the answer.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// One disk that is asked for, and what is to be said of it.
#[derive(Debug, Clone)]
struct Explained {
    request: CloneRequest,
    verdict: Verdict,
    /// Why it waits, where it was admitted and does not go on.
    waits: Vec<String>,
}

/// Explains one subject.
pub(super) async fn run(arguments: ExplainArguments) -> Result<Exit, Failure> {
    let parts: Vec<&str> = arguments.subject.split('/').collect();
    let [namespace, kind, name] = parts[..] else {
        return Err(Failure::usage(format!("{:?} is not NAMESPACE/KIND/NAME, such as tenant-a/datavolume/disk", arguments.subject)));
    };
    let objects = match arguments.file.as_slice() {
        [] => Objects::from_cluster(&client().await?, &arguments.catalog_namespace, namespace).await?,
        files => Objects::from_files(files, arguments.complete, &arguments.catalog_namespace)?,
    };
    let requests = requests(&objects, namespace, kind, name).await?;
    let sources = sources(&objects, &requests).await?;
    let explained = requests.into_iter().map(|request| explain(&objects, &sources, request, &arguments.node_local));
    let explained: Vec<Explained> = stream::iter(explained).buffered(READS_AT_ONCE).try_collect().await?;
    match arguments.output {
        Output::Table => print!("{}", show::table(&arguments.subject, &arguments.catalog_namespace, &explained)),
        Output::Json => println!("{:#}", show::json(&arguments.subject, &explained)),
    }
    Ok(exit(&explained))
}

fn exit(explained: &[Explained]) -> Exit {
    let is = |test: fn(&Verdict) -> bool| explained.iter().any(|explained| test(&explained.verdict));
    if is(|verdict| matches!(verdict, Verdict::Refuse(_))) {
        Exit::No
    } else if is(|verdict| matches!(verdict, Verdict::Unknown(_))) {
        Exit::Unknown
    } else {
        Exit::Ok
    }
}

/// The clones that the subject asks for.
async fn requests(objects: &Objects, namespace: &str, kind: &str, name: &str) -> Result<Vec<CloneRequest>, Failure> {
    let one = match kind.to_ascii_lowercase().as_str() {
        "datavolume" | "datavolumes" | "dv" => asked::<DataVolume>(objects, namespace, name).await?,
        "persistentvolumeclaim" | "persistentvolumeclaims" | "pvc" => {
            // A disk's claim asks for what its DataVolume asks for.
            match asked::<DataVolume>(objects, namespace, name).await? {
                Some(requests) => Some(requests),
                None => asked::<Claim>(objects, namespace, name).await?,
            }
        }
        "virtualmachine" | "virtualmachines" | "vm" => asked::<VirtualMachine>(objects, namespace, name).await?,
        "kubevirtmachinetemplate" | "kubevirtmachinetemplates" => asked::<KubevirtMachineTemplate>(objects, namespace, name).await?,
        _ => {
            let pool = format!("{namespace}/{kind}/{name}");
            let mut found = of_pool::<KubevirtMachineTemplate>(objects, namespace, &pool).await?;
            found.extend(of_pool::<VirtualMachine>(objects, namespace, &pool).await?);
            found.extend(of_pool::<DataVolume>(objects, namespace, &pool).await?);
            if found.is_empty() {
                return Err(Failure::new(format!("nothing of pool {pool} clones a golden{}", objects.hint())));
            }
            return Ok(found);
        }
    };
    one.ok_or_else(|| Failure::new(format!("there is no {kind} {namespace}/{name}{}", objects.hint())))
}

fn untold(unknown: Unknown) -> Failure {
    Failure::new(format!("cannot be told: {unknown}"))
}

/// What one object asks for; nothing where it is not there.
async fn asked<K: Single + Clones>(objects: &Objects, namespace: &str, name: &str) -> Result<Option<Vec<CloneRequest>>, Failure> {
    objects.readable::<K>(namespace, name).map_err(untold)?;
    let Some(object) = objects.find::<K>(namespace, name).await? else { return Ok(None) };
    object.clone_requests(&objects.ledger).map(Some).map_err(untold)
}

/// What the objects of a pool ask for.
async fn of_pool<K: Single + Clones>(objects: &Objects, namespace: &str, pool: &str) -> Result<Vec<CloneRequest>, Failure> {
    let (mut found, mut trouble) = (Vec::new(), None);
    let take = |object: &K| match object.clone_requests(&objects.ledger) {
        Ok(requests) => found.extend(requests.into_iter().filter(|request| request.pool.to_string().eq_ignore_ascii_case(pool))),
        Err(unknown) => {
            trouble.get_or_insert(unknown);
        }
    };
    objects.each(namespace, take).await?;
    trouble.map_or(Ok(found), |unknown| Err(untold(unknown)))
}

/// What is under each name that is cloned.
type Sources = BTreeMap<Source, Known<SourceFacts>>;

async fn sources(objects: &Objects, requests: &[CloneRequest]) -> Result<Sources, Failure> {
    let mut sources = Sources::new();
    for request in requests {
        if !sources.contains_key(&request.source) {
            sources.insert(request.source.clone(), source(objects, &request.source).await?);
        }
    }
    Ok(sources)
}

async fn explain(objects: &Objects, sources: &Sources, request: CloneRequest, node_local: &[String]) -> Result<Explained, Failure> {
    let source = sources.get(&request.source).cloned().unwrap_or_else(|| Err(Unknown("the source was not read".to_owned())));
    let labels = if is_selected(&source) { objects.namespace_labels(&request.subject.namespace).await } else { Ok(Default::default()) };
    let overheads = facts::overheads(objects.cdi_config.as_ref());
    let view = View {
        catalog: &objects.catalog,
        classes: objects.classes.as_ref().map_err(Clone::clone),
        profiles: objects.profiles.as_ref().map_err(Clone::clone),
        overheads: &overheads,
        node_local,
    };
    let pool = pool_facts(&request, &source, &objects.ledger);
    let verdict = verdict_on(&request, source, labels.as_ref().map_err(Clone::clone), pool, &view);
    let waits = waits(objects, &request).await?;
    Ok(Explained { request, verdict, waits })
}

async fn source(objects: &Objects, source: &Source) -> Result<Known<SourceFacts>, Failure> {
    if let Err(unknown) = objects.images_known() {
        return Ok(Err(unknown));
    }
    let mut found = Found::default();
    let claim = match source {
        Source::Claim(name) => Some(name.clone()),
        Source::Snapshot(name) => {
            if let Err(unknown) = objects.readable::<VolumeSnapshot>(&objects.catalog, name) {
                return Ok(Err(unknown));
            }
            found.snapshot = objects.find(&objects.catalog, name).await?;
            found.snapshot.as_ref().and_then(|snapshot| snapshot.spec.read()?.source.as_ref()?.persistent_volume_claim_name.clone())
        }
    };
    if let Some(name) = claim {
        let catalog = &objects.catalog;
        let readable = || objects.readable::<Claim>(catalog, &name).and_then(|()| objects.readable::<DataVolume>(catalog, &name));
        if let Err(unknown) = objects.claims_known().and_then(|()| readable()) {
            return Ok(Err(unknown));
        }
        found.claim = objects.find(&objects.catalog, &name).await?;
        found.volume = objects.find(&objects.catalog, &name).await?;
    }
    Ok(source_facts(source, &found, &objects.images, &objects.catalog))
}

/// What an admitted disk waits for: what CDI says of it, and pods that hold the golden (R26).
async fn waits(objects: &Objects, request: &CloneRequest) -> Result<Vec<String>, Failure> {
    let mut waits = Vec::new();
    let holders = objects.pods.iter().filter(|pod| holds_golden(pod, &objects.catalog, request.source.name()));
    waits.extend(
        holders.map(|pod| format!("pod {}/{} uses the golden read-write: clones wait while it runs (R26)", pod.namespace, pod.name)),
    );
    let subject = &request.subject;
    let disk = match subject.kind {
        SubjectKind::DataVolume | SubjectKind::Claim => Some(subject.name.as_str()),
        // KubeVirt makes its DataVolume under the name of the template, which is not the VM's.
        SubjectKind::VirtualMachine => subject.disk.as_deref(),
        SubjectKind::MachineTemplate | SubjectKind::DataSource => None,
    };
    let volume: Option<DataVolume> = match disk {
        Some(disk) => objects.find(&subject.namespace, disk).await?,
        None => None,
    };
    let Some((volume, status)) = volume.as_ref().and_then(|volume| Some((volume, volume.status.read()?))) else { return Ok(waits) };
    let phase = status.phase.as_deref().unwrap_or("not begun");
    if phase == "Succeeded" {
        return Ok(waits);
    }
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.status == "False" && condition.message.as_ref().is_some_and(|text| !text.is_empty()));
    let said = condition.and_then(|condition| {
        Some(format!(": {} ({})", condition.message.as_ref()?, condition.reason.as_deref().unwrap_or(&condition.kind)))
    });
    waits.push(format!("CDI is at {phase}{}", said.unwrap_or_default()));
    waits.extend(objects.stuck(&volume.metadata).map(|note| format!("the daemon says: {note}")));
    let of_claim: Option<Claim> = objects.find(&subject.namespace, &volume.name_any()).await?;
    let fallback = of_claim.and_then(|claim| claim.metadata.annotations?.remove(marks::CDI_CLONE_FALLBACK));
    waits.extend(fallback.map(|why| format!("CDI copies it over the network: {why}")));
    Ok(waits)
}
