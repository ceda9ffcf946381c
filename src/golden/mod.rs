//! One golden image from spec to Ready: observe → decide → act.
//!
//! [`decide`] is pure: what was observed, the settings and the time give a status, actions and a wake-up. It reads like the
//! life of an image. Applied once, it gives no actions. `observe` and `act` are the edges.

mod adopt;
#[cfg(test)]
mod adopt_tests;
pub mod begun;
mod decide;
mod fetch;
mod free;
#[cfg(test)]
mod free_tests;
mod import;
mod leaving;
#[cfg(test)]
mod leaving_tests;
mod left;
pub mod manifest;
pub mod observe;
mod observed;
mod owner;
mod pacer;
mod queue;
#[cfg(test)]
mod refused_tests;
mod retire;
mod standing;
mod start;
#[cfg(test)]
mod storage_tests;
mod summary;
mod target;
#[cfg(test)]
mod target_tests;
#[cfg(test)]
mod tests;
mod usage;

pub use adopt::{Asked, Foretold, foretell, marks_of as adopted_marks, wanted};
pub use decide::{Action, Decision, ImportOrder, Note, Wants, decide};
pub use free::Said;
pub use import::{patience, stood_still};
pub use leaving::{Leaving, place};
pub use left::unfinished_of;
pub use observed::{
    ClaimView, ClassChoice, ClassFound, CredentialsView, DataVolumeView, FetchView, GoldenView, GrantView, HeldBack, Metadata, Observed,
    ObservedTarget, Permits, Reference, Settings, SpooledView, UpstreamView,
};
pub use owner::Owner;
pub use pacer::{Pacer, Turn};
pub use queue::Queue;
pub use retire::Retirement;
pub use standing::{Goldens, Standing, goldens_of};
pub use target::needs_no_disk;
pub use usage::UsageView;
