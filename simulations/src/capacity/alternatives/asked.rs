//! A store that is asked on every request: one round trip, two messages, and a rule that decides.

use crate::capacity::agenda::Agenda;
use crate::capacity::limiter::{Decided, Footprint, KeyState, Limiter, Traffic};
use crate::capacity::workload::{Change, Request, Workload};

/// How a store decides. It knows nothing of gateways.
pub(crate) trait Rule {
    /// Decides one request at `now`, and counts it if it is admitted.
    fn decide(&mut self, now: u64, key: u32, cost: u64) -> bool;

    /// Tokens that could be spent of a key at `now`, in all places where they may be counted.
    fn available(&mut self, now: u64, key: u32) -> i64;

    /// Tokens of all keys that lie in parts of a counter which not every request finds.
    fn in_parts(&mut self, _now: u64) -> u64 {
        0
    }

    /// Counters that are kept, and bytes of each.
    fn counters(&self) -> (u64, u64);
}

/// A store that is asked on every request. Whoever cannot reach it is refused when it gives up.
#[derive(Debug)]
pub(crate) struct Asked<R> {
    rule: R,
    one_way: u64,
    patience: u64,
    cut: Vec<bool>,
    agenda: Agenda<Step>,
    traffic: Traffic,
}

#[derive(Debug)]
enum Step {
    AtStore(Request),
    Answer(Request, bool),
}

impl<R: Rule> Asked<R> {
    pub(crate) fn new(workload: &Workload, rule: R) -> Self {
        Self {
            rule,
            one_way: workload.one_way,
            patience: workload.patience,
            cut: vec![false; usize::try_from(workload.gateways).expect("32 bits fit")],
            agenda: Agenda::default(),
            traffic: Traffic::default(),
        }
    }
}

impl<R: Rule> Limiter for Asked<R> {
    fn next_event(&self) -> Option<u64> {
        self.agenda.next()
    }

    fn step(&mut self, at: u64, decided: &mut Vec<Decided>) {
        match self.agenda.take() {
            Some(Step::AtStore(request)) => {
                let admitted = self.rule.decide(at, request.key, request.cost);
                let answer = Step::Answer(request, admitted);
                self.agenda.plan(at + self.one_way, answer);
            }
            Some(Step::Answer(request, admitted)) => {
                decided.push(Decided::new(request, at, admitted));
            }
            None => {}
        }
    }

    fn offer(&mut self, request: Request, _: &mut Vec<Decided>) {
        let place = usize::try_from(request.gateway).expect("32 bits fit");
        if self.cut[place] {
            let refused = Step::Answer(request, false);
            self.agenda.plan(request.at + self.patience, refused);
            return;
        }
        self.traffic.round_trip();
        let asked = Step::AtStore(request);
        self.agenda.plan(request.at + self.one_way, asked);
    }

    fn change(&mut self, _: u64, gateway: u32, change: Change, _: &mut Vec<Decided>) {
        let place = usize::try_from(gateway).expect("32 bits fit");
        self.cut[place] = change == Change::CutOff;
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn held(&mut self, now: u64) -> u64 {
        self.rule.in_parts(now)
    }

    fn out_of_reach(&mut self, now: u64, key: u32, _: &[u32]) -> u64 {
        // What is left in a counter that is one piece is in everybody's reach.
        if self.rule.in_parts(now) == 0 {
            return 0;
        }
        u64::try_from(self.rule.available(now, key)).unwrap_or(0)
    }

    fn key_state(&mut self, now: u64, key: u32) -> Option<KeyState> {
        Some(KeyState {
            available: self.rule.available(now, key),
            outstanding: 0,
        })
    }

    fn footprint(&self) -> Footprint {
        let (counters, bytes) = self.rule.counters();
        Footprint {
            at_gateways: 0,
            at_centre: counters,
            bytes: counters * bytes,
        }
    }
}
