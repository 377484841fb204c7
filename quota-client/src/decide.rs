//! The decision: whether a request may pass, from leases that are held.
//!
//! All or nothing over the policies that match. Every cell is looked at before any is debited;
//! every debit is made before the clock is read, once; every debit is then confirmed against that
//! reading. The first policy that cannot admit the request ends the attempt, and what was debited
//! before is put back.
//!
//! An attempt takes no lock, allocates nothing (while at most eight policies match) and makes no
//! system call but the clock, except for the first touch of a key, which has to be given a place.

mod claim;
mod outcome;

use quota_core::cell::{Debit, Exhausted, Tick};
use quota_core::holder::Slot;
use quota_core::key::BucketAddress;
use quota_core::policy::{FirstTouch, SwitchMode};
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

pub(crate) use self::claim::{Attempt, Claim, Mood, Refused, Spend, Wait};
use self::claim::{Claims, Pass, Short, State};
use crate::clock;
use crate::decision::{Decision, Outcome, Reason, Subject, Terms};
use crate::plan::Unusable;
use crate::rules::Rules;
use crate::shared::{Link, Opening, Shared, Signal};
use crate::table::{DebitError, Found, InsertError, Status};

/// Policies that one request may match before the attempt allocates.
const INLINE: usize = 8;
/// Times that a key is looked up again if its entry moves on under the reader. Two evictions
/// within one decision do not happen but to a thread that was held for a long time.
const FINDS: usize = 3;

impl Shared {
    /// Decides at once, and counts what it came to.
    pub(crate) fn check(&self, dimensions: &[(&str, &str)], cost: Option<Tokens>) -> Decision<'_> {
        self.with_rules(|rules| {
            self.check_one(rules, dimensions, cost).unwrap_or_else(|| {
                self.finish(self.attempt_under(rules, dimensions, cost, Mood::Hasty))
            })
        })
    }

    /// The usual case: one policy matches, and admits the request or has nothing to give. Counts
    /// it. `None` if it is another, and nothing was spent.
    #[inline]
    fn check_one(
        &self,
        rules: &Rules,
        dimensions: &[(&str, &str)],
        cost: Option<Tokens>,
    ) -> Option<Decision<'_>> {
        let plan = rules.plan()?;
        let request = plan.read(dimensions).ok()?;
        let index = plan.matched(rules.set(), &request).only()?;
        let rule = rules.at(index).1;
        let (values, count) = plan.values(index, &request);
        let values = &values[..count];
        let bytes = values.iter().map(|value| value.as_bytes());
        let fingerprint = self.key.of(rule.number, bytes);
        let limit = rule.limit(fingerprint, values);
        let cost = cost.unwrap_or(rule.cost_default);
        if cost > limit.cost_max || !rule.is_plain() || self.is_closed() {
            return None;
        }
        let found = self.table.find(fingerprint)?;
        let subject = |remaining| {
            let leased = found.entry.version();
            let version = if leased.get() == 0 {
                rule.version
            } else {
                leased
            };
            Some(Subject {
                policy: self.names.name(rule.number),
                terms: Terms::Known(version, limit.view),
                remaining,
            })
        };
        let decision = match self.spend(found, cost) {
            Spend::Admitted(remaining) => Decision::allowed(Outcome::Allowed, subject(remaining)),
            Spend::Short => {
                let expected = self.used_up(found)?;
                found.entry.cell().refuse(cost);
                Decision::refused(Reason::Exhausted, subject(Tokens::ZERO), expected)
            }
            Spend::Otherwise => return None,
        };
        Some(self.count(decision))
    }

    /// One attempt over all policies that match. Counts nothing but roll-backs.
    pub(crate) fn attempt(
        &self,
        dimensions: &[(&str, &str)],
        cost: Option<Tokens>,
        mood: Mood,
    ) -> Attempt<'_> {
        self.with_rules(|rules| self.attempt_under(rules, dimensions, cost, mood))
    }

    #[inline(never)]
    fn attempt_under(
        &self,
        rules: &Rules,
        dimensions: &[(&str, &str)],
        cost: Option<Tokens>,
        mood: Mood,
    ) -> Attempt<'_> {
        if self.is_closed() {
            return self.refusal_without_policy(Reason::Closed, Wait::Never);
        }
        if !rules.known {
            return self.refusal_without_policy(Reason::Unreachable, Wait::Change);
        }
        let Ok(mut claims) = self.claims(rules, dimensions, cost) else {
            return self.refusal_without_policy(Reason::InvalidKey, Wait::Never);
        };
        let address = |index: usize| {
            let policy = rules.at(index).0;
            let key = policy.key_of(dimensions).ok().flatten();
            key.map(|key| BucketAddress {
                policy: policy.id().clone(),
                key,
            })
        };
        self.admit(&mut claims, &address, mood)
    }

    /// What each policy that matches asks of the request.
    #[inline]
    fn claims<'a>(
        &self,
        rules: &'a Rules,
        dimensions: &[(&str, &str)],
        cost: Option<Tokens>,
    ) -> Result<Claims<'a>, Unusable> {
        let mut claims = Claims::new();
        let mut claim = |index: usize, values: &[&str]| {
            let rule = rules.at(index).1;
            let bytes = values.iter().map(|value| value.as_bytes());
            let fingerprint = self.key.of(rule.number, bytes);
            claims.push(Claim::new(
                index,
                rule,
                rule.limit(fingerprint, values),
                fingerprint,
                cost,
                rule.only_watches(values),
            ));
        };
        if let Some(plan) = rules.plan() {
            let request = plan.read(dimensions)?;
            for index in plan.matched(rules.set(), &request) {
                let (values, count) = plan.values(index, &request);
                claim(index, &values[..count]);
            }
        } else {
            let mut matches = rules.set().matches(dimensions).map_err(|_| Unusable)?;
            // By reference: the iterator is large to move.
            for found in matches.by_ref() {
                claim(rules.rule(&found).0, found.values());
            }
        }
        Ok(claims)
    }

    /// One attempt over these claims. `address` names the bucket of a claim by its index.
    #[inline]
    pub(crate) fn admit<'a, 'c: 'a>(
        &'c self,
        claims: &mut [Claim<'a>],
        address: &dyn Fn(usize) -> Option<BucketAddress>,
        mood: Mood,
    ) -> Attempt<'c> {
        for place in 0..claims.len() {
            let claim = &mut claims[place];
            match claim.switched {
                Some(SwitchMode::AdmitAll) => claim.state = State::Passed(Pass::Switched),
                // Nothing was debited yet. Nobody is kept waiting for an operator.
                Some(SwitchMode::RefuseAll) if !claim.watched => {
                    return self.refuse(claims, place, Short::at_once(Reason::KillSwitch));
                }
                _ if claim.found.is_none() => claim.found = self.table.find(claim.fingerprint),
                _ => {}
            }
        }
        // First only those that seem to be short: what will be refused is then mostly refused
        // before anything was debited.
        let passes: &[bool] = if claims.len() > 1 {
            &[true, false]
        } else {
            &[false]
        };
        for &look_only in passes {
            let mut untouched = None;
            for place in 0..claims.len() {
                let claim = &mut claims[place];
                if !matches!(claim.state, State::Open) || (look_only && claim.has_enough()) {
                    continue;
                }
                match self.take(claim, address, mood) {
                    Ok(debit) => claim.state = State::Debited(debit),
                    Err(short) => {
                        if let Some(pass) = self.passes(claim, short) {
                            claim.state = State::Passed(pass);
                        } else if look_only && short.reason == Reason::FirstTouch {
                            // The others are looked at all the same, so that all first touches of
                            // a request travel together.
                            untouched.get_or_insert((place, short));
                        } else {
                            return self.refuse(claims, place, short);
                        }
                    }
                }
            }
            if let Some((place, short)) = untouched {
                return self.refuse(claims, place, short);
            }
        }
        let now = Tick::at(clock::now());
        for place in 0..claims.len() {
            let claim = &mut claims[place];
            let (State::Debited(debit), Some(found)) = (claim.state, claim.found) else {
                continue;
            };
            match found.confirm(debit, now) {
                Ok(receipt) => claim.state = State::Spent(receipt, debit.remaining()),
                Err(ended) => {
                    claim.state = State::Open;
                    if ended.renew {
                        self.ask(found);
                    }
                    let short = self.short(claim, found, mood);
                    let Some(pass) = self.passes(claim, short) else {
                        return self.refuse(claims, place, short);
                    };
                    claim.state = State::Passed(pass);
                }
            }
        }
        self.admitted(claims)
    }

    /// The plain case of one policy and a key that was found. `cost` is one that the policy may
    /// admit.
    #[inline]
    pub(crate) fn spend(&self, found: Found<'_>, cost: Tokens) -> Spend {
        let debit = match found.debit(cost) {
            Ok(debit) => debit,
            Err(DebitError::Exhausted(Exhausted { renew: false })) => return Spend::Short,
            Err(DebitError::Exhausted(Exhausted { renew: true })) => {
                self.ask(found);
                return Spend::Otherwise;
            }
            Err(DebitError::Moved) => return Spend::Otherwise,
        };
        if debit.renew() {
            self.touched(found.slot);
        }
        match found.confirm(debit, Tick::at(clock::now())) {
            Ok(_) => Spend::Admitted(debit.remaining()),
            Err(ended) => {
                if ended.renew {
                    self.ask(found);
                }
                Spend::Otherwise
            }
        }
    }

    /// When the authority expects tokens for a key whose tokens and whose bucket's are used up;
    /// `None` if there is anything else to say of it. One look at the key's entry; no clock.
    #[inline]
    pub(crate) fn used_up(&self, found: Found<'_>) -> Option<Timestamp> {
        let plain = matches!(found.entry.status(), Status::Exhausted | Status::Granted)
            && self.link() == Link::Up
            // What is left, and for how long, would have to be told as well.
            && found.entry.cell().view().tokens.is_zero();
        let expected = found.entry.retry_at();
        (plain && found.is_still_there()).then_some(expected)
    }

    #[cold]
    fn touched(&self, slot: Slot) {
        self.signal(Signal::Touched(slot));
    }

    /// Debits one claim, or says why not. Gives the key a place if it has none.
    #[inline]
    fn take<'a, 'c: 'a>(
        &'c self,
        claim: &mut Claim<'a>,
        address: &dyn Fn(usize) -> Option<BucketAddress>,
        mood: Mood,
    ) -> Result<Debit, Short> {
        if claim.cost > claim.limit.cost_max {
            return Err(Short::at_once(Reason::CostTooHigh));
        }
        for _ in 0..FINDS {
            let found = match claim.found {
                Some(found) => found,
                None => self.touch_first(claim, address)?,
            };
            claim.found = Some(found);
            match found.debit(claim.cost) {
                Ok(debit) => {
                    if debit.renew() {
                        self.signal(Signal::Touched(found.slot));
                    }
                    return Ok(debit);
                }
                Err(DebitError::Exhausted(Exhausted { renew })) => {
                    if renew {
                        self.ask(found);
                    }
                    return Err(self.short(claim, found, mood));
                }
                Err(DebitError::Moved) => claim.found = self.table.find(claim.fingerprint),
            }
        }
        Err(Short {
            reason: Reason::FirstTouch,
            wait: Wait::Change,
            expected: Timestamp::ZERO,
            outage: false,
        })
    }

    /// Has the authority asked for a key that nothing was asked for: its lease was given back, has
    /// ended, or does not suffice.
    #[cold]
    fn ask(&self, found: Found<'_>) {
        found.entry.note_asked();
        self.signal(Signal::Touched(found.slot));
    }

    /// A key's first touch: finds a place and announces the key to the driver. Takes a lock,
    /// allocates, and wakes the driver.
    #[cold]
    fn touch_first<'c>(
        &'c self,
        claim: &Claim<'_>,
        address: &dyn Fn(usize) -> Option<BucketAddress>,
    ) -> Result<Found<'c>, Short> {
        let Some(bucket) = address(claim.index) else {
            return Err(Short::at_once(Reason::InvalidKey));
        };
        // What is only watched must not take the room of what is enforced.
        if claim.watched && !self.table.is_roomy(claim.fingerprint) {
            return Err(Short::at_once(Reason::TableFull));
        }
        let inserted = self.table.insert(claim.fingerprint, |slot| {
            self.signal(Signal::Open(Box::new(Opening {
                slot,
                policy: claim.rule.number,
                fingerprint: claim.fingerprint,
                bucket,
                settings: claim.limit.settings,
            })))
        });
        let (result, spare) = match inserted {
            Ok(inserted) => (Ok(inserted.found), inserted.spare),
            Err(InsertError::Full(spare)) => (Err(spare.is_some()), spare),
            Err(InsertError::NotAnnounced) => (Err(false), None),
        };
        if let Some(spare) = spare {
            self.signal(Signal::Close(spare));
        }
        self.wake.notify_one();
        result.map_err(|room_comes| {
            // While the authority is out of reach, no key is closed to make room: the outage is
            // what the caller should hear of, and what the policy has a word on.
            let outage = self.link() != Link::Up;
            Short {
                reason: if outage {
                    Reason::Unreachable
                } else {
                    Reason::TableFull
                },
                wait: if room_comes {
                    Wait::Change
                } else {
                    Wait::Never
                },
                expected: Timestamp::ZERO,
                outage,
            }
        })
    }

    /// Why a key that was found has too few tokens.
    fn short(&self, claim: &Claim<'_>, found: Found<'_>, mood: Mood) -> Short {
        let expected = found.entry.retry_at();
        let wait = Wait::Tokens {
            slot: found.slot,
            cost: claim.cost,
            expected,
        };
        let unreachable = |wait| Short {
            reason: Reason::Unreachable,
            wait,
            expected: Timestamp::ZERO,
            outage: mood != Mood::Patient,
        };
        let reached = |reason, wait| Short {
            reason,
            wait,
            expected,
            outage: false,
        };
        match (found.entry.status(), self.link()) {
            (Status::CostAboveCapacity, _) => Short::at_once(Reason::CostTooHigh),
            // An attempt to connect has failed, and others follow, but nobody is kept waiting.
            (_, Link::Down) => Short {
                outage: true,
                ..unreachable(Wait::Never)
            },
            (_, Link::Connecting) => unreachable(wait),
            // It answers, so it is not out of reach: being overloaded permits nothing.
            (Status::Busy, Link::Up) => reached(Reason::Overloaded, wait),
            (Status::UnknownPolicy, Link::Up) => reached(Reason::UnknownPolicy, Wait::Change),
            (Status::Exhausted, Link::Up) => reached(Reason::Exhausted, wait),
            (Status::Granted | Status::Unknown, Link::Up)
                if mood == (Mood::Spent { silent: true }) =>
            {
                unreachable(wait)
            }
            (Status::Granted, Link::Up) => reached(Reason::Exhausted, wait),
            (Status::Unknown, Link::Up) if claim.rule.first_touch == FirstTouch::Deny => {
                reached(Reason::FirstTouch, Wait::Never)
            }
            (Status::Unknown, Link::Up) => reached(Reason::FirstTouch, wait),
        }
    }
}

#[cfg(test)]
mod shadow_tests;
#[cfg(test)]
mod tests;
