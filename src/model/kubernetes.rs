use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// The Kubernetes release inside a worker image, such as `v1.35.6` or, with its distribution, `v1.35.6+k3s1`.
///
/// `+` and `-` are one thing (R2): image tags and object names cannot hold a `+`, so `v1.35.6-k3s1` is how they write it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KubernetesVersion(String);

impl KubernetesVersion {
    /// The accepted form, the same in the CRD and the values schema.
    pub const PATTERN: &str =
        r"^v(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})([-+][0-9A-Za-z]([-+.0-9A-Za-z]*[0-9A-Za-z])?)?$";
    /// The longest accepted version, in characters.
    pub const LONGEST: usize = 63;

    /// The version as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Release and distribution, the latter empty where none is said.
    fn parts(&self) -> (&str, String) {
        let at = self.0.find(['-', '+']).unwrap_or(self.0.len());
        let (release, suffix) = self.0.split_at(at);
        (release, suffix.replace('+', "-"))
    }

    /// Whether the two cannot both be true of one image: another release, or another distribution where both name one.
    pub fn contradicts(&self, other: &Self) -> bool {
        let ((release, suffix), (other_release, other_suffix)) = (self.parts(), other.parts());
        release != other_release || (!suffix.is_empty() && !other_suffix.is_empty() && suffix != other_suffix)
    }

    /// The version that a tag names. A tag need not name one, and then it says nothing: a bare `v1.36.1` may be the image's own version.
    ///
    /// By its distribution, in any spelling of Kairos: `…-k3s-v1.36.1-k3s1`, `…-k3sv1.32.1-k3s1`, `…-k0s-v1.36.3-k0s.2`, or as the
    /// distribution itself is tagged: `v1.36.1-k3s1`, `v1.36.1-rke2r1`. By Kubernetes' own name, `kubeadm-v1.36.1`, only the release counts:
    /// what follows is whoever built the image's to say.
    pub fn in_tag(tag: &str) -> Option<Self> {
        let tag = tag.strip_suffix("-uki").or_else(|| tag.strip_suffix("-img")).unwrap_or(tag);
        let after = |marker: &str| {
            let (before, rest) = tag.rsplit_once(marker)?;
            // The marker is a word of its own: the distribution between two dashes, or at the start.
            (before.is_empty() || before.ends_with(['-', '_', '.'])).then_some(rest)
        };
        if let Some(rest) = ["k3s-v", "k0s-v", "rke2-v", "k3sv", "k0sv", "rke2v"].into_iter().find_map(after) {
            return format!("v{rest}").parse().ok();
        }
        if let Some(rest) = ["kubernetes-v", "kubeadm-v", "k8s-v", "kubernetesv", "kubeadmv", "k8sv"].into_iter().find_map(after) {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            return format!("v{}", rest[..end].trim_end_matches('.')).parse().ok();
        }
        let distribution = tag.rsplit('-').next().unwrap_or_default();
        let build = ["k3s", "k0s.", "rke2r"].into_iter().find_map(|prefix| distribution.strip_prefix(prefix))?;
        let is_build = !build.is_empty() && build.bytes().all(|c| c.is_ascii_digit());
        tag.parse().ok().filter(|_| is_build)
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for KubernetesVersion {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let number = |part: &str| {
            (1..=9).contains(&part.len()) && part.bytes().all(|c| c.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
        };
        let is_good = |rest: &str| {
            let at = rest.find(['-', '+']).unwrap_or(rest.len());
            let (release, suffix) = rest.split_at(at);
            let inner = |c: u8| c.is_ascii_alphanumeric() || b"-+.".contains(&c);
            let suffix = suffix.get(1..).is_none_or(|suffix| {
                suffix.bytes().all(inner)
                    && suffix.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && suffix.ends_with(|c: char| c.is_ascii_alphanumeric())
            });
            let parts: Vec<_> = release.split('.').collect();
            parts.len() == 3 && parts.iter().all(|part| number(part)) && suffix
        };
        if text.len() <= Self::LONGEST && text.strip_prefix('v').is_some_and(is_good) {
            return Ok(Self(text.to_owned()));
        }
        let accepted = if text.len() < Self::LONGEST && is_good(text) {
            format!("the leading `v` is missing: write `v{text}`")
        } else {
            "must be `vMAJOR.MINOR.PATCH`, with the distribution where it has one, such as `v1.35.6+k3s1`".to_owned()
        };
        Err(InvalidValue::new("Kubernetes version", text, accepted))
    }
}

impl TryFrom<String> for KubernetesVersion {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl From<KubernetesVersion> for String {
    fn from(version: KubernetesVersion) -> Self {
        version.0
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::KubernetesVersion;

    fn version(text: &str) -> KubernetesVersion {
        text.parse().expect(text)
    }

    #[rstest]
    #[case("v1.35.6", true)]
    #[case("v1.35.6+k3s1", true)]
    #[case("v1.35.6-k3s1", true)]
    #[case("v1.36.3+k0s.2", true)]
    #[case("v1.36.0-rc.1+k3s1", true)]
    #[case("1.35.6", false)]
    #[case("v1.35", false)]
    #[case("v1.035.6", false)]
    #[case("v1.35.6+", false)]
    #[case("v1.35.6+k3s1.", false)]
    #[case("v1.35.6 k3s1", false)]
    #[case("v1.35.6+k3s1/x", false)]
    #[case("v1.35.6.7", false)]
    #[case("latest", false)]
    #[case("", false)]
    fn versions(#[case] text: &str, #[case] good: bool) {
        assert_eq!(text.parse::<KubernetesVersion>().is_ok(), good, "{text}");
    }

    #[test]
    fn a_missing_v_is_named() {
        assert!("1.35.6+k3s1".parse::<KubernetesVersion>().expect_err("v").to_string().contains("write `v1.35.6+k3s1`"));
    }

    #[rstest]
    #[case("v1.35.6+k3s1", "v1.35.6-k3s1", false)]
    #[case("v1.35.6", "v1.35.6-k3s1", false)]
    #[case("v1.35.6+k3s1", "v1.35.6+k3s2", true)]
    #[case("v1.35.6+k3s1", "v1.35.6+k0s.1", true)]
    #[case("v1.35.6", "v1.35.7", true)]
    #[case("v1.36.0-rc.1+k3s1", "v1.36.0-rc.1-k3s1", false)]
    fn r2_plus_and_dash_are_one(#[case] a: &str, #[case] b: &str, #[case] contradicts: bool) {
        assert_eq!(version(a).contradicts(&version(b)), contradicts);
        assert_eq!(version(b).contradicts(&version(a)), contradicts);
    }

    /// The spellings seen on published Kairos images.
    #[rstest]
    #[case("v0.4.0-standard-amd64-generic-v4.1.2-k3s-v1.36.1-k3s1", Some("v1.36.1-k3s1"))]
    #[case("v0.5.1-standard-amd64-generic-v4.2.0-k0s-v1.36.3-k0s.2", Some("v1.36.3-k0s.2"))]
    #[case("24.04-standard-amd64-generic-v3.4.2-k3sv1.32.1-k3s1", Some("v1.32.1-k3s1"))]
    #[case("v0.5.1-standard-amd64-generic-v4.2.0-k3s-v1.36.3-k3s1-uki", Some("v1.36.3-k3s1"))]
    #[case("v0.5.1-standard-arm64-rpi4-v4.2.0-k3s-v1.36.3-k3s1-img", Some("v1.36.3-k3s1"))]
    #[case("v0.0.1-core-amd64-generic-v3.7.2", None)]
    #[case("v0.5.1-standard-amd64-generic-v4.2.0", None)]
    #[case("v1.35.6", None)]
    #[case("latest", None)]
    #[case("k3s-v1.36.1-k3s1", Some("v1.36.1-k3s1"))]
    #[case("notk3s-v1.36.1", None)]
    #[case("standard-k3s-vnext", None)]
    #[case("rke2-v1.36.1-rke2r1", Some("v1.36.1-rke2r1"))]
    #[case("standard-rke2v1.36.1-rke2r1-uki", Some("v1.36.1-rke2r1"))]
    #[case("v1.36.1-k3s1", Some("v1.36.1-k3s1"))]
    #[case("v1.36.0-rc.1-k3s1", Some("v1.36.0-rc.1-k3s1"))]
    #[case("v1.36.1-rke2r1", Some("v1.36.1-rke2r1"))]
    #[case("v1.36.3-k0s.2", Some("v1.36.3-k0s.2"))]
    #[case("v1.36.3-k0s2", None)]
    #[case("v1.36.1-k3s", None)]
    #[case("v1.36.1-standard", None)]
    #[case("kubeadm-v1.36.1", Some("v1.36.1"))]
    #[case("24.04-k8s-v1.36.1-amd64", Some("v1.36.1"))]
    #[case("ubuntu-kubernetes-v1.36.1.2026", None)]
    #[case("k8s-v1.36", None)]
    #[case("k8s-v1.36.1.", Some("v1.36.1"))]
    #[case("minik8s-v1.36.1", None)]
    fn r2_versions_in_tags(#[case] tag: &str, #[case] expected: Option<&str>) {
        assert_eq!(KubernetesVersion::in_tag(tag).as_ref().map(KubernetesVersion::as_str), expected, "{tag}");
    }
}
