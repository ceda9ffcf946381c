//! Stands in for the CSI snapshotter: a VolumeSnapshot of a claim becomes a copy of its disk.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use kube::ResourceExt;
use serde_json::json;

use super::{
    Ctx,
    cache::Key,
    status::claim_phase,
    storage::{ProvisionError, capacity, copy_disk, disk_of},
    types::VolumeSnapshot,
};

/// Where a snapshot's disk lies.
pub(super) fn file(dir: &Path, snapshot: &VolumeSnapshot) -> PathBuf {
    dir.join(format!("snapshot-{}.img", snapshot.uid().unwrap_or_default()))
}

/// Takes the snapshot if its source is bound and it is not taken yet.
pub(super) async fn take(ctx: &Ctx, snapshot: &Arc<VolumeSnapshot>) -> Result<(), ProvisionError> {
    let status = snapshot.status.clone().unwrap_or_default();
    let Some(source) = snapshot.spec.source.persistent_volume_claim_name.clone() else { return Ok(()) };
    if status.ready_to_use == Some(true) || snapshot.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let key = Key::new(snapshot.namespace().unwrap_or_default(), source);
    let Some(claim) = ctx.api.caches.pvcs.get(&key).filter(|claim| claim_phase(claim) == "Bound") else { return Ok(()) };
    let Some(disk) = disk_of(&ctx.opts.dir, &claim) else { return Ok(()) };
    let to = file(&ctx.opts.dir, snapshot);
    if disk.exists() {
        copy_disk(&disk, &to).await?;
    } else {
        tokio::fs::write(&to, b"").await?;
    }
    ctx.api
        .patch_status(
            &**snapshot,
            json!({
                "boundVolumeSnapshotContentName": format!("snapcontent-{}", snapshot.uid().unwrap_or_default()),
                "readyToUse": true,
                "restoreSize": capacity(&claim).unwrap_or_default().to_string(),
            }),
        )
        .await?;
    ctx.journal.note(&Key::of(&**snapshot), "snapshot taken");
    Ok(())
}
