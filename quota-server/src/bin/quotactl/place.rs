//! Where in a file a field is: the positions of all values of a TOML or JSON document.
//!
//! What deserialises a document forgets where its values stood, and what checks a policy names
//! fields, not lines. This keeps the positions, and finds the one of a field's name.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value and where it begins, in bytes from the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    at: usize,
    inner: Inner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Inner {
    Plain,
    Fields(BTreeMap<String, Place>),
    Items(Vec<Place>),
}

impl Place {
    /// The places of a TOML document; `None` if it is none.
    pub(crate) fn of_toml(text: &str) -> Option<Self> {
        let table = DeTable::parse(text).ok()?;
        Some(Self {
            at: 0,
            inner: Inner::Fields(toml_fields(table.get_ref())),
        })
    }

    /// The places of a JSON document; `None` if it is none.
    pub(crate) fn of_json(text: &str) -> Option<Self> {
        // Whether it is legal is for the parser to say, so the walk below can be lenient.
        serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
        Json { text, at: 0 }.value()
    }

    /// Where it begins.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        match &self.inner {
            Inner::Fields(fields) => fields.get(name),
            Inner::Plain | Inner::Items(_) => None,
        }
    }

    pub(crate) fn items(&self) -> &[Self] {
        match &self.inner {
            Inner::Items(items) => items,
            Inner::Plain | Inner::Fields(_) => &[],
        }
    }

    /// Where the field of this path is, as in `overrides[2].limit.tokens`; if it is not there,
    /// where the part of it is that should hold it.
    pub(crate) fn find(&self, path: &str) -> usize {
        let rest = path.strip_prefix('.').unwrap_or(path);
        match &self.inner {
            Inner::Plain => self.at,
            Inner::Fields(fields) => {
                // Names may have dots: the longest one that fits.
                let fits = |name: &str| {
                    let tail = rest.strip_prefix(name)?;
                    (tail.is_empty() || tail.starts_with(['.', '['])).then_some(tail)
                };
                let found = fields.iter().rev().filter_map(|(name, place)| {
                    let tail = fits(name)?;
                    Some((name.len(), place, tail))
                });
                match found.max_by_key(|(length, ..)| *length) {
                    Some((_, place, tail)) => place.find(tail),
                    None => self.at,
                }
            }
            Inner::Items(items) => {
                let index = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
                let item = index.and_then(|(index, tail)| {
                    let item = items.get(index.parse::<usize>().ok()?)?;
                    Some((item, tail))
                });
                item.map_or(self.at, |(item, tail)| item.find(tail))
            }
        }
    }
}

/// Line and column of a place, both from 1, the column in characters.
pub(crate) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
    (line, column)
}

fn toml_fields(table: &DeTable<'_>) -> BTreeMap<String, Place> {
    let field = |(name, value): (&Spanned<_>, _)| {
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        (name.to_string(), toml_value(value))
    };
    table.iter().map(field).collect()
}

fn toml_value(value: &Spanned<DeValue<'_>>) -> Place {
    let inner = match value.get_ref() {
        DeValue::Table(table) => Inner::Fields(toml_fields(table)),
        DeValue::Array(items) => Inner::Items(items.iter().map(toml_value).collect()),
        _ => Inner::Plain,
    };
    Place {
        at: value.span().start,
        inner,
    }
}

/// A walk over a legal JSON document.
struct Json<'a> {
    text: &'a str,
    at: usize,
}

impl Json<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn skip(&mut self, what: impl Fn(char) -> bool) {
        let rest = self.rest();
        self.at += rest.find(|c| !what(c)).unwrap_or(rest.len());
    }

    fn space(&mut self) -> Option<char> {
        self.skip(|c| c.is_ascii_whitespace());
        self.rest().chars().next()
    }

    /// A text with its quotes and escapes.
    fn quoted(&mut self) -> &str {
        let from = self.at;
        let mut escaped = false;
        let end = self.rest().char_indices().skip(1).find(|(_, c)| {
            let ends = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        self.at = end.map_or(self.text.len(), |(end, _)| from + end + 1);
        &self.text[from..self.at]
    }

    fn value(&mut self) -> Option<Place> {
        let first = self.space()?;
        let at = self.at;
        let inner = match first {
            '{' => {
                let mut fields = BTreeMap::new();
                self.at += 1;
                while self.space()? != '}' {
                    let name = serde_json::from_str(self.quoted()).ok()?;
                    self.skip(|c| c.is_ascii_whitespace() || c == ':');
                    fields.insert(name, self.value()?);
                    self.skip(|c| c.is_ascii_whitespace() || c == ',');
                }
                self.at += 1;
                Inner::Fields(fields)
            }
            '[' => {
                let mut items = Vec::new();
                self.at += 1;
                while self.space()? != ']' {
                    items.push(self.value()?);
                    self.skip(|c| c.is_ascii_whitespace() || c == ',');
                }
                self.at += 1;
                Inner::Items(items)
            }
            '"' => {
                self.quoted();
                Inner::Plain
            }
            _ => {
                self.skip(|c| !matches!(c, ',' | '}' | ']') && !c.is_ascii_whitespace());
                Inner::Plain
            }
        };
        Some(Place { at, inner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_toml_and_in_json() {
        let toml = "name = \"a\"\nlimit = { tokens = 1,\n  burst = 7 }\n[match]\n\"x.y\" = \"v\"\n\
                    [[overrides]]\nkey = [\"é\", \"k\"]\n";
        let json = "{\"name\": \"a\", \"limit\": {\"tokens\": 1,\n  \"burst\": 7},\n \
                    \"match\": {\"x.y\": \"v\\\"]\"},\n\"overrides\": [ {\"key\": [\"é\", \"k\"]}]}";
        let toml_place = Place::of_toml(toml).expect("legal");
        let json_place = Place::of_json(json).expect("legal");
        for (path, in_toml, in_json) in [
            ("name", (1, 8), (1, 10)),
            ("limit.tokens", (2, 20), (1, 35)),
            ("limit.burst", (3, 11), (2, 12)),
            ("match.x.y", (5, 9), (3, 19)),
            ("overrides[0].key[1]", (7, 13), (4, 30)),
            // What is not there is found where it should be.
            ("limit.period", (2, 9), (1, 24)),
        ] {
            assert_eq!(
                line_and_column(toml, toml_place.find(path)),
                in_toml,
                "{path}"
            );
            assert_eq!(
                line_and_column(json, json_place.find(path)),
                in_json,
                "{path}"
            );
        }
        assert_eq!(toml_place.find("nothing"), 0);
        assert_eq!(Place::of_json("{"), None);
        assert_eq!(Place::of_toml("="), None);
    }
}
