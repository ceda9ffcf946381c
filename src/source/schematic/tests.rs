use rstest::rstest;
use serde_json::{Value, json};

use super::{canonical_yaml, local_schematic_id};

fn extensions(names: &[&str]) -> Value {
    json!({"customization": {"systemExtensions": {"officialExtensions": names}}})
}

/// IDs that the public factory answered.
#[rstest]
#[case(json!({}), "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba")]
#[case(Value::Null, "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba")]
#[case(json!({"customization": {}}), "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba")]
#[case(json!({"customization": {"systemExtensions": {"officialExtensions": []}}}), "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba")]
#[case(extensions(&["siderolabs/qemu-guest-agent"]), "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515")]
#[case(extensions(&["siderolabs/iscsi-tools", "siderolabs/qemu-guest-agent"]), "dc7b152cb3ea99b821fcb7340ce7168313ce393d663740b791c36f6e95fc8586")]
#[case(extensions(&["siderolabs/qemu-guest-agent", "siderolabs/iscsi-tools"]), "6ebbfe35c8225645c05d4d19eaad385bd1ec795954932d0ada671388272fec19")]
#[case(extensions(&["siderolabs/iscsi-tools", "siderolabs/util-linux-tools"]), "613e1592b2da41ae5e265e8789429f22e121aab91cb4deb6bc3c0b6262961245")]
#[case(extensions(&["siderolabs/hello-world-service"]), "cf9b7aab9ed7c365d5384509b4d31c02fdaa06d2b3ac6cc0bc806f28130eff1f")]
#[case(extensions(&["siderolabs/gvisor"]), "d9ff89777e246792e7642abd3220a616afb4e49822382e4213a2e528ab826fe5")]
#[case(extensions(&["siderolabs/vmtoolsd-guest-agent"]), "903b2da78f99adef03cbbd4df6714563823f63218508800751560d3bc3557e40")]
#[case(
    json!({"customization": {"systemExtensions": {"officialExtensions": ["siderolabs/gvisor", "siderolabs/intel-ucode"]}, "extraKernelArgs": ["net.ifnames=0"]}}),
    "b8e8fbbe1b520989e6c52c8dc8303070cb42095997e76e812fa8892393e1d176"
)]
#[case(json!({"customization": {"extraKernelArgs": ["noapic", "nolapic"]}}), "9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c")]
#[case(json!({"customization": {"meta": [{"key": 10, "value": "foo"}]}}), "d308a2a5ee2277bed5fbaa104fcbc8d59122abfa737df987a95b4ca763459a7f")]
#[case(json!({"overlay": {"name": "rpi_generic", "image": "siderolabs/sbc-raspberrypi"}}), "ee21ef4a5ef808a9b7484cc0dda0f25075021691c8c09a276591eedb638ea1f9")]
#[case(
    json!({"customization": {"secureboot": {"includeWellKnownCertificates": true}}}),
    "fa8e05f142a851d3ee568eb0a8e5841eaf6b0ebc8df9a63df16ac5ed2c04f3e6"
)]
#[case(json!({"customization": {"diskImage": {"sectorSize": 4096}}}), "92833e9ddd9bb9e11b2464fa5525429f01866306d52ebd882ee08d7918f6d1ea")]
fn public_vectors(#[case] document: Value, #[case] id: &str) {
    assert_eq!(local_schematic_id(&document).expect("certain").as_str(), id);
}

/// What a factory would refuse, or may write otherwise than this writer knows, has no local ID.
#[rstest]
#[case(json!([]))]
#[case(json!("customization"))]
#[case(json!({"owner": "me"}))]
#[case(json!({"customisation": {}}))]
#[case(json!({"customization": {"something": 1}}))]
#[case(json!({"customization": []}))]
#[case(json!({"customization": {"bootloader": "auto"}}))]
#[case(json!({"customization": {"secureboot": {"enrollKeys": "if-safe"}}}))]
#[case(json!({"customization": {"meta": [{"key": 256, "value": "a"}]}}))]
#[case(json!({"customization": {"meta": [{"key": "10", "value": "a"}]}}))]
#[case(json!({"customization": {"extraKernelArgs": "a"}}))]
#[case(json!({"customization": {"extraKernelArgs": [1]}}))]
#[case(json!({"overlay": {"name": "a"}}))]
#[case(json!({"overlay": {"name": "a", "image": "b", "options": {"a1": "x"}}}))]
fn no_guessing_about_documents(#[case] document: Value) {
    assert_eq!(canonical_yaml(&document), None);
}

fn kernel_argument(text: &str) -> Option<String> {
    let yaml = canonical_yaml(&json!({"customization": {"extraKernelArgs": [text]}}))?;
    yaml.strip_prefix("customization:\n    extraKernelArgs:\n        - ").map(|rest| rest.trim_end_matches('\n').to_owned())
}

/// What `gopkg.in/yaml.v3` v3.0.1 and `go.yaml.in/yaml/v4` v4.0.0-rc.4 both write (run side by side).
#[rstest]
#[case("console=ttyS0,115200n8", "console=ttyS0,115200n8")]
#[case("-console", "-console")]
#[case("ip=10.0.0.1::10.0.0.254:255.255.255.0::eth0:off", "ip=10.0.0.1::10.0.0.254:255.255.255.0::eth0:off")]
#[case("a,b", "a,b")]
#[case("it's", "it's")]
#[case("a b", "a b")]
#[case("a  b", "a  b")]
#[case("a -b", "a -b")]
#[case("a- b", "a- b")]
#[case("a@b%c+d", "a@b%c+d")]
#[case("true", "\"true\"")]
#[case("yes", "\"yes\"")]
#[case("y", "\"y\"")]
#[case("n", "\"n\"")]
#[case("on", "\"on\"")]
#[case("null", "\"null\"")]
#[case("0", "\"0\"")]
#[case("1", "\"1\"")]
#[case("123456789012345678", "\"123456789012345678\"")]
fn styles(#[case] text: &str, #[case] written: &str) {
    assert_eq!(kernel_argument(text).as_deref(), Some(written));
}

#[rstest]
#[case("")]
#[case("Yes")]
#[case("tRUE")]
#[case("~")]
#[case("<<")]
#[case("007")]
#[case("0xa")]
#[case("1e3")]
#[case(".5")]
#[case("2001-01-01")]
#[case("12:30:45")]
#[case("a: b")]
#[case("key:")]
#[case("a #b")]
#[case("- a")]
#[case("---")]
#[case("a ")]
#[case(" a")]
#[case("@a")]
#[case("{}")]
#[case("tab\tx")]
#[case("é")]
#[case("-inf")]
#[case("two\nlines\n")]
fn no_guessing_about_strings(#[case] text: &str) {
    assert_eq!(kernel_argument(text), None);
}

#[rstest]
#[case("line\nx\n", "|\n        line\n        x\n")]
#[case("line\n  x", "|-\n        line\n          x\n")]
#[case("a\n\nb\n", "|\n        a\n\n        b\n")]
#[case("a\nb: c\n# d\n", "|\n        a\n        b: c\n        # d\n")]
fn blocks(#[case] text: &str, #[case] written: &str) {
    let yaml = canonical_yaml(&json!({"customization": {"embeddedMachineConfiguration": text}})).expect("certain");
    assert_eq!(yaml, format!("customization:\n    embeddedMachineConfiguration: {written}"));
}

#[rstest]
#[case("a\n\n")]
#[case("\na\n")]
#[case(" a\nb\n")]
#[case("a \nb\n")]
#[case("a\tb\nc\n")]
#[case("\n")]
fn no_guessing_about_blocks(#[case] text: &str) {
    assert_eq!(canonical_yaml(&json!({"customization": {"embeddedMachineConfiguration": text}})), None);
}

#[test]
fn options_of_an_overlay() {
    let document = json!({"overlay": {"name": "a", "image": "b/c", "options": {"zeta": true, "alpha": "x", "beta": 5}}});
    assert_eq!(
        canonical_yaml(&document).expect("certain"),
        "overlay:\n    image: b/c\n    name: a\n    options:\n        alpha: x\n        beta: 5\n        zeta: true\ncustomization: {}\n"
    );
}
