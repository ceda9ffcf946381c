//! Custom resource definitions: ours, and those of CDI, KubeVirt, Cluster API and the snapshot API.

use super::{Cluster, apply::parse, eventually, repository, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt, api::ListParams};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Which schemas other projects' kinds get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// The project's own trimmed ones, `e2e/schemas`: small, written by us, only what we read and write.
    Trimmed,
    /// The real ones as clusters serve them, from `../shared/crds` beside the repository or `E2E_CRDS`, and trimmed ones for
    /// the kinds that are not there.
    Real,
}

impl Flavor {
    /// The flavor of this run: `E2E_SCHEMAS=real` or `trimmed` (the default). `make test` runs the suite on each it has.
    pub fn chosen() -> Self {
        match std::env::var("E2E_SCHEMAS").as_deref() {
            Ok("real") => Self::Real,
            Ok("trimmed") | Err(_) => Self::Trimmed,
            Ok(other) => panic!("E2E_SCHEMAS is {other:?}: expected real or trimmed"),
        }
    }

    /// The folder of the real ones, when they are there.
    pub fn real_folder() -> Option<PathBuf> {
        let folder = std::env::var_os("E2E_CRDS").map_or_else(|| repository().join("../shared/crds"), PathBuf::from);
        folder.is_dir().then_some(folder)
    }
}

impl Cluster {
    /// Installs the kinds of other projects and waits until they are served; on a whole cluster they are there already.
    pub async fn install_foreign_crds(&self, flavor: Flavor) {
        if self.is_whole() {
            return;
        }
        let mut definitions = read_folder(&repository().join("e2e/schemas"));
        if flavor == Flavor::Real {
            let folder = Flavor::real_folder().expect("E2E_SCHEMAS=real needs ../shared/crds beside the repository, or E2E_CRDS");
            definitions.extend(read_folder(&folder).into_iter().map(|(name, text)| (name, approved(&text))));
        }
        self.install_crds(definitions.values()).await;
    }

    /// Installs our own kinds, as `crds/` has them, and waits until they are served.
    pub async fn install_product_crds(&self) {
        self.install_crds(read_folder(&repository().join("crds")).values()).await;
    }

    /// Installs definitions and waits until their kinds can be listed.
    pub async fn install_crds(&self, definitions: impl Iterator<Item = &String>) {
        let mut names = vec![];
        for definition in definitions {
            names.extend(self.apply(definition).await.iter().map(ResourceExt::name_any));
        }
        let api: Api<CustomResourceDefinition> = Api::all(self.admin());
        for name in names {
            let established = |crd: &CustomResourceDefinition| super::condition(crd, "Established").is_some_and(|c| c.status == "True");
            let crd = until(api.clone(), &name, "it is established", established).await;
            for version in crd.spec.versions.iter().filter(|version| version.served) {
                let client = self.admin();
                let api = self.api(&client, &format!("{}/{}", crd.spec.group, version.name), &crd.spec.names.kind, "default").await;
                eventually(&format!("{name} {} can be listed", version.name), || async {
                    // Without a limit: one with a limit is answered before the server's cache of the kind is filled.
                    api.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
                })
                .await;
            }
        }
    }
}

/// A definition as a cluster takes it: groups under `k8s.io` need a note that says who approved them, which the files lost.
fn approved(definition: &str) -> String {
    let mut definition: serde_json::Value = serde_json::from_str(definition).expect("read_folder gives JSON");
    if definition["spec"]["group"].as_str().is_some_and(|group| group.ends_with(".k8s.io")) {
        definition["metadata"]["annotations"]["api-approved.kubernetes.io"] = "unapproved, a copy for tests".into();
    }
    definition.to_string()
}

/// The definitions in a folder of YAML and JSON files, by their names.
pub fn read_folder(folder: &Path) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = BTreeMap::new();
    for path in files.map(|entry| entry.expect("read a folder").path()) {
        if !path.extension().is_some_and(|extension| extension == "yaml" || extension == "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("read a definition");
        for definition in parse(&text) {
            let name = definition["metadata"]["name"].as_str().unwrap_or_else(|| panic!("{}: no name", path.display())).to_owned();
            found.insert(name, definition.to_string());
        }
    }
    assert!(!found.is_empty(), "{} has no definitions", folder.display());
    found
}
