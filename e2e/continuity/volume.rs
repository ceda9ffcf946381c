//! A spool whose volume hangs: no call on it comes back, and none fails. Storage over a network does that.

use super::{
    harness::{Daemon, condition, eventually, skip, until},
    stage::Launch,
    versions::Versions,
    world::World,
};
use golden_catalog::api::GoldenImage;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::{
    cell::RefCell,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// strace, which keeps every call that names one of these files from being begun. Let go of when dropped.
struct Hangs(Child);

impl Hangs {
    /// `None` where a process may not be traced by another.
    async fn set(daemon: &Daemon, files: &[PathBuf], log: PathBuf) -> Option<Self> {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "--signal=none", "--trace=%file", "--inject=%file:delay_enter=1000000000", "-o"]).arg(log);
        command.args(["-p", &daemon.id().to_string()]);
        for file in files {
            command.arg("-P").arg(file);
        }
        let hangs = RefCell::new(Self(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("strace")));
        let is_set = eventually("every thread is traced, or none may be", async || {
            if hangs.borrow_mut().0.try_wait().expect("strace").is_some() {
                return Ok(false);
            }
            let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.id())).map_err(|error| error.to_string())?;
            let is_traced = |status: &str| status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"));
            let all = threads.flatten().all(|thread| is_traced(&std::fs::read_to_string(thread.path().join("status")).unwrap_or_default()));
            if all { Ok(true) } else { Err("not yet".to_owned()) }
        })
        .await;
        is_set.then_some(hangs.into_inner())
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        // What it keeps goes on where it is.
        let _ = Command::new("kill").arg(self.0.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spool_that_hangs_is_told_costs_no_golden_and_no_lease_and_heals_by_itself() {
    let Some(world) = World::enter("").await else { return };
    let recorder = Versions::record(world.cluster.admin());
    let lease = json!({ "duration": "30s", "renewDeadline": "20s", "retryPeriod": "500ms" });
    let daemon = world.leader("volume", Launch { settings: json!({ "importQuiet": "1s", "lease": lease }), ..Launch::default() }).await;
    for (name, seed) in [("volume-made", 505), ("volume-coming", 506)] {
        world.disk(name, seed);
    }
    world.image("volume-made", "replicated").await;
    world.stage.until("volume-made", "Ready", "True").await;
    let holder = world.holder().await;
    let images = world.stage.images();
    let made = images.get("volume-made").await.expect("image").status.expect("status").disk.expect("a disk").digest;
    let spool = world.stage.spool_of("volume");
    let disk = spool.join("disks").join(format!("{}.qcow2", made.trim_start_matches("sha256:")));
    assert!(disk.is_file(), "{}", disk.display());
    let Some(hangs) = Hangs::set(&daemon, &[spool.join("spool.lock"), disk], world.stage.dir.join("hangs")).await else {
        world.kill(daemon).await;
        return skip("a process may not be traced by another here");
    };

    // What needs the volume says that it waits for it, and is given no attempt for that.
    world.image("volume-coming", "replicated").await;
    let told = until(images.clone(), "volume-coming", "what hangs is told", |image: &GoldenImage| {
        condition(image, "Ready").is_some_and(|ready| ready.reason == "SpoolFailed" && ready.message.contains("does not answer"))
    })
    .await;
    assert!(condition(&told, "Stalled").is_none_or(|stalled| stalled.status != "True"), "it heals by itself");
    // What needs nothing of it is looked at as ever.
    let edit = Patch::Merge(json!({ "spec": { "description": "edited while the volume hangs" } }));
    let edited = images.patch("volume-made", &PatchParams::default(), &edit).await.expect("a free field").metadata.generation;
    until(images.clone(), "volume-made", "it is looked at", |image: &GoldenImage| {
        image.status.as_ref().is_some_and(|status| status.observed_generation == edited)
    })
    .await;
    assert!(world.stage.metrics().await.contains("golden_image_"), "it tells its numbers");
    eventually("it is well", async || match daemon.probe_text("livez").await? {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!(condition(&images.get("volume-coming").await.expect("image"), "Ready").is_some_and(|ready| ready.status == "False"));

    drop(hangs);
    world.stage.until("volume-coming", "Ready", "True").await;
    let status = images.get("volume-coming").await.expect("image").status.expect("status");
    assert_eq!((world.sent("volume-coming").0, status.targets[0].attempts), (world.size("volume-coming"), 1), "fetched and imported once");
    assert_eq!(world.holder().await, holder, "it led all along");
    let versions = recorder.of(&images, "volume-made").await;
    let ready: Vec<_> = versions
        .iter()
        .filter_map(|version| {
            let conditions = version["status"]["conditions"].as_array()?;
            Some(conditions.iter().find(|condition| condition["type"] == "Ready")?["status"] == "True")
        })
        .skip_while(|is_ready| !is_ready)
        .collect();
    assert!(ready.len() > 1 && ready.iter().all(|is_ready| *is_ready), "what was made stayed Ready: {ready:?}");
    world.kill(daemon).await;
}
