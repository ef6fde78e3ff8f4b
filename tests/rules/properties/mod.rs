//! Random histories over the pure rules: clients whose requests are lost, doubled and overtake
//! each other, clocks that differ within the grace, purges and deleted rows.
//!
//! Each single step is checked in `crate::support::steps`; the world below checks what spans steps.
mod world;

use crate::support::regressions;
use crate::support::seed::setting;
use leasehold::internals::lease::{Lease, Mode};
use proptest::prelude::*;
use std::time::Duration;
use world::{From, Op, World};

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)]
}

fn lease() -> impl Strategy<Value = Lease> {
    prop_oneof![9 => (1..40_u64).prop_map(|ms| Lease::For(Duration::from_millis(ms))), 1 => Just(Lease::Forever)]
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    let from = prop_oneof![
        6 => Just(From::Nobody),
        1 => index().prop_map(From::Attempt),
        1 => index().prop_map(From::Standing),
    ];
    prop_oneof![
        6 => (0..3_usize, 0..4_usize, mode(), 1..40_u64, any::<bool>(), any::<bool>(), from).prop_map(
            |(client, key, mode, lease, group, replace, from)| Op::Acquire { client, key, mode, lease, group, replace, from }
        ),
        4 => (index(), lease(), prop::bool::weighted(0.1)).prop_map(|(attempt, lease, may_end_endless)| Op::Renew {
            attempt,
            lease,
            may_end_endless
        }),
        2 => index().prop_map(Op::Release),
        2 => index().prop_map(Op::GiveUp),
        // The newest request is delivered more often than a late one.
        10 => (prop::bool::weighted(0.7), index(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(newest, request, again, answered)| Op::Deliver { newest, request, again, answered }),
        4 => (1..30_i64).prop_map(Op::Tick),
        1 => (0..3_usize, -2..=2_i64).prop_map(|(client, offset)| Op::SkewStoreClock { client, offset }),
        1 => (-50..200_i64).prop_map(Op::SetWallClock),
        1 => (0..4_usize, 0..20_i64).prop_map(|(key, older_than)| Op::Purge { key, older_than }),
        1 => (0..4_usize).prop_map(Op::DeleteRow),
    ]
}

/// A thousand histories, or as many as `PROPTEST_CASES` says.
fn config() -> ProptestConfig {
    let cases = setting("PROPTEST_CASES").unwrap_or(1000);
    ProptestConfig { cases, ..regressions::config("rules/properties/regressions.txt") }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_history_breaks_a_promise(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.run(op);
        }
    }
}

/// The oracle notices when a rival is granted too early, by a store that uses no grace.
#[test]
#[should_panic(expected = "does not stand")]
fn the_oracle_sees_a_takeover_before_the_grace_is_over() {
    let mut world = World::new();
    world.grace = 0;
    let acquire = |client| Op::Acquire {
        client,
        key: 0,
        mode: Mode::Exclusive,
        lease: 10,
        group: false,
        replace: false,
        from: From::Nobody,
    };
    let deliver = Op::Deliver { newest: true, request: any_index(), again: false, answered: true };
    for op in [
        Op::SkewStoreClock { client: 0, offset: -2 },
        acquire(0),
        deliver.clone(),
        Op::Tick(9),
        Op::SkewStoreClock { client: 2, offset: 2 },
        acquire(2),
        deliver,
    ] {
        world.run(&op);
    }
}

fn any_index() -> prop::sample::Index {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    any::<prop::sample::Index>().new_tree(&mut TestRunner::deterministic()).unwrap().current()
}
