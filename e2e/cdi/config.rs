//! Imitates CDI's config and storageprofile controllers: the `config` CDIConfig and one StorageProfile for each StorageClass.

use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::{
    Ctx,
    api::code,
    cache::Key,
    names,
    types::{CDIConfig, CdiConfigSpec, CdiConfigStatus, FilesystemOverhead, StorageProfile, StorageProfileSpec, StorageProfileStatus},
};

/// CDI's own name for its only CDIConfig (`common.ConfigName`).
pub const CONFIG_NAME: &str = "config";

/// Brings CDIConfig and StorageProfiles up to date. A kind that the API server does not serve is left out.
pub(super) async fn reconcile(ctx: &Ctx) -> Result<(), kube::Error> {
    let classes = ctx.api.caches.classes.all(|_| true);
    if ctx.opts.cdi_config {
        unless_absent(config(ctx, &classes).await)?;
    }
    if ctx.opts.storage_profiles {
        for class in &classes {
            unless_absent(profile(ctx, class).await)?;
        }
        let orphan = |profile: &StorageProfile| !classes.iter().any(|class| class.name_any() == profile.name_any());
        for profile in ctx.api.caches.profiles.all(orphan) {
            unless_absent(ctx.api.delete(&*profile).await)?;
        }
    }
    Ok(())
}

fn unless_absent(done: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match done {
        Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
        done => done,
    }
}

async fn config(ctx: &Ctx, classes: &[std::sync::Arc<StorageClass>]) -> Result<(), kube::Error> {
    let config = match ctx.api.caches.configs.get(&Key::new("", CONFIG_NAME)) {
        Some(config) => config,
        None => ctx.api.ensure(&CDIConfig::new(CONFIG_NAME, CdiConfigSpec::default())).await?,
    };
    let wanted = config.spec.filesystem_overhead.clone().unwrap_or_default();
    let global = wanted.global.clone().unwrap_or_else(|| ctx.opts.filesystem_overhead.to_string());
    let storage_class = classes
        .iter()
        .map(|class| {
            let name = class.name_any();
            let overhead = wanted.storage_class.get(&name).unwrap_or(&global).clone();
            (name, overhead)
        })
        .collect();
    let scratch = config.spec.scratch_space_storage_class.clone().filter(|name| classes.iter().any(|class| class.name_any() == *name));
    let status = CdiConfigStatus {
        filesystem_overhead: Some(FilesystemOverhead { global: Some(global), storage_class }),
        import_proxy: config.spec.import_proxy.clone(),
        scratch_space_storage_class: scratch,
    };
    if config.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let mut patch = json!({ "status": status });
    // What is gone from the spec must go from the status: null takes it away.
    for field in ["importProxy", "scratchSpaceStorageClass"] {
        if patch["status"].get(field).is_none() {
            patch["status"][field] = serde_json::Value::Null;
        }
    }
    ctx.api.patch(&*config, patch).await.map(drop)
}

async fn profile(ctx: &Ctx, class: &StorageClass) -> Result<(), kube::Error> {
    let name = class.name_any();
    let profile = match ctx.api.caches.profiles.get(&Key::new("", &name)) {
        Some(profile) => profile,
        None => {
            let mut profile = StorageProfile::new(&name, StorageProfileSpec::default());
            profile.meta_mut().labels = Some([(names::APP.to_owned(), names::APP_VALUE.to_owned())].into());
            ctx.api.ensure(&profile).await?
        }
    };
    let sets = profile.spec.claim_property_sets.clone().or_else(|| match ctx.opts.profile_overrides.get(&name) {
        Some(sets) if sets.is_empty() => None,
        Some(sets) => Some(sets.clone()),
        None if ctx.opts.provisions(&class.provisioner) => Some(ctx.opts.claim_property_sets.clone()),
        None => None,
    });
    let strategy = profile.spec.clone_strategy.clone().or_else(|| class.annotations().get(names::CLASS_CLONE_STRATEGY).cloned());
    let status = StorageProfileStatus {
        claim_property_sets: sets,
        clone_strategy: Some(strategy.unwrap_or_else(|| ctx.opts.clone_strategy.clone())),
        snapshot_class: profile.spec.snapshot_class.clone(),
        provisioner: Some(class.provisioner.clone()),
        storage_class: Some(name),
    };
    if profile.status.as_ref() == Some(&status) {
        return Ok(());
    }
    ctx.api.patch_status(&*profile, json!(status)).await.map(drop)
}
