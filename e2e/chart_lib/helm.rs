//! Real helm, without a cluster.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A chart under `e2e/charts`.
pub fn chart(name: &str) -> PathBuf {
    repository().join("e2e/charts").join(name)
}

/// Where helm is: beside the control plane's programs, else on `PATH`.
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let built = || {
            let out = Command::new(repository().join("e2e/tools/build.sh")).output().ok()?;
            Some(PathBuf::from(String::from_utf8(out.stdout).ok()?.lines().last()?))
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = assets.into_iter().chain(built()).chain(std::env::split_paths(&path));
        let found = folders.map(|folder| folder.join("helm")).find(|program| program.is_file());
        found.expect("helm is missing: run e2e/tools/build.sh once")
    });
    &PROGRAM
}

/// What `helm template` said: the manifests, or the last line of why not.
pub fn template(release: &str, namespace: &str, chart: &Path, arguments: &[&str]) -> Result<String, String> {
    let home = tempfile::tempdir().expect("a folder for helm's own files");
    let mut command = Command::new(program());
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    // A kubeconfig of the person who runs the tests must play no part.
    command.env("KUBECONFIG", home.path().join("none")).stdin(Stdio::null());
    command.args(["template", release, "--namespace", namespace]).arg(chart).args(arguments);
    let out = command.output().expect("run helm");
    if out.status.success() {
        return Ok(String::from_utf8(out.stdout).expect("manifests in UTF-8"));
    }
    let stderr = String::from_utf8_lossy(&out.stderr);
    Err(stderr.lines().rfind(|line| line.starts_with("Error: ")).unwrap_or(&stderr).to_owned())
}
