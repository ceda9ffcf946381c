//! A volume without room. Needs a mount namespace of its own; skipped, and said so, where there is none.

use std::{
    fs::File,
    process::{Command, Stdio},
};

use golden_catalog::{
    artifact::{ArtifactError, Compression, DiskFormat, Format, Limits, Watch, ingest},
    rules::Reason,
};

use crate::lab::Lab;

/// Where the test below finds its small volume.
const VOLUME: &str = "GOLDEN_CATALOG_SMALL_VOLUME";

#[test]
fn a_full_volume_is_no_damage() {
    let lab = Lab::new();
    lab.gpt("disk.raw", 70, 5);
    lab.sh("qemu-img convert -f raw -O qcow2 disk.raw disk.qcow2 && zstd -q disk.raw disk.qcow2 && mkdir volume");
    let program = std::env::current_exe().expect("this program");
    let line = format!(
        "mount -t tmpfs -o size=1m golden-catalog-test {} && exec {} --exact volume::on_the_small_volume --ignored --nocapture",
        lab.path("volume").display(),
        program.display()
    );
    let may_mount = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).stderr(Stdio::null()).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        println!("skipped: no mount namespace of one's own here");
        return;
    }
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-ec", &line])
        .env(VOLUME, lab.path(""))
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Run by the test above, in the namespace where the volume is.
#[test]
#[ignore = "run by a_full_volume_is_no_damage, which makes the volume"]
fn on_the_small_volume() {
    let Some(folder) = std::env::var_os(VOLUME).map(std::path::PathBuf::from) else {
        println!("skipped: there is no small volume; run a_full_volume_is_no_damage");
        return;
    };
    for (name, disk) in [("disk.raw.zst", DiskFormat::Raw), ("disk.qcow2.zst", DiskFormat::Qcow2)] {
        let input = File::open(folder.join(name)).expect("open");
        let output = File::options().read(true).write(true).create(true).truncate(true).open(folder.join("volume/out")).expect("create");
        let format = Format { disk, compression: Some(Compression::Zstd) };
        let error = ingest(&input, None, format, &output, &Limits::default(), Watch::idle()).expect_err("no room");
        assert!(matches!(error, ArtifactError::Io { .. }), "{error}");
        assert_eq!(error.reason(), Reason::SpoolFull, "{error}");
    }
}
