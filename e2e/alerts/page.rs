//! The status page, in a real browser (Debian's Chromium, headless).

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use golden_catalog::api::GoldenImage;
use kube::api::PostParams;
use serde_json::json;

use crate::{harness, stage::Stage};

/// What a hostile author of an entry might write.
const EVIL: &str = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

/// The page shows what is there, cannot be made to run anything, and is drawn in light, dark and narrow.
pub async fn is_shown_in_a_browser(stage: &Stage<'_>, address: &str) {
    let hostile = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "hostile" },
        "spec": { "source": { "http": { "url": "http://127.0.0.1:1/never" } }, "description": EVIL, "suspend": true },
    });
    let hostile: GoldenImage = serde_json::from_value(hostile).expect("object");
    stage.images().create(&PostParams::default(), &hostile).await.expect("created");
    stage.until_reason("hostile", "Suspended").await;
    let url = format!("http://{address}/");
    let client = reqwest::Client::builder().no_proxy().build().expect("client");
    harness::eventually("the page names the newest image", async || {
        let text = client.get(&url).send().await.map_err(|error| error.to_string())?.text().await.map_err(|error| error.to_string())?;
        if text.contains("hostile") { Ok(()) } else { Err(text) }
    })
    .await;

    let dir = harness::scratch_dir("browser");
    let dom = chromium(dir.path(), &["--dump-dom".to_owned(), url.clone()]);
    for part in [
        "<title>Golden images</title>",
        "NotADiskImage",
        "NotFound",
        "NoDefaultClass",
        "Bad Name",
        "good",
        "tenant-a/VirtualMachine/needs-it",
        "&lt;img src=x",
    ] {
        assert!(dom.contains(part), "{part}: {dom}");
    }
    assert!(!dom.contains("<img") && !dom.contains("<script") && !dom.contains("owned</title>"), "{dom}");

    let folder = std::env::var_os("E2E_SHOTS").map_or_else(|| dir.path().to_owned(), PathBuf::from);
    std::fs::create_dir_all(&folder).expect("a folder for the pictures");
    let shots = [("light", "1200,1500", 1), ("dark", "1200,1500", 0), ("narrow", "500,2600", 1)].map(|(name, size, scheme)| {
        let file = folder.join(format!("status-{name}.png"));
        let flags = [
            format!("--screenshot={}", file.display()),
            format!("--window-size={size}"),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ];
        chromium(dir.path(), &[flags.as_slice(), std::slice::from_ref(&url)].concat());
        std::fs::read(&file).expect("a picture")
    });
    assert!(shots.iter().all(|shot| shot.len() > 20_000), "{:?}", shots.map(|shot| shot.len()));
    assert_ne!(shots[0], shots[1], "dark is not light");
}

fn chromium(home: &Path, arguments: &[String]) -> String {
    let out = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking"])
        .arg(format!("--user-data-dir={}", home.join("profile").display()))
        .args(arguments)
        .env("HOME", home)
        .output()
        .expect("run chromium (make setup)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}
