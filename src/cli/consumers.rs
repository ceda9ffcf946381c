//! `golden-catalog consumers NAME` and `check-delete NAME`: what still needs a golden.

use serde::Serialize;

use super::{
    Exit, Failure, Output, Table,
    survey::{Survey, SurveyArguments, survey},
    table::printable,
};
use crate::{
    rules::consumers::{Consumer, PoolUse},
    world::ledger::Counts,
};

pub(super) const EXIT_CODES: &str = "\
Exit codes:
   0  the consumers are listed, all of them
   2  not all consumers could be read, or nothing of the name exists
  64  wrong usage";

pub(super) const CHECK_EXIT_CODES: &str = "\
Exit codes:
   0  free: nothing needs it
   1  in use: deleting it would fail, or break what is named
   2  not known: not all consumers could be read, or nothing of the name exists
  64  wrong usage";

/// The most pools told of what blocks a deletion (R23).
const POOLS: usize = 10;

/// Arguments of `consumers` and `check-delete`.
#[derive(Debug, clap::Args)]
pub struct ConsumersArguments {
    /// A GoldenImage, or a golden's DataVolume or PVC.
    name: String,
    /// The form of the answer.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// How many consumers of each pool the table shows; 0 for all. JSON has all.
    #[arg(long, default_value_t = 10)]
    limit: usize,
    #[command(flatten)]
    survey: SurveyArguments,
}

/// See [`EXIT_CODES`].
pub(super) async fn consumers(arguments: ConsumersArguments) -> Result<Exit, Failure> {
    let survey = survey(&arguments.name, &arguments.survey).await?;
    missing(&arguments.name, &survey)?;
    match arguments.output {
        Output::Json => json(&arguments.name, &survey)?,
        Output::Table => print!("{}", table(&survey, arguments.limit)),
    }
    match &survey.known {
        Ok(()) => Ok(Exit::Ok),
        Err(unknown) => Err(Failure::new(format!("there may be more consumers: {unknown}"))),
    }
}

/// See [`CHECK_EXIT_CODES`].
pub(super) async fn check_delete(arguments: ConsumersArguments) -> Result<Exit, Failure> {
    let survey = survey(&arguments.name, &arguments.survey).await?;
    missing(&arguments.name, &survey)?;
    let blocking = survey.seen.blocking();
    if arguments.output == Output::Json {
        json(&arguments.name, &survey)?;
    }
    // What was seen is enough to say "in use", never to say "free".
    if blocking > 0 {
        if arguments.output == Output::Table {
            print!("{}", refusal(&arguments.name, &survey));
        }
        return Ok(Exit::No);
    }
    if let Err(unknown) = &survey.known {
        return Err(Failure::new(format!("not known whether {} is free: {unknown}", arguments.name)));
    }
    if arguments.output == Output::Table {
        let independent = survey.seen.iter().count();
        let note = if independent > 0 { format!(" ({independent} consumers stand alone and stay as they are)") } else { String::new() };
        println!("free: nothing needs {} {}{note}", survey.subject.kind, printable(&arguments.name));
    }
    Ok(Exit::Ok)
}

/// A name that is nowhere must not read as free: it is most likely a slip.
fn missing(name: &str, survey: &Survey) -> Result<(), Failure> {
    if survey.subject.exists || survey.seen.iter().next().is_some() {
        return Ok(());
    }
    Err(Failure::new(format!("there is no GoldenImage {name:?}, and no DataVolume or PVC of that name in the catalog namespace")))
}

fn refusal(name: &str, survey: &Survey) -> String {
    let blocking = survey.seen.blocking();
    let pools: Vec<&PoolUse> = survey.seen.pools.iter().filter(|pool| pool.blocking > 0).collect();
    let mut text = format!("in use: {blocking} consumers in {} pools need {} {}\n", pools.len(), survey.subject.kind, printable(name));
    for pool in pools.iter().take(POOLS) {
        let first = pool.consumers.first().map(ToString::to_string).unwrap_or_default();
        let rest = pool.blocking.saturating_sub(1);
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        text.push_str(&printable(&format!("  {}: {first}{rest}", pool.pool)));
        text.push('\n');
    }
    let more = pools.len().saturating_sub(POOLS);
    if more > 0 {
        text.push_str(&format!("  and {more} more pools\n"));
    }
    text + &printable(&format!("`golden-catalog consumers {name}` lists all.")) + "\n"
}

fn table(survey: &Survey, limit: usize) -> String {
    if survey.seen.pools.is_empty() {
        return "No consumers.\n".to_owned();
    }
    let mut table = Table::new(["POOL", "KIND", "NAME", "KNOWN", "NEEDS THE GOLDEN"]);
    for pool in &survey.seen.pools {
        let shown = if limit == 0 { pool.consumers.len() } else { limit };
        for consumer in pool.consumers.iter().take(shown) {
            table.row([
                pool.pool.to_string(),
                consumer.kind.as_str().to_owned(),
                place(consumer),
                consumer.evidence.to_string(),
                consumer.blocks().map_or_else(|| "no".to_owned(), |why| format!("yes: {why}")),
            ]);
        }
        let more = pool.consumers.len().saturating_sub(shown);
        if more > 0 {
            let hidden = pool.consumers.iter().skip(shown).filter(|consumer| consumer.blocks().is_some()).count();
            table.row([pool.pool.to_string(), String::new(), format!("and {more} more"), String::new(), format!("{hidden} of them")]);
        }
    }
    table.render()
}

fn place(consumer: &Consumer) -> String {
    if consumer.namespace.is_empty() { consumer.name.clone() } else { format!("{}/{}", consumer.namespace, consumer.name) }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    name: &'a str,
    kind: &'a str,
    goldens: &'a [String],
    /// Absent where it is not known.
    free: Option<bool>,
    unknown: Option<String>,
    counts: AnswerCounts,
    pools: Vec<AnswerPool<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerCounts {
    clones: usize,
    pools: usize,
    virtual_machines: usize,
    templates: usize,
    namespaces: usize,
    blocking: usize,
    all: usize,
}

#[derive(Serialize)]
struct AnswerPool<'a> {
    pool: String,
    blocking: usize,
    consumers: Vec<AnswerConsumer<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerConsumer<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    evidence: String,
    blocks: Option<String>,
    copied_over_network: Option<&'static str>,
}

fn json(name: &str, survey: &Survey) -> Result<(), Failure> {
    let counts = Counts::of(&survey.seen);
    let answer = Answer {
        name,
        kind: survey.subject.kind,
        goldens: &survey.subject.goldens,
        free: if counts.blocking > 0 { Some(false) } else { survey.known.as_ref().ok().map(|()| true) },
        unknown: survey.known.as_ref().err().map(ToString::to_string),
        counts: AnswerCounts {
            clones: counts.clones,
            pools: counts.pools,
            virtual_machines: counts.virtual_machines,
            templates: counts.templates,
            namespaces: counts.namespaces,
            blocking: counts.blocking,
            all: counts.all,
        },
        pools: survey
            .seen
            .pools
            .iter()
            .map(|pool| AnswerPool {
                pool: pool.pool.to_string(),
                blocking: pool.blocking,
                consumers: pool.consumers.iter().map(answer_consumer).collect(),
            })
            .collect(),
    };
    let text = serde_json::to_string_pretty(&answer).map_err(|error| Failure::new(error.to_string()))?;
    println!("{text}");
    Ok(())
}

fn answer_consumer(consumer: &Consumer) -> AnswerConsumer<'_> {
    AnswerConsumer {
        kind: consumer.kind.as_str(),
        namespace: &consumer.namespace,
        name: &consumer.name,
        evidence: consumer.evidence.to_string(),
        blocks: consumer.blocks().map(|why| why.to_string()),
        copied_over_network: consumer.copied.map(|cause| cause.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::survey::Subject,
        rules::{
            consumers::{ConsumerKind, Consumers, Evidence, Standing, Why},
            pool::Pool,
        },
    };

    fn survey(pools: usize, each: usize, standing: Standing) -> Survey {
        let consumer = |number: usize| Consumer {
            kind: ConsumerKind::Disk,
            namespace: "tenant-a".into(),
            name: format!("d{:03}\u{1b}[2J", number),
            pool: Pool::new("tenant-a", Pool::VM_DISK, &format!("p{:02}", number / each)),
            evidence: Evidence::Spec,
            standing,
            created: 0,
            copied: None,
        };
        let subject = Subject { kind: "golden", goldens: vec!["g".into()], identity: None, exists: true };
        Survey { subject, seen: Consumers::group((0..pools * each).map(consumer)), known: Ok(()) }
    }

    #[test]
    fn tables_are_bounded_and_say_how_many_more() {
        let survey = survey(12, 3, Standing::Blocks(Why::CloneRunning));
        let refusal = refusal("g", &survey);
        assert!(refusal.starts_with("in use: 36 consumers in 12 pools need golden g\n"), "{refusal}");
        assert!(refusal.contains("tenant-a/VMDisk/p00: Disk tenant-a/d000 [2J (its clone has not finished) and 2 more\n"), "{refusal}");
        assert!(refusal.contains("and 2 more pools") && !refusal.contains("p10") && !refusal.contains('\u{1b}'), "{refusal}");
        let table = table(&survey, 1);
        assert_eq!(table.lines().count(), 1 + 12 * 2, "{table}");
        assert!(table.contains("and 2 more") && table.contains("2 of them"), "{table}");
        assert_eq!(super::table(&survey, 0).lines().count(), 1 + 36);
    }

    #[test]
    fn a_slip_in_the_name_is_not_free() {
        let mut nothing = survey(0, 1, Standing::Listed);
        assert!(missing("g", &nothing).is_ok(), "it exists and nobody uses it");
        nothing.subject.exists = false;
        let error = missing("g", &nothing).expect_err("a slip");
        assert_eq!(error.exit(), Exit::Unknown);
        let mut gone = survey(1, 1, Standing::Listed);
        gone.subject.exists = false;
        assert!(missing("g", &gone).is_ok(), "a golden that is gone and still named");
    }
}
