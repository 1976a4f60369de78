//! A failure at every step of an attempt, each once; `tests/campaign steps` runs each twenty times.

use support::steps;
use support::world::Lane;
use support::world::World;

fn holds(name: &str) {
    let world = World::new(Lane::Auto, steps::KIND);
    let found = steps::run(&world, &steps::case(name));
    assert!(found.wrong.is_empty(), "{}: {:#?}", found.endings, found.wrong);
}

macro_rules! tests {
    ($($name:ident: $point:ident, $act:ident, $code:literal, $endings:expr, $starts:literal;)+) => {
        $(
            #[test]
            fn $name() {
                holds(stringify!($name));
            }
        )+
    };
}

support::with_steps!(tests);
