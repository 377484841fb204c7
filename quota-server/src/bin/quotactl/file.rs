//! Policy files: one policy, or several under `policies`, as TOML or JSON.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;

use quota_core::id::PolicyVersion;
use quota_core::policy::{Policy, PolicySpec};
use serde::Deserialize;
use serde_json::Value;

use super::failure::Failure;
use super::place::{Place, line_and_column};

/// The policies of a file, each with where it stands.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    name: String,
    text: String,
    pub(crate) policies: Vec<(PolicySpec, Place)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Several {
    policies: Vec<PolicySpec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    Toml,
    Json,
}

impl PolicyFile {
    /// Reads and checks a file; `-` is standard input.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let stdin = path == Path::new("-");
        let name = match stdin {
            true => "standard input".to_owned(),
            false => path.display().to_string(),
        };
        let mut text = String::new();
        let read = match stdin {
            true => std::io::stdin().read_to_string(&mut text).map(drop),
            false => std::fs::read_to_string(path).map(|found| text = found),
        };
        read.map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
        let syntax = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Syntax::Toml,
            Some("json") => Syntax::Json,
            _ if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok() => Syntax::Json,
            _ => Syntax::Toml,
        };
        Self::parse(name, text, syntax)
    }

    fn parse(name: String, text: String, syntax: Syntax) -> Result<Self, Failure> {
        let mut file = Self {
            name,
            text,
            policies: Vec::new(),
        };
        let specs = match syntax {
            Syntax::Toml => specs_of_toml(&file.text),
            Syntax::Json => specs_of_json(&file.text),
        };
        let specs = specs.map_err(|mistake| {
            let (line, column) = match mistake.place {
                At::Byte(at) => line_and_column(&file.text, at),
                At::LineColumn(line, column) => (line, column),
            };
            Failure::usage(mistake.said).at(&format!("{}:{line}:{column}", file.name))
        })?;
        let whole = match syntax {
            Syntax::Toml => Place::of_toml(&file.text),
            Syntax::Json => Place::of_json(&file.text),
        };
        let whole = whole.expect("a document that was read has places");
        let list = whole.field("policies").unwrap_or(&whole);
        let places = match list.items() {
            [] => vec![whole.clone()],
            items => items.to_vec(),
        };
        file.policies = specs.into_iter().zip(places).collect();
        file.check()?;
        Ok(file)
    }

    /// What a server would refuse, found before anything is sent.
    fn check(&self) -> Result<(), Failure> {
        let mut seen = BTreeSet::new();
        for (spec, place) in &self.policies {
            if let Err(error) = Policy::parse(spec.clone(), PolicyVersion::new(1)) {
                let at = self.at(place, error.field());
                return Err(Failure::usage(error.to_string()).at(&at));
            }
            if !seen.insert(spec.id()) {
                let said = format!("policy {} is in the file twice", spec.id());
                return Err(Failure::usage(said).at(&self.at(place, "name")));
            }
        }
        Ok(())
    }

    /// `file:line:column` of a policy's field.
    pub(crate) fn at(&self, place: &Place, field: &str) -> String {
        let at = match field {
            "" => place.at(),
            field => place.find(field),
        };
        let (line, column) = line_and_column(&self.text, at);
        format!("{}:{line}:{column}", self.name)
    }
}

/// What is wrong with a document, and where.
struct Mistake {
    said: String,
    place: At,
}

enum At {
    Byte(usize),
    LineColumn(usize, usize),
}

fn specs_of_toml(text: &str) -> Result<Vec<PolicySpec>, Mistake> {
    let mistake = |error: toml::de::Error| Mistake {
        said: error.message().to_owned(),
        place: At::Byte(error.span().map_or(0, |span| span.start)),
    };
    let table: toml::Table = toml::from_str(text).map_err(mistake)?;
    if table.contains_key("policies") {
        let several: Several = toml::from_str(text).map_err(mistake)?;
        return Ok(several.policies);
    }
    Ok(vec![toml::from_str(text).map_err(mistake)?])
}

fn specs_of_json(text: &str) -> Result<Vec<PolicySpec>, Mistake> {
    let mistake = |error: serde_json::Error| {
        let (line, column) = (error.line().max(1), error.column().max(1));
        // The parser says the place again, in its own way.
        let said = error.to_string();
        let end = said.rfind(" at line ").unwrap_or(said.len());
        Mistake {
            said: said[..end].to_owned(),
            place: At::LineColumn(line, column),
        }
    };
    let value: Value = serde_json::from_str(text).map_err(mistake)?;
    if value.is_array() {
        return serde_json::from_str(text).map_err(mistake);
    }
    if value.get("policies").is_some() {
        let several: Several = serde_json::from_str(text).map_err(mistake)?;
        return Ok(several.policies);
    }
    Ok(vec![serde_json::from_str(text).map_err(mistake)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(text: &str) -> Result<PolicyFile, String> {
        let parsed = PolicyFile::parse("f.toml".into(), text.into(), Syntax::Toml);
        parsed.map_err(|failure| failure.render(false))
    }

    fn json(text: &str) -> Result<PolicyFile, String> {
        let parsed = PolicyFile::parse("f.json".into(), text.into(), Syntax::Json);
        parsed.map_err(|failure| failure.render(false))
    }

    const ONE: &str = "name = \"a\"\nkey = []\nlimit = { tokens = 1, period = \"1s\" }\n";

    #[test]
    fn a_file_has_one_policy_or_several() {
        let names = |file: Result<PolicyFile, String>| -> Vec<String> {
            let policies = file.expect("legal").policies;
            policies.into_iter().map(|(spec, _)| spec.name).collect()
        };
        assert_eq!(names(toml(ONE)), ["a"]);
        let two = format!(
            "[[policies]]\n{ONE}[[policies]]\n{}",
            ONE.replace("\"a\"", "\"b\"")
        );
        assert_eq!(names(toml(&two)), ["a", "b"]);
        assert!(names(toml("policies = []")).is_empty());
        let one = r#"{"name": "a", "key": [], "limit": {"tokens": 1, "period": "1s"}}"#;
        assert_eq!(names(json(one)), ["a"]);
        assert_eq!(names(json(&format!("[{one}]"))), ["a"]);
        assert_eq!(names(json(&format!("{{\"policies\": [{one}]}}"))), ["a"]);
    }

    #[test]
    fn every_mistake_has_a_line_and_a_column() {
        let two = format!("[[policies]]\n{ONE}\n[[policies]]\n{ONE}");
        for (text, place, word) in [
            ("name = \"a\"\nkey = [\n", "f.toml:", "array"),
            ("name = \"a\"\nkeys = []\n", "f.toml:2:1:", "keys"),
            ("name = 7\n", "f.toml:1:8:", "string"),
            (&ONE.replace("1,", "0,"), "f.toml:3:20:", "limit.tokens"),
            (
                &format!("{ONE}[lease]\nhorizon = \"5ms\""),
                "f.toml:5:11:",
                "lease.horizon",
            ),
            (
                &format!("{ONE}[lease]\nhorizon = \"5\""),
                "f.toml:5:11:",
                "unit",
            ),
            (&two, "f.toml:7:8:", "twice"),
        ] {
            let said = toml(text).expect_err("a mistake");
            assert!(
                said.contains(place) && said.contains(word),
                "{text}\n{said}"
            );
        }
        let json_mistakes = [
            ("{\n\"name\": \"a\",,\n}", "f.json:2:", ""),
            ("[{\"name\": \"a\",\n \"keys\": []}]", "f.json:2:", "keys"),
            (
                "{\"name\": \"a\", \"key\": [],\n\"limit\": {\"tokens\": 0, \"period\": \"1s\"}}",
                "f.json:2:21:",
                "limit.tokens",
            ),
        ];
        for (text, place, word) in json_mistakes {
            let said = json(text).expect_err("a mistake");
            assert!(
                said.contains(place) && said.contains(word),
                "{text}\n{said}"
            );
        }
    }
}
