//! The demonstration set: what a new store begins with, so that the first request means something.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use quota_core::policy::{Condition, Durability, LimitSpec, Policy, PolicySpec};
use quota_core::time::Term;

const DAY: Term = Term::from_seconds(24 * 60 * 60);

/// The demonstration policies.
#[must_use]
pub fn policies() -> Vec<PolicySpec> {
    let per = |tokens, period| LimitSpec::new(tokens, period);
    vec![
        PolicySpec::new(
            "api",
            &["api_key"],
            per(100, Term::from_seconds(60)).with_burst(20),
        ),
        PolicySpec::new("tenant", &["tenant"], per(1000, Term::from_seconds(1))),
        PolicySpec {
            conditions: on_route("/search"),
            ..PolicySpec::new(
                "search",
                &["tenant", "route"],
                per(10, Term::from_seconds(1)),
            )
        },
        PolicySpec {
            conditions: on_route("/reports"),
            durability: Durability::Reserved,
            ..PolicySpec::new("reports", &["tenant"], per(1000, DAY).with_burst(1000))
        },
    ]
}

fn on_route(route: &str) -> BTreeMap<String, Condition> {
    BTreeMap::from([("route".to_owned(), Condition::Literal(route.to_owned()))])
}

/// What a server says on a terminal once it serves: what, where, and what to try next.
#[must_use]
pub fn greeting<'a>(
    grpc: SocketAddr,
    http: SocketAddr,
    policies: impl Iterator<Item = &'a Arc<Policy>>,
) -> String {
    let mut text = format!("quota-server serves gRPC on {grpc} and HTTP on {http}\n\n");
    let mut say = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("writing to a string does not fail");
    };
    let mut none = true;
    for policy in policies {
        if none {
            say(format_args!("policies in force:"));
        }
        none = false;
        say(format_args!("  {}", line(policy)));
    }
    if none {
        say(format_args!(
            "no policies are in force: put one with the Admin service"
        ));
    }
    say(format_args!(
        "\n\
         try next:\n  \
         cargo run --release -p quota-client --example gateway    # in another terminal\n  \
         curl -i -H 'x-api-key: k1' -H 'x-tenant: t1' http://127.0.0.1:8080/search\n  \
         curl http://{http}/readyz\n  \
         curl http://{http}/metrics\n"
    ));
    text
}

/// One policy in one line.
fn line(policy: &Policy) -> String {
    let spec = policy.spec();
    let limit = spec.limit;
    let mut line = format!("{:<10}", spec.name);
    let mut add = |text: std::fmt::Arguments<'_>| {
        line.write_fmt(text)
            .expect("writing to a string does not fail");
    };
    match (limit.tokens, limit.period, limit.emission_interval) {
        (Some(tokens), Some(period), _) => add(format_args!("{tokens} per {period}")),
        (_, _, Some(interval)) => add(format_args!("1 per {interval}")),
        (Some(tokens), None, None) => add(format_args!("{tokens} at once")),
        (None, _, None) => {}
    }
    if let Some(burst) = limit.burst {
        add(format_args!(", burst {burst}"));
    }
    match spec.key.len() {
        0 => add(format_args!(", one bucket for all")),
        _ => add(format_args!(", for each {}", spec.key.join(" and "))),
    }
    for (dimension, condition) in &spec.conditions {
        match condition {
            Condition::Literal(value) => add(format_args!(", where {dimension} is {value}")),
            Condition::Prefix(prefix) => {
                add(format_args!(", where {dimension} begins with {prefix}"));
            }
            Condition::Set(values) => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                add(format_args!(
                    ", where {dimension} is one of {}",
                    values.join(", ")
                ));
            }
        }
    }
    if spec.durability == Durability::Reserved {
        add(format_args!(", kept durably"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::id::PolicyVersion;

    #[test]
    fn the_demonstration_set_is_legal_and_described() {
        let parse = |spec| Policy::parse(spec, PolicyVersion::new(1)).map(Arc::new);
        let policies: Vec<_> = policies()
            .into_iter()
            .map(|spec| parse(spec).expect("legal"))
            .collect();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = greeting(at(7070), at(7071), policies.iter());
        for line in [
            "  api       100 per 1m, burst 20, for each api_key",
            "  tenant    1000 per 1s, for each tenant",
            "  search    10 per 1s, for each tenant and route, where route is /search",
            "  reports   1000 per 1d, burst 1000, for each tenant, where route is /reports, kept durably",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("http://127.0.0.1:7071/readyz"), "{text}");
    }
}
