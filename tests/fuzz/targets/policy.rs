//! Any text as a policy in TOML or JSON: what is accepted reads the same from its own text, and
//! rules the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quota_core::id::PolicyVersion;
use quota_core::policy::{Policy, PolicySpec};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(spec) = toml::from_str::<PolicySpec>(text) {
        accepted(spec);
    }
    if let Ok(spec) = serde_json::from_str::<PolicySpec>(text) {
        accepted(spec);
    }
});

fn accepted(spec: PolicySpec) {
    let version = PolicyVersion::new(1);
    let Ok(policy) = Policy::parse(spec.clone(), version) else {
        return;
    };
    assert_eq!(policy.spec(), &spec, "a policy keeps what was written");
    let json = serde_json::to_string(&spec).expect("a policy has a text");
    let from_json: PolicySpec = serde_json::from_str(&json).expect("its own text is read");
    assert_eq!(from_json, spec);
    let toml = toml::to_string(&spec).expect("a policy has a text");
    let from_toml: PolicySpec = toml::from_str(&toml).expect("its own text is read");
    assert_eq!(from_toml, spec);
    let again = Policy::parse(from_toml, version).expect("what was accepted is accepted again");
    assert_eq!(again, policy);
}
