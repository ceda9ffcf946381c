//! Admission on a real API server: the chart's webhooks, the real binary in its role as its own ServiceAccount, and the objects that Cozystack, KubeVirt, CDI and Cluster API write.

#[path = "admission/admitted.rs"]
mod admitted;
#[path = "cdi/mod.rs"]
mod cdi;
#[path = "admission/certificates.rs"]
mod certificates;
#[path = "admission/explained.rs"]
mod explained;
#[path = "admission/fence.rs"]
mod fence;
#[path = "admission/guards.rs"]
mod guards;
#[path = "harness/mod.rs"]
mod harness;
#[path = "admission/hostile.rs"]
mod hostile;
#[path = "admission/leaders.rs"]
mod leaders;
#[path = "admission/leaving.rs"]
mod leaving;
#[path = "admission/moments.rs"]
mod moments;
#[path = "admission/narrow.rs"]
mod narrow;
#[path = "admission/objects.rs"]
mod objects;
#[path = "admission/orders.rs"]
mod orders;
#[path = "admission/pools.rs"]
mod pools;
#[path = "continuity/proxy.rs"]
mod proxy;
#[path = "admission/real.rs"]
mod real;
#[path = "admission/refused.rs"]
mod refused;
#[path = "admission/restored.rs"]
mod restored;
#[path = "admission/sideways.rs"]
mod sideways;
#[path = "stage/mod.rs"]
mod stage;
#[path = "admission/stand.rs"]
mod stand;
#[path = "admission/unfinished.rs"]
mod unfinished;
#[path = "upstream/mod.rs"]
mod upstream;
#[path = "admission/ways.rs"]
mod ways;
