//! The client against an authority on a real connection: leases come, go and survive what happens
//! to the stream. What the authority decides is not at issue here.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quota_client::{Config, Link, Outcome, QuotaClient, Reason};
use quota_core::holder::INTRODUCTIONS_MAX;
use quota_core::policy::{FirstTouch, LimitSpec, OnOutage, OverrideSpec};
use quota_core::time::Term;
use support::{Authority, LONG, Mode, policy, until};

const T1: [(&str, &str); 1] = [("tenant", "t1")];

#[tokio::test]
async fn a_first_request_waits_for_its_lease_and_the_next_does_not() {
    let authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    let hasty = client.check(&T1);
    assert_eq!(hasty.reason(), Some(Reason::FirstTouch));
    assert_eq!(hasty.status(), 503);
    let patient = client.check_within(&T1, LONG).await;
    assert_eq!(patient.outcome(), Outcome::Allowed);
    assert_eq!(
        patient.policy().map(ToString::to_string).as_deref(),
        Some("default/api")
    );
    assert_eq!(patient.version().map(|version| version.get()), Some(1));
    assert!(client.check(&T1).is_allowed());
    let stats = client.stats();
    assert_eq!((stats.allowed, stats.first_touch, stats.keys), (2, 1, 1));
}

#[tokio::test]
async fn a_key_that_comes_back_after_its_lease_was_returned_is_a_first_touch_again() {
    let mut quick = policy("api");
    quick.lease.idle_return = Term::from_millis(10).into();
    let authority = Authority::start(&[quick]);
    let client = authority.client().await;
    assert!(client.check_within(&T1, LONG).await.is_allowed());
    until("the idle lease is returned", || {
        let state = authority.state();
        state.leases.values().flatten().all(|lease| lease.released)
    })
    .await;
    assert_eq!(client.check(&T1).reason(), Some(Reason::FirstTouch));
    assert!(client.check_within(&T1, LONG).await.is_allowed());
}

#[tokio::test]
async fn a_request_that_no_policy_matches_passes_and_costs_nothing() {
    let authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    let decision = client.check(&[("route", "/")]);
    assert_eq!(decision.outcome(), Outcome::Allowed);
    assert!(decision.policy().is_none());
    assert_eq!(client.stats().keys, 0);
}

#[tokio::test]
async fn an_exhausted_quota_is_refused_at_once_with_the_time_to_come_back() {
    let authority = Authority::start(&[policy("api")]);
    authority.state().budgets.insert("api".to_owned(), 3);
    let client = authority.client().await;
    let mut refused = None;
    for _ in 0..4 {
        let decision = client.check_within(&T1, Duration::from_secs(2)).await;
        if !decision.is_allowed() {
            refused = Some(decision);
        }
    }
    let refused = refused.expect("three tokens do not serve four requests");
    assert_eq!(refused.reason(), Some(Reason::Exhausted));
    assert_eq!(refused.status(), 429);
    // The authority said three seconds; the caller would have waited for two.
    let fields = refused.header_fields();
    let value = |name| {
        fields
            .iter()
            .find(|(field, _)| *field == name)
            .map(|(_, value)| value)
    };
    assert!(matches!(
        value("retry-after").map(String::as_str),
        Some("3" | "4")
    ));
    assert!(value("ratelimit").is_some_and(|value| value.starts_with("\"api\";r=0;t=")));
    assert_eq!(client.stats().allowed, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_policies_admit_all_or_nothing() {
    let authority = Authority::start(&[policy("plenty"), policy("scarce")]);
    authority.state().budgets.insert("scarce".to_owned(), 200);
    let client = authority.client().await;
    let admitted = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (client, admitted) = (client.clone(), Arc::clone(&admitted));
        tasks.spawn(async move {
            for _ in 0..200 {
                let decision = client.check_within(&T1, Duration::from_millis(20)).await;
                if decision.is_allowed() {
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
                // Other requests come in between.
                tokio::task::yield_now().await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no task fails");
    }
    let admitted = admitted.load(Ordering::Relaxed);
    assert!((1..=200).contains(&admitted), "{admitted} admitted of 200");
    let lost = client.stats().rollbacks_lost;
    assert!(client.close(LONG).await, "everything is confirmed");
    let state = authority.state();
    let (granted, spent, returned) = state.totals("scarce");
    assert_eq!((granted, spent, returned), (200, admitted, 200 - admitted));
    let (granted, spent, returned) = state.totals("plenty");
    assert_eq!(granted, spent + returned);
    assert!(
        (admitted..=admitted + lost).contains(&spent),
        "{spent} spent, {admitted} admitted"
    );
}

#[tokio::test]
async fn leases_outlive_the_stream_and_the_outage_has_its_own_reason() {
    let mut authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    for _ in 0..50 {
        assert!(client.check_within(&T1, LONG).await.is_allowed());
    }
    authority.kill();
    until("the link is down", || client.link() == Link::Down).await;
    assert!(client.check(&T1).is_allowed(), "what is held is spent on");
    let other = [("tenant", "t2")];
    let refused = client.check_within(&other, LONG).await;
    assert_eq!(refused.reason(), Some(Reason::Unreachable));
    assert_eq!(refused.status(), 503);
    authority.restart();
    until("the link is up again", || client.link() == Link::Up).await;
    assert!(client.check_within(&other, LONG).await.is_allowed());
    assert_eq!(client.stats().connects, 2);
}

#[tokio::test]
async fn an_authority_that_hangs_holds_nobody_up_and_is_left() {
    let authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    authority.state().mode = Mode::Hanging;
    let begun = quota_client::clock::now();
    let refused = client.check_within(&T1, Duration::from_millis(50)).await;
    let took = quota_client::clock::now().since(begun);
    assert_eq!(refused.reason(), Some(Reason::Unreachable));
    assert!(
        took < Term::from_seconds(10),
        "bounded by the caller, not by the authority"
    );
    until("another stream is opened", || client.stats().connects >= 2).await;
    authority.state().mode = Mode::Serving;
    assert!(client.check_within(&T1, LONG).await.is_allowed());
}

#[tokio::test]
async fn closing_returns_what_is_held_and_ends_everything() {
    let authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    let handle = client.bucket("api", &T1);
    for _ in 0..7 {
        assert!(handle.acquire(3, LONG).await.is_allowed());
    }
    assert!(client.close(LONG).await);
    let (granted, spent, returned) = authority.state().totals("api");
    assert_eq!(spent, 21);
    assert_eq!(returned, granted - 21);
    assert_eq!(client.check(&T1).reason(), Some(Reason::Closed));
    assert_eq!(handle.try_acquire(1).reason(), Some(Reason::Closed));
    assert_eq!(handle.acquire(1, LONG).await.reason(), Some(Reason::Closed));
}

#[tokio::test]
async fn a_dropped_client_leaves_nothing_to_spend() {
    let authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    let handle = client.bucket("api", &T1);
    assert!(handle.acquire(1, LONG).await.is_allowed());
    assert!(handle.try_acquire(1).is_allowed());
    drop(client);
    until("the handle is closed", || {
        handle.try_acquire(1).reason() == Some(Reason::Closed)
    })
    .await;
}

#[tokio::test]
async fn waiting_callers_are_served_when_tokens_come() {
    let authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        tasks.spawn(async move { client.check_within(&T1, LONG).await.is_allowed() });
    }
    while let Some(task) = tasks.join_next().await {
        assert!(task.expect("no task fails"));
    }
}

#[tokio::test]
async fn no_more_callers_wait_than_may() {
    let authority = Authority::start(&[policy("api")]);
    authority.state().mode = Mode::Hanging;
    let mut config = authority.config();
    config.waiters_max = 1;
    config.silence_max = LONG;
    let client = QuotaClient::connect(config).await.expect("good");
    let first = client.check_within(&T1, LONG);
    tokio::pin!(first);
    tokio::select! {
        biased;
        _ = &mut first => panic!("nobody answers"),
        () = std::future::ready(()) => {}
    }
    let second = client.check_within(&T1, LONG).await;
    assert_eq!(second.reason(), Some(Reason::TooManyWaiters));
}

#[tokio::test]
async fn outages_are_passed_as_the_policy_says_and_counted_apart() {
    let mut open = policy("open");
    open.on_outage = OnOutage::Open;
    let mut listed = policy("listed");
    listed.key = vec!["user".to_owned()];
    listed.outage_allow_list = vec![vec!["vip".to_owned()]];
    let mut local = policy("local");
    local.key = vec!["group".to_owned()];
    local.on_outage = OnOutage::Local;
    let mut authority = Authority::start(&[open, listed, local]);
    let client = authority.client().await;
    authority.kill();
    until("the link is down", || client.link() == Link::Down).await;
    let outcome = |dimensions| client.check(dimensions).outcome();
    assert_eq!(outcome(&[("tenant", "t9")]), Outcome::AllowedOpen);
    assert_eq!(outcome(&[("user", "vip")]), Outcome::AllowedListed);
    assert_eq!(
        outcome(&[("user", "u1")]),
        Outcome::Refused(Reason::Unreachable)
    );
    assert_eq!(
        outcome(&[("group", "g")]),
        Outcome::Refused(Reason::Unreachable)
    );
    assert_eq!(
        client.check_cost(&[("tenant", "t9")], 5).outcome(),
        Outcome::AllowedOpen
    );
    let stats = client.stats();
    assert_eq!((stats.allowed_open, stats.open_tokens), (2, 6));
    assert_eq!((stats.allowed_listed, stats.listed_tokens), (1, 1));
    assert_eq!((stats.allowed, stats.unreachable), (0, 2));
}

#[tokio::test]
async fn policies_in_shadow_refuse_nothing_and_are_counted_apart() {
    let mut shadow = policy("shadow");
    shadow.shadow = true;
    let authority = Authority::start(&[shadow, policy("api")]);
    authority.state().budgets.insert("shadow".to_owned(), 0);
    let client = authority.client().await;
    let decision = client.check_within(&T1, LONG).await;
    assert_eq!(decision.outcome(), Outcome::AllowedShadow);
    assert_eq!(client.stats().allowed_shadow, 1);
}

#[tokio::test]
async fn a_first_touch_that_is_denied_does_not_wait() {
    let mut deny = policy("api");
    deny.first_touch = FirstTouch::Deny;
    let authority = Authority::start(&[deny]);
    let client = authority.client().await;
    let first = client.check_within(&T1, LONG).await;
    assert_eq!(first.reason(), Some(Reason::FirstTouch));
    until("the lease has come", || client.check(&T1).is_allowed()).await;
}

#[tokio::test]
async fn a_cost_above_the_limit_is_refused_for_good() {
    let mut small = policy("small");
    small.limit = LimitSpec::new(10, Term::from_seconds(1));
    small.overrides = vec![OverrideSpec {
        key: vec!["big".to_owned()],
        limit: LimitSpec::new(1_000, Term::from_seconds(1)),
    }];
    let authority = Authority::start(&[small]);
    let client = authority.client().await;
    for cost in [9, 11, 1 << 40, u64::MAX] {
        let refused = client.check_cost_within(&T1, cost, LONG).await;
        assert_eq!(refused.reason(), Some(Reason::CostTooHigh), "{cost}");
        assert_eq!(refused.retry_after(), None);
    }
    assert!(client.check_cost_within(&T1, 8, LONG).await.is_allowed());
    let big = [("tenant", "big")];
    assert!(client.check_cost_within(&big, 500, LONG).await.is_allowed());
}

#[tokio::test]
async fn odd_values_are_keys_and_impossible_ones_are_refused() {
    let authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    for odd in ["", "/", "*", "%", "\0", "é", "a|b"] {
        let decision = client.check_within(&[("tenant", odd)], LONG).await;
        assert!(decision.is_allowed(), "{odd:?}");
    }
    let long = "x".repeat(257);
    let refused = client.check(&[("tenant", &long)]);
    assert_eq!(refused.reason(), Some(Reason::InvalidKey));
    let twice = client.check(&[("tenant", "a"), ("tenant", "b")]);
    assert_eq!(twice.reason(), Some(Reason::InvalidKey));
    assert_eq!(client.stats().keys, 7);
}

#[tokio::test]
async fn a_full_table_makes_room_by_closing_idle_keys() {
    let mut quick = policy("api");
    quick.lease.idle_return = Term::from_millis(10).into();
    let authority = Authority::start(&[quick]);
    let mut config = authority.config();
    config.keys_max = 7;
    let client = QuotaClient::connect(config).await.expect("good");
    for key in 0..40 {
        let key = key.to_string();
        let mut tries = tokio::time::interval(Duration::from_millis(2));
        loop {
            tries.tick().await;
            let decision = client.check_within(&[("tenant", &key)], LONG).await;
            if decision.is_allowed() {
                break;
            }
            // Until the keys before have been idle for long enough.
            assert_eq!(decision.reason(), Some(Reason::TableFull));
        }
        assert!(client.stats().keys <= 8);
    }
    assert!(client.close(LONG).await);
    let (granted, spent, returned) = authority.state().totals("api");
    assert_eq!(
        (spent, returned),
        (40, granted - 40),
        "eviction returned the rest"
    );
}

#[tokio::test]
async fn a_changed_policy_takes_effect_without_a_restart() {
    let authority = Authority::start(&[policy("api")]);
    let client = authority.client().await;
    let handle = client.bucket("api", &T1);
    assert!(handle.acquire(1, LONG).await.is_allowed());
    let mut tight = policy("api");
    tight.limit = LimitSpec::new(5, Term::from_seconds(1));
    authority.put_policies(2, &[tight]);
    let version = || client.policies().first().map(|(_, version)| version.get());
    until("the change has come", || version() == Some(2)).await;
    let refused = handle.try_acquire(6);
    assert_eq!(refused.reason(), Some(Reason::CostTooHigh));
    authority.put_policies(3, &[]);
    until("the policy is gone", || client.policies().is_empty()).await;
    assert!(client.check(&T1).is_allowed(), "nothing limits it any more");
    assert_eq!(handle.try_acquire(1).reason(), Some(Reason::UnknownPolicy));
    until("its key is closed", || client.stats().keys == 0).await;
}

#[tokio::test]
async fn the_last_good_policies_decide_while_no_authority_is_in_reach() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policies.json");
    let mut open = policy("open");
    open.on_outage = OnOutage::Open;
    let mut authority = Authority::start(&[open]);
    let mut config = authority.config();
    config.policy_file = Some(file.clone());
    let client = QuotaClient::connect(config.clone()).await.expect("good");
    until("the file is written", || file.exists()).await;
    drop(client);
    authority.kill();
    config.connect_wait = Duration::ZERO;
    let client = QuotaClient::connect(config.clone()).await.expect("good");
    until("the link is down", || client.link() == Link::Down).await;
    assert_eq!(client.check(&T1).outcome(), Outcome::AllowedOpen);

    std::fs::write(&file, "{ broken").expect("written");
    let client = QuotaClient::connect(config.clone()).await.expect("good");
    let blind = client.check(&T1);
    assert_eq!(blind.reason(), Some(Reason::Unreachable));
    assert!(blind.policy().is_none());
    authority.restart();
    assert!(client.check_within(&T1, LONG).await.is_allowed());
    until("the file is good again", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains("\"open\""))
    })
    .await;
}

#[tokio::test]
async fn a_dead_seed_does_not_keep_the_client_from_a_live_one() {
    let authority = Authority::start(&[policy("api")]);
    let mut config = authority.config();
    // A port that nobody listens on: it was free a moment ago.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = dead.local_addr().expect("bound");
    drop(dead);
    config.seeds.insert(0, format!("http://{address}"));
    let client = QuotaClient::connect(config).await.expect("good");
    assert!(
        client.check_within(&T1, LONG).await.is_allowed() || {
            until("the live seed is found", || client.link() == Link::Up).await;
            client.check_within(&T1, LONG).await.is_allowed()
        }
    );
}

#[tokio::test]
async fn a_client_without_authority_or_policies_refuses_and_says_why() {
    let mut config = Config::new(["http://127.0.0.1:1"]);
    config.connect_wait = Duration::from_millis(10);
    let client = QuotaClient::connect(config).await.expect("good");
    let refused = client.check_within(&T1, Duration::from_millis(20)).await;
    assert_eq!(refused.reason(), Some(Reason::Unreachable));
    assert_eq!(refused.status(), 503);
    assert!(refused.retry_after().is_some());
}

#[tokio::test]
async fn more_keys_than_a_stream_takes_are_refused_and_the_stream_stays() {
    let mut lasting = policy("api");
    lasting.lease.idle_return = Term::from_seconds(60).into();
    let mut authority = Authority::start(&[lasting]);
    let message = u32::try_from(INTRODUCTIONS_MAX).expect("small");
    authority.state().keys_max = 4 * message;
    let mut config = authority.config();
    config.keys_max = 16 * INTRODUCTIONS_MAX;
    let client = QuotaClient::connect(config).await.expect("good");
    let keys: Vec<String> = (0..5 * message).map(|key| key.to_string()).collect();
    // The last message's room is left free, and of the rest a quarter for keys that come and go.
    let open_max = 3 * INTRODUCTIONS_MAX / 4 * 3;
    until("as many keys have leases as may", || {
        for key in &keys {
            let _decision = client.check(&[("tenant", key)]);
        }
        let leases = authority.state().leases.len();
        assert!(leases <= open_max, "{leases} leases");
        leases == open_max
    })
    .await;
    assert_eq!(authority.state().streams, 1);
    authority.kill();
    until("the link is down", || client.link() == Link::Down).await;
    authority.restart();
    until("the link is up", || client.link() == Link::Up).await;
    let streams = authority.state().streams;
    let served = keys
        .iter()
        .find(|key| client.check(&[("tenant", key)]).is_allowed());
    assert!(served.is_some(), "leases outlive the stream");
    assert!(
        client.close(LONG).await,
        "the new stream takes everything back"
    );
    assert_eq!(authority.state().streams, streams);
}
