use super::*;
use crate::rules::{Reason, clone::Rule, consumers::ConsumerKind};
use std::{
    collections::BTreeMap,
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

fn filled() -> Metrics {
    let metrics = Metrics::new();
    for (image, class) in [("talos-v1.13.6-b5a1de36eb14", "replicated"), ("ubuntu-24.04", "local")] {
        metrics.condition(image, None, "Ready", Status::False, Reason::Importing);
        metrics.condition(image, Some(class), "Ready", Status::Unknown, Reason::Queued);
        metrics.progress(image, Some(class), 0.3);
        metrics.attempts(image, None, 2);
        metrics.failed(image, Reason::Unavailable);
        metrics.fetched(image, 1 << 40);
        metrics.import_took(class, Duration::from_secs(12));
        metrics.expect_image(image);
        metrics.started(image, Some(class), 1.7e9);
        metrics.last_failure(image, None, Some((Reason::Unavailable, 1.7e9)));
        metrics.artifact_size(image, 1 << 28);
        metrics.golden_size(image, class, 5 << 30);
        metrics.clone_took(class, Duration::from_secs(43));
        metrics.forced_retire(image);
        metrics.consumers(image, &[("Disk", 7), ("KubevirtMachineTemplate", 1)], 1, &[("Provisioner", 1)]);
    }
    metrics.stuck_clones(&BTreeMap::from([(("ubuntu-24.04", "GoldenMissing"), 1), (("", "Unknown"), 2)]));
    metrics.marked(MarkOutcome::Added);
    metrics.list_problems([Reason::InvalidEntry, Reason::InvalidEntry]);
    metrics.rules_broken([Rule::R14, Rule::R14, Rule::R16]);
    metrics.expect_reviews(["clones", "goldens"], ["allowed", "refused", "unknown"]);
    metrics.admission_ready(true);
    metrics.webhooks_missing(6);
    metrics.judged("clones", "refused", Duration::from_millis(3));
    metrics.spool(SpoolSample { capacity: 64 << 30, used: 3 << 30, held: 1 << 30, disks: 2 });
    metrics.spool_served(1 << 30);
    metrics.fetch_took("talosFactory", Duration::from_secs(90));
    metrics.intake_took("http", Duration::from_millis(1500));
    metrics.reconciled("image", Outcome::Unchanged, Duration::from_millis(3));
    metrics.queue_depth("fetch", 4);
    metrics.in_backoff("image", 1);
    metrics.leads(true);
    metrics.watch("DataVolume", WatchSample { age: Some(Duration::from_secs(7)), synced: true, unreadable: 1, failures: 3 });
    metrics.certificate("spool", Some(86_400.0));
    metrics.event_lost("queue_full");
    metrics
}

fn lines<'a>(text: &'a str, containing: &str) -> Vec<&'a str> {
    text.lines().filter(|line| !line.starts_with('#') && line.contains(containing)).collect()
}

#[test]
fn promtool_finds_nothing_to_say() {
    let text = filled().scrape(Format::Text).unwrap();
    let child =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: promtool is not installed");
        return;
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
}

#[test]
fn both_formats_say_the_same_and_only_openmetrics_has_its_end_mark() {
    let metrics = filled();
    let (text, open) = (metrics.scrape(Format::Text).unwrap(), metrics.scrape(Format::OpenMetrics).unwrap());
    assert!(open.ends_with("# EOF\n") && !text.contains("# EOF"));
    // Buckets differ in how they write their bounds (`1` and `1.0`), which the formats want so.
    let values = |text: &str| {
        let lines = lines(text, "golden_image_").into_iter().filter(|line| !line.contains("_bucket{"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(values(&text), values(&open));
    assert_eq!(
        lines(&text, "golden_image_fetched_bytes_total{image=\"ubuntu-24.04\"}"),
        ["golden_image_fetched_bytes_total{image=\"ubuntu-24.04\"} 1099511627776"]
    );
    assert_eq!(lines(&text, "golden_image_watch_age_seconds"), ["golden_image_watch_age_seconds{kind=\"DataVolume\"} 7.0"]);
    assert!(
        text.contains("# TYPE process_cpu_seconds_total counter") && text.contains("# TYPE golden_image_import_duration_seconds histogram")
    );
}

#[test]
fn every_metric_has_our_prefix_and_a_help_text() {
    let text = filled().scrape(Format::Text).unwrap();
    let help: Vec<&str> = text.lines().filter(|line| line.starts_with("# HELP ")).collect();
    assert_eq!(help.len(), text.lines().filter(|line| line.starts_with("# TYPE ")).count());
    for line in help {
        let name = line.split(' ').nth(2).unwrap();
        assert!(name.starts_with("golden_image_") || name.starts_with("process_"), "{line}");
        assert!(line.len() > name.len() + 20, "{line}");
    }
}

#[test]
fn a_former_reason_goes_away_and_other_conditions_stay() {
    let metrics = filled();
    metrics.condition("ubuntu-24.04", Some("local"), "Ready", Status::True, Reason::Ready);
    metrics.condition("ubuntu-24.04", Some("local"), "Verified", Status::True, Reason::DigestMatches);
    let text = metrics.scrape(Format::Text).unwrap();
    let of_target = lines(&text, "golden_image_condition{image=\"ubuntu-24.04\",storage_class=\"local\"");
    assert_eq!(of_target.len(), 2, "{of_target:#?}");
    assert!(of_target.iter().any(|line| line.contains("status=\"True\",reason=\"Ready\"} 1")), "{of_target:#?}");
    assert_eq!(lines(&text, "golden_image_condition{image=\"ubuntu-24.04\",storage_class=\"\"").len(), 1);
}

#[test]
fn nothing_is_left_of_a_deleted_image_or_target() {
    let metrics = filled();
    metrics.retain_targets("ubuntu-24.04", |class| class != "local");
    let text = metrics.scrape(Format::Text).unwrap();
    assert_eq!(lines(&text, "ubuntu-24.04\",storage_class=\"local\""), [""; 0]);
    assert_ne!(lines(&text, "ubuntu-24.04"), [""; 0]);
    metrics.forget_image("ubuntu-24.04");
    let text = metrics.scrape(Format::Text).unwrap();
    assert_eq!(lines(&text, "ubuntu-24.04"), [""; 0]);
    assert_ne!(lines(&text, "talos-v1.13.6"), [""; 0], "others stay");
    // A thousand images that came and went leave the size it had.
    let size = text.lines().count();
    for n in 0..1000 {
        let image = format!("image-{n}");
        metrics.failed(&image, Reason::Corrupt);
        metrics.progress(&image, None, 0.5);
        metrics.forget_image(&image);
    }
    assert_eq!(metrics.scrape(Format::Text).unwrap().lines().count(), size);
}

#[test]
fn gauges_that_are_reckoned_are_set_at_each_scrape() {
    let metrics = Metrics::new();
    let scrapes = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = scrapes.clone();
    metrics.on_scrape(move |metrics| {
        let failures = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        metrics.watch(
            "PersistentVolumeClaim",
            WatchSample { age: (failures == 0).then_some(Duration::from_secs(1)), synced: false, unreadable: 0, failures },
        );
    });
    let first = metrics.scrape(Format::Text).unwrap();
    assert_eq!(lines(&first, "watch_age_seconds{").len(), 1);
    let second = metrics.scrape(Format::Text).unwrap();
    assert_eq!(lines(&second, "watch_age_seconds{"), [""; 0], "a kind that is not installed has no age");
    assert_eq!(lines(&second, "watch_failures_total"), ["golden_image_watch_failures_total{kind=\"PersistentVolumeClaim\"} 1"]);
}

#[test]
fn the_table_names_every_metric_of_a_scrape_with_its_labels() {
    let metrics = filled();
    let text = metrics.scrape(Format::Text).unwrap();
    let described: BTreeMap<_, _> = metrics.descriptions().iter().map(|metric| (metric.name.as_str(), metric)).collect();
    assert_eq!(described.len(), metrics.descriptions().len(), "no name twice");
    let types: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE golden_image_")?.split_once(' '))
        .map(|(name, kind)| (format!("golden_image_{name}"), kind))
        .collect();
    assert_eq!(types.keys().map(String::as_str).collect::<Vec<_>>(), described.keys().copied().collect::<Vec<_>>(), "all are filled here");
    for line in lines(&text, "golden_image_") {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
        let name = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix).filter(|base| types.get(*base) == Some(&"histogram")))
            .unwrap_or(name);
        let metric = described[name];
        assert_eq!(types[name], metric.kind, "{line}");
        let mut found: Vec<_> =
            labels.split("\",").filter_map(|label| label.split_once('=')).map(|(key, _)| key).filter(|key| *key != "le").collect();
        let mut wanted: Vec<_> = metric.labels.iter().map(|label| label.trim_start_matches("r#")).collect();
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{line}");
    }
}

#[test]
fn rules_are_counted_once_a_clone() {
    let text = filled().scrape(Format::Text).unwrap();
    let mut rules = lines(&text, "clone_rules_broken_total");
    rules.sort_unstable();
    assert_eq!(rules.len(), Rule::ALL.len(), "from zero");
    assert!(
        rules.contains(&"golden_image_clone_rules_broken_total{rule=\"R14\"} 1")
            && rules.contains(&"golden_image_clone_rules_broken_total{rule=\"R13\"} 0")
    );
    assert_eq!(lines(&text, "golden_image_list_problems"), ["golden_image_list_problems{reason=\"InvalidEntry\"} 2"]);
}

#[test]
fn reviews_are_counted_from_zero() {
    let text = filled().scrape(Format::Text).unwrap();
    let reviews = lines(&text, "admission_reviews_total");
    assert_eq!(reviews.len(), 6, "{reviews:#?}");
    assert!(reviews.contains(&"golden_image_admission_reviews_total{webhook=\"clones\",verdict=\"refused\"} 1"), "{reviews:#?}");
    assert!(reviews.contains(&"golden_image_admission_reviews_total{webhook=\"goldens\",verdict=\"unknown\"} 0"), "{reviews:#?}");
    assert_eq!(lines(&text, "admission_review_duration_seconds_count").len(), 2);
    assert_eq!(lines(&text, "golden_image_admission_ready"), ["golden_image_admission_ready 1"]);
    assert_eq!(lines(&text, "golden_image_webhooks_missing"), ["golden_image_webhooks_missing 6"]);
}

#[test]
fn former_failures_and_consumers_go_away() {
    let metrics = filled();
    metrics.last_failure("ubuntu-24.04", None, Some((Reason::NotFound, 1.8e9)));
    metrics.consumers("ubuntu-24.04", &[("VolumeSnapshot", 1)], 0, &[]);
    let text = metrics.scrape(Format::Text).unwrap();
    let of = |what: &str| lines(&text, what).into_iter().filter(|line| line.contains("ubuntu-24.04")).collect::<Vec<_>>();
    assert_eq!(
        of("last_failure_timestamp"),
        ["golden_image_last_failure_timestamp_seconds{image=\"ubuntu-24.04\",storage_class=\"\",reason=\"NotFound\"} 1800000000.0"]
    );
    assert_eq!(of("golden_image_consumers"), ["golden_image_consumers{image=\"ubuntu-24.04\",kind=\"VolumeSnapshot\"} 1"]);
    assert_eq!(of("golden_image_network_copies"), [""; 0]);
    metrics.stuck_clones(&BTreeMap::new());
    assert_eq!(lines(&metrics.scrape(Format::Text).unwrap(), "stuck_clones"), [""; 0]);
    metrics.last_failure("ubuntu-24.04", None, None);
    assert_eq!(lines(&metrics.scrape(Format::Text).unwrap(), "last_failure_timestamp").len(), 1, "the other image's stays");
}

#[test]
fn disks_that_are_cloned_while_we_look_are_imports_avoided() {
    let metrics = Metrics::new();
    metrics.artifact_size("a", 100);
    let disk = ConsumerKind::Disk.as_str();
    let avoided = |metrics: &Metrics| {
        let text = metrics.scrape(Format::Text).unwrap();
        ["imports_avoided_total", "avoided_bytes_total"]
            .map(|name| lines(&text, name).first().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()))
    };
    // What was there before is not ours to count, what goes away is no loss, and a copy over the network avoids nothing.
    for (disks, copied, total) in [(5, 0, 0), (7, 0, 2), (4, 0, 2), (6, 1, 3), (6, 1, 3)] {
        metrics.consumers("a", &[(disk, disks)], 0, &[("Provisioner", copied)]);
        assert_eq!(avoided(&metrics), [Some(total), Some(100 * total)], "{disks} {copied}");
    }
    metrics.forget_consumers("a");
    metrics.consumers("a", &[(disk, 9)], 0, &[]);
    assert_eq!(avoided(&metrics), [Some(3), Some(300)], "another term begins to count anew");
}

#[test]
fn who_no_longer_leads_says_nothing_of_images() {
    let metrics = filled();
    metrics.leads(false);
    let text = metrics.scrape(Format::Text).unwrap();
    assert_eq!(lines(&text, "image=\""), [""; 0]);
    assert_eq!(lines(&text, "queue_depth"), [""; 0]);
}

#[test]
fn each_term_of_leading_counts_once() {
    let metrics = Metrics::new();
    for leads in [false, true, true, false, true] {
        metrics.leads(leads);
    }
    let text = metrics.scrape(Format::Text).unwrap();
    assert_eq!(lines(&text, "golden_image_leader"), ["golden_image_leader 1", "golden_image_leader_terms_total 2"]);
}

#[test]
fn hostile_names_cannot_break_the_format() {
    let metrics = Metrics::new();
    metrics.import_took("evil\"} 1\n# EOF\\", Duration::from_secs(1));
    let text = metrics.scrape(Format::Text).unwrap();
    assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("golden_image_") || line.starts_with("process_")), "{text}");
}
