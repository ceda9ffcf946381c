//! Other projects' Kubernetes objects, typed for the fields this daemon reads and lenient for all others.
//!
//! Nothing here validates: an absent field is `None`, an unknown one is ignored, and a part of a shape nobody foresaw becomes [`Lenient::Odd`] instead of failing the list it came in (one undecodable object would otherwise stop a whole watch).

mod cdi;
mod cluster_api;
mod core;
mod cozystack;
mod kubevirt;
mod lenient;
mod quantity;
#[cfg(test)]
mod schema_tests;
mod snapshot;

pub use cdi::{
    Cdi, CdiConfig, CdiConfigStatus, CdiSpec, ClaimPropertySet, DataSource, DataSourceReference, DataSourceSource, DataSourceSpec,
    DataVolume, DataVolumeSource, DataVolumeSpec, DataVolumeStatus, FilesystemOverhead, HttpSource, ImportProxy, StorageProfile,
    StorageProfileSpec, StorageProfileStatus, VolumeCloneSource, VolumeCloneSourceSpec,
};
pub use cluster_api::{
    InfrastructureReference, KubevirtMachineTemplate, KubevirtMachineTemplateSpec, MachineDeployment, MachineDeploymentV1Beta2,
    MachineOwnerSpec, MachineSet, MachineSetV1Beta2, MachineSpec, MachineTemplate, TemplateResource, TemplateResourceSpec,
    VirtualMachineTemplate,
};
pub use core::{Claim, ClaimSpec, ClaimStatus, Condition, NamespacedName, ResourceRequests, TypedReference};
pub use cozystack::{WorkerClass, WorkerClassSpec, WorkerImage};
pub use kubevirt::{
    DataVolumeTemplate, InstanceSpec, InstanceTemplate, VirtualMachine, VirtualMachineSpec, Volume, VolumeClaimReference,
    VolumeDataVolumeReference,
};
pub use lenient::{Lenient, Nothing, TemplateMeta};
pub use quantity::Quantity;
pub use snapshot::{
    SnapshotContentSpec, SnapshotReference, SnapshotSource, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, VolumeSnapshotSpec,
    VolumeSnapshotStatus,
};

/// Declares a foreign kind: its struct, its `kube::Resource`, and a serialisation that carries `apiVersion` and `kind`.
macro_rules! foreign_kind {
    ($(#[$doc:meta])* $name:ident, $group:literal, $version:literal, $kind:literal, $plural:literal, $scope:ident, $spec:ty, $status:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
        pub struct $name {
            /// The standard metadata, without `managedFields`: nothing here reads them and they are the bulk of an object.
            #[serde(default, deserialize_with = "crate::foreign::lenient::metadata")]
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// What is wanted.
            #[serde(default)]
            pub spec: crate::foreign::Lenient<$spec>,
            /// What was observed.
            #[serde(default)]
            pub status: crate::foreign::Lenient<$status>,
        }

        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = kube::core::$scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct as _;
                let mut object = serializer.serialize_struct(stringify!($name), 5)?;
                object.serialize_field("apiVersion", &<Self as kube::Resource>::api_version(&()))?;
                object.serialize_field("kind", $kind)?;
                object.serialize_field("metadata", &self.metadata)?;
                if !self.spec.is_empty() {
                    object.serialize_field("spec", &self.spec)?;
                }
                if !self.status.is_empty() {
                    object.serialize_field("status", &self.status)?;
                }
                object.end()
            }
        }
    };
}
use foreign_kind;
