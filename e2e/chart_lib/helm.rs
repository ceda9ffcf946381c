//! Real helm, without a cluster.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::harness;

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A chart under `e2e/charts`.
pub fn chart(name: &str) -> PathBuf {
    repository().join("e2e/charts").join(name)
}

/// What `helm template` said: the manifests, or the last line of why not.
pub fn template(release: &str, namespace: &str, chart: &Path, arguments: &[&str]) -> Result<String, String> {
    template_all(release, namespace, chart, arguments)
        .map_err(|stderr| stderr.lines().rfind(|line| line.starts_with("Error: ")).unwrap_or(&stderr).to_owned())
}

/// Like [`template`], with everything that it said when it failed.
pub fn template_all(release: &str, namespace: &str, chart: &Path, arguments: &[&str]) -> Result<String, String> {
    let home = tempfile::tempdir().expect("a folder for helm's own files");
    let mut command = Command::new(harness::helm());
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
    Err(String::from_utf8_lossy(&out.stderr).into_owned())
}
