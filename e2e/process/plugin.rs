//! The command line as a kubectl plugin.

use super::{
    CLUSTER,
    harness::{self, Needs},
};

/// kubectl runs a program `kubectl-golden` that it finds on the PATH for `kubectl golden`, and hands its exit code on.
#[tokio::test]
async fn kubectl_golden_asks_the_cluster_kubectl_asks() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_golden-catalog"), folder.path().join("kubectl-golden")).unwrap();
    let kubectl = async |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(harness::kubectl());
        command.env("PATH", folder.path()).env("KUBECONFIG", cluster.admin_kubeconfig()).args(arguments);
        let output = command.output().await.unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
    };
    let (code, said) = kubectl(&["golden", "--version"]).await;
    assert_eq!((code, said.trim()), (Some(0), concat!("golden-catalog ", env!("CARGO_PKG_VERSION"))));
    // This cluster has no catalog, and only the cluster can say so.
    let (code, said) = kubectl(&["golden", "status"]).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("the cluster has no GoldenImages"), "{said}");
}
