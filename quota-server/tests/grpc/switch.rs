//! Kill switches: set, listed, told to whoever follows the policies, kept through a restart.

use std::path::Path;

use quota_core::id::{Incarnation, Sequence};
use quota_core::policy::{SwitchMode, SwitchScope};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_server::server::RunningServer;
use quota_wire::convert::common::encode_term;
use quota_wire::convert::policy::{PolicyUpdate, UpdateParts};
use quota_wire::convert::switch::{Switches, decode_switches, encode_mode, encode_scope};
use quota_wire::convert::unary::{Acquire, Retry, WatchPolicies, encode_acquire, encode_watch};
use quota_wire::proto as wire;
use tempfile::tempdir;
use tonic::{Code, Status, Streaming};

use crate::support::*;

fn request(scope: &SwitchScope, mode: Option<SwitchMode>) -> wire::SetKillSwitchRequest {
    wire::SetKillSwitchRequest {
        scope: encode_scope(scope),
        mode: encode_mode(mode).into(),
        expires_after: None,
        reason: "drill".to_owned(),
    }
}

async fn set(
    server: &RunningServer,
    scope: &SwitchScope,
    mode: Option<SwitchMode>,
) -> wire::SetKillSwitchResponse {
    let mut admin = admin(server).await;
    let done = admin.set_kill_switch(request(scope, mode)).await;
    done.expect("it is set").into_inner()
}

async fn listed(server: &RunningServer) -> Switches {
    let mut admin = admin(server).await;
    let answer = admin.list_kill_switches(wire::ListKillSwitchesRequest {});
    let switches = answer.await.expect("served").into_inner().switches;
    decode_switches("answer", wire::KillSwitches { switches }).expect("legal")
}

fn api() -> SwitchScope {
    SwitchScope::Policy(policy("api"))
}

/// Follows the policies.
struct Watcher(Streaming<wire::PolicyUpdate>, UpdateParts);

impl Watcher {
    async fn new(server: &RunningServer, namespaces: &[&str]) -> Self {
        let watch = WatchPolicies {
            namespaces: namespaces.iter().map(ToString::to_string).collect(),
            known_revision: 0,
        };
        let mut caller = caller(server).await;
        let updates = caller.watch_policies(encode_watch(&watch)).await;
        Self(
            updates.expect("it opens").into_inner(),
            UpdateParts::default(),
        )
    }

    async fn next(&mut self) -> PolicyUpdate {
        loop {
            let part = patiently(self.0.message()).await.expect("it goes on");
            if let Some(update) = self.1.push(part.expect("a part")).expect("legal") {
                return update;
            }
        }
    }

    /// The switches of the next update, by scope.
    async fn switches(&mut self) -> Vec<(SwitchScope, SwitchMode)> {
        let switches = self.next().await.switches.expect("they are told");
        let modes = switches.into_iter();
        modes.map(|(scope, switch)| (scope, switch.mode)).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_is_told_to_everyone_whom_it_concerns_and_outlives_the_server() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut all = Watcher::new(&server, &[]).await;
    let mut shop = Watcher::new(&server, &["shop"]).await;
    assert_eq!(all.switches().await, []);
    assert_eq!(shop.switches().await, []);

    let first = set(&server, &api(), Some(SwitchMode::AdmitAll)).await;
    assert!(first.changed);
    assert_eq!(all.switches().await, [(api(), SwitchMode::AdmitAll)]);
    assert_eq!(shop.switches().await, [], "none of its concern");
    let again = set(&server, &api(), Some(SwitchMode::AdmitAll)).await;
    assert_eq!((again.changed, again.revision), (false, first.revision));

    let everything = (SwitchScope::Everything, SwitchMode::RefuseAll);
    let second = set(&server, &everything.0, Some(everything.1)).await;
    assert!(second.revision > first.revision);
    assert_eq!(
        all.switches().await,
        [everything.clone(), (api(), SwitchMode::AdmitAll)]
    );
    assert_eq!(shop.switches().await, [everything]);
    assert_eq!(stats(&server).await.kill_switches, 2);
    server.shutdown().await;

    let server = start(dir.path()).await;
    let switches = listed(&server).await;
    assert_eq!(switches.len(), 2);
    assert_eq!(switches[&api()].mode, SwitchMode::AdmitAll);
    assert_eq!(switches[&api()].reason, "drill");
    let mut all = Watcher::new(&server, &[]).await;
    assert_eq!(all.switches().await.len(), 2, "the first update has them");
    set(&server, &SwitchScope::Everything, None).await;
    assert_eq!(all.switches().await, [(api(), SwitchMode::AdmitAll)]);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_with_an_end_goes_back_to_off_by_itself() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let mut watcher = Watcher::new(&server, &[]).await;
    assert_eq!(watcher.switches().await, []);
    let wish = wire::SetKillSwitchRequest {
        expires_after: Some(encode_term(Term::from_seconds(1))),
        ..request(&api(), Some(SwitchMode::RefuseAll))
    };
    let set = admin(&server).await.set_kill_switch(wish).await;
    set.expect("it is set");
    let told = watcher.next().await.switches.expect("it is told");
    let left = told[&api()].expires_in.expect("it has an end");
    assert!(left <= Term::from_seconds(1));
    assert_eq!(watcher.switches().await, [], "it is over");
    assert_eq!(listed(&server).await.len(), 0);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn switches_that_make_no_sense_are_refused_and_change_nothing() {
    let dir = tempdir().expect("a directory");
    let server = start(dir.path()).await;
    let good = request(&api(), Some(SwitchMode::AdmitAll));
    let short = Some(encode_term(Term::from_millis(999)));
    let nowhere = wire::PolicyId {
        namespace: String::new(),
        name: "api".to_owned(),
    };
    for (field, wish) in [
        (
            "mode",
            wire::SetKillSwitchRequest {
                mode: 0,
                ..good.clone()
            },
        ),
        (
            "mode",
            wire::SetKillSwitchRequest {
                mode: 9,
                ..good.clone()
            },
        ),
        (
            "expires_after",
            wire::SetKillSwitchRequest {
                expires_after: short,
                ..good.clone()
            },
        ),
        (
            "expires_after",
            wire::SetKillSwitchRequest {
                expires_after: Some(encode_term(Term::from_seconds(9))),
                ..request(&api(), None)
            },
        ),
        (
            "scope.namespace",
            wire::SetKillSwitchRequest {
                scope: Some(nowhere),
                ..good.clone()
            },
        ),
        (
            "reason",
            wire::SetKillSwitchRequest {
                reason: "r".repeat(1025),
                ..good.clone()
            },
        ),
    ] {
        let refused = admin(&server).await.set_kill_switch(wish).await;
        let status = refused.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert_eq!(detail(&status).fields[0].field, field);
    }
    assert_eq!(listed(&server).await.len(), 0);
    server.shutdown().await;
}

async fn acquire(server: &RunningServer, tokens: u64, hold: bool) -> Result<u64, Status> {
    let call = Acquire {
        bucket: bucket("api", &["alice"]),
        tokens: Tokens::new(tokens),
        least: Tokens::new(tokens),
        wait: Term::ZERO,
        hold,
        retry: hold.then_some(Retry {
            incarnation: Incarnation::new(7),
            sequence: Sequence::new(1),
        }),
    };
    let acquired = caller(server).await.acquire(encode_acquire(&call)).await?;
    Ok(acquired.into_inner().granted)
}

/// What the ledger says of the bucket that calls are made for: available and outstanding.
async fn ledger(server: &RunningServer) -> (i64, u64) {
    let seen = inspect(server, &bucket("api", &["alice"])).await;
    (seen.available, seen.outstanding)
}

#[tokio::test(flavor = "multi_thread")]
async fn single_calls_follow_a_switch_and_the_ledger_does_not_notice() {
    let dir: &Path = &tempdir().expect("a directory").keep();
    let server = start(dir).await;
    // The burst of `api` is 20.
    let before = ledger(&server).await;
    set(&server, &api(), Some(SwitchMode::AdmitAll)).await;
    assert_eq!(acquire(&server, 1000, false).await.expect("admitted"), 1000);
    assert_eq!(ledger(&server).await, before);
    // A lease is charged as usual, since its holder reports on it.
    assert_eq!(acquire(&server, 5, true).await.expect("granted"), 5);
    assert_eq!(ledger(&server).await.1, before.1 + 5);

    set(&server, &api(), Some(SwitchMode::RefuseAll)).await;
    for hold in [false, true] {
        let status = acquire(&server, 1, hold).await.expect_err("refused");
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(detail(&status).reason(), wire::ErrorReason::KillSwitch);
    }
    set(&server, &api(), None).await;
    assert_eq!(acquire(&server, 1, false).await.expect("granted"), 1);
    let decided = stats(&server).await.outcomes;
    assert_eq!(decided.len(), 1);
    assert_eq!(
        (decided[0].switch_admitted, decided[0].switch_refused),
        (1, 2)
    );
    let (_, text) = http(&server, "/metrics").await;
    let line =
        "quota_gateway_decisions_total{policy=\"default/api\",decision=\"switch_refused\"} 2";
    assert!(text.lines().any(|found| found == line), "{text}");
    server.shutdown().await;
    std::fs::remove_dir_all(dir).expect("it goes");
}
