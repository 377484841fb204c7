//! What befalls a round: drawn from its seed before anything runs.

use std::time::Duration;

use simulations::random::Random;

use super::moment::millis;

/// One fault. Gateways go by number.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// `kill -9` at any moment, and a start after `down`.
    KillServer { down: Duration },
    /// `kill -9` right after something was written to the data directory.
    KillServerAtWrite { down: Duration },
    /// `kill -9`, a start, and again `kill -9` before or just after that one serves.
    KillServerTwice { between: Duration },
    /// SIGTERM, and `kill -9` in the middle of the orderly stop if it takes longer than this.
    StopServer { patience: Option<Duration> },
    /// The server is killed and comes back on a machine with another boot id and another clock,
    /// as after a reboot. All that it wrote is there: what a loss of power does to writes that
    /// were not synced is left to the virtual world.
    Reboot { down: Duration },
    /// A second server is started on the data directory of the first, and must refuse to serve.
    SecondServer,
    /// `kill -9` of a gateway; its place is taken at once.
    KillGateway { which: usize },
    /// SIGTERM of a gateway; its place is taken once it has stopped.
    StopGateway { which: usize },
    /// SIGSTOP of the server, then SIGCONT. What happens meanwhile comes at half time.
    PauseServer {
        lasting: Duration,
        meanwhile: Meanwhile,
    },
    /// SIGSTOP of a gateway, then SIGCONT.
    PauseGateway {
        which: usize,
        lasting: Duration,
        meanwhile: Meanwhile,
    },
    /// Trouble between a gateway, or all, and the server.
    Network {
        which: Option<usize>,
        trouble: Trouble,
    },
}

/// What happens while someone is paused.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meanwhile {
    Nothing,
    /// Connections of all gateways are cut.
    Cut,
    /// The server is killed, paused or not.
    KillServer,
    /// Living connections are duplicated.
    Mirror,
}

/// What a network does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// Both sides learn that the connection is gone.
    Cut,
    /// The client reconnects while its old connection lives on at the server.
    CutClient { lives: Duration },
    /// The client goes on talking to nobody.
    CutServer { lives: Duration },
    /// Messages take so long, to the server and back.
    Delay {
        there: Duration,
        back: Duration,
        lasting: Duration,
    },
    /// Messages are held, in one direction or both, and then arrive together.
    Hold {
        there: bool,
        back: bool,
        lasting: Duration,
    },
    /// Pieces of seven bytes.
    Crumbs { lasting: Duration },
    /// A second connection carries all that the living one did and does.
    Mirror { lasting: Duration },
    /// Connections that have ended are replayed from their beginning.
    Echo { lasting: Duration },
}

impl Fault {
    /// Its name in reports.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::KillServer { .. } => "server killed",
            Self::KillServerAtWrite { .. } => "server killed at a write",
            Self::KillServerTwice { .. } => "server killed twice in a row",
            Self::StopServer { patience: None } => "server stopped in order",
            Self::StopServer { patience: Some(_) } => "server killed while it stopped",
            Self::Reboot { .. } => "server's machine rebooted",
            Self::SecondServer => "second server on one directory",
            Self::KillGateway { .. } => "gateway killed",
            Self::StopGateway { .. } => "gateway stopped in order",
            Self::PauseServer { .. } => "server paused",
            Self::PauseGateway { .. } => "gateway paused",
            Self::Network { trouble, .. } => trouble.name(),
        }
    }
}

impl Trouble {
    const fn name(self) -> &'static str {
        match self {
            Self::Cut => "connections cut",
            Self::CutClient { .. } => "connections cut, the old one lives at the server",
            Self::CutServer { .. } => "connections cut, the old one lives at the client",
            Self::Delay { .. } => "messages delayed",
            Self::Hold { .. } => "messages held back",
            Self::Crumbs { .. } => "messages in crumbs",
            Self::Mirror { .. } => "connections mirrored",
            Self::Echo { .. } => "ended connections replayed",
        }
    }
}

/// The faults of a round, each with the pause before it.
pub(super) fn schedule(random: &mut Random, gateways: usize) -> Vec<(Duration, Fault)> {
    // Mostly a handful; now and then a hail of them.
    let hail = random.chance(150);
    let count = if hail {
        random.between(8, 14)
    } else {
        random.between(3, 6)
    };
    let pause_most = if hail { 250 } else { 900 };
    let mut faults = Vec::new();
    // Buckets are used and leases are out before the first one.
    let mut pause = millis(random, 300, 1500);
    for _ in 0..count {
        faults.push((pause, fault(random, gateways)));
        pause = millis(random, 0, pause_most);
    }
    faults
}

fn fault(random: &mut Random, gateways: usize) -> Fault {
    let gateways = u64::try_from(gateways).expect("a few");
    let which = usize::try_from(random.below(gateways)).expect("a few");
    let down = if random.chance(600) {
        Duration::ZERO
    } else {
        millis(random, 0, 1200)
    };
    match random.below(100) {
        0..22 => Fault::KillServer { down },
        22..34 => Fault::KillServerAtWrite { down },
        34..42 => Fault::KillServerTwice {
            between: millis(random, 0, 250),
        },
        42..47 => Fault::StopServer { patience: None },
        47..50 => Fault::StopServer {
            patience: Some(millis(random, 0, 60)),
        },
        50..54 => Fault::Reboot { down },
        54..55 => Fault::SecondServer,
        55..62 => Fault::KillGateway { which },
        62..65 => Fault::StopGateway { which },
        65..71 => Fault::PauseServer {
            lasting: pause(random),
            meanwhile: meanwhile(random),
        },
        71..78 => Fault::PauseGateway {
            which,
            lasting: pause(random),
            meanwhile: meanwhile(random),
        },
        _ => Fault::Network {
            which: (!random.chance(300)).then_some(which),
            trouble: trouble(random),
        },
    }
}

/// Shorter than a term, about as long, or longer.
fn pause(random: &mut Random) -> Duration {
    let most = random.pick(&[100, 700, 2000]);
    millis(random, 20, most)
}

fn meanwhile(random: &mut Random) -> Meanwhile {
    match random.below(6) {
        0 => Meanwhile::Cut,
        1 => Meanwhile::KillServer,
        2 => Meanwhile::Mirror,
        _ => Meanwhile::Nothing,
    }
}

fn trouble(random: &mut Random) -> Trouble {
    let lasting = millis(random, 100, 1500);
    let lives = millis(random, 50, 1500);
    match random.below(9) {
        0 => Trouble::Cut,
        1 => Trouble::CutClient { lives },
        2 => Trouble::CutServer { lives },
        3 | 4 => Trouble::Delay {
            there: millis(random, 0, 400),
            back: millis(random, 0, 400),
            lasting,
        },
        5 => {
            let there = random.chance(600);
            let back = !there || random.chance(400);
            Trouble::Hold {
                there,
                back,
                lasting,
            }
        }
        6 => Trouble::Crumbs { lasting },
        7 => Trouble::Mirror {
            lasting: lasting * 2,
        },
        _ => Trouble::Echo { lasting },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_decides_the_schedule_and_every_fault_comes_up() {
        let mut seen = BTreeSet::new();
        for seed in 0..300 {
            let drawn = || format!("{:?}", schedule(&mut Random::new(seed), 3));
            assert_eq!(drawn(), drawn(), "seed {seed}");
            let faults = schedule(&mut Random::new(seed), 3);
            seen.extend(faults.iter().map(|(_, fault)| fault.name()));
        }
        assert_eq!(seen.len(), 19, "{seen:?}");
    }
}
