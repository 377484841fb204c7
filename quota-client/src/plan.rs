//! Which policies match, worked out for sets of the usual size without touching the policies.
//!
//! [`PolicySet`] is made for many thousands of policies. With up to 64 of them, over up to 64
//! dimensions, it is faster to turn the names of a request into numbers once and to compare bit
//! sets. Only policies with conditions are then asked themselves.

use quota_core::key::{DIMENSIONS_MAX, VALUE_BYTES_MAX};
use quota_core::policy::{PolicySet, REQUEST_DIMENSIONS_MAX};

/// Most policies, and most dimensions: one for each bit of a word.
const BITS: usize = 64;

/// A set of policies, prepared.
#[derive(Debug)]
pub(crate) struct Plan {
    /// An open table: a name is at or after its home, before any free place.
    names: Box<[Option<Name>]>,
    /// In the order of the set; disabled policies need what no request has.
    needs: Box<[Needs]>,
}

#[derive(Debug)]
struct Name {
    text: Box<str>,
    number: u8,
}

#[derive(Debug)]
struct Needs {
    /// Bits of the dimensions of the key and of the conditions; `None` if disabled.
    dimensions: Option<u64>,
    /// Numbers of the key's dimensions, in its order.
    key: Box<[u8]>,
    conditional: bool,
}

/// A request's dimensions that policies ask for.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    dimensions: &'a [(&'a str, &'a str)],
    present: u64,
    /// By number: where in the request.
    places: [u8; BITS],
}

/// The dimensions of a request cannot be matched: too many, too long or repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unusable;

/// Positions in the set of the policies that match a request, lowest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matched(u64);

impl Matched {
    /// The only one, if there is one.
    #[inline]
    pub(crate) fn only(self) -> Option<usize> {
        let one = self.0 != 0 && self.0 & (self.0 - 1) == 0;
        one.then(|| position(self.0))
    }
}

impl Iterator for Matched {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let next = (self.0 != 0).then(|| position(self.0))?;
        self.0 &= self.0 - 1;
        Some(next)
    }
}

impl Plan {
    /// `None` if the set is too large for one.
    pub(crate) fn new(set: &PolicySet) -> Option<Self> {
        let policies = set.policies();
        if policies.len() > BITS {
            return None;
        }
        let mut asked: Vec<&str> = Vec::new();
        for policy in policies {
            let conditions = policy.spec().conditions.keys();
            asked.extend(
                policy
                    .dimensions()
                    .iter()
                    .chain(conditions)
                    .map(String::as_str),
            );
        }
        asked.sort_unstable();
        asked.dedup();
        if asked.len() > BITS {
            return None;
        }
        let number = |name: &String| {
            let place = asked.binary_search(&name.as_str()).expect("it was put in");
            u8::try_from(place).expect("fewer than 64")
        };
        let needs = policies.iter().map(|policy| {
            let spec = policy.spec();
            let key: Box<[u8]> = policy.dimensions().iter().map(number).collect();
            let conditions = spec.conditions.keys().map(number);
            let bits = key.iter().copied().chain(conditions);
            Needs {
                dimensions: (!spec.disabled).then(|| bits.fold(0, |all, bit| all | 1 << bit)),
                conditional: !spec.conditions.is_empty(),
                key,
            }
        });
        let needs = needs.collect();
        // At most half full, so that every search ends.
        let length = (asked.len() * 2 + 1).next_power_of_two();
        let mut names: Box<[_]> = (0..length).map(|_| None).collect();
        for (text, number) in asked.iter().zip(0..) {
            let mut place = home(text, length);
            while names[place].is_some() {
                place = (place + 1) & (length - 1);
            }
            names[place] = Some(Name {
                text: (*text).into(),
                number,
            });
        }
        Some(Self { names, needs })
    }

    #[inline]
    fn number(&self, name: &str) -> Option<u8> {
        let mut place = home(name, self.names.len());
        while let Some(known) = &self.names[place] {
            if *known.text == *name {
                return Some(known.number);
            }
            place = (place + 1) & (self.names.len() - 1);
        }
        None
    }

    /// Looks at the names of a request, once.
    #[inline]
    pub(crate) fn read<'a>(
        &self,
        dimensions: &'a [(&'a str, &'a str)],
    ) -> Result<Request<'a>, Unusable> {
        let mut request = Request {
            dimensions,
            present: 0,
            places: [0; BITS],
        };
        if dimensions.len() > REQUEST_DIMENSIONS_MAX {
            return Err(Unusable);
        }
        for (place, (name, value)) in (0_u8..).zip(dimensions) {
            if value.len() > VALUE_BYTES_MAX {
                return Err(Unusable);
            }
            if let Some(number) = self.number(name) {
                let bit = 1 << number;
                if request.present & bit != 0 {
                    return Err(Unusable);
                }
                request.present |= bit;
                request.places[usize::from(number)] = place;
            } else if is_repeated(name, &dimensions[usize::from(place) + 1..]) {
                return Err(Unusable);
            }
        }
        Ok(request)
    }

    /// Which policies of `set`, the one that the plan was made for, match the request.
    #[inline]
    pub(crate) fn matched(&self, set: &PolicySet, request: &Request<'_>) -> Matched {
        let mut matched = 0;
        for (index, needs) in self.needs.iter().enumerate() {
            let has_all = needs
                .dimensions
                .is_some_and(|needed| needed & !request.present == 0);
            if has_all && (!needs.conditional || set.policies()[index].matches(request.dimensions))
            {
                matched |= 1 << index;
            }
        }
        Matched(matched)
    }

    /// The values of a matching policy's key, in its order, and how many they are.
    #[inline]
    pub(crate) fn values<'a>(
        &self,
        index: usize,
        request: &Request<'a>,
    ) -> ([&'a str; DIMENSIONS_MAX], usize) {
        let mut values = [""; DIMENSIONS_MAX];
        let key = &self.needs[index].key;
        for (value, number) in values.iter_mut().zip(key) {
            let place = request.places[usize::from(*number)];
            *value = request.dimensions[usize::from(place)].1;
        }
        (values, key.len())
    }
}

#[inline]
fn position(bits: u64) -> usize {
    usize::try_from(bits.trailing_zeros()).expect("a bit's number is small")
}

/// A dimension that no policy asks for, named again.
fn is_repeated(name: &str, later: &[(&str, &str)]) -> bool {
    later.iter().any(|(other, _)| *other == name)
}

/// Names are few and written by the policies' authors: a hash that tells usual ones apart will do.
#[inline]
fn home(name: &str, length: usize) -> usize {
    let bytes = name.as_bytes();
    let byte = |at: Option<&u8>| usize::from(at.copied().unwrap_or(0));
    let mixed = byte(bytes.first()) + byte(bytes.last()) * 5 + bytes.len() * 3;
    mixed & (length - 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quota_core::id::PolicyVersion;
    use quota_core::policy::{Condition, LimitSpec, Policy, PolicySpec};
    use quota_core::time::Term;

    use super::*;

    /// A small generator of its own, so that a failure repeats (Steele, Lea and Flood 2014).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("below a usize")
        }

        fn pick<'t>(&mut self, texts: &[&'t str]) -> &'t str {
            texts[self.below(texts.len())]
        }
    }

    const NAMES: [&str; 7] = ["tenant", "route", "r", "rr", "user", "region", "plant"];
    const VALUES: [&str; 4] = ["", "a", "ab", "b"];

    fn policy(random: &mut Random, number: usize) -> Arc<Policy> {
        let mut key: Vec<&str> = (0..random.below(4)).map(|_| random.pick(&NAMES)).collect();
        key.sort_unstable();
        key.dedup();
        if random.below(2) == 0 {
            key.reverse();
        }
        let limit = LimitSpec::new(10, Term::from_seconds(1));
        let mut spec = PolicySpec::new(&format!("p{number}"), &key, limit);
        for _ in 0..random.below(3) {
            let value = random.pick(&VALUES).to_owned();
            let condition = match random.below(3) {
                0 => Condition::Literal(value),
                1 => Condition::Prefix(value),
                _ => Condition::Set(vec![value, "b".to_owned()]),
            };
            spec.conditions
                .insert(random.pick(&NAMES).to_owned(), condition);
        }
        spec.disabled = random.below(6) == 0;
        Arc::new(Policy::parse(spec, PolicyVersion::new(1)).expect("a good policy"))
    }

    #[test]
    fn a_plan_finds_what_the_set_finds() {
        let long = "x".repeat(VALUE_BYTES_MAX + 1);
        let (mut found, mut refused) = (0, 0);
        for seed in 0..3_000 {
            let mut random = Random(seed);
            let policies: Vec<_> = (0..random.below(9))
                .map(|n| policy(&mut random, n))
                .collect();
            let set = PolicySet::new(policies).expect("names differ");
            let plan = Plan::new(&set).expect("a small set");
            for _ in 0..8 {
                let mut names = NAMES.to_vec();
                names.extend(["unknown", "x", ""]);
                let count = random.below(6);
                let mut dimensions: Vec<(&str, &str)> = Vec::new();
                for _ in 0..count {
                    // Mostly without repetition.
                    let place = random.below(names.len());
                    let name = names[place];
                    if random.below(20) != 0 {
                        names.remove(place);
                    }
                    let value = if random.below(60) == 0 {
                        &long
                    } else {
                        random.pick(&VALUES)
                    };
                    dimensions.push((name, value));
                }
                let expected = set.matches(&dimensions);
                let Ok(request) = plan.read(&dimensions) else {
                    assert!(expected.is_err(), "seed {seed}: {dimensions:?}");
                    refused += 1;
                    continue;
                };
                let matched = plan.matched(&set, &request);
                let here: Vec<_> = matched
                    .map(|index| {
                        let (values, count) = plan.values(index, &request);
                        (set.policies()[index].id(), values[..count].to_vec())
                    })
                    .collect();
                let expected: Vec<_> = expected
                    .expect("the plan takes it")
                    .map(|found| (found.policy().id(), found.values().to_vec()))
                    .collect();
                assert_eq!(here, expected, "seed {seed}: {dimensions:?}");
                assert_eq!(matched.only().is_some(), expected.len() == 1);
                found += expected.len();
            }
        }
        assert!(
            found > 3_000 && refused > 300,
            "{found} found, {refused} refused"
        );
    }

    #[test]
    fn too_many_dimensions_are_refused_and_too_many_policies_have_no_plan() {
        let mut random = Random(1);
        let policies: Vec<_> = (0..=BITS).map(|n| policy(&mut random, n)).collect();
        let set = PolicySet::new(policies[..BITS].to_vec()).expect("names differ");
        let plan = Plan::new(&set).expect("as many as may be");
        let names: Vec<String> = (0..=REQUEST_DIMENSIONS_MAX)
            .map(|n| n.to_string())
            .collect();
        let dimensions: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
        assert!(plan.read(&dimensions).is_err() && plan.read(&dimensions[1..]).is_ok());
        let set = PolicySet::new(policies).expect("names differ");
        assert!(Plan::new(&set).is_none());
    }
}
