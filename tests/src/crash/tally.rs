//! What a campaign did and saw, added up over its rounds.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Counts of one round or of many.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Rounds that ended, well or not.
    pub rounds: u64,
    /// `kill -9` of a server, twice in a row counted twice.
    pub server_kills: u64,
    /// Of these, right after a write to the data directory was seen.
    pub kills_at_writes: u64,
    /// `kill -9` of a gateway.
    pub gateway_kills: u64,
    /// SIGSTOP with its SIGCONT, of either side.
    pub pauses: u64,
    /// Connections cut.
    pub cuts: u64,
    /// Duplicate connections, and those that the server answered.
    pub replays: u64,
    /// See [`replays`](Self::replays).
    pub replays_answered: u64,
    /// Reservation records that restarted servers read back.
    pub records_read: u64,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What was admitted, by policy.
    pub policies: BTreeMap<String, Edge>,
}

/// How close the buckets of one policy came to their limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edge {
    /// Buckets judged.
    pub buckets: u64,
    /// Admissions judged.
    pub admissions: u64,
    /// Tokens admitted.
    pub admitted: u64,
    /// Tokens that the limit would have allowed from the first admission to the last.
    pub allowed: u64,
    /// The lowest level of an ideal bucket, in whole tokens, each admission taken as late as it can
    /// have been. It may be a little below zero without a violation, which takes each admission
    /// where that is best for the system.
    pub lowest: Option<i128>,
    /// The same of admissions after the first kill of the round's server.
    pub lowest_after_kill: Option<i128>,
    /// Buckets that came within a twentieth of their capacity of empty after such a kill.
    pub at_the_edge: u64,
}

impl Tally {
    pub(super) fn fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    /// Admissions of all policies.
    #[must_use]
    pub fn admissions(&self) -> u64 {
        self.policies.values().map(|edge| edge.admissions).sum()
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.server_kills += other.server_kills;
        self.kills_at_writes += other.kills_at_writes;
        self.gateway_kills += other.gateway_kills;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.replays += other.replays;
        self.replays_answered += other.replays_answered;
        self.records_read += other.records_read;
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
        for (policy, edge) in &other.policies {
            self.policies.entry(policy.clone()).or_default().add(edge);
        }
    }

    /// Everything, as members of one object.
    pub(super) fn json(&self) -> Value {
        let policies: serde_json::Map<String, Value> = self
            .policies
            .iter()
            .map(|(policy, edge)| (policy.clone(), edge.json()))
            .collect();
        json!({
            "rounds": self.rounds,
            "kills": self.server_kills + self.gateway_kills,
            "server_kills": self.server_kills,
            "kills_at_writes": self.kills_at_writes,
            "gateway_kills": self.gateway_kills,
            "pauses": self.pauses,
            "cuts": self.cuts,
            "replays": self.replays,
            "replays_answered": self.replays_answered,
            "records_read": self.records_read,
            "admissions": self.admissions(),
            "faults": self.faults,
            "policies": policies,
        })
    }
}

impl Edge {
    pub(super) fn add(&mut self, other: &Self) {
        self.buckets += other.buckets;
        self.admissions += other.admissions;
        self.admitted += other.admitted;
        self.allowed += other.allowed;
        self.at_the_edge += other.at_the_edge;
        let lower = |a: Option<i128>, b: Option<i128>| a.into_iter().chain(b).min();
        self.lowest = lower(self.lowest, other.lowest);
        self.lowest_after_kill = lower(self.lowest_after_kill, other.lowest_after_kill);
    }

    /// Tokens admitted of those allowed, in percent, rounded down.
    #[must_use]
    pub fn utilisation_percent(&self) -> u64 {
        self.admitted * 100 / self.allowed.max(1)
    }

    fn json(&self) -> Value {
        let level = |level: Option<i128>| level.and_then(|level| i64::try_from(level).ok());
        json!({
            "buckets": self.buckets,
            "admissions": self.admissions,
            "admitted": self.admitted,
            "utilisation_percent": self.utilisation_percent(),
            "lowest": level(self.lowest),
            "lowest_after_kill": level(self.lowest_after_kill),
            "at_the_edge": self.at_the_edge,
        })
    }
}
