//! The process's own numbers, under the names every Prometheus client library uses, from `proc(5)`.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use std::time::{SystemTime, UNIX_EPOCH};

/// Linux reports times in these units to user space (`USER_HZ`, fixed by its ABI on every architecture we build for).
const TICKS: f64 = 100.0;

/// Reads `/proc/self` at each scrape.
#[derive(Debug)]
pub(super) struct Process {
    started: f64,
}

impl Process {
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: now.as_secs_f64() }
    }
}

/// CPU seconds and resident bytes.
fn read() -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // utime and stime are fields 14 and 15 of the whole line, rss the 24th, in pages.
    let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()?;
    Some(((number(14)? + number(15)?) / TICKS, rss * 1024.0))
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut gauge = |name: &str, help: &str, value: f64| {
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("process_start_time_seconds", "Start time of the process since the epoch.", self.started)?;
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            gauge("process_open_fds", "Open file descriptors.", open.count() as f64)?;
        }
        let Some((cpu, resident)) = read() else { return Ok(()) };
        gauge("process_resident_memory_bytes", "Resident memory.", resident)?;
        ConstCounter::new(cpu).encode(encoder.encode_descriptor(
            "process_cpu_seconds",
            "CPU time used, user and system.",
            None,
            MetricType::Counter,
        )?)
    }
}
