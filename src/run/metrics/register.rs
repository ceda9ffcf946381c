//! Registration that keeps what it registers, so that the table in the documentation is made from the same words.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry, Unit},
};
use std::sync::atomic::AtomicU64;

/// A gauge of fractions.
pub(super) type Float = Gauge<f64, AtomicU64>;

/// The names of a label set, in order.
pub(super) trait Labels {
    const NAMES: &'static [&'static str];
}

/// What a metric is, for the documentation.
pub(super) trait Described {
    const TYPE: &'static str;
    const LABELS: &'static [&'static str] = &[];
}

impl Described for Counter {
    const TYPE: &'static str = "counter";
}

impl Described for Gauge {
    const TYPE: &'static str = "gauge";
}

impl Described for Float {
    const TYPE: &'static str = "gauge";
}

impl Described for Histogram {
    const TYPE: &'static str = "histogram";
}

impl<L: Labels, M: Described, C> Described for Family<L, M, C> {
    const TYPE: &'static str = M::TYPE;
    const LABELS: &'static [&'static str] = L::NAMES;
}

/// One metric, as a person reads of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Its name in a scrape.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// A registry under our prefix, and the descriptions of all that went into it.
pub(super) struct Registrar<'a> {
    registry: &'a mut Registry,
    descriptions: Vec<Description>,
}

impl<'a> Registrar<'a> {
    pub fn new(registry: &'a mut Registry) -> Self {
        Self { registry, descriptions: Vec::new() }
    }

    pub fn add<M: Metric + Described + Clone>(&mut self, name: &'static str, help: &'static str, metric: M) -> M {
        self.describe::<M>(name, help);
        self.registry.register(name, help, metric.clone());
        metric
    }

    /// Registers a metric whose name ends in its unit.
    pub fn add_in<M: Metric + Described + Clone>(&mut self, unit: Unit, name: &'static str, help: &'static str, metric: M) -> M {
        self.describe::<M>(&format!("{name}_{}", unit.as_str()), help);
        self.registry.register_with_unit(name, help, unit, metric.clone());
        metric
    }

    /// A family of histograms with these bounds.
    pub fn histograms<L>(
        &mut self,
        name: &'static str,
        help: &'static str,
        bounds: fn() -> Histogram,
    ) -> Family<L, Histogram, fn() -> Histogram>
    where
        L: Labels + Clone + std::hash::Hash + Eq,
        Family<L, Histogram, fn() -> Histogram>: Metric + Clone,
    {
        self.add_in(Unit::Seconds, name, help, Family::new_with_constructor(bounds))
    }

    fn describe<M: Described>(&mut self, name: &str, help: &'static str) {
        let total = if M::TYPE == "counter" { "_total" } else { "" };
        let name = format!("{}_{name}{total}", super::PREFIX);
        self.descriptions.push(Description { name, kind: M::TYPE, labels: M::LABELS, help });
    }

    pub fn descriptions(self) -> Vec<Description> {
        self.descriptions
    }
}
