//! The command-line tool as a process, against a real server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quota_server::server::RunningServer;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::*;

/// What the tool said.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    /// What it printed, of a command that worked.
    fn ok(self) -> String {
        assert_eq!((self.code, &self.err[..]), (0, ""), "{}", self.out);
        self.out
    }

    fn json(self) -> Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in\n{out}"))
    }

    /// What it complained about, of a command that ended with this code.
    fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        self.err
    }
}

/// Runs the tool on a thread of its own, while the server goes on.
fn tool(server: &str, arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotactl"));
    command.args(arguments).env("QUOTA_SERVER", server);
    command.stdin(Stdio::null());
    let output = tokio::task::block_in_place(|| command.output()).expect("it runs");
    Said {
        code: output.status.code().expect("it ends by itself"),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

fn ctl(server: &RunningServer, arguments: &[&str]) -> Said {
    tool(&format!("http://{}", server.grpc_addr), arguments)
}

fn file(dir: &Path, name: &str, text: &str) -> (PathBuf, String) {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("it is written");
    let shown = path.display().to_string();
    (path, shown)
}

const SHOP: &str = r#"[[policies]]
name = "checkout"
namespace = "shop"
key = ["tenant"]
limit = { tokens = 10, period = "1s" }

[[policies]]
name = "browse"
namespace = "shop"
key = ["tenant"]
limit = { tokens = 100, period = "1s", burst = 20 }
"#;

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_put_listed_shown_and_deleted() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let listed = ctl(&server, &["policy", "list"]).ok();
    let line = listed.lines().find(|line| line.contains("default/search"));
    let words: Vec<&str> = line.expect("a demonstration").split_whitespace().collect();
    assert_eq!(
        words[2..],
        ["10", "per", "1s", "-", "tenant", "route", "route=/search"]
    );

    let put = ctl(
        &server,
        &["policy", "put", "api", "--tokens", "6000", "--burst", "500"],
    );
    let put = put.ok();
    assert!(put.contains("limit.tokens: 100 -> 6000"), "{put}");
    assert!(put.contains("limit.burst: 20 -> 500"), "{put}");
    let got = ctl(&server, &["policy", "get", "api", "--output", "json"]).json();
    let limit = &got["spec"]["limit"];
    assert_eq!(
        (&limit["tokens"], &limit["burst"]),
        (&json!(6000), &json!(500))
    );
    assert_eq!(limit["period"], "1m");
    let version = got["version"].as_u64().expect("a number").to_string();

    // A version that is not in force is refused, and changes nothing.
    let stale = ctl(
        &server,
        &["policy", "put", "api", "--tokens", "1", "--expect", "1"],
    );
    assert!(stale.failed(1).contains(&format!("has version {version}")));
    // What `get` prints is a file that `apply` takes.
    let text = ctl(&server, &["policy", "get", "api"]).ok();
    assert!(
        text.starts_with(&format!("# version {version}\n")),
        "{text}"
    );
    let (_path, shown) = file(dir.path(), "api.toml", &text);
    let same = ctl(&server, &["policy", "apply", "-f", &shown]).ok();
    assert_eq!(same, format!("default/api unchanged, version {version}\n"));

    let new = [
        "policy", "put", "ns/p", "--key", "a", "--key", "b", "--tokens", "5",
    ];
    let missing = ctl(&server, &new).failed(1);
    assert!(missing.contains("limit.period"), "{missing}");
    let new = [&new[..], &["--period", "2s"]].concat();
    assert!(ctl(&server, &new).ok().contains("ns/p created"));
    let only = ctl(
        &server,
        &["policy", "list", "--namespace", "ns", "-o", "json"],
    )
    .json();
    let policies = only["policies"].as_array().expect("a list");
    assert_eq!(policies.len(), 1);
    assert_eq!(policies[0]["spec"]["key"], json!(["a", "b"]));
    assert!(only["revision"].is_u64());

    let deleted = ctl(&server, &["policy", "delete", "ns/p"]).ok();
    assert!(
        deleted.contains("ns/p is deleted; 0 tokens are still out"),
        "{deleted}"
    );
    let gone = ctl(&server, &["policy", "get", "ns/p", "-o", "json"]);
    assert_eq!(gone.out, "");
    let gone: Value = serde_json::from_str(&gone.failed(1)).expect("an object");
    assert_eq!(
        gone,
        json!({"error": "policy ns/p is not known here", "exit_code": 1})
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_a_file_shows_what_differs_and_a_dry_run_changes_nothing() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let (path, shown) = file(dir.path(), "shop.toml", SHOP);
    let apply = ["policy", "apply", "--file", &shown];
    let before = stats(&server).await.policy_revision;
    let dry = ctl(&server, &[&apply[..], &["--dry-run"]].concat()).ok();
    assert!(dry.contains("shop/checkout would be created"), "{dry}");
    assert!(dry.contains("  + limit.tokens: 10\n"), "{dry}");
    assert_eq!(stats(&server).await.policy_revision, before);

    let made = ctl(&server, &[&apply[..], &["-o", "json"]].concat()).json();
    let actions: Vec<&Value> = made["policies"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["action"])
        .collect();
    assert_eq!(actions, ["created", "created"]);
    let text = SHOP.replace("burst = 20", "burst = 30");
    std::fs::write(&path, &text).expect("it is written");
    let changed = ctl(&server, &apply).ok();
    assert!(
        changed.contains("shop/checkout unchanged, version "),
        "{changed}"
    );
    assert!(
        changed.contains("shop/browse changed, version "),
        "{changed}"
    );
    assert!(changed.contains("    limit.burst: 20 -> 30\n"), "{changed}");
    assert!(changed.contains("0 tokens are out under the version before, 0 owed"));

    // The same as JSON is the same.
    let value: toml::Value = toml::from_str(&text).expect("legal");
    let text = serde_json::to_string_pretty(&value).expect("legal");
    let (_path, shown) = file(dir.path(), "shop.json", &text);
    let same = ctl(&server, &["policy", "apply", "-f", &shown, "-o", "json"]).json();
    assert_eq!(same["policies"][1]["action"], "unchanged");
    assert_eq!(same["policies"][1]["differences"], json!([]));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_a_file_has_its_place_and_changes_nothing() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let before = stats(&server).await.policy_revision;
    for (name, from, to, place, word) in [
        (
            "a.toml",
            "\"tenant\"]\nlimit = { tokens = 100",
            "\"tenant\"]\nlimit = { tokens = 0",
            "11:20",
            "limit.tokens",
        ),
        ("b.toml", "tokens = 100", "token = 100", "11:11", "token"),
        (
            "c.toml",
            "period = \"1s\", burst",
            "period = \"1 s\", burst",
            "11:34",
            "unit",
        ),
        (
            "d.toml",
            "key = [\"tenant\"]\nlimit = { tokens = 10,",
            "key = \"tenant\"\nlimit = { tokens = 10,",
            "4:7",
            "sequence",
        ),
        ("e.toml", "\"browse\"", "\"checkout\"", "8:8", "twice"),
        (
            "f.toml",
            "[[policies]]\nname = \"browse\"",
            "[[policies]\nname = \"browse\"",
            "7:",
            "",
        ),
        // A rule that only the server knows: a living policy keeps its key.
        (
            "g.toml",
            SHOP,
            "name = \"search\"\nkey = []\nlimit = { tokens = 1, period = \"1s\" }",
            "1:8",
            "default/search",
        ),
        (
            "h.toml",
            SHOP,
            "name = \"new\"\nkey = []\nkind = \"concurrency\"\nlimit = { tokens = 1 }",
            "1:8",
            "not served",
        ),
    ] {
        assert!(SHOP.contains(from), "{name}");
        let (_path, shown) = file(dir.path(), name, &SHOP.replace(from, to));
        let said = ctl(&server, &["policy", "apply", "-f", &shown]);
        let by_the_server = ["g.toml", "h.toml"].contains(&name);
        assert_eq!(said.out, "");
        let said = said.failed(if by_the_server { 1 } else { 2 });
        assert!(
            said.contains(&format!("{shown}:{place}")),
            "{place}: {said}"
        );
        assert!(said.contains(word), "{word}: {said}");
    }
    let text =
        "{\n \"name\": \"x\", \"key\": [],\n \"limit\": {\"tokens\": 1, \"period\": \"9\"}\n}";
    let (_path, shown) = file(dir.path(), "i.json", text);
    let said = ctl(&server, &["policy", "apply", "-f", &shown]).failed(2);
    assert!(said.contains(&format!("{shown}:3:")), "{said}");
    let nowhere = dir.path().join("nowhere.toml").display().to_string();
    let said = ctl(&server, &["policy", "apply", "-f", &nowhere]).failed(2);
    assert!(said.contains("cannot read"), "{said}");
    assert_eq!(stats(&server).await.policy_revision, before);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_tuned_with_before_and_after() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let tune = [
        "lease",
        "tune",
        "search",
        "--horizon",
        "250ms",
        "--share",
        "72.5%",
    ];
    let dry = ctl(&server, &[&tune[..], &["--dry-run", "-o", "json"]].concat()).json();
    assert_eq!(
        (&dry["changed"], &dry["dry_run"]),
        (&json!(true), &json!(true))
    );
    let text = ctl(&server, &tune).ok();
    let line = |field: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(field));
        let line = line.unwrap_or_else(|| panic!("{field} in\n{text}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(line("horizon"), ["horizon", "375ms", "250ms", "<-"]);
    assert_eq!(
        line("share_per_mille"),
        ["share_per_mille", "800", "725", "<-"]
    );
    assert_eq!(line("term_max"), ["term_max", "10s", "10s"]);

    let again = ctl(&server, &[&tune[..], &["-o", "json"]].concat()).json();
    assert_eq!(again["changed"], json!(false));
    assert_eq!(again["before"], again["after"]);
    assert_eq!(again["after"]["horizon"], "250ms");
    let version = again["version"].as_u64().expect("a number");
    let stale = (version - 1).to_string();
    let stale = ctl(&server, &[&tune[..], &["--expect", &stale]].concat()).failed(1);
    assert!(stale.contains(&format!("has version {version}")), "{stale}");
    let wrong = ctl(&server, &["lease", "tune", "search", "--horizon", "1ms"]).failed(1);
    assert!(wrong.contains("lease.horizon"), "{wrong}");
    ctl(&server, &["lease", "tune", "nobody", "--horizon", "1s"]).failed(1);
    let nothing = ctl(&server, &["lease", "tune", "search"]).failed(2);
    assert!(nothing.contains("--horizon"), "{nothing}");
    ctl(&server, &["lease", "tune", "search", "--horizon", "fast"]).failed(2);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_holders_and_totals_are_shown() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut holder = Holder::connect(&server, 0xabc).await;
    holder.introduce(1, bucket("tenant", &["t1"]));
    let mut request = want(1, 1, 40);
    request.demand = 30;
    let grant = granted(&holder.ask(request).await);
    let held = grant.granted.get();

    let seen = ctl(
        &server,
        &["bucket", "inspect", "tenant", "t1", "-o", "json"],
    )
    .json();
    assert_eq!(
        (&seen["capacity"], &seen["outstanding"]),
        (&json!(1000), &json!(held))
    );
    let lease = &seen["leases"][0];
    assert_eq!(lease["holder"], "0000000000000abc");
    let amounts = ["granted", "spent", "held", "demand"].map(|field| &lease[field]);
    assert_eq!(amounts, [&json!(held), &json!(0), &json!(held), &json!(30)]);
    assert!(lease["anchor_age_ms"].is_u64() && lease["reclaim_in_ms"].is_u64());
    let text = ctl(&server, &["bucket", "inspect", "default/tenant", "t1"]).ok();
    assert!(
        text.contains("ANCHOR AGE") && text.contains("0000000000000abc"),
        "{text}"
    );
    let text = ctl(&server, &["bucket", "inspect", "tenant", "t9"]).ok();
    assert!(text.contains("not used lately"), "{text}");
    ctl(&server, &["bucket", "inspect", "nobody", "t1"]).failed(1);
    ctl(&server, &["bucket", "inspect", "tenant", "t1", "t2"]).failed(1);

    let top = ["bucket", "top", "--policy", "tenant", "-n", "5", "--by"];
    let stranded = ctl(&server, &[&top[..], &["stranded", "-o", "json"]].concat()).json();
    assert_eq!(stranded["by"], "stranded");
    assert_eq!(stranded["buckets"][0]["amount"], json!(held - 11));
    assert_eq!(stranded["buckets"][0]["key"], json!(["t1"]));
    for by in ["demand", "messages"] {
        let text = ctl(&server, &[&top[..], &[by]].concat()).ok();
        assert!(
            text.contains(&by.to_uppercase()) && text.contains("t1"),
            "{text}"
        );
    }
    let none = ctl(&server, &[&top[..], &["refused"]].concat()).ok();
    assert_eq!(none, "no bucket stands out\n");
    ctl(&server, &[&top[..], &["size"]].concat()).failed(2);

    let holders = ctl(&server, &["holder", "list", "-o", "json"]).json();
    let one = &holders["holders"][0];
    assert_eq!(
        (&one["client_name"], &one["leases"]),
        (&json!("test"), &json!(1))
    );
    assert_eq!(
        (&one["outstanding"], &one["demand"]),
        (&json!(held), &json!(30))
    );
    let text = ctl(&server, &["holder", "list"]).ok();
    assert!(text.contains("0000000000000abc"), "{text}");
    let totals = ctl(&server, &["stats", "-o", "json"]).json();
    assert_eq!(
        (&totals["granted_tokens"], &totals["streams"]),
        (&json!(held), &json!(1))
    );
    let text = ctl(&server, &["stats"]).ok();
    assert!(
        text.lines().any(|line| line.starts_with("granted_tokens ")),
        "{text}"
    );
    server.shutdown().await;
    let gone = tool("http://127.0.0.1:1", &["stats"]).failed(3);
    assert!(
        gone.contains("no server answers at http://127.0.0.1:1"),
        "{gone}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_explains_itself() {
    let nowhere = "http://127.0.0.1:1";
    let help = tool(nowhere, &["--help"]).ok();
    for word in [
        "policy",
        "lease",
        "bucket",
        "holder",
        "stats",
        "completion",
        "QUOTA_SERVER",
        "Exit codes",
    ] {
        assert!(help.contains(word), "{word} in\n{help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = tool(nowhere, &["completion", shell]).ok();
        assert!(
            script.contains("quotactl") && script.contains("tune"),
            "{script}"
        );
    }
    let wrong = tool(nowhere, &["policy", "lst"]).failed(2);
    assert!(wrong.contains("list"), "{wrong}");
    let wrong = tool("not an address", &["stats"]).failed(2);
    assert!(wrong.contains("--server"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn switches_are_set_listed_shown_with_their_policies_and_set_back() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    assert_eq!(
        ctl(&server, &["switch", "list"]).ok(),
        "no kill switch is set\n"
    );
    let admit = ["switch", "admit", "api", "--reason", "limit too low"];
    let done = ctl(&server, &admit).ok();
    assert!(
        done.starts_with("default/api: admit all, revision "),
        "{done}"
    );
    let refuse = ["switch", "refuse", "--all", "--for", "10m"];
    let done = ctl(&server, &[&refuse[..], &["-o", "json"]].concat()).json();
    assert_eq!(
        (&done["scope"], &done["mode"]),
        (&json!("everything"), &json!("refuse_all"))
    );

    let listed = ctl(&server, &["switch", "list"]).ok();
    let lines: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[1][..3], ["everything", "refuse", "all"]);
    assert_ne!(lines[1][3], "-", "it has an end: {listed}");
    assert_eq!(
        lines[2],
        ["default/api", "admit", "all", "-", "limit", "too", "low"]
    );

    let policies = ctl(&server, &["policy", "list"]).ok();
    let noted = |name: &str, note: &str| {
        let line = policies.lines().find(|line| line.contains(name));
        assert!(line.is_some_and(|line| line.contains(note)), "{policies}");
    };
    noted("default/api", "SWITCHED TO ADMIT ALL");
    noted("default/search", "SWITCHED TO REFUSE ALL");
    let text = ctl(&server, &["policy", "get", "api"]).ok();
    assert!(
        text.contains("# kill switch: admit all; limit too low\n"),
        "{text}"
    );
    let (_path, shown) = file(dir.path(), "api.toml", &text);
    let same = ctl(&server, &["policy", "apply", "-f", &shown]).ok();
    assert!(same.contains("unchanged"), "{same}");
    assert_eq!(
        ctl(&server, &["stats", "-o", "json"]).json()["kill_switches"],
        2
    );

    for scope in ["--all", "api"] {
        let off = ctl(&server, &["switch", "off", scope]).ok();
        assert!(off.contains(": off, revision "), "{off}");
    }
    let again = ctl(&server, &["switch", "off", "api"]).ok();
    assert!(again.contains("off already"), "{again}");
    // A scope has to be named, and only one.
    ctl(&server, &["switch", "admit"]).failed(2);
    ctl(&server, &["switch", "admit", "api", "--all"]).failed(2);
    let short = ["switch", "admit", "api", "--for", "1ms"];
    let short = ctl(&server, &short).failed(1);
    assert!(short.contains("expires_after"), "{short}");
    server.shutdown().await;
}
