//! What messages cost: encoding and decoding them, and grants over a real connection, by items in
//! a message.

use std::collections::VecDeque;

use prost::Message as _;
use quota_client::clock;
use quota_core::holder::HolderMessage;
use quota_core::id::{
    Epoch, Incarnation, KeyNumber, LeaseId, MessageNumber, PolicyVersion, Sequence,
};
use quota_core::key::{BucketAddress, Key};
use quota_core::message::{Answer, Grant, Introduction, LeaseRequest, Status};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_tests::bench::{Table, process_time, setting};
use quota_tests::local::{LocalServer, plenty};
use quota_wire::convert::handshake::{Hello, SPOKEN};
use quota_wire::convert::stream::{self, FromAuthority};
use quota_wire::convert::{answers, requests};
use quota_wire::proto as wire;
use quota_wire::proto::allocator_client::AllocatorClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

const SIZES: [u32; 4] = [1, 10, 100, 1_000];
/// Messages under way at a time.
const AHEAD: usize = 8;

fn request(key: u32, sequence: u64, lease: Option<LeaseId>, granted: u64) -> LeaseRequest {
    LeaseRequest {
        key: KeyNumber::new(key),
        sequence: Sequence::new(sequence),
        lease,
        spent: Tokens::new(granted),
        returned: Tokens::ZERO,
        want: Tokens::new(10),
        least: Tokens::ONE,
        demand: 20,
        release: false,
    }
}

fn lease(counter: u64) -> LeaseId {
    LeaseId {
        epoch: Epoch::new(3),
        counter,
    }
}

fn messages(items: u32) -> (HolderMessage, Vec<Answer>) {
    let each = || (0..items).map(|item| (item * 7 + 1, u64::from(item) * 13 + 100));
    let requests = each().map(|(key, n)| request(key, n, Some(lease(n)), n * 10));
    let answers = each().map(|(key, n)| Answer {
        key: KeyNumber::new(key),
        sequence: Sequence::new(n),
        grant: Some(Grant {
            lease: lease(n),
            granted: Tokens::new(n * 10 + 10),
            term: Term::from_seconds(10),
            headroom: Term::ZERO,
            version: PolicyVersion::new(4),
        }),
        status: Status::Done,
    });
    let message = HolderMessage {
        number: MessageNumber::new(1),
        introductions: Vec::new(),
        requests: requests.collect(),
    };
    (message, answers.collect())
}

fn conversions() {
    for items in SIZES {
        let (message, replies) = messages(items);
        let asked = requests::encode(&message).encode_to_vec();
        let anchor = MessageNumber::new(1);
        let encode = || answers::encode(anchor, &replies).next().expect("one batch");
        let answered = encode().encode_to_vec();
        let size = |bytes: &[u8]| bytes.len() as f64 / f64::from(items);
        let title = format!(
            "a message of {items} items, {:.1} bytes asked and {:.1} answered for each",
            size(&asked),
            size(&answered)
        );
        let mut table = Table::new(title);
        let operations = 200_000 / u64::from(items) + 100;
        table.case("encode requests", operations, |operations| {
            for _ in 0..operations {
                std::hint::black_box(requests::encode(&message).encode_to_vec());
            }
        });
        table.case("decode requests", operations, |operations| {
            for _ in 0..operations {
                let batch = wire::RequestBatch::decode(asked.as_slice()).expect("whole");
                std::hint::black_box(requests::decode(batch).expect("legal"));
            }
        });
        table.case("encode answers", operations, |operations| {
            for _ in 0..operations {
                std::hint::black_box(encode().encode_to_vec());
            }
        });
        table.case("decode answers", operations, |operations| {
            for _ in 0..operations {
                let batch = wire::AnswerBatch::decode(answered.as_slice()).expect("whole");
                std::hint::black_box(answers::decode(&batch).expect("legal"));
            }
        });
        table.run(1);
    }
}

#[derive(Clone, Copy)]
struct Side {
    lease: Option<LeaseId>,
    granted: u64,
    sequence: u64,
}

/// Holds leases by hand over one stream, and renews them round and round.
struct Stream {
    sender: mpsc::Sender<wire::ClientMessage>,
    replies: tonic::Streaming<wire::ServerMessage>,
    number: u64,
    sides: Vec<Side>,
}

impl Stream {
    async fn open(server: &LocalServer, keys: u32) -> anyhow::Result<Self> {
        let (sender, messages) = mpsc::channel(AHEAD * 2);
        let hello = Hello {
            protocols: SPOKEN,
            incarnation: Incarnation::new(7),
            client_name: "bench".into(),
            client_version: "0".into(),
        };
        sender.send(stream::encode_hello(&hello)).await?;
        let mut client = AllocatorClient::new(server.connect().await?);
        let mut replies = client
            .lease(ReceiverStream::new(messages))
            .await?
            .into_inner();
        let welcome = replies.message().await?;
        stream::open_welcome(welcome.ok_or_else(|| anyhow::anyhow!("no welcome"))?)?;
        let side = Side {
            lease: None,
            granted: 0,
            sequence: 0,
        };
        let sides = vec![side; usize::try_from(keys)?];
        let mut stream = Self {
            sender,
            replies,
            number: 0,
            sides,
        };
        let policy = plenty("one", "k").id();
        for first in (0..keys).step_by(500) {
            let introductions = (first..keys.min(first + 500)).map(|place| {
                let key = Key::from_values(&[format!("customer-{place}")]).expect("a legal key");
                let bucket = BucketAddress {
                    policy: policy.clone(),
                    key,
                };
                Introduction {
                    number: KeyNumber::new(place + 1),
                    bucket,
                }
            });
            stream.send(introductions.collect(), Vec::new()).await?;
        }
        Ok(stream)
    }

    async fn send(
        &mut self,
        introductions: Vec<Introduction>,
        requests: Vec<LeaseRequest>,
    ) -> anyhow::Result<()> {
        self.number += 1;
        let number = MessageNumber::new(self.number);
        let message = HolderMessage {
            number,
            introductions,
            requests,
        };
        Ok(self.sender.send(stream::encode_requests(&message)).await?)
    }

    async fn hear(&mut self) -> anyhow::Result<u64> {
        let message = self.replies.message().await?;
        let message = message.ok_or_else(|| anyhow::anyhow!("the stream ended"))?;
        let FromAuthority::Answers(message) = stream::decode_from_authority(message)? else {
            return Ok(0);
        };
        let mut heard = 0;
        for answer in message.answers {
            let side = &mut self.sides[usize::try_from(answer.key.get() - 1)?];
            let Some(grant) = answer.grant else {
                anyhow::bail!("no grant: {answer:?}")
            };
            side.lease = Some(grant.lease);
            side.granted = grant.granted.get();
            heard += 1;
        }
        Ok(heard)
    }

    /// Renews `total` leases in messages of `items`; returns wall nanoseconds and those of the
    /// processor, both ends together, for each.
    async fn renew(&mut self, items: u32, total: u64) -> anyhow::Result<(f64, f64)> {
        let (begin, used) = (clock::now(), process_time());
        let keys = u32::try_from(self.sides.len())?;
        let (mut asked, mut answered, mut next) = (0, 0, 0);
        let mut ahead: VecDeque<u64> = VecDeque::new();
        while answered < total {
            while asked < total && ahead.len() < AHEAD {
                let requests = (0..items).map(|item| {
                    let place = (next + item) % keys;
                    let side = &mut self.sides[usize::try_from(place).expect("fits")];
                    side.sequence += 1;
                    request(place + 1, side.sequence, side.lease, side.granted)
                });
                let requests = requests.collect();
                next = (next + items) % keys;
                self.send(Vec::new(), requests).await?;
                asked += u64::from(items);
                ahead.push_back(asked);
            }
            answered += self.hear().await?;
            while ahead.front().is_some_and(|end| *end <= answered) {
                ahead.pop_front();
            }
        }
        let each = answered as f64;
        let wall = clock::now().since(begin).as_nanos() as f64;
        let used = process_time().since(used).as_nanos() as f64;
        Ok((wall / each, used / each))
    }
}

async fn grants() -> anyhow::Result<()> {
    let keys = u32::try_from(setting("KEYS", 50_000))?;
    let server = LocalServer::start(&[plenty("one", "k")]).await?;
    let mut stream = Stream::open(&server, keys).await?;
    // Opens every lease before the clock starts.
    stream.renew(1_000, u64::from(keys)).await?;
    println!("\ngrants over a real connection, {keys} keys, both ends in this process");
    for items in SIZES {
        let total = u64::from(items) * 400 + 20_000;
        let mut rounds = Vec::new();
        for _ in 0..5 {
            rounds.push(stream.renew(items, total).await?);
        }
        rounds.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (wall, used) = rounds[rounds.len() / 2];
        println!(
            "  {items:>5} in a message: {used:>7.0} ns of processor for each ({:.0} to {:.0}), {:.0} a second",
            rounds[0].1,
            rounds[rounds.len() - 1].1,
            1e9 / wall
        );
    }
    drop(stream);
    server.server.shutdown().await;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    conversions();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(grants())
}
