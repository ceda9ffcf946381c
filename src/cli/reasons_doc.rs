//! The troubleshooting page by reason, generated so that no reason lacks its entry.

use crate::{api::ConditionType, rules::Reason};

/// The page as Markdown.
pub fn reasons_page() -> String {
    let mut page = String::from(
        "# Troubleshooting by reason\n\nGenerated from `src/rules/reason.rs` by `make generate`; do not edit.\n\nA reason stands in a condition of a GoldenImage (`kubectl get gi` shows that of `Ready`), in Events and in metric labels. The condition's message says what happened and ends with the remedy. *Terminal* reasons set `Stalled=True` at once; NotFound, Unauthorized and Forbidden do so after 15 minutes. Rules that a message or this page names by number (R1 to R26) are told in [architecture](architecture.md#the-rules-by-number).\n\n## Conditions\n\n`kubectl get gi NAME -o yaml` shows them, for the image under `status.conditions` and for each golden under `status.targets[].conditions`.\n\n| condition | True means |\n|---|---|\n",
    );
    for kind in ConditionType::ALL {
        page.push_str(&format!("| {} | {} |\n", kind.as_str(), kind.meaning()));
    }
    page.push_str(
        "\nWhat `Ready=False` says stands in `Stalled` too where it is terminal, in `Reconciling` where it is not, and in `Available` where no golden of the image works.\n\n## Reasons\n\n| reason | stands in | terminal | what it means | what to do |\n|---|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        let terminal = if reason.is_terminal() {
            "yes"
        } else if reason.is_terminal_in_time() {
            "after 15 min"
        } else {
            ""
        };
        page.push_str(&format!("| {reason} | {} | {terminal} | {} | {} |\n", stands_in(*reason), reason.meaning(), reason.remedy()));
    }
    page
}

/// Where a reason is found. Written out, so that a new reason is given its place.
const fn stands_in(reason: Reason) -> &'static str {
    use Reason as R;
    match reason {
        R::Accepted => "Accepted",
        R::Resolved => "Resolved",
        R::DigestMatches | R::StructureChecked => "Verified",
        R::Adopted => "Verified, Resolved",
        R::Resolving | R::Fetching => "Ready, Resolved, Verified",
        R::Queued | R::Copying | R::Importing | R::Suspended => "Ready",
        R::Ready => "Ready, Available",
        // What an upstream or a registry answered, and what keeps it from being asked.
        R::NotFound
        | R::Unauthorized
        | R::Forbidden
        | R::RateLimited
        | R::Unavailable
        | R::TLSFailed
        | R::EgressRefused
        | R::InvalidSource
        | R::ManifestTooLarge
        | R::InvalidManifest
        | R::NotAContainerImage
        | R::EmptyImageConfig
        | R::OnlyAttestations
        | R::WrongArchitecture
        | R::NoDiskFile
        | R::SeveralDiskFiles
        | R::LinkedDiskFile
        | R::AmbiguousDiskFile
        | R::ReferenceNotFound
        | R::SpoolFull
        | R::SpoolFailed => "Ready, Resolved",
        // What the bytes are.
        R::Corrupt | R::DigestMismatch | R::NotADiskImage | R::UnsupportedFormat | R::TooLarge | R::SizeTooSmall => "Ready, Verified",
        R::InvalidEntry | R::UnpinnedReference | R::DuplicateIdentity => {
            "Accepted, Ready; of an entry without an image: an Event on the list"
        }
        R::NameConflict | R::DuplicateClass | R::AccessNotEnforced => "Accepted, Ready",
        R::EntryEdited => "EntryEdited",
        R::Unlisted => "Unlisted",
        // Storage, CDI and the golden itself.
        R::NoDefaultClass
        | R::ClassNotFound
        | R::ModesUnknown
        | R::CDINotFound
        | R::CDIUnsupported
        | R::ImportFailed
        | R::ImportStalled
        | R::ForeignImportStalled
        | R::ScratchUnavailable
        | R::VolumeNotMade
        | R::Unschedulable
        | R::ImportProxyInTheWay
        | R::ImporterNotConnected
        | R::ImporterTLSFailed
        | R::ImporterUnauthorized
        | R::ClaimLost
        | R::GoldenReplaced
        | R::GoldenTerminating
        | R::GoldenMissing => "Ready",
        R::CreateRefused | R::QuotaExceeded => "Ready, WriteRefused",
        R::CannotRetire => "Ready, WriteRefused; an Event on the golden's claim",
        R::AttemptsSpent => "the message of Ready, beside the last attempt's reason",
        R::InUseByPod => "InUseByPod",
        R::Retiring => "Retiring, Ready",
        R::Retired => "Ready",
        R::DefaultClassDrift => "DefaultClassDrift",
        R::CannotCloneWell => "CloneLimited",
        R::ProfileChanged => "ProfileChanged",
        R::UpstreamChanged => "UpstreamChanged",
        R::InUse | R::OnlyIndependentClones | R::Unused | R::ConsumersUnknown => "InUse",
        R::CloneStuck | R::WaitingForGolden => "an Event on the clone",
        R::NetworkCopy | R::MarkCorrected => "an Event on the disk",
        R::ImageGone => "an Event on what is left of an import",
    }
}
