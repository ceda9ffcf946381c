//! Any order of events, lists and sweeps ends where a ledger built from what is there ends.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{
    tests::{CATALOG, NOW, classes, lines, synced},
    *,
};
use crate::rules::{consumers::Evidence, pool::Pool};

/// One possible state of an object in the small world of the property test.
fn facts(choice: u8) -> Option<Facts> {
    let name = |number: u8| format!("g{}", number % 3);
    let reference = |target, evidence| Reference { target, evidence };
    let mut facts = Facts { created: i64::from(choice), uid: Some(u128::from(choice)), ..Facts::default() };
    facts.references = match choice % 9 {
        0 => return None,
        1 => vec![reference(Target::Claim(name(choice / 9)), Evidence::Spec)],
        2 => vec![
            reference(Target::DataSource { namespace: "n0".into(), name: format!("o{}", choice / 9 % 3) }, Evidence::DataSource),
            reference(Target::Claim(name(choice / 27)), Evidence::Mark),
        ],
        3 => vec![reference(Target::Snapshot(format!("o{}", choice / 9 % 3)), Evidence::Spec)],
        4 => vec![reference(Target::Template { namespace: "n0".into(), name: format!("o{}", choice / 9 % 3) }, Evidence::Spec)],
        5 => vec![
            reference(Target::Claim("g0".into()), Evidence::Spec),
            reference(Target::Claim("g0".into()), Evidence::Spec),
            reference(Target::Claim("g1".into()), Evidence::Unreadable),
        ],
        6 => vec![reference(Target::CloneSource(format!("o{}", choice / 9 % 3)), Evidence::Spec)],
        _ => Vec::new(),
    };
    facts.pool = match choice % 4 {
        0 => PoolClue::Here(Pool::new("n0", Pool::WORKERS, &format!("p{}", choice % 2))),
        1 => PoolClue::Machine(format!("o{}", choice % 3)),
        _ => PoolClue::Nothing,
    };
    facts.is_terminating = choice.is_multiple_of(5);
    facts.progress.has_ended = choice.is_multiple_of(2);
    facts.progress.is_bound = choice.is_multiple_of(3);
    facts.golden_mark = choice.is_multiple_of(3).then(|| name(choice));
    facts.class = choice.is_multiple_of(2).then(|| format!("c{}", choice % 3));
    Some(facts)
}

#[derive(Debug, Clone)]
enum Step {
    Apply {
        kind: usize,
        object: u8,
        choice: u8,
    },
    Delete {
        kind: usize,
        object: u8,
    },
    /// The object goes while nobody watches: only the next list tells.
    Vanish {
        kind: usize,
        object: u8,
    },
    /// A list, in this order, that may be broken off and begun again.
    List {
        kind: usize,
        order: u64,
        broken_off: bool,
    },
    NotInstalled {
        kind: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (kind, object) = (0..Kind::ALL.len(), 0..6_u8);
    prop_oneof![
        6 => (kind.clone(), object.clone(), any::<u8>()).prop_map(|(kind, object, choice)| Step::Apply { kind, object, choice }),
        2 => (kind.clone(), object.clone()).prop_map(|(kind, object)| Step::Delete { kind, object }),
        1 => (kind.clone(), object).prop_map(|(kind, object)| Step::Vanish { kind, object }),
        2 => (kind.clone(), any::<u64>(), any::<bool>()).prop_map(|(kind, order, broken_off)| Step::List { kind, order, broken_off }),
        1 => kind.prop_map(|kind| Step::NotInstalled { kind }),
    ]
}

/// Namespace and name of one of six objects a kind.
fn place(object: u8) -> (String, String) {
    let namespace = if object.is_multiple_of(2) { CATALOG.to_owned() } else { "n0".to_owned() };
    (namespace, format!("o{}", object / 2))
}

type World = BTreeMap<(usize, u8), u8>;

fn list(ledger: &mut Ledger, world: &World, kind: usize, order: u64) {
    ledger.begin(Kind::ALL[kind]);
    let mut objects: Vec<(u8, u8)> =
        world.iter().filter(|((of, _), _)| *of == kind).map(|((_, object), choice)| (*object, *choice)).collect();
    objects.sort_by_key(|(object, _)| (u64::from(*object) + 1).wrapping_mul(order | 1));
    for (object, choice) in objects {
        let (namespace, name) = place(object);
        ledger.apply(Kind::ALL[kind], &namespace, &name, facts(choice).as_ref());
    }
}

fn rebuilt(world: &World) -> Ledger {
    let mut ledger = Ledger::new(CATALOG);
    for kind in 0..Kind::ALL.len() {
        list(&mut ledger, world, kind, 1);
        ledger.commit(Kind::ALL[kind]);
    }
    ledger
}

/// What every look-up says.
fn answers(ledger: &Ledger) -> Vec<String> {
    let (classes, independent) = (classes(), BTreeSet::new());
    let storage = Storage { classes: &classes, independent: &independent, now: NOW };
    let mut all = ledger.dump();
    for golden in ["g0", "g1", "g2"] {
        all.extend(lines(&ledger.consumers(GoldenKey::named(golden), storage).expect("known")));
        for pool in
            [Pool::new("n0", Pool::WORKERS, "p0"), Pool::new("n0", Pool::WORKERS, "p1"), Pool::new("n0", Pool::VIRTUAL_MACHINE, "o1")]
        {
            all.push(format!("{pool}: {:?}", ledger.pool_facts(&pool, golden)));
        }
    }
    let mut repairs: Vec<String> =
        ledger.mark_repairs(Walk::default(), usize::MAX).expect("known").0.iter().map(|repair| format!("{repair:?}")).collect();
    repairs.sort();
    all.extend(repairs);
    for object in 0..6 {
        let (namespace, name) = place(object);
        all.push(format!("{:?} {:?}", ledger.data_source(&namespace, &name), ledger.snapshot_source(&name)));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_order_of_events_gives_the_same_ledger(steps in prop::collection::vec(step(), 0..120)) {
        let (mut ledger, mut world) = (synced(), World::new());
        for step in steps {
            match step {
                Step::Apply { kind, object, choice } => {
                    world.insert((kind, object), choice);
                    let (namespace, name) = place(object);
                    ledger.apply(Kind::ALL[kind], &namespace, &name, facts(choice).as_ref());
                }
                Step::Delete { kind, object } => {
                    world.remove(&(kind, object));
                    let (namespace, name) = place(object);
                    ledger.delete(Kind::ALL[kind], &namespace, &name);
                }
                Step::Vanish { kind, object } => {
                    world.remove(&(kind, object));
                }
                Step::List { kind, order, broken_off } => {
                    if broken_off {
                        list(&mut ledger, &world, kind, order.rotate_left(7));
                    }
                    list(&mut ledger, &world, kind, order);
                    ledger.commit(Kind::ALL[kind]);
                }
                Step::NotInstalled { kind } => {
                    world.retain(|(of, _), _| *of != kind);
                    ledger.not_installed(Kind::ALL[kind]);
                }
            }
        }
        // One last list of each kind, so that what vanished unseen is swept.
        for kind in 0..Kind::ALL.len() {
            list(&mut ledger, &world, kind, 3);
            ledger.commit(Kind::ALL[kind]);
        }
        let fresh = rebuilt(&world);
        prop_assert_eq!(answers(&ledger), answers(&fresh));
        prop_assert_eq!(ledger.names(), fresh.names(), "no text outlives its objects");
        for kind in Kind::ALL {
            ledger.not_installed(kind);
        }
        prop_assert!(ledger.is_empty() && ledger.names() == 0);
    }
}
