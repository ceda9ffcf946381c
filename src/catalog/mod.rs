//! From a list in values (or in the ConfigMap that the chart renders from it) to GoldenImages.
//!
//! A bad entry is told and stops nothing else: neither the other entries nor the release.

mod entry;
mod quote;
mod reconcile;
mod schema;

pub use entry::{Entry, EntryError, List, ListError, read_list};
pub use quote::quote;
pub use reconcile::{LISTED_AS, LISTED_IN, Listing, Plan, Problem, Step, entry_changes, owners, plan};
pub use schema::entry_schema;
