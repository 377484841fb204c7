//! How stories write tokens, spans, buckets and policies.

use std::str::FromStr;

use quota_core::id::{Epoch, LeaseId, Sequence};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{LeaseRequest, Refusal, Status};
use quota_core::policy::{Durability, LimitSpec, PolicySpec, Span};
use quota_core::time::Term;
use quota_core::tokens::Tokens;

/// The words of a command, read from the left.
pub(crate) struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    pub(crate) fn new(line: &'a str) -> Self {
        Self {
            words: line.split_whitespace().collect(),
            at: 0,
        }
    }

    pub(crate) fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at)?;
        self.at += 1;
        Some(word)
    }

    pub(crate) fn text(&mut self, what: &str) -> Result<&'a str, String> {
        self.next().ok_or_else(|| format!("{what} is missing"))
    }

    pub(crate) fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.text(what)?;
        word.parse()
            .map_err(|_| format!("{what} is a number, not {word:?}"))
    }

    pub(crate) fn span(&mut self, what: &str) -> Result<Term, String> {
        span(self.text(what)?)
    }

    pub(crate) fn bucket(&mut self) -> Result<BucketAddress, String> {
        bucket(self.text("a bucket, such as api/k1,")?)
    }

    pub(crate) fn end(&self) -> Result<(), String> {
        match self.words.get(self.at) {
            None => Ok(()),
            Some(word) => Err(format!("what is {word:?}?")),
        }
    }
}

fn span(word: &str) -> Result<Term, String> {
    if word == "0s" {
        return Ok(Term::ZERO);
    }
    // Fractions are written in the smaller unit, but for seconds, which read better whole.
    if let Some((whole, part)) = word.strip_suffix('s').and_then(|w| w.split_once('.')) {
        let millis = format!("{whole}{part:0<3}").parse();
        return millis
            .map(Term::from_millis)
            .map_err(|_| format!("{word:?} is no span"));
    }
    let span: Span = word.parse().map_err(|error| format!("{word:?}: {error}"))?;
    Ok(span.term())
}

/// A span as stories print it.
pub(crate) fn show(term: Term) -> String {
    match term.as_nanos() {
        0 => "0s".to_owned(),
        nanos if nanos % 1_000_000 == 0 && nanos > 1_000_000_000 => {
            let millis = nanos / 1_000_000;
            let text = format!("{}.{:03}", millis / 1000, millis % 1000);
            format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => Span::new(term).to_string(),
    }
}

fn policy_id(name: &str) -> PolicyId {
    PolicyId {
        namespace: "default".into(),
        name: name.into(),
    }
}

/// `api/k1`, or `search/t1|/search` for two values.
fn bucket(word: &str) -> Result<BucketAddress, String> {
    let (policy, key) = word
        .split_once('/')
        .ok_or_else(|| format!("{word:?} is no bucket"))?;
    let values: Vec<&str> = key.split('|').collect();
    let key = Key::from_values(&values).map_err(|error| error.to_string())?;
    Ok(BucketAddress {
        policy: policy_id(policy),
        key,
    })
}

pub(crate) fn show_bucket(bucket: &BucketAddress) -> String {
    format!("{}/{}", bucket.policy.name, bucket.key)
}

pub(crate) fn show_lease(lease: LeaseId) -> String {
    format!("lease {lease}")
}

pub(crate) fn parse_id(words: &mut Words<'_>) -> Result<PolicyId, String> {
    Ok(policy_id(words.text("a policy")?))
}

/// `api 100/60s burst 20 [key a,b] [reserved | volatile] [share N] [term T] [horizon T] [cost N]`
pub(crate) fn parse_policy(words: &mut Words<'_>) -> Result<PolicySpec, String> {
    let name = words.text("a policy")?;
    let limit = words.text("a limit, such as 100/60s,")?;
    let (tokens, period) = limit
        .split_once('/')
        .ok_or_else(|| format!("{limit:?} is no limit"))?;
    let tokens = tokens
        .parse()
        .map_err(|_| format!("{tokens:?} is no number"))?;
    let mut spec = PolicySpec::new(name, &["who"], LimitSpec::new(tokens, span(period)?));
    while let Some(word) = words.next() {
        match word {
            "burst" => spec.limit.burst = Some(words.number("a burst")?),
            "key" => {
                let dimensions = words.text("the dimensions")?.split(',');
                spec.key = dimensions.map(str::to_owned).collect();
            }
            "reserved" => spec.durability = Durability::Reserved,
            "volatile" => spec.durability = Durability::Volatile,
            "share" => spec.lease.share_per_mille = words.number("a share")?,
            "term" => spec.lease.term_max = words.span("a term")?.into(),
            "horizon" => spec.lease.horizon = words.span("a horizon")?.into(),
            "cost" => spec.cost.max = Some(words.number("a cost")?),
            other => return Err(format!("a policy has no {other:?}")),
        }
    }
    Ok(spec)
}

pub(crate) fn show_status(status: Status) -> String {
    match status {
        Status::Done => "done".into(),
        Status::Queued { retry_after } => format!("queued for {}", show(retry_after)),
        Status::Recall { keep } => format!("asked to keep no more than {keep}"),
        Status::Refused(refusal) => format!("refused, {}", show_refusal(refusal)),
    }
}

fn show_refusal(refusal: Refusal) -> String {
    match refusal {
        Refusal::UnknownPolicy => "no such policy".into(),
        Refusal::UnknownKey => "no such key number".into(),
        Refusal::KeyMismatch { dimensions } => format!("the policy has {dimensions} dimensions"),
        Refusal::CostAboveCapacity { capacity } => format!("never more than {capacity} at once"),
        Refusal::Busy { retry_after } => format!("busy for {}", show(retry_after)),
    }
}

/// The rest of a request: `want 5 least 5 demand 20`, and what a lying holder would say.
pub(crate) fn fill_in(request: &mut LeaseRequest, words: &mut Words<'_>) -> Result<(), String> {
    while let Some(word) = words.next() {
        match word {
            "want" => {
                request.want = Tokens::new(words.number("a number of tokens")?);
                request.demand = request.want.get();
            }
            "least" => request.least = Tokens::new(words.number("a number of tokens")?),
            "demand" => request.demand = words.number("tokens a second")?,
            "spent" => request.spent = Tokens::new(words.number("a number of tokens")?),
            "returned" => request.returned = Tokens::new(words.number("a number of tokens")?),
            "sequence" => request.sequence = Sequence::new(words.number("a sequence number")?),
            "no-lease" => request.lease = None,
            "lease" => {
                let word = words.text("a lease")?;
                let parts = word.split_once('/').and_then(|(epoch, counter)| {
                    Some((epoch.parse().ok()?, counter.parse().ok()?))
                });
                let (epoch, counter) = parts.ok_or_else(|| format!("{word:?} is no lease"))?;
                request.lease = Some(LeaseId {
                    epoch: Epoch::new(epoch),
                    counter,
                });
            }
            other => return Err(format!("a request has no {other:?}")),
        }
    }
    Ok(())
}
