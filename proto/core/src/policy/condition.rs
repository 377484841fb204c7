//! Conditions on a request's dimensions: which requests a policy applies to.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What the value of one dimension must be.
///
/// Text formats write a literal as a plain string, a set as a plain list, and each of the three
/// by name as well: `route = "/search"`, `region = ["eu", "us"]`, `tenant = { prefix = "t-" }`.
/// Values are compared byte by byte; case counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Exactly this value.
    Literal(String),
    /// Any value that begins with this; the empty prefix asks only for the dimension's presence.
    Prefix(String),
    /// Any of these values.
    Set(Vec<String>),
}

impl Condition {
    /// True if `value` meets the condition.
    #[must_use]
    pub fn holds(&self, value: &str) -> bool {
        match self {
            Self::Literal(literal) => literal == value,
            Self::Prefix(prefix) => value.starts_with(prefix.as_str()),
            Self::Set(values) => values.iter().any(|allowed| allowed == value),
        }
    }

    /// The texts that the condition is made of.
    pub(super) fn texts(&self) -> &[String] {
        match self {
            Self::Literal(text) | Self::Prefix(text) => core::slice::from_ref(text),
            Self::Set(texts) => texts,
        }
    }
}

/// The condition with every case by name: the binary form, and the long text form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Named {
    Literal(String),
    Prefix(String),
    Set(Vec<String>),
}

impl From<Named> for Condition {
    fn from(named: Named) -> Self {
        match named {
            Named::Literal(text) => Self::Literal(text),
            Named::Prefix(text) => Self::Prefix(text),
            Named::Set(texts) => Self::Set(texts),
        }
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Literal(text) if serializer.is_human_readable() => serializer.serialize_str(text),
            Self::Literal(text) => {
                serializer.serialize_newtype_variant("Named", 0, "literal", text.as_str())
            }
            Self::Prefix(text) => {
                serializer.serialize_newtype_variant("Named", 1, "prefix", text.as_str())
            }
            Self::Set(texts) => serializer.serialize_newtype_variant("Named", 2, "set", texts),
        }
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(ConditionVisitor)
        } else {
            Named::deserialize(deserializer).map(Self::from)
        }
    }
}

struct ConditionVisitor;

impl<'de> Visitor<'de> for ConditionVisitor {
    type Value = Condition;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a value such as \"/search\", a list of values, or one of { literal = \"..\" }, \
             { prefix = \"..\" } and { set = [\"..\"] }",
        )
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Condition, E> {
        Ok(Condition::Literal(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<Condition, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(texts)).map(Condition::Set)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Condition, A::Error> {
        Named::deserialize(MapAccessDeserializer::new(map)).map(Condition::from)
    }
}
