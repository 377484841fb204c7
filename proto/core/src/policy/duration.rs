//! Spans of time as people write them: `"60s"`, `"1m30s"`, `"500ms"`.
//!
//! Exact in both directions: whole numbers of whole units, no fractions, no floats. What a
//! [`Term`] means is not decided here, and neither is which spans are sensible where.

use alloc::string::String;
use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::Term;

/// Units from the longest to the shortest, with their nanoseconds. `us` comes before its other
/// spelling, so that it is the one printed.
const UNITS: [(&str, u64); 8] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

/// The longest piece of an input that an error repeats.
const QUOTED_CHARS_MAX: usize = 40;

/// A span of time in its written form.
///
/// Written as one or more whole numbers with a unit, longest unit first, each unit at most once.
/// Units are `ns`, `us` (or `µs`), `ms`, `s`, `m` (minutes), `h` and `d` (24 hours). Text formats
/// carry the string, binary ones the nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Term);

impl Span {
    /// The written form of `term`.
    #[must_use]
    pub const fn new(term: Term) -> Self {
        Self(term)
    }

    /// The span as a term.
    #[must_use]
    pub const fn term(self) -> Term {
        self.0
    }
}

impl From<Term> for Span {
    fn from(term: Term) -> Self {
        Self(term)
    }
}

/// Why a text is not a span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanError {
    input: String,
    problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    Empty,
    NoNumber,
    NoUnit,
    Fraction,
    UnknownUnit,
    Order,
    TooLong,
}

impl fmt::Display for SpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = self.input.escape_debug();
        match self.problem {
            Problem::Empty => f.write_str("an empty text is not a duration"),
            Problem::NoNumber => write!(f, "\"{input}\" lacks a number before a unit"),
            Problem::NoUnit => write!(f, "\"{input}\" has no unit after a number"),
            Problem::Fraction => {
                write!(f, "\"{input}\" has a fraction; use a smaller unit instead")
            }
            Problem::UnknownUnit => write!(f, "\"{input}\" has an unknown unit"),
            Problem::Order => write!(
                f,
                "\"{input}\" repeats a unit or has a longer unit after a shorter one"
            ),
            Problem::TooLong => write!(f, "\"{input}\" is longer than 584 years"),
        }?;
        f.write_str(
            "; expected whole numbers with units, longest first, such as \"60s\", \"500ms\" or \
             \"1m30s\" (units: d, h, m, s, ms, us, ns)",
        )
    }
}

impl core::error::Error for SpanError {}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        parse_nanos(text)
            .map(|nanos| Self(Term::from_nanos(nanos)))
            .map_err(|problem| SpanError {
                input: text.chars().take(QUOTED_CHARS_MAX).collect(),
                problem,
            })
    }
}

fn parse_nanos(text: &str) -> Result<u64, Problem> {
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    let mut total = 0_u64;
    let mut shortest_yet = u64::MAX;
    let mut rest = text;
    while !rest.is_empty() {
        let (digits, tail) = split_while(rest, |c| c.is_ascii_digit());
        let (unit, tail) = split_while(tail, |c| !c.is_ascii_digit());
        if digits.is_empty() {
            return Err(Problem::NoNumber);
        }
        if unit.is_empty() {
            return Err(Problem::NoUnit);
        }
        if unit.starts_with(['.', ',']) {
            return Err(Problem::Fraction);
        }
        let (_, nanos) = UNITS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or(Problem::UnknownUnit)?;
        if nanos >= shortest_yet {
            return Err(Problem::Order);
        }
        shortest_yet = nanos;
        // Only digits are left, so the one way for this to fail is a number that is too large.
        let count: u64 = digits.parse().map_err(|_| Problem::TooLong)?;
        total = count
            .checked_mul(nanos)
            .and_then(|part| total.checked_add(part))
            .ok_or(Problem::TooLong)?;
        rest = tail;
    }
    Ok(total)
}

fn split_while(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at(end)
}

impl fmt::Display for Span {
    /// The shortest spelling, such as `1m30s`; `0s` for no time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_nanos();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (name, nanos) in UNITS {
            let count = rest.checked_div(nanos).expect("no unit is zero");
            if count > 0 {
                write!(f, "{count}{name}")?;
                rest = rest.checked_rem(nanos).expect("no unit is zero");
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_u64(self.0.as_nanos())
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer).map(|nanos| Self(Term::from_nanos(nanos)));
        }
        deserializer.deserialize_str(TextVisitor::new(
            "a duration in quotes with its unit, such as \"60s\", \"500ms\" or \"1m30s\"",
        ))
    }
}

/// The period of a limit: a span, or a calendar month, which is no fixed span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    /// A fixed span of time.
    Span(Span),
    /// A calendar month, written `"month"`; for calendar windows only.
    Month,
}

impl From<Term> for Period {
    fn from(term: Term) -> Self {
        Self::Span(Span::new(term))
    }
}

impl FromStr for Period {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        if text == "month" {
            return Ok(Self::Month);
        }
        text.parse().map(Self::Span)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Span(span) => span.fmt(f),
            Self::Month => f.write_str("month"),
        }
    }
}

/// How binary formats carry a [`Period`].
#[derive(Serialize, Deserialize)]
enum BinaryPeriod {
    Span(Span),
    Month,
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.collect_str(self);
        }
        match *self {
            Self::Span(span) => BinaryPeriod::Span(span),
            Self::Month => BinaryPeriod::Month,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_str(TextVisitor::new(
                "a period in quotes with its unit, such as \"60s\" or \"1d\", or \"month\"",
            ));
        }
        Ok(match BinaryPeriod::deserialize(deserializer)? {
            BinaryPeriod::Span(span) => Self::Span(span),
            BinaryPeriod::Month => Self::Month,
        })
    }
}

/// Reads a text, and says what was expected when it finds something else, such as a bare number.
struct TextVisitor<T> {
    expected: &'static str,
    read: PhantomData<T>,
}

impl<T> TextVisitor<T> {
    const fn new(expected: &'static str) -> Self {
        Self {
            expected,
            read: PhantomData,
        }
    }
}

impl<T: FromStr<Err = SpanError>> serde::de::Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn nanos(text: &str) -> u64 {
        text.parse::<Span>().unwrap().term().as_nanos()
    }

    #[test]
    fn every_unit_and_combination_is_exact() {
        assert_eq!(nanos("60s"), 60_000_000_000);
        assert_eq!(nanos("1m30s"), 90_000_000_000);
        assert_eq!(nanos("1d2h3m4s5ms6us7ns"), 93_784_005_006_007);
        assert_eq!(nanos("7µs"), nanos("7us"));
        assert_eq!(nanos("0s"), 0);
        assert_eq!(nanos("18446744073709551615ns"), u64::MAX);
    }

    #[test]
    fn what_is_printed_reads_back() {
        for nanos in [
            0,
            1,
            999,
            1_000,
            90_000_000_000,
            86_400_000_000_001,
            u64::MAX,
        ] {
            let span = Span::new(Term::from_nanos(nanos));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        assert_eq!(Span::new(Term::from_seconds(90)).to_string(), "1m30s");
        assert_eq!(Span::new(Term::from_millis(500)).to_string(), "500ms");
    }

    #[test]
    fn nonsense_is_refused_and_the_error_teaches() {
        for (text, problem) in [
            ("", Problem::Empty),
            ("s", Problem::NoNumber),
            ("-5s", Problem::NoNumber),
            (" 5s", Problem::NoNumber),
            ("60", Problem::NoUnit),
            ("1m30", Problem::NoUnit),
            ("1.5s", Problem::Fraction),
            ("5 s", Problem::UnknownUnit),
            ("5S", Problem::UnknownUnit),
            ("5y", Problem::UnknownUnit),
            ("30s1m", Problem::Order),
            ("1s1s", Problem::Order),
            ("1us1µs", Problem::Order),
            ("18446744073709551616ns", Problem::TooLong),
            ("999999999d", Problem::TooLong),
            ("18446744073709551615ns1ns", Problem::Order),
            ("18446744073s709551616ns", Problem::TooLong),
        ] {
            let error = text.parse::<Span>().unwrap_err();
            assert_eq!(error.problem, problem, "{text}: {error}");
        }
        assert_eq!(
            "60".parse::<Span>().unwrap_err().to_string(),
            "\"60\" has no unit after a number; expected whole numbers with units, longest first, \
             such as \"60s\", \"500ms\" or \"1m30s\" (units: d, h, m, s, ms, us, ns)"
        );
    }
}
