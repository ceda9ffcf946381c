//! Why a golden image is in the state it is in: one closed list, used as condition reason, event reason and metric label.

use std::{fmt, time::Duration};

/// Declares the reasons once: name, whether a retry can never help, and the remedy a person is given.
macro_rules! reasons {
    ($(#[doc = $doc:literal] $name:ident $(= $text:literal)? { terminal: $terminal:literal, remedy: $remedy:literal })*) => {
        /// A reason in CamelCase, as Kubernetes conditions want it. It says what to do; the message says what happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $doc] $name,)*
        }

        impl Reason {
            /// Every reason, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The reason as it is written into conditions, events and metric labels.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => reasons!(@text $name $($text)?),)*
                }
            }

            /// What the reason means, as a sentence.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $doc.trim_ascii(),)*
                }
            }

            /// Whether the same input can never succeed, so that retrying is pointless until the spec changes.
            pub const fn is_terminal(self) -> bool {
                match self {
                    $(Self::$name => $terminal,)*
                }
            }

            /// What a person can do, as the last sentence of a message; empty where nothing needs doing.
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)*
                }
            }

            /// A message of this reason without the remedy at its end.
            pub fn without_remedy(self, message: &str) -> &str {
                message.trim_end_matches(self.remedy()).trim_end()
            }
        }
    };
    (@text $name:ident $text:literal) => { $text };
    (@text $name:ident) => { stringify!($name) };
}

reasons! {
    // The states of a healthy image.
    /// The spec is sane.
    Accepted { terminal: false, remedy: "" }
    /// Upstream answered and what it offers is known.
    Resolved { terminal: false, remedy: "" }
    /// Upstream is being asked what it has.
    Resolving { terminal: false, remedy: "" }
    /// The bytes matched a known digest.
    DigestMatches { terminal: false, remedy: "" }
    /// No digest is known for the bytes; their structure is whole.
    StructureChecked { terminal: false, remedy: "" }
    /// The golden was made by someone else and taken over as it is.
    Adopted { terminal: false, remedy: "" }
    /// The artifact is being downloaded and verified.
    Fetching { terminal: false, remedy: "" }
    /// Waiting for its turn: a limit on parallel work is reached (R11).
    Queued { terminal: false, remedy: "" }
    /// CDI copies the golden from the image's golden in another StorageClass.
    Copying { terminal: false, remedy: "" }
    /// CDI is importing the golden.
    Importing { terminal: false, remedy: "" }
    /// The golden can be cloned.
    Ready { terminal: false, remedy: "" }
    /// `spec.suspend` is set.
    Suspended { terminal: false, remedy: "Set `spec.suspend: false` to go on." }

    // R9: what upstream sent.
    /// Upstream has no such file.
    NotFound { terminal: false, remedy: "Check the address or version; it is asked again and heals by itself when the file appears." }
    /// Upstream wants credentials, or refuses the ones given.
    Unauthorized { terminal: false, remedy: "Name a Secret with the right credentials in `credentialsSecretRef`, or correct the one named; a changed Secret is tried at once." }
    /// Upstream knows us and refuses.
    Forbidden { terminal: false, remedy: "Have upstream allow the download to these credentials, or give others; a changed Secret is tried at once." }
    /// Upstream asks us to come back later.
    RateLimited { terminal: false, remedy: "Retried when upstream said, or with a growing delay; a mirror or credentials raise the limit." }
    /// Upstream cannot be reached or fails.
    Unavailable { terminal: false, remedy: "Retried with a growing delay; check upstream, DNS and proxy, or configure a mirror." }
    /// The TLS connection could not be trusted.
    TLSFailed { terminal: false, remedy: "Put the upstream's CA into `caBundleRef`, or mend its certificate." }
    /// An address, redirect or header that the daemon will not follow.
    EgressRefused { terminal: false, remedy: "Change what the message names; an address that leads straight to the file as it is avoids all of it." }
    /// Upstream says the request itself is wrong.
    InvalidSource { terminal: true, remedy: "Correct the entry: make a new one, since a source cannot be edited." }
    /// The bytes are not whole.
    Corrupt { terminal: false, remedy: "Fetched again; if it stays, upstream's file is damaged." }
    /// The bytes are not the ones that were asked for.
    DigestMismatch { terminal: true, remedy: "Nothing was imported. Check the digest against the publisher's, then make a new entry." }
    /// The file holds no disk.
    NotADiskImage { terminal: true, remedy: "Point the entry at a qcow2 or raw disk image." }
    /// The file holds a disk in a form that is not supported.
    UnsupportedFormat { terminal: true, remedy: "Convert it to qcow2 or raw (raw may be compressed with xz, zstd or gzip)." }
    /// The file, or what it unpacks to, is larger than allowed or than the whole spool, or has no end.
    TooLarge { terminal: true, remedy: "Use a smaller image, or raise the limit that the message tells of." }
    /// The target is smaller than the disk.
    SizeTooSmall { terminal: true, remedy: "Leave `size` empty, or make a new entry with at least the size named." }
    /// The spool has no room.
    SpoolFull { terminal: false, remedy: "Waits for room; enlarge the spool volume if it stays." }
    /// The spool's volume fails.
    SpoolFailed { terminal: false, remedy: "Check the spool's volume: it must be writable and whole." }

    // What a registry has instead of a container disk.
    /// A container image's manifest, index or configuration is larger than allowed.
    ManifestTooLarge { terminal: true, remedy: "Use an image with a manifest of at most 4 MiB." }
    /// The registry's document is neither an image index nor an image manifest that is understood.
    InvalidManifest { terminal: true, remedy: "Push the image anew with a current tool, and make a new entry with its digest." }
    /// The reference is an artifact (a chart, a signature, an SBOM), not a container image.
    NotAContainerImage { terminal: true, remedy: "Point the entry at a container disk: an image with one disk file under `disk/`." }
    /// The container image's configuration is empty, so that nothing says which architecture it is for.
    EmptyImageConfig { terminal: true, remedy: "Build the image with a tool that writes its configuration, and make a new entry with its digest." }
    /// The index holds attestations and no image.
    OnlyAttestations { terminal: true, remedy: "Point the entry at the digest of the image's own index." }
    /// The container image is not made for the stated architecture.
    WrongArchitecture { terminal: true, remedy: "State the architecture that the image has, or make a new entry for an image of this one." }
    /// The container image holds no file under `disk/`.
    NoDiskFile { terminal: true, remedy: "Build it with the disk as its one file under `disk/` (`ADD disk.qcow2 /disk/`)." }
    /// The container image holds more than one file under `disk/`.
    SeveralDiskFiles { terminal: true, remedy: "Build it with one disk file under `disk/`." }
    /// A link stands in the disk's place.
    LinkedDiskFile { terminal: true, remedy: "Build it with the disk itself under `disk/`, not a link to it." }
    /// KubeVirt and CDI would take different files of the image for its disk.
    AmbiguousDiskFile { terminal: true, remedy: "Build it from nothing (`FROM scratch`) with the disk as its one file under `disk/`." }

    // Rules on entries and objects.
    /// The object or entry is not of the accepted form.
    InvalidEntry { terminal: true, remedy: "Correct the field named." }
    /// A container image without a digest (R2).
    UnpinnedReference { terminal: true, remedy: "Append `@sha256:<digest>` to the reference." }
    /// Another image is the same one (R3).
    DuplicateIdentity { terminal: true, remedy: "Remove this one; the image named serves both." }
    /// A frozen field was edited (R4).
    EntryEdited { terminal: false, remedy: "Restore the value, or make a new entry with a new name." }
    /// The entry is no longer in the list.
    Unlisted { terminal: false, remedy: "" }
    /// A DataVolume, PVC or Secret of the golden's name belongs to someone else (R5).
    NameConflict { terminal: false, remedy: "Correct the entry, or delete or rename the object named; it was not touched." }
    /// Two targets are one StorageClass.
    DuplicateClass { terminal: true, remedy: "Keep one target per StorageClass." }
    /// The image is for selected namespaces only, and nothing enforces that yet (R18).
    AccessNotEnforced { terminal: true, remedy: "Write `access: {policy: AllTenants}` if every tenant may have the image; otherwise it is made once clone admission is on (`admission.enabled` in the chart's values)." }
    /// A referenced ConfigMap or Secret is missing, or does not hold what is needed.
    ReferenceNotFound { terminal: false, remedy: "Create or correct what is named; the image goes on by itself." }

    // R10, R12: what storage and CDI did.
    /// The cluster has no default StorageClass (R12).
    NoDefaultClass { terminal: false, remedy: "Mark a StorageClass as default or name one in `storageClassName`; the import then starts by itself." }
    /// The StorageClass does not exist.
    ClassNotFound { terminal: false, remedy: "Create the StorageClass; the import then starts by itself." }
    /// CDI does not know how volumes of the class can be claimed.
    ModesUnknown { terminal: false, remedy: "State `volumeMode` and `accessModes` in the target, or add `claimPropertySets` to the class's StorageProfile." }
    /// CDI is not installed.
    CDINotFound { terminal: false, remedy: "Install CDI; the import then starts by itself." }
    /// CDI lacks a field that the import needs.
    CDIUnsupported { terminal: false, remedy: "Upgrade CDI to v1.50 or newer; the import then goes on by itself." }
    /// A policy, a webhook, missing rights or the like refuse a write that the image needs.
    CreateRefused { terminal: false, remedy: "Allow what the message names; it is tried again and goes on by itself once it is allowed." }
    /// CDI refused or lost the DataVolume, or its import keeps failing.
    ImportFailed { terminal: false, remedy: "See the message; the import is retried." }
    /// The import has made no progress for its deadline.
    ImportStalled { terminal: false, remedy: "Look at the importer pod in the catalog namespace; the import is retried." }
    /// An import that somebody else began under the golden's name makes no progress (R5).
    ForeignImportStalled { terminal: false, remedy: "Mend what CDI says, or delete the DataVolume named: the catalog then makes the golden itself. It is taken over if it still ends well." }
    /// A ResourceQuota stops the import.
    QuotaExceeded { terminal: false, remedy: "Raise the quota of the catalog namespace: an import takes about three times its size for a while. It then begins by itself." }
    /// CDI has no room to convert the disk in.
    ScratchUnavailable { terminal: false, remedy: "Mend the StorageClass named, or name another in CDIConfig's `scratchSpaceStorageClass`; the import is retried." }
    /// Storage does not make or attach a volume.
    VolumeNotMade { terminal: false, remedy: "The message is the storage driver's: mend the StorageClass or its pool; the import is retried." }
    /// The importer pod cannot be scheduled.
    Unschedulable { terminal: false, remedy: "Free resources or mend the nodes; see the pod's events." }
    /// CDI's import proxy stands between the importer and the spool.
    ImportProxyInTheWay { terminal: false, remedy: "Add the spool's host to `noProxy` of CDIConfig's `importProxy`." }
    /// The importer never asked the spool for the disk.
    ImporterNotConnected { terminal: false, remedy: "Check network policies between the importer pods and the spool's Service." }
    /// The importer does not trust the spool's certificate.
    ImporterTLSFailed { terminal: false, remedy: "The spool's CA is written anew; if it stays, see the importer's log." }
    /// The importer came with a wrong token.
    ImporterUnauthorized { terminal: false, remedy: "The header Secret is written anew; if it stays, see the importer's log." }
    /// The claim was lost.
    ClaimLost { terminal: false, remedy: "The volume behind the golden is gone; restore it or delete the DataVolume to import anew." }
    /// Another volume stands under the golden's name (R7).
    GoldenReplaced { terminal: false, remedy: "Restore the recorded volume, or do what the message names; a PVC with the image's mark can also be retired by force, and that undone, to have the golden made anew." }
    /// The golden's DataVolume or PVC is being deleted.
    GoldenTerminating { terminal: false, remedy: "It is made anew from the spool once its PVC and its DataVolume are gone." }
    /// The golden's PVC is gone although it was Ready.
    GoldenMissing { terminal: false, remedy: "It is not imported again silently: delete the DataVolume to have it made anew." }
    /// A pod uses the golden (R26).
    InUseByPod { terminal: false, remedy: "Stop the pod named: clones wait while it runs." }
    /// The goldens are to go: pools that use them go on, new ones are turned away (R23).
    Retiring { terminal: false, remedy: "Move what needs it to another image; it goes by itself then. `golden-catalog consumers` shows who needs it." }
    /// The goldens were retired and are gone (R23).
    Retired { terminal: false, remedy: "`golden-catalog retire NAME --undo` has it made anew; where values or a hand say `retire: true`, take that out there first." }
    /// What retiring a golden takes is refused, or an object that it depends on cannot be read (R23).
    CannotRetire { terminal: false, remedy: "Allow or correct what the message names; it is tried again with a growing delay and goes on by itself then." }
    /// An import was ended because its GoldenImage was deleted in the middle of it, or has no target for it (R24).
    ImageGone { terminal: false, remedy: "Create the GoldenImage again to have it imported." }
    /// The default StorageClass is another one than when the golden was made.
    DefaultClassDrift { terminal: false, remedy: "Nothing changes for this golden; add a target for the new class if pools need it." }
    /// Clones in the StorageClass are slow, limited or impossible.
    CannotCloneWell { terminal: false, remedy: "Change the class or its StorageProfile as said, or use another class for pools." }
    /// The StorageProfile would have the golden made otherwise today.
    ProfileChanged { terminal: false, remedy: "Nothing changes for this golden; clones must keep its volume mode." }
    /// Upstream now serves other bytes than were imported (R6).
    UpstreamChanged { terminal: false, remedy: "Nothing is imported in place; make a new entry for the new bytes." }
    // R22: who needs a golden.
    /// Something needs a golden of the image.
    InUse { terminal: false, remedy: "`golden-catalog consumers NAME` tells what; until that is gone, no golden may be deleted." }
    /// Clones exist, and each stands alone.
    OnlyIndependentClones { terminal: false, remedy: "" }
    /// Nothing uses the image.
    Unused { terminal: false, remedy: "" }
    /// Not every consumer is known.
    ConsumersUnknown { terminal: false, remedy: "Nothing may be called unused meanwhile; see the daemon's readiness and its ClusterRole." }
    /// A clone does not move.
    CloneStuck { terminal: false, remedy: "The Event names the cause; the clone goes on when it is gone." }
    /// A clone waits until its golden is made.
    WaitingForGolden { terminal: false, remedy: "" }
    /// A disk was copied over the network instead of being cloned in storage.
    NetworkCopy { terminal: false, remedy: "The disk is whole; the next one of its kind is copied as well until what the Event names is changed." }
    /// A mark on a disk contradicted its spec and was corrected (R25).
    MarkCorrected { terminal: false, remedy: "Write the name of the golden that the spec names, or leave the annotation out." }
    /// The attempts are spent.
    AttemptsSpent { terminal: true, remedy: "A slow retry goes on; the annotation `kubernetes-worker-image.cozystack.io/retry: <new value>` starts over now." }
}

impl Reason {
    /// How long one of the reasons that usually heal (a file not published yet, a missing grant) may last before it
    /// counts as terminal failure (R9).
    pub const PATIENCE: Duration = Duration::from_secs(15 * 60);

    /// Whether this is one of the reasons that count as terminal only after [`Self::PATIENCE`].
    pub const fn is_terminal_in_time(self) -> bool {
        matches!(self, Self::NotFound | Self::Unauthorized | Self::Forbidden)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Reason {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn every_trouble_has_a_remedy_and_every_reason_reads_back() {
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(*reason));
            assert!(!reason.is_terminal() || !reason.remedy().is_empty(), "{reason}");
        }
    }
}
