//! `golden-catalog explain`: why a disk, VM, machine template or pool is refused or waits, by the same functions as admission, from the cluster or from exported files.

mod gather;
mod show;

use std::path::PathBuf;

use kube::ResourceExt as _;

use super::{Exit, Failure, Output, client};
use crate::{
    admission::{Found, View, is_selected, pool_facts, source_facts, verdict_on},
    foreign::{Claim, DataVolume, KubevirtMachineTemplate, Lenient, VirtualMachine, VolumeSnapshot},
    rules::{
        capability::NODE_LOCAL_PROVISIONERS,
        clone::{CloneRequest, Known, Source, SourceFacts, SubjectKind, Unknown, Verdict},
        pods::holds_golden,
    },
    world::{facts, requests::Clones},
};
use gather::Objects;

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
    let requests = requests(&objects, namespace, kind, name)?;
    let explained: Vec<Explained> = requests.into_iter().map(|request| explain(&objects, request, &arguments.node_local)).collect();
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
fn requests(objects: &Objects, namespace: &str, kind: &str, name: &str) -> Result<Vec<CloneRequest>, Failure> {
    let unknown = |unknown: Unknown| Failure::new(format!("cannot be told: {unknown}"));
    let one = |readable: Known<()>, found: Option<Known<Vec<CloneRequest>>>| match (readable, found) {
        (Ok(()), Some(requests)) => requests.map_err(unknown),
        (Ok(()), None) => Err(Failure::new(format!("there is no {kind} {namespace}/{name}{}", objects.hint()))),
        (Err(why), _) => Err(unknown(why)),
    };
    let ledger = &objects.ledger;
    match kind.to_ascii_lowercase().as_str() {
        "datavolume" | "datavolumes" | "dv" => {
            let readable = objects.readable::<DataVolume>(namespace, name);
            one(readable, find(&objects.volumes, namespace, name).map(|object| object.clone_requests(ledger)))
        }
        "persistentvolumeclaim" | "persistentvolumeclaims" | "pvc" => {
            // A disk's claim asks for what its DataVolume asks for.
            let volume = find(&objects.volumes, namespace, name).map(|object| object.clone_requests(ledger));
            let readable = objects.readable::<DataVolume>(namespace, name).and_then(|()| objects.readable::<Claim>(namespace, name));
            one(readable, volume.or_else(|| find(&objects.claims, namespace, name).map(|object| object.clone_requests(ledger))))
        }
        "virtualmachine" | "virtualmachines" | "vm" => {
            let readable = objects.readable::<VirtualMachine>(namespace, name);
            one(readable, find(&objects.machines, namespace, name).map(|object| object.clone_requests(ledger)))
        }
        "kubevirtmachinetemplate" | "kubevirtmachinetemplates" => {
            let readable = objects.readable::<KubevirtMachineTemplate>(namespace, name);
            one(readable, find(&objects.templates, namespace, name).map(|object| object.clone_requests(ledger)))
        }
        _ => {
            let pool = format!("{namespace}/{kind}/{name}");
            let all = of_namespace(&objects.templates, namespace)
                .map(|object| object.clone_requests(ledger))
                .chain(of_namespace(&objects.machines, namespace).map(|object| object.clone_requests(ledger)))
                .chain(of_namespace(&objects.volumes, namespace).map(|object| object.clone_requests(ledger)));
            let mut found = Vec::new();
            for requests in all {
                found.extend(requests.map_err(unknown)?.into_iter().filter(|request| request.pool.to_string().eq_ignore_ascii_case(&pool)));
            }
            if found.is_empty() {
                return Err(Failure::new(format!("nothing of pool {pool} clones a golden{}", objects.hint())));
            }
            Ok(found)
        }
    }
}

fn of_namespace<'a, K: kube::Resource>(objects: &'a [K], namespace: &'a str) -> impl Iterator<Item = &'a K> {
    objects.iter().filter(move |object| object.meta().namespace.as_deref() == Some(namespace))
}

fn find<'a, K: kube::Resource>(objects: &'a [K], namespace: &str, name: &str) -> Option<&'a K> {
    objects.iter().find(|object| object.meta().namespace.as_deref() == Some(namespace) && object.meta().name.as_deref() == Some(name))
}

fn explain(objects: &Objects, request: CloneRequest, node_local: &[String]) -> Explained {
    let source = source(objects, &request.source);
    let labels = if is_selected(&source) { objects.namespace_labels(&request.subject.namespace) } else { Ok(Default::default()) };
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
    let waits = waits(objects, &request);
    Explained { request, verdict, waits }
}

fn source(objects: &Objects, source: &Source) -> Known<SourceFacts> {
    objects.images_known()?;
    let mut found = Found::default();
    let claim = match source {
        Source::Claim(name) => Some(name.clone()),
        Source::Snapshot(name) => {
            objects.readable::<VolumeSnapshot>(&objects.catalog, name)?;
            found.snapshot = find(&objects.snapshots, &objects.catalog, name).cloned();
            found.snapshot.as_ref().and_then(|snapshot| snapshot.spec.read()?.source.as_ref()?.persistent_volume_claim_name.clone())
        }
    };
    if let Some(name) = claim {
        objects.claims_known()?;
        objects.readable::<Claim>(&objects.catalog, &name)?;
        objects.readable::<DataVolume>(&objects.catalog, &name)?;
        found.claim = find(&objects.claims, &objects.catalog, &name).cloned();
        found.volume = find(&objects.volumes, &objects.catalog, &name).cloned();
    }
    source_facts(source, &found, &objects.images, &objects.catalog)
}

/// What an admitted disk waits for: what CDI says of it, and pods that hold the golden (R26).
fn waits(objects: &Objects, request: &CloneRequest) -> Vec<String> {
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
    let volume: Option<&DataVolume> = disk.and_then(|disk| find(&objects.volumes, &subject.namespace, disk));
    let Some(status) = volume.map(|volume| &volume.status).and_then(Lenient::read) else { return waits };
    let phase = status.phase.as_deref().unwrap_or("not begun");
    if phase == "Succeeded" {
        return waits;
    }
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.status == "False" && condition.message.as_ref().is_some_and(|text| !text.is_empty()));
    let said = condition.and_then(|condition| {
        Some(format!(": {} ({})", condition.message.as_ref()?, condition.reason.as_deref().unwrap_or(&condition.kind)))
    });
    waits.push(format!("CDI is at {phase}{}", said.unwrap_or_default()));
    waits.extend(volume.and_then(|volume| objects.stuck(&volume.metadata)).map(|note| format!("the daemon says: {note}")));
    let name = volume.map(|volume| volume.name_any()).unwrap_or_default();
    let of_claim = find(&objects.claims, &subject.namespace, &name);
    let fallback = of_claim.and_then(|claim| claim.metadata.annotations.as_ref()?.get("cdi.kubevirt.io/cloneFallbackReason").cloned());
    waits.extend(fallback.map(|why| format!("CDI copies it over the network: {why}")));
    waits
}
