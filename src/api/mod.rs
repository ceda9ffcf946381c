//! The `GoldenImage` API, `cozystack.io/v1alpha1`: its types, its CRD.

mod conditions;
mod crd;
mod goldens;
mod limits;
mod owned;
mod parse;
mod read;
mod spec;
mod status;
mod upgrade;
mod yaml;

pub use conditions::{ConditionSet, ConditionType, find_condition, is_true};
pub use crd::{crd, crd_yaml};
pub use goldens::ImageGolden;
pub use owned::{ENTRIES, digest_managers, is_digest_of_another};
pub use parse::{FieldError, FieldErrors, ONE_SCHEMATIC, parse_image};
pub use read::{add_untold, read_spec, unquoted};
pub use spec::{
    AccessSpec, ConfigMapKeyReference, ContainerDiskSource, DeletionPolicy, GoldenImage, GoldenImageSpec, HttpSource, OperatingSystem,
    SecretReference, SourceSpec, StorageSpec, TalosFactorySource, TargetSpec, VirtualMachineDefaultsSpec,
};
pub use status::{
    ArtifactStatus, ConsumersStatus, DiskStatus, FetchStatus, GoldenImageStatus, LastFailure, OperatingSystemStatus, TargetStatus,
};
pub use upgrade::{CRD_VERSION, Upgrade, missing_fields, upgrade};
pub use yaml::{ONE_DOCUMENT, yaml_fault};
