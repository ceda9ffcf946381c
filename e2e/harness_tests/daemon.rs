//! The real binary under the harness, with the rights of the chart.

use crate::{
    CLUSTER, LED,
    harness::{Daemon, Needs, PATIENCE, Port, chart::CONTROLLER, cli, scratch_dir},
};

#[tokio::test]
async fn the_daemon_runs_with_the_charts_rights_and_ends_when_asked() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let _alone = LED.write().await;
    let release = cluster.install_chart("{}").await;
    let spool = scratch_dir("spool");
    let (health, metrics, serve) = (Port::reserve(), Port::reserve(), Port::reserve());
    let mark = cluster.audit_mark().await;
    let daemon = Daemon::builder("controller")
        .args(["run", "--role=controller", "--namespace", &release.namespace, "--catalog-namespace", &release.catalog])
        .args(["--health-listen", &health.address(), "--metrics-listen", &metrics.address(), "--spool-listen", &serve.address()])
        .args(["--spool-dir", spool.path().to_str().unwrap()])
        .kubeconfig(&release.kubeconfig(CONTROLLER).await)
        .health(health.address())
        .start();
    daemon.ready().await;
    assert_eq!(daemon.probe("livez").await, Ok(200));

    // Leading writes the Lease, the keys and the certificate: what it may not do would show by then.
    let leases = kube::Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(cluster.admin(), &release.catalog);
    let held = |lease: &k8s_openapi::api::coordination::v1::Lease| {
        lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty()))
    };
    crate::harness::until(leases, "golden-catalog", "it is held", held).await;
    let secrets = kube::Api::<k8s_openapi::api::core::v1::Secret>::namespaced(cluster.admin(), &release.namespace);
    for name in ["golden-catalog-spool-key", "golden-catalog-spool-tls"] {
        crate::harness::until(secrets.clone(), name, "it exists", |_| true).await;
    }
    let requests = cluster.requests_since(mark).await;
    let theirs: Vec<_> = requests.iter().filter(|request| request.is_by(&release.namespace, CONTROLLER)).collect();
    assert!(theirs.iter().any(|request| request.is_write() && request.code < 300), "it wrote: {theirs:#?}");
    let refused: Vec<_> = theirs.iter().filter(|request| request.code == 403).collect();
    assert!(refused.is_empty(), "{refused:#?}");

    let status = daemon.terminate(PATIENCE).await;
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

#[tokio::test]
#[should_panic(expected = "before it was ready")]
async fn a_daemon_that_ends_instead_is_not_waited_for() {
    Daemon::builder("wrong").args(["run", "--no-such-flag"]).health("127.0.0.1:1").start().ready().await;
}

#[tokio::test]
async fn the_command_line_is_run_to_its_end() {
    let output = cli(None, ["--version"]).await;
    assert!(output.ok().contains(env!("CARGO_PKG_VERSION")));
    let output = cli(None, ["--no-such-flag"]).await;
    assert!(output.stderr.contains("--no-such-flag"), "{output:?}");
}
