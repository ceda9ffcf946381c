//! What a 404 means: that there are no such objects, or only that they are served in another version.

use kube::{Client, Resource};

use super::read::Failure;

/// Which versions of its kind a reader decodes.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    group: String,
    plural: String,
    kind: String,
    /// The reader's own first.
    versions: Vec<String>,
}

impl Wanted {
    pub fn new<K: Resource<DynamicType = ()>>(others: &[&str]) -> Self {
        let versions = std::iter::once(K::version(&()).into_owned()).chain(others.iter().map(|version| (*version).to_owned())).collect();
        Self { group: K::group(&()).into_owned(), plural: K::plural(&()).into_owned(), kind: K::kind(&()).into_owned(), versions }
    }

    /// The path of the kind in another of its versions.
    pub fn path(&self, path: &str, version: &str) -> String {
        let prefix = |version: &str| format!("/apis/{}/{version}/", self.group);
        let own = self.versions.first().map(|own| prefix(own)).unwrap_or_default();
        path.strip_prefix(&own).map_or_else(|| path.to_owned(), |rest| prefix(version) + rest)
    }
}

/// Why a request of one version was answered with 404.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// No version of the kind is served: there are no objects of it.
    Nowhere,
    /// This version is served.
    In(String),
}

/// Finds the version in which the kind is served, by the API server's own list of what it serves, which everybody may read.
///
/// # Errors
/// When that list cannot be read, or names only versions that the reader does not decode: then objects may be there, and "none" must not be said.
pub(super) async fn served(client: &Client, wanted: &Wanted) -> Result<Served, Failure> {
    // Kinds of the core are in every cluster; that one is missing is no matter of versions.
    if wanted.group.is_empty() {
        return Ok(Served::Nowhere);
    }
    let groups = client.list_api_groups().await.map_err(|error| Failure::of(&error))?;
    let Some(group) = groups.groups.into_iter().find(|group| group.name == wanted.group) else { return Ok(Served::Nowhere) };
    let mut unreadable = Vec::new();
    let mut found: Vec<String> = Vec::new();
    for version in group.versions {
        let resources = match client.list_api_group_resources(&version.group_version).await {
            Ok(list) => list.resources,
            // A version that was dropped between the two questions.
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => return Err(Failure::of(&error)),
        };
        if resources.iter().any(|resource| resource.name == wanted.plural) {
            if wanted.versions.contains(&version.version) { found.push(version.version) } else { unreadable.push(version.version) }
        }
    }
    match wanted.versions.iter().find(|version| found.contains(version)) {
        Some(version) => Ok(Served::In(version.clone())),
        None if unreadable.is_empty() => Ok(Served::Nowhere),
        None => {
            let (kind, versions) = (&wanted.kind, unreadable.join(", "));
            let text =
                format!("the API server serves {kind} only as {versions}, which this release of golden-catalog cannot read: upgrade it");
            Err(Failure::Other(text, None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{Claim, MachineSet};

    #[test]
    fn paths_move_between_versions() {
        let wanted = Wanted::new::<MachineSet>(&["v1beta2"]);
        let own = MachineSet::url_path(&(), None);
        assert_eq!(wanted.path(&own, "v1beta2"), "/apis/cluster.x-k8s.io/v1beta2/machinesets");
        assert_eq!(wanted.path(&own, "v1beta1"), own);
        let claims = Claim::url_path(&(), Some("a"));
        assert_eq!(Wanted::new::<Claim>(&[]).path(&claims, "v1"), claims);
    }
}
