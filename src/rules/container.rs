//! R2: what a container disk is pinned by, and the Kubernetes version that goes with a Kairos image.

use crate::model::{ContainerReference, KubernetesVersion, Source};

/// The family of Kairos images.
pub const KAIROS: &str = "kairos";

/// R2: for Kairos, reference and `kubernetesVersion` come together or not at all, since nothing but the digest ties a version
/// to bytes. `family` is the operating system's, as given or as it follows.
///
/// # Errors
/// What is missing.
pub fn kairos_pair(family: Option<&str>, source: &Source, version: Option<&KubernetesVersion>) -> Result<(), String> {
    let is_container = matches!(source, Source::ContainerDisk { .. });
    match (family == Some(KAIROS), is_container, version) {
        (true, true, None) => Err("must be given for a Kairos image, with its distribution, such as `v1.35.6+k3s1`: nothing else says which Kubernetes is in the disk (R2)".to_owned()),
        (true, false, Some(_)) => Err("comes together with a container disk's `reference` or not at all: only a pinned digest ties a version to a disk (R2)".to_owned()),
        _ => Ok(()),
    }
}

/// R2: a tag that names another Kubernetes than `kubernetesVersion` is refused; a tag that names none says nothing.
///
/// # Errors
/// The contradiction.
pub fn tag_agrees(reference: &ContainerReference, version: &KubernetesVersion) -> Result<(), String> {
    match reference.tag().and_then(KubernetesVersion::in_tag) {
        Some(tagged) if tagged.contradicts(version) => Err(format!(
            "the tag of `reference` says Kubernetes {tagged} and this says {version}: one of them is of another image (R2); correct it, or leave the tag out"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{kairos_pair, tag_agrees};
    use crate::model::{Architecture, ContainerReference, Source};

    const DIGEST: &str = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";

    fn reference(tag: &str) -> ContainerReference {
        let tag = if tag.is_empty() { String::new() } else { format!(":{tag}") };
        format!("r.example/k{tag}@{DIGEST}").parse().expect("reference")
    }

    #[rstest]
    #[case(Some("kairos"), true, true, true)]
    #[case(Some("kairos"), true, false, false)]
    #[case(Some("kairos"), false, true, false)]
    #[case(Some("kairos"), false, false, true)]
    #[case(Some("fedora"), true, false, true)]
    #[case(Some("fedora"), true, true, true)]
    #[case(None, true, false, true)]
    fn r2_pairs(#[case] family: Option<&str>, #[case] container: bool, #[case] version: bool, #[case] good: bool) {
        let architecture = Architecture::Amd64;
        let source = if container {
            Source::ContainerDisk { reference: reference(""), architecture }
        } else {
            Source::Http { url: "https://e.example/a".parse().expect("URL"), architecture }
        };
        let given = version.then(|| "v1.35.6+k3s1".parse().expect("version"));
        assert_eq!(kairos_pair(family, &source, given.as_ref()).is_ok(), good);
    }

    #[rstest]
    #[case("", "v1.35.6", true)]
    #[case("latest", "v1.35.6", true)]
    #[case("v0.4.0-standard-amd64-generic-v4.1.2-k3s-v1.36.1-k3s1", "v1.36.1+k3s1", true)]
    #[case("v0.4.0-standard-amd64-generic-v4.1.2-k3s-v1.36.1-k3s1", "v1.36.1", true)]
    #[case("v0.4.0-standard-amd64-generic-v4.1.2-k3s-v1.36.1-k3s1", "v1.35.6+k3s1", false)]
    #[case("v0.4.0-standard-amd64-generic-v4.1.2-k3s-v1.36.1-k3s1", "v1.36.1+k0s.0", false)]
    #[case("24.04-standard-amd64-generic-v3.4.2-k3sv1.32.1-k3s1", "v1.32.1+k3s2", false)]
    fn r2_a_contradicting_tag_is_refused(#[case] tag: &str, #[case] version: &str, #[case] good: bool) {
        assert_eq!(tag_agrees(&reference(tag), &version.parse().expect("version")).is_ok(), good, "{tag} {version}");
    }
}
