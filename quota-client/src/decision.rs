//! What a check decided, why, and how to tell an HTTP caller.
//!
//! A decision knows nothing of leases, tables or streams; it is the answer that a gateway acts on.

use std::fmt;
use std::time::Duration;

use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::rate::Rate;
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;

use crate::clock;
use crate::handle::Handle;

/// Added to an advertised wait, so that the tokens refilled meanwhile have also travelled here.
const TRAVEL_SLACK: Term = Term::from_millis(20);

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every policy admitted the request, or none matched it; what it costs is debited.
    Allowed,
    /// An operator has switched a policy to admit everything. Nothing is debited there. Not
    /// covered by the limit's promise, and counted apart.
    AllowedSwitched,
    /// The authority is out of reach and the policies that could not admit the request say
    /// `on_outage = "open"`. Not covered by the limit's promise, and counted apart.
    AllowedOpen,
    /// The authority is out of reach, and the key is on the `outage_allow_list` of the policies
    /// that could not admit the request. Not covered by the limit's promise, and counted apart.
    AllowedListed,
    /// Only policies in shadow mode would have refused the request. Counted apart.
    AllowedShadow,
    /// The request must not pass. Nothing is debited.
    Refused(Reason),
}

/// Why a request was refused. The reasons differ in what the caller should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The quota is used up (429): the authority has no tokens to give for now.
    Exhausted,
    /// The authority is out of reach, or did not answer within the caller's deadline (503), and
    /// the policy is closed during outages.
    Unreachable,
    /// The authority cannot take more work now (503). It is not out of reach, so this permits
    /// nothing, whatever `on_outage` says; the client asks again by itself.
    Overloaded,
    /// An operator has switched the policy to refuse everything (503).
    KillSwitch,
    /// No lease is held for this key, not yet or not any more, and the call did not wait for one
    /// (503). The authority is being asked; a later call, or one that may wait, finds its answer.
    FirstTouch,
    /// The request costs more than the policy ever admits at once. Permanent: no wait helps.
    CostTooHigh,
    /// The authority does not know the policy (503): it has just been deleted, or this client is
    /// about to hear of a change.
    UnknownPolicy,
    /// The client's table has no room for another key (503).
    TableFull,
    /// As many requests as the client allows are waiting already (503).
    TooManyWaiters,
    /// A value of the key is too long, or the policy cannot be applied to it. Permanent.
    InvalidKey,
    /// The client has been closed.
    Closed,
}

impl Reason {
    /// A stable word for logs, metrics and response bodies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "quota_exhausted",
            Self::Unreachable => "authority_unreachable",
            Self::Overloaded => "authority_overloaded",
            Self::KillSwitch => "kill_switch",
            Self::FirstTouch => "first_touch",
            Self::CostTooHigh => "cost_too_high",
            Self::UnknownPolicy => "unknown_policy",
            Self::TableFull => "table_full",
            Self::TooManyWaiters => "too_many_waiters",
            Self::InvalidKey => "invalid_key",
            Self::Closed => "client_closed",
        }
    }

    /// The HTTP status that fits: 429 when the quota is exhausted, 422 for a request that can
    /// never pass, 503 when nobody can tell for now.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Exhausted => 429,
            Self::CostTooHigh | Self::InvalidKey => 422,
            Self::Unreachable
            | Self::Overloaded
            | Self::KillSwitch
            | Self::FirstTouch
            | Self::UnknownPolicy
            | Self::TableFull
            | Self::TooManyWaiters
            | Self::Closed => 503,
        }
    }

    /// True if the same request can never pass, so that no wait is advertised.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        matches!(self, Self::CostTooHigh | Self::InvalidKey)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The limit that a decision was made under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// The most tokens that the bucket holds.
    pub capacity: Tokens,
    /// How fast it refills.
    pub rate: Rate,
    /// The period that the policy's author wrote, for display.
    pub period: Term,
}

/// The policy behind a decision: the one that refused, or, of those that admitted, the one with
/// the least left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'c> {
    pub(crate) policy: &'c PolicyId,
    pub(crate) terms: Terms<'c>,
    pub(crate) remaining: Tokens,
}

/// The limit that applied and its version, or where to ask for them: by handle, most decisions
/// are looked at no further than whether they admit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Terms<'c> {
    Known(PolicyVersion, LimitView),
    /// The version is zero if it is to be asked for too.
    Ask(PolicyVersion, &'c Handle),
}

impl Terms<'_> {
    fn resolve(self) -> Option<(PolicyVersion, LimitView)> {
        match self {
            Self::Known(version, limit) => Some((version, limit)),
            Self::Ask(leased, handle) => {
                let (version, limit) = handle.terms()?;
                Some((if leased.get() == 0 { version } else { leased }, limit))
            }
        }
    }
}

/// A decision about one request. It borrows the name of its policy from the client, so making
/// one allocates nothing and touches no shared counter.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'c> {
    outcome: Outcome,
    subject: Option<Subject<'c>>,
    retry_at: Timestamp,
    would_refuse: Option<(&'c PolicyId, Reason)>,
}

impl<'c> Decision<'c> {
    pub(crate) const fn allowed(outcome: Outcome, subject: Option<Subject<'c>>) -> Self {
        Self {
            outcome,
            subject,
            retry_at: Timestamp::ZERO,
            would_refuse: None,
        }
    }

    pub(crate) const fn watched_by(self, would_refuse: Option<(&'c PolicyId, Reason)>) -> Self {
        Self {
            would_refuse,
            ..self
        }
    }

    /// `retry_at` is when the request may pass; the past if that is not known.
    pub(crate) const fn refused(
        reason: Reason,
        subject: Option<Subject<'c>>,
        retry_at: Timestamp,
    ) -> Self {
        Self {
            outcome: Outcome::Refused(reason),
            subject,
            retry_at,
            would_refuse: None,
        }
    }

    pub(crate) const fn because(self, reason: Reason) -> Self {
        Self {
            outcome: Outcome::Refused(reason),
            ..self
        }
    }

    /// True if the request may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        !matches!(self.outcome, Outcome::Refused(_))
    }

    /// What was decided.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Why the request was refused; `None` if it was not.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        match self.outcome {
            Outcome::Refused(reason) => Some(reason),
            _ => None,
        }
    }

    /// The first policy in shadow mode that would have refused the admitted request if it were
    /// enforced, and why. For logs: callers are to notice nothing of it.
    #[must_use]
    pub const fn shadow_refusal(&self) -> Option<(&'c PolicyId, Reason)> {
        self.would_refuse
    }

    /// The policy that refused, or the tightest of those that admitted; `None` if no enforced
    /// policy matched or none is known. Policies in shadow mode are never named here.
    #[must_use]
    pub fn policy(&self) -> Option<&'c PolicyId> {
        self.subject.map(|subject| subject.policy)
    }

    /// The version of that policy.
    #[must_use]
    pub fn version(&self) -> Option<PolicyVersion> {
        Some(self.subject?.terms.resolve()?.0)
    }

    /// The limit of that policy for this key. Of a decision by handle, the limit as it stands when
    /// this is called; `None` if the policy has gone since.
    #[must_use]
    pub fn limit(&self) -> Option<LimitView> {
        Some(self.subject?.terms.resolve()?.1)
    }

    /// Tokens that this client still holds for the key after the decision: a lower bound on what
    /// is left of the quota, since other clients and the authority hold the rest.
    #[must_use]
    pub fn remaining(&self) -> Option<Tokens> {
        self.subject.map(|subject| subject.remaining)
    }

    /// How long to wait, from now, before the request is worth repeating; `None` if it was
    /// admitted or can never pass. Reads the clock.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_from(clock::now()).map(clock::duration)
    }

    fn retry_after_from(&self, now: Timestamp) -> Option<Term> {
        let reason = self.reason()?;
        if reason.is_permanent() {
            return None;
        }
        Some(self.retry_at.since(now) + TRAVEL_SLACK)
    }

    /// How long until the bucket is full again if nobody spends from it meanwhile: an upper
    /// bound, reckoned from what this client can see. `None` without a policy.
    #[must_use]
    pub fn reset(&self) -> Option<Duration> {
        self.reset_from(clock::now()).map(clock::duration)
    }

    fn reset_from(&self, now: Timestamp) -> Option<Term> {
        let subject = self.subject?;
        let limit = self.limit()?;
        let refill = limit.rate.time_for(limit.capacity.less(subject.remaining));
        Some(refill.max(self.retry_after_from(now).unwrap_or(Term::ZERO)))
    }

    /// The HTTP status that fits: 200 or [`Reason::status`].
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self.outcome {
            Outcome::Refused(reason) => reason.status(),
            _ => 200,
        }
    }

    /// The HTTP response fields of this decision, name and value: `Retry-After` on a refusal that
    /// may pass later, and, where a policy is known, `RateLimit` and `RateLimit-Policy`
    /// (draft-ietf-httpapi-ratelimit-headers-10) and `X-RateLimit-Limit`, `-Remaining` and
    /// `-Reset`. All times are whole seconds from now, rounded up. Allocates; reads the clock.
    #[must_use]
    pub fn header_fields(&self) -> Vec<(&'static str, String)> {
        self.header_fields_at(clock::now())
    }

    fn header_fields_at(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut fields = Vec::with_capacity(6);
        if let Some(wait) = self.retry_after_from(now) {
            fields.push(("retry-after", wait.as_seconds_ceil().max(1).to_string()));
        }
        let (subject, limit) = (self.subject, self.limit());
        let (Some(subject), Some(limit), Some(reset)) = (subject, limit, self.reset_from(now))
        else {
            return fields;
        };
        let name = structured_string(subject.policy);
        let reset = structured_integer(reset.as_seconds_ceil());
        let remaining = structured_integer(subject.remaining.get());
        let window = limit.period.as_seconds_ceil().max(1);
        let quota = limit.rate.tokens_in(Term::from_seconds(window));
        fields.push(("ratelimit", format!("{name};r={remaining};t={reset}")));
        fields.push((
            "ratelimit-policy",
            format!(
                "{name};q={};w={}",
                structured_integer(quota.get()),
                structured_integer(window)
            ),
        ));
        let capacity = limit.capacity.to_string();
        fields.push(("x-ratelimit-limit", capacity));
        fields.push(("x-ratelimit-remaining", remaining.to_string()));
        fields.push(("x-ratelimit-reset", reset.to_string()));
        fields
    }
}

/// Largest integer of a structured field (RFC 9651, section 3.3.1).
const STRUCTURED_INTEGER_MAX: u64 = 999_999_999_999_999;

fn structured_integer(value: u64) -> u64 {
    value.min(STRUCTURED_INTEGER_MAX)
}

/// A policy's name as a string of a structured field (RFC 9651, section 3.3.3), which has
/// printable ASCII only; other bytes are percent-encoded. The namespace is named only where it is
/// not the default one.
fn structured_string(policy: &PolicyId) -> String {
    let mut quoted = String::from("\"");
    let namespace = (policy.namespace != DEFAULT_NAMESPACE).then_some(&policy.namespace);
    let parts = namespace.into_iter().chain([&policy.name]);
    for (index, part) in parts.enumerate() {
        if index > 0 {
            quoted.push('/');
        }
        for byte in part.bytes() {
            match byte {
                b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
                b' '..=b'~' => quoted.push(char::from(byte)),
                _ => quoted.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    quoted.push('"');
    quoted
}

const DEFAULT_NAMESPACE: &str = "default";

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(namespace: &str, name: &str) -> PolicyId {
        PolicyId {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn subject(policy: &PolicyId, remaining: u64) -> Subject<'_> {
        let period = Term::from_seconds(60);
        let limit = LimitView {
            capacity: Tokens::new(20),
            rate: Rate::new(Tokens::new(100), period).expect("legal"),
            period,
        };
        Subject {
            policy,
            terms: Terms::Known(PolicyVersion::new(7), limit),
            remaining: Tokens::new(remaining),
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Term::from_millis(millis)
    }

    fn field(decision: &Decision<'_>, now: Timestamp, name: &str) -> Option<String> {
        let fields = decision.header_fields_at(now);
        fields
            .into_iter()
            .find_map(|(field, value)| (field == name).then_some(value))
    }

    #[test]
    fn an_exhausted_quota_renders_every_field_rounded_up() {
        let api = policy("default", "api");
        let decision = Decision::refused(Reason::Exhausted, Some(subject(&api, 0)), at(11_001));
        let now = at(10_000);
        assert_eq!(decision.status(), 429);
        assert_eq!(field(&decision, now, "retry-after").as_deref(), Some("2"));
        assert_eq!(
            field(&decision, now, "ratelimit").as_deref(),
            Some("\"api\";r=0;t=12")
        );
        assert_eq!(
            field(&decision, now, "ratelimit-policy").as_deref(),
            Some("\"api\";q=100;w=60")
        );
        assert_eq!(
            field(&decision, now, "x-ratelimit-limit").as_deref(),
            Some("20")
        );
        assert_eq!(
            field(&decision, now, "x-ratelimit-remaining").as_deref(),
            Some("0")
        );
        assert_eq!(
            field(&decision, now, "x-ratelimit-reset").as_deref(),
            Some("12")
        );
    }

    #[test]
    fn a_wait_is_never_advertised_as_zero() {
        let api = policy("default", "api");
        let decision = Decision::refused(Reason::Exhausted, Some(subject(&api, 0)), at(1));
        assert_eq!(
            field(&decision, at(5_000), "retry-after").as_deref(),
            Some("1")
        );
        assert!(decision.retry_after_from(at(5_000)) > Some(Term::ZERO));
    }

    #[test]
    fn a_wait_that_ends_on_a_whole_second_leaves_time_to_travel() {
        let api = policy("default", "api");
        let decision = Decision::refused(Reason::Exhausted, Some(subject(&api, 0)), at(2_000));
        assert_eq!(
            field(&decision, at(1_000), "retry-after").as_deref(),
            Some("2")
        );
    }

    #[test]
    fn a_permanent_refusal_advertises_no_wait() {
        let api = policy("default", "api");
        let decision = Decision::refused(Reason::CostTooHigh, Some(subject(&api, 3)), at(9_000));
        assert_eq!(decision.retry_after(), None);
        assert_eq!(field(&decision, at(0), "retry-after"), None);
        assert_eq!(decision.status(), 422);
    }

    #[test]
    fn an_admission_advertises_no_wait_and_the_time_to_full() {
        let api = policy("default", "api");
        let decision = Decision::allowed(Outcome::Allowed, Some(subject(&api, 15)));
        assert_eq!(field(&decision, at(0), "retry-after"), None);
        assert_eq!(
            field(&decision, at(0), "ratelimit").as_deref(),
            Some("\"api\";r=15;t=3")
        );
    }

    #[test]
    fn without_a_policy_only_the_wait_is_rendered() {
        let decision = Decision::refused(Reason::Unreachable, None, at(1_000));
        assert_eq!(
            decision.header_fields_at(at(0)),
            vec![("retry-after", "2".to_owned())]
        );
        assert_eq!(decision.status(), 503);
    }

    #[test]
    fn names_are_valid_structured_strings() {
        assert_eq!(
            structured_string(&policy("default", "a\"b\\")),
            r#""a\"b\\""#
        );
        assert_eq!(structured_string(&policy("eu", "api")), "\"eu/api\"");
        assert_eq!(
            structured_string(&policy("default", "é\n")),
            "\"%C3%A9%0A\""
        );
    }

    #[test]
    fn a_period_below_a_second_is_rendered_per_second() {
        let api = policy("default", "api");
        let mut view = subject(&api, 0);
        let period = Term::from_millis(100);
        let limit = LimitView {
            capacity: Tokens::new(20),
            rate: Rate::new(Tokens::new(10), period).expect("legal"),
            period,
        };
        view.terms = Terms::Known(PolicyVersion::new(7), limit);
        let decision = Decision::allowed(Outcome::Allowed, Some(view));
        assert_eq!(
            field(&decision, at(0), "ratelimit-policy").as_deref(),
            Some("\"api\";q=100;w=1")
        );
    }
}
