//! Container images in the making, as an OCI layout that skopeo pushes from, or as the answers of a scripted registry.

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Answer, Upstream};

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// `sha256:…` of bytes.
pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A tar archive of files; a path that ends in `/` is a folder, one with ` -> ` a symbolic link, one with ` => ` a hard link.
pub fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o444);
        header.set_uid(107);
        header.set_size(data.len() as u64);
        let symbolic = path.split_once(" -> ").map(|link| (link, tar::EntryType::Symlink));
        if let Some(((path, to), kind)) = symbolic.or_else(|| path.split_once(" => ").map(|link| (link, tar::EntryType::Link))) {
            header.set_entry_type(kind);
            header.set_size(0);
            builder.append_link(&mut header, path, to).expect("link");
        } else if path.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
            builder.append_data(&mut header, path, std::io::empty()).expect("folder");
        } else {
            builder.append_data(&mut header, path, *data).expect("file");
        }
    }
    builder.into_inner().expect("archive")
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("gzip");
    encoder.finish().expect("gzip")
}

/// Blobs and manifests by digest, in the making.
#[derive(Default)]
pub struct Layout {
    blobs: BTreeMap<String, Vec<u8>>,
    manifests: BTreeMap<String, (String, Vec<u8>)>,
}

impl Layout {
    pub fn blob(&mut self, bytes: Vec<u8>) -> String {
        let digest = digest(&bytes);
        self.blobs.insert(digest.clone(), bytes);
        digest
    }

    /// A document under its digest.
    pub fn document(&mut self, kind: &str, document: &Value) -> String {
        self.raw_document(kind, document.to_string().into_bytes())
    }

    pub fn raw_document(&mut self, kind: &str, bytes: Vec<u8>) -> String {
        let digest = digest(&bytes);
        self.manifests.insert(digest.clone(), (kind.to_owned(), bytes));
        digest
    }

    pub fn descriptor(&self, kind: &str, digest: &str) -> Value {
        let size = self.blobs.get(digest).map(Vec::len).or_else(|| self.manifests.get(digest).map(|(_, bytes)| bytes.len()));
        json!({ "mediaType": kind, "digest": digest, "size": size.expect("there") })
    }

    /// An image of layers that are tar archives, packed with gzip or not.
    pub fn image(&mut self, architecture: &str, layers: &[Vec<u8>], environment: &[&str]) -> String {
        let config = json!({
            "architecture": architecture, "os": "linux", "config": { "Env": environment },
            "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|layer| digest(&unpacked(layer))).collect::<Vec<_>>() },
        });
        let config = self.blob(config.to_string().into_bytes());
        let layers: Vec<_> = layers
            .iter()
            .map(|layer| {
                let kind = if layer.starts_with(&[0x1f, 0x8b]) { format!("{OCI_LAYER}+gzip") } else { OCI_LAYER.to_owned() };
                let digest = self.blob(layer.clone());
                self.descriptor(&kind, &digest)
            })
            .collect();
        let config = self.descriptor(OCI_CONFIG, &config);
        self.document(OCI_MANIFEST, &json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers }))
    }

    /// An index of images by architecture, with an attestation as buildkit adds one.
    pub fn index(&mut self, images: &[(&str, &str)]) -> String {
        let entries: Vec<_> = images
            .iter()
            .map(|(architecture, digest)| {
                let mut entry = self.descriptor(OCI_MANIFEST, digest);
                entry["platform"] = json!({ "architecture": architecture, "os": "linux" });
                entry
            })
            .collect();
        self.document(OCI_INDEX, &json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries }))
    }

    /// Writes a layout whose entries have these tags.
    pub fn write(&self, dir: &Path, tags: &[(&str, &str)]) -> PathBuf {
        let blobs = dir.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).expect("folder");
        for (digest, bytes) in self.blobs.iter().chain(self.manifests.iter().map(|(digest, (_, bytes))| (digest, bytes))) {
            std::fs::write(blobs.join(&digest["sha256:".len()..]), bytes).expect("blob");
        }
        std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("layout");
        let entries: Vec<_> = tags
            .iter()
            .map(|(tag, digest)| {
                let mut entry = self.descriptor(&self.manifests[*digest].0, digest);
                entry["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
                entry
            })
            .collect();
        std::fs::write(dir.join("index.json"), json!({ "schemaVersion": 2, "manifests": entries }).to_string()).expect("index");
        dir.to_owned()
    }

    /// Has a scripted registry serve everything under this repository, openly.
    pub fn serve(&self, upstream: &Upstream, repository: &str) {
        self.serve_below(upstream, "", repository);
    }

    /// The same below a path, as a mirror may.
    pub fn serve_below(&self, upstream: &Upstream, base: &str, repository: &str) {
        upstream.on(&format!("{base}/v2/"), Answer::text(200, "{}"));
        for (digest, bytes) in &self.blobs {
            upstream.on(&format!("{base}/v2/{repository}/blobs/{digest}"), Answer::file(bytes.clone()));
        }
        for digest in self.manifests.keys() {
            upstream.on(&format!("{base}/v2/{repository}/manifests/{digest}"), self.served(digest));
        }
    }

    /// The digest of an image's configuration.
    pub fn config_of(&self, manifest: &str) -> String {
        let document: Value = serde_json::from_slice(&self.manifests[manifest].1).expect("JSON");
        document["config"]["digest"].as_str().expect("a manifest").to_owned()
    }

    /// A manifest or index as a registry serves it.
    pub fn served(&self, digest: &str) -> Answer {
        let (kind, bytes) = &self.manifests[digest];
        Answer::new(200, bytes.clone()).header("Content-Type", kind)
    }
}

fn unpacked(layer: &[u8]) -> Vec<u8> {
    if !layer.starts_with(&[0x1f, 0x8b]) {
        return layer.to_vec();
    }
    let mut out = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(layer), &mut out).expect("gzip");
    out
}
