//! What a change of a policy changes, field by field.

use std::collections::BTreeMap;

use quota_core::policy::PolicySpec;
use serde_json::{Value, json};

/// One field that differs. Absent: the field is not there, or has nothing in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) field: String,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

impl Difference {
    /// As a line of a diff.
    pub(crate) fn line(&self) -> String {
        let field = &self.field;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => format!("    {field}: {before} -> {after}"),
            (None, Some(after)) => format!("  + {field}: {after}"),
            (Some(before), None) => format!("  - {field}: {before}"),
            (None, None) => format!("    {field}"),
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "field": self.field, "before": self.before, "after": self.after })
    }
}

/// What differs; of a policy that is new, everything that it says and that is no default.
pub(crate) fn differences(before: Option<&PolicySpec>, after: &PolicySpec) -> Vec<Difference> {
    let new = PolicySpec::new(&after.name, &[], after.limit);
    let mut base = flat(before.unwrap_or(&new));
    if before.is_none() {
        // Said of every policy, whether it is the default or not.
        base.retain(|field, _| !field.starts_with("limit.") && field != "key");
    }
    let after = flat(after);
    let mut fields: Vec<&String> = base.keys().chain(after.keys()).collect();
    fields.sort_unstable();
    fields.dedup();
    let different = fields.into_iter().filter_map(|field| {
        let (before, after) = (base.get(field).cloned(), after.get(field).cloned());
        (before != after).then(|| Difference {
            field: field.clone(),
            before,
            after,
        })
    });
    different.collect()
}

/// Every leaf with its path. Overrides are told apart by their key, not by their place: moving one
/// changes nothing.
fn flat(spec: &PolicySpec) -> BTreeMap<String, Value> {
    let value = serde_json::to_value(spec).expect("a policy is plain data");
    let mut leaves = BTreeMap::new();
    walk(String::new(), value, &mut leaves);
    leaves
}

fn walk(path: String, value: Value, leaves: &mut BTreeMap<String, Value>) {
    let below = |name: &str| match path.is_empty() {
        true => name.to_owned(),
        false => format!("{path}.{name}"),
    };
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (name, value) in fields {
                walk(below(&name), value, leaves);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for item in items {
                let key = item.get("key").map_or_else(String::new, Value::to_string);
                let mut item = item;
                if let Value::Object(fields) = &mut item {
                    fields.remove("key");
                }
                walk(format!("{path}{key}"), item, leaves);
            }
        }
        Value::Array(items) if items.is_empty() && path != "key" => {}
        leaf => drop(leaves.insert(path, leaf)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::policy::{LimitSpec, OverrideSpec};
    use quota_core::time::Term;

    fn spec(tokens: u64) -> PolicySpec {
        PolicySpec::new("p", &["t"], limit(tokens))
    }

    fn limit(tokens: u64) -> LimitSpec {
        LimitSpec::new(tokens, Term::from_seconds(1))
    }

    fn lines(before: Option<&PolicySpec>, after: &PolicySpec) -> Vec<String> {
        let found = differences(before, after);
        found.iter().map(Difference::line).collect()
    }

    #[test]
    fn a_change_is_named_field_by_field_and_no_change_not_at_all() {
        assert!(lines(Some(&spec(5)), &spec(5)).is_empty());
        let mut after = spec(6);
        after.limit.burst = Some(9);
        after.lease.horizon = Term::from_millis(250).into();
        let expected = [
            "    lease.horizon: \"375ms\" -> \"250ms\"",
            "  + limit.burst: 9",
            "    limit.tokens: 5 -> 6",
        ];
        assert_eq!(lines(Some(&spec(5)), &after), expected);
        assert!(lines(Some(&after), &spec(5)).contains(&"  - limit.burst: 9".to_owned()));
    }

    #[test]
    fn an_override_that_moved_is_the_same() {
        let with = |keys: [&str; 2]| {
            let one = |key: &str| OverrideSpec {
                key: vec![key.into()],
                limit: limit(u64::try_from(key.len()).expect("small")),
            };
            PolicySpec {
                overrides: keys.map(one).into(),
                ..spec(5)
            }
        };
        assert!(lines(Some(&with(["a", "bb"])), &with(["bb", "a"])).is_empty());
        let changed = lines(Some(&with(["a", "bb"])), &with(["a", "ccc"]));
        assert!(
            changed.contains(&"  + overrides[\"ccc\"].limit.tokens: 3".to_owned()),
            "{changed:?}"
        );
        assert!(changed.contains(&"  - overrides[\"bb\"].limit.tokens: 2".to_owned()));
    }

    #[test]
    fn of_a_new_policy_its_key_limit_and_what_is_no_default_are_named() {
        let mut new = spec(5);
        new.order = 3;
        let expected = [
            "  + key: [\"t\"]",
            "  + limit.period: \"1s\"",
            "  + limit.tokens: 5",
            "    order: 0 -> 3",
        ];
        assert_eq!(lines(None, &new), expected);
    }
}
