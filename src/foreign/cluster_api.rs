use serde::{Deserialize, Serialize};

use super::{Lenient, Nothing, TemplateMeta, VirtualMachineSpec, foreign_kind};

foreign_kind!(
    /// Cluster API Provider KubeVirt's template of worker VMs. Cozystack names it by a hash of its content.
    KubevirtMachineTemplate, "infrastructure.cluster.x-k8s.io", "v1alpha1", "KubevirtMachineTemplate", "kubevirtmachinetemplates",
    NamespaceResourceScope, KubevirtMachineTemplateSpec, Nothing
);
foreign_kind!(
    /// Cluster API's MachineDeployment: a worker pool.
    MachineDeployment, "cluster.x-k8s.io", "v1beta1", "MachineDeployment", "machinedeployments", NamespaceResourceScope, MachineOwnerSpec, Nothing
);
foreign_kind!(
    /// Cluster API's MachineSet: one generation of a pool; it keeps old templates alive.
    MachineSet, "cluster.x-k8s.io", "v1beta1", "MachineSet", "machinesets", NamespaceResourceScope, MachineOwnerSpec, Nothing
);
foreign_kind!(
    /// A MachineDeployment of the version that Cluster API v1.11 brought, for servers that no longer serve `v1beta1`.
    MachineDeploymentV1Beta2, "cluster.x-k8s.io", "v1beta2", "MachineDeployment", "machinedeployments", NamespaceResourceScope, MachineOwnerSpec, Nothing
);
foreign_kind!(
    /// A MachineSet of the version that Cluster API v1.11 brought, for servers that no longer serve `v1beta1`.
    MachineSetV1Beta2, "cluster.x-k8s.io", "v1beta2", "MachineSet", "machinesets", NamespaceResourceScope, MachineOwnerSpec, Nothing
);

/// A machine template's spec.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KubevirtMachineTemplateSpec {
    /// The machines made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateResource>,
}

/// The machines made from a template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TemplateResource {
    /// A machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<TemplateResourceSpec>,
}

/// A machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateResourceSpec {
    /// Its VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_template: Option<VirtualMachineTemplate>,
}

/// A machine's VM. CAPK makes it in `metadata.namespace`, which Cozystack sets to the template's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VirtualMachineTemplate {
    /// Namespace and labels of the VM.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// The VM.
    #[serde(default)]
    pub spec: Lenient<VirtualMachineSpec>,
}

/// The spec of a MachineDeployment or MachineSet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineOwnerSpec {
    /// The machines it makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<MachineTemplate>,
}

/// The machines a MachineDeployment or MachineSet makes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineTemplate {
    /// Labels of the machines.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// A machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<MachineSpec>,
}

/// A machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// Its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<InfrastructureReference>,
}

/// A template by kind and name; `v1beta1` has `apiVersion` and a namespace, `v1beta2` only the group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InfrastructureReference {
    /// Group and version, in `v1beta1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// The group, in `v1beta2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// The kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The namespace, in `v1beta1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}
