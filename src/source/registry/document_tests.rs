use rstest::rstest;
use serde_json::{Value, json};

use super::{Document, choose, config, parts};
use crate::model::Architecture::{self, Amd64, Arm64};

const A: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const OCI: &str = "application/vnd.oci.image.manifest.v1+json";

fn entry(digest: &str, os: &str, arch: &str, variant: Option<&str>) -> Value {
    let mut platform = json!({ "os": os, "architecture": arch });
    if let Some(variant) = variant {
        platform["variant"] = json!(variant);
    }
    json!({ "mediaType": OCI, "digest": digest, "size": 7, "platform": platform })
}

fn attestation() -> Value {
    let mut entry = entry(B, "unknown", "unknown", None);
    entry["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": A });
    entry
}

fn index(entries: &[Value], wanted: Architecture) -> Result<String, String> {
    let text = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": entries }).to_string();
    match Document::parse(text.as_bytes()).expect("index") {
        Document::Index(index) => {
            choose(&index, wanted).map(|digest| digest.to_string()).map_err(|fault| format!("{} {fault}", fault.reason()))
        }
        Document::Manifest(_) => panic!("an index"),
    }
}

#[rstest]
#[case(&[entry(A, "linux", "amd64", None), entry(B, "linux", "arm64", None)], Amd64, A)]
#[case(&[entry(A, "linux", "amd64", None), entry(B, "linux", "arm64", Some("v8"))], Arm64, B)]
#[case(&[entry(B, "linux", "arm64", None), attestation(), entry(A, "linux", "amd64", None)], Amd64, A)]
#[case(&[entry(B, "linux", "amd64", Some("v3")), entry(A, "linux", "amd64", None)], Amd64, A)]
#[case(&[entry(B, "windows", "amd64", None), entry(A, "linux", "amd64", None)], Amd64, A)]
#[case(&[entry(A, "linux", "amd64", None), entry(B, "linux", "amd64", None)], Amd64, A)]
#[case(&[json!({ "mediaType": OCI, "digest": A, "size": 7 })], Arm64, A)]
fn r2_the_stated_architecture_is_chosen(#[case] entries: &[Value], #[case] wanted: Architecture, #[case] digest: &str) {
    assert_eq!(index(entries, wanted).as_deref(), Ok(digest));
}

#[rstest]
#[case(&[entry(A, "linux", "amd64", None), entry(B, "linux", "s390x", None)], "WrongArchitecture", "linux/amd64, linux/s390x")]
#[case(&[entry(A, "linux", "arm64", Some("v9"))], "WrongArchitecture", "linux/arm64/v9")]
#[case(&[attestation(), attestation()], "OnlyAttestations", "2 attestations")]
#[case(&[], "WrongArchitecture", "an empty index")]
fn what_an_index_has_instead_is_said(#[case] entries: &[Value], #[case] reason: &str, #[case] found: &str) {
    let told = index(entries, Arm64).expect_err(found);
    assert!(told.starts_with(reason) && told.contains(found), "{told}");
}

fn manifest(more: Value) -> Value {
    let mut manifest = json!({
        "schemaVersion": 2, "mediaType": OCI,
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": A, "size": 2 },
        "layers": [{ "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": B, "size": 99 }],
    });
    manifest.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
    manifest
}

fn read(document: &Value) -> Result<(String, Vec<u64>), String> {
    let told = |fault: super::RegistryFault| format!("{} {fault}", fault.reason());
    match Document::parse(document.to_string().as_bytes()).map_err(told)? {
        Document::Manifest(manifest) => {
            let parts = parts(&manifest).map_err(told)?;
            Ok((parts.config.to_string(), parts.layers.iter().map(|layer| layer.size).collect()))
        }
        Document::Index(_) => Err("an index".to_owned()),
    }
}

#[test]
fn manifests_of_both_families_are_read() {
    let docker = json!({
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": { "mediaType": "application/vnd.docker.container.image.v1+json", "digest": A, "size": 2 },
    });
    for more in [json!({}), docker, json!({ "mediaType": null })] {
        assert_eq!(read(&manifest(more)), Ok((A.to_owned(), vec![99])));
    }
}

#[rstest]
#[case(json!({ "artifactType": "application/vnd.example+type" }), "NotAContainerImage", "application/vnd.example+type")]
#[case(json!({ "config": { "mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": A, "size": 2 } }), "NotAContainerImage", "helm")]
#[case(json!({ "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": A, "size": 2 } }), "EmptyImageConfig", "oci.empty")]
#[case(json!({ "layers": [] }), "NoDiskFile", "no layers")]
#[case(json!({ "layers": vec![json!({ "mediaType": "x/y", "digest": B, "size": 1 }); 129] }), "InvalidManifest", "129 layers")]
#[case(json!({ "layers": [{ "mediaType": "x/y", "digest": B, "size": 1, "urls": ["https://e.example/"] }] }), "InvalidManifest", "not in the registry")]
#[case(json!({ "layers": [{ "mediaType": "x/y", "digest": format!("sha512:{}", "0a".repeat(64)), "size": 1 }] }), "InvalidManifest", "sha512")]
#[case(json!({ "manifests": [] }), "InvalidManifest", "both")]
#[case(json!({ "layers": 5 }), "InvalidManifest", "cannot be read")]
#[case(json!({ "layers": [{ "mediaType": "x/y", "digest": B, "size": -1 }] }), "InvalidManifest", "cannot be read")]
#[case(json!({ "schemaVersion": 1, "fsLayers": [] }), "InvalidManifest", "schema 1")]
fn what_is_no_image_is_said(#[case] more: Value, #[case] reason: &str, #[case] found: &str) {
    let told = read(&manifest(more)).expect_err(found);
    assert!(told.starts_with(reason) && told.contains(found), "{told}");
}

#[rstest]
#[case("not json", "InvalidManifest")]
#[case("[]", "InvalidManifest")]
#[case(r#"{"mediaType":"application/vnd.oci.artifact.manifest.v1+json","blobs":[]}"#, "NotAContainerImage")]
fn other_documents(#[case] text: &str, #[case] reason: &str) {
    assert_eq!(Document::parse(text.as_bytes()).expect_err(text).reason().as_str(), reason);
}

#[rstest]
#[case(json!({ "architecture": "amd64", "os": "linux" }), None, None)]
#[case(json!({ "architecture": "amd64" }), None, None)]
#[case(
    json!({ "architecture": "amd64", "os": "linux", "config": { "Env": [
        "PATH=/", "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.medium", "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=fedora",
    ] } }),
    Some("u1.medium"), Some("fedora")
)]
#[case(json!({ "architecture": "amd64", "config": { "Env": ["INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=no name", "X"] } }), None, None)]
fn r2_defaults_come_from_the_environment(#[case] value: Value, #[case] instancetype: Option<&str>, #[case] preference: Option<&str>) {
    let defaults = config(value.to_string().as_bytes(), Amd64).expect("good");
    assert_eq!((defaults.instancetype.as_deref(), defaults.preference.as_deref()), (instancetype, preference));
}

#[rstest]
#[case("{}", "EmptyImageConfig", "names no architecture")]
#[case("", "EmptyImageConfig", "not JSON")]
#[case(r#"{"architecture":"arm64","os":"linux"}"#, "WrongArchitecture", "linux/arm64")]
#[case(r#"{"architecture":"amd64","os":"windows"}"#, "WrongArchitecture", "windows/amd64")]
fn what_a_configuration_says_instead(#[case] text: &str, #[case] reason: &str, #[case] found: &str) {
    let fault = config(text.as_bytes(), Amd64).expect_err(found);
    assert!(fault.reason().as_str() == reason && fault.to_string().contains(found), "{fault}");
}
