//! When a message arrives, and whether.

use crate::coverage::{Coverage, Sometimes};
use crate::random::Random;
use crate::shape::NetworkShape;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From a holder to the authority.
    Up,
    /// From the authority to a holder.
    Down,
}

/// One holder's path to the authority and back.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    /// True while nothing passes.
    cut: [bool; 2],
    /// The latest arrival so far.
    latest: [u64; 2],
}

/// All paths.
#[derive(Debug)]
pub struct Network {
    shape: NetworkShape,
    paths: Vec<Path>,
    healed: bool,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// The moments at which a copy arrives.
    pub arrivals: [Option<u64>; 2],
    /// The message is lost on an ordered stream, which breaks by it.
    pub breaks: bool,
}

impl Network {
    /// A network with so many holders.
    #[must_use]
    pub fn new(shape: NetworkShape, holders: usize) -> Self {
        Self {
            shape,
            paths: vec![Path::default(); holders],
            healed: false,
        }
    }

    /// Cuts or mends one way of a path.
    pub fn cut(&mut self, holder: usize, way: Way, cut: bool) {
        self.paths[holder].cut[way as usize] = cut;
    }

    /// Ends every trouble for good.
    pub fn heal(&mut self) {
        self.healed = true;
        for path in &mut self.paths {
            path.cut = [false; 2];
        }
    }

    /// Decides what becomes of a message sent at `now`.
    pub fn send(
        &mut self,
        now: u64,
        holder: usize,
        way: Way,
        random: &mut Random,
        coverage: &mut Coverage,
    ) -> Fate {
        let shape = self.shape;
        let path = &mut self.paths[holder];
        let lost = path.cut[way as usize] || (!self.healed && random.chance(shape.lost_per_mille));
        if lost {
            coverage.hit(Sometimes::MessageLost);
            return Fate {
                arrivals: [None, None],
                breaks: shape.ordered,
            };
        }
        let delay = |random: &mut Random| {
            let slow = !self.healed && random.chance(shape.slow_per_mille);
            let most = if slow { shape.slow } else { 0 };
            1 + random.between(shape.delay / 2, shape.delay * 3 / 2) + random.between(0, most)
        };
        let mut first = now + delay(random);
        if shape.ordered || self.healed {
            first = first.max(path.latest[way as usize] + 1);
        } else {
            coverage.hit_if(
                first < path.latest[way as usize],
                Sometimes::MessageOvertaken,
            );
        }
        let twice = !shape.ordered && !self.healed && random.chance(shape.twice_per_mille);
        let second = twice.then(|| now + delay(random));
        coverage.hit_if(twice, Sometimes::MessageDuplicated);
        path.latest[way as usize] = path.latest[way as usize].max(first);
        Fate {
            arrivals: [Some(first), second],
            breaks: false,
        }
    }
}
