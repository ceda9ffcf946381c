//! Where the programs of the control plane are found.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// The paths of the programs a test cluster is made of.
#[derive(Debug)]
pub struct Tools {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kube_controller_manager: PathBuf,
}

/// The programs of the control plane; panics with what to do when one is missing.
pub fn tools() -> &'static Tools {
    static TOOLS: LazyLock<Tools> = LazyLock::new(|| Tools {
        etcd: find("etcd"),
        kube_apiserver: find("kube-apiserver"),
        kube_controller_manager: find("kube-controller-manager"),
    });
    &TOOLS
}

/// `kubectl`, needed on any cluster.
pub fn kubectl() -> &'static Path {
    static KUBECTL: LazyLock<PathBuf> = LazyLock::new(|| find("kubectl"));
    &KUBECTL
}

/// `helm`, needed on any cluster.
pub fn helm() -> &'static Path {
    static HELM: LazyLock<PathBuf> = LazyLock::new(|| find("helm"));
    &HELM
}

/// The folder of the cache that `e2e/tools/build.sh` fills, when it is filled.
fn cache() -> Option<&'static Path> {
    static CACHE: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let out = Command::new(super::repository().join("e2e/tools/build.sh")).arg("--where").output().ok()?;
        let path = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
        out.status.success().then_some(path)
    });
    CACHE.as_deref()
}

fn find(name: &str) -> PathBuf {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    assets
        .iter()
        .map(PathBuf::as_path)
        .chain(cache())
        .chain(on_path.iter().map(PathBuf::as_path))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!("{name} is missing: run `make tools` once (over ten minutes), or set KUBEBUILDER_ASSETS to a folder that has it")
        })
}
