//! `golden-catalog plan` as a person or a script runs it: the real binary, a real nginx, real disk images.
//!
//! Runs anywhere: no cluster, loopback only. The one stand-in is a scripted Talos Image Factory.

#[path = "stage/images.rs"]
mod images;
#[path = "upstream/mod.rs"]
mod upstream;

#[path = "plan/files.rs"]
mod files;
#[path = "plan/judges.rs"]
mod judges;
#[path = "plan/peeks.rs"]
mod peeks;
#[path = "plan/ways.rs"]
mod ways;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use upstream::{Authority, nginx::Nginx};

const MIB: u64 = 1 << 20;
const BINARY: &str = env!("CARGO_BIN_EXE_golden-catalog");

/// A directory with lists, and an empty home in which `plan` is run.
struct Desk {
    dir: tempfile::TempDir,
}

/// What one run answered.
#[derive(Debug)]
struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// `name verdict reason` of each image.
    fn verdicts(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = self.json()["images"].as_array().cloned().expect("images");
        let verdict = |row: &Value| format!("{} {} {}", text(&row["name"]), text(&row["verdict"]), text(&row["problems"][0]["reason"]));
        rows.iter().map(|row| verdict(row).trim_end().to_owned()).collect()
    }
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("directory");
        fs::create_dir(dir.path().join("home")).expect("home");
        Self { dir }
    }

    /// Writes a file beside the home.
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).expect("file");
        path
    }

    /// A command whose every usual place for files is the empty home.
    fn command(&self, program: &str) -> Command {
        let home = self.dir.path().join("home");
        let mut command = Command::new(program);
        command.env_clear().current_dir(&home);
        for name in ["HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"] {
            command.env(name, &home);
        }
        command
    }

    /// Runs `golden-catalog plan` with loopback allowed.
    fn plan(&self, arguments: &[&str]) -> Answer {
        self.run(self.command(BINARY), arguments, None)
    }

    fn run(&self, mut command: Command, arguments: &[&str], stdin: Option<&str>) -> Answer {
        command.arg("plan").args(arguments).arg("--egress-allow-loopback");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("golden-catalog");
        child.stdin.take().expect("stdin").write_all(stdin.unwrap_or_default().as_bytes()).expect("written");
        let output = child.wait_with_output().expect("ended");
        // No run leaves a file behind, however it ends.
        let left: Vec<_> = fs::read_dir(self.dir.path().join("home")).expect("home").collect();
        assert!(left.is_empty(), "{left:?}");
        Answer {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

/// A path as an argument.
fn arg(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A disk of 96 MiB as qcow2 and as raw.xz, made once for all tests.
static DISKS: std::sync::LazyLock<[Vec<u8>; 2]> = std::sync::LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("directory");
    let raw = images::raw_disk(dir.path(), "disk", 96 * MIB, 6, 11);
    [images::qcow2(&raw), images::raw_xz(&raw)].map(|path| fs::read(path).expect("disk"))
});

/// A real nginx with real images: `noble.qcow2`, `disk.raw.xz`, and what is none.
struct Shop {
    nginx: Nginx,
    authority: Authority,
}

impl Shop {
    fn open() -> Self {
        let authority = Authority::new();
        // Under /slow/ no ranges are known and a mebibyte takes two seconds.
        let slow = "location /slow/ { max_ranges 0; limit_rate 512k; } location /busy/ { return 503; }";
        let nginx = Nginx::start(&authority, &["localhost", "127.0.0.1"], slow);
        let [qcow2, xz] = &*DISKS;
        nginx.put("noble.qcow2", qcow2);
        nginx.put("slow/noble.qcow2", qcow2);
        nginx.put("cut.qcow2", &qcow2[..40]);
        nginx.put("disk.raw.xz", xz);
        nginx.put("page.qcow2", b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please sign in</body></html>");
        Self { nginx, authority }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.nginx.http)
    }

    fn length(&self, path: &str) -> u64 {
        fs::metadata(self.nginx.files().join(path)).expect("file").len()
    }
}

/// A URL at which nobody listens.
fn nobody() -> String {
    format!("http://{}", upstream::process::free_address())
}
