//! The gRPC services: they refuse what is malformed, and pass the rest to the node.
//!
//! - [`lease`]: the stream over which holders lease tokens
//! - [`single`]: taking and releasing tokens by single calls
//! - [`watch`]: following the policies
//! - [`admin`]: policies and inspection

mod admin;
mod lease;
mod single;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use quota_wire::limits::MESSAGE_BYTES_MAX;
use quota_wire::proto as wire;
use quota_wire::proto::admin_server::AdminServer;
use quota_wire::proto::allocator_server::{Allocator, AllocatorServer};
use tokio::net::TcpListener;
use tokio::sync::watch as signal;
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::config::Limits;
use crate::metrics::Metrics;
use crate::node::Node;

/// Calls and streams that one connection may have open. A client needs one stream and a few calls.
const CONCURRENT_MAX: u32 = 256;
/// A connection on which nothing was heard for this long is asked, and closed if it does not
/// answer in time, so that holders that vanished do not stay in the list.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(10);
/// Longest list of headers, in bytes.
const HEADERS_MAX: u32 = 16 << 10;

/// The allocator's calls.
#[derive(Debug)]
struct AllocatorService {
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    message_bytes_max: usize,
}

#[tonic::async_trait]
impl Allocator for AllocatorService {
    async fn lease(
        &self,
        request: Request<Streaming<wire::ClientMessage>>,
    ) -> Result<Response<BoxStream<wire::ServerMessage>>, Status> {
        let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
        let replies = lease::open(node, metrics, self.message_bytes_max, request.into_inner())?;
        Ok(Response::new(Box::pin(replies)))
    }

    async fn acquire(
        &self,
        request: Request<wire::AcquireRequest>,
    ) -> Result<Response<wire::AcquireResponse>, Status> {
        let call = quota_wire::convert::unary::decode_acquire(request.into_inner())?;
        let acquired = single::acquire(&self.node, call).await?;
        Ok(Response::new(quota_wire::convert::unary::encode_acquired(
            &acquired,
        )))
    }

    async fn release(
        &self,
        request: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseResponse>, Status> {
        let call = quota_wire::convert::unary::decode_release(request.into_inner())?;
        single::release(&self.node, call).await?;
        Ok(Response::new(wire::ReleaseResponse {}))
    }

    async fn watch_policies(
        &self,
        request: Request<wire::WatchPoliciesRequest>,
    ) -> Result<Response<BoxStream<wire::PolicyUpdate>>, Status> {
        let wish = quota_wire::convert::unary::decode_watch(request.into_inner())?;
        Ok(Response::new(Box::pin(watch::updates(&self.node, wish))))
    }
}

/// Serves until `stop` is true, then until every call under way has ended.
pub(crate) async fn serve(
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    limits: Limits,
    listener: TcpListener,
    mut stop: signal::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let follow = tokio::spawn(follow(health, node.readiness.watch()));
    let message_bytes_max = usize::try_from(limits.message_bytes_max)
        .unwrap_or(usize::MAX)
        .min(MESSAGE_BYTES_MAX);
    let allocator = AllocatorService {
        node: Arc::clone(&node),
        metrics,
        message_bytes_max,
    };
    let schema = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(wire::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let legal = "the compiled schema is a legal descriptor set";
    let reflection = schema().build_v1().expect(legal);
    // What older tools ask for.
    let reflection_alpha = schema().build_v1alpha().expect(legal);
    let routes = Routes::new(health_service)
        .add_service(reflection)
        .add_service(reflection_alpha)
        .add_service(
            AllocatorServer::new(allocator)
                .max_decoding_message_size(message_bytes_max)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(
            AdminServer::new(admin::AdminService::new(node))
                .max_decoding_message_size(message_bytes_max)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        );
    // The builder's own setting is for sockets that it binds itself. Without this, an answer on a
    // quiet stream waits 40 ms for the holder's delayed acknowledgement.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = Server::builder()
        .max_concurrent_streams(CONCURRENT_MAX)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_WITHIN))
        .http2_max_header_list_size(HEADERS_MAX)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, async move {
            // An error is a sender that is gone: the server stops.
            let _ = stop.wait_for(|stop| *stop).await;
        })
        .await;
    follow.abort();
    served
}

/// Keeps the health service in step with what the node can do.
async fn follow(health: HealthReporter, mut ready: signal::Receiver<bool>) {
    loop {
        let status = match *ready.borrow_and_update() {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        for service in ["", "quota.v1.Allocator", "quota.v1.Admin"] {
            health.set_service_status(service, status).await;
        }
        if ready.changed().await.is_err() {
            return;
        }
    }
}
