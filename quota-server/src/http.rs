//! The HTTP port: health, readiness and metrics. It serves nothing that changes anything.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

const INDEX: &str = "\
quota-server

/healthz   200 while the process can do its work; 503 if it has to be restarted
/readyz    200 while it serves; 503 with the reasons, one a line, while it does not
/metrics   counters, as OpenMetrics text for Prometheus

Clients and administrators connect by gRPC on another port.
";

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What there is to watch about a server.
pub trait Watched: Send + Sync + 'static {
    /// Why it does not serve just now, a line each; empty if it does.
    fn reasons(&self) -> Vec<String>;

    /// Why it has to be restarted, if it has: something failed that does not mend itself.
    fn broken(&self) -> Option<String>;

    /// Its metrics, as OpenMetrics text.
    fn metrics(&self) -> impl Future<Output = String> + Send;
}

/// The routes.
pub fn router<W: Watched>(watched: Arc<W>) -> Router {
    Router::new()
        .route("/", get(async || INDEX))
        .route("/healthz", get(healthz::<W>))
        .route("/readyz", get(readyz::<W>))
        .route("/metrics", get(metrics::<W>))
        .fallback(async || (StatusCode::NOT_FOUND, "there is nothing here; see /\n"))
        .with_state(watched)
}

/// Serves until `shutdown` completes, then until the requests under way are answered.
///
/// # Errors
/// If the listener fails.
pub async fn serve<W: Watched>(
    listener: TcpListener,
    watched: Arc<W>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(watched))
        .with_graceful_shutdown(shutdown)
        .await
}

async fn healthz<W: Watched>(State(watched): State<Arc<W>>) -> impl IntoResponse {
    match watched.broken() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn readyz<W: Watched>(State(watched): State<Arc<W>>) -> impl IntoResponse {
    let reasons: Vec<String> = watched
        .broken()
        .into_iter()
        .chain(watched.reasons())
        .collect();
    if reasons.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    let text = reasons.iter().map(|why| format!("{why}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn metrics<W: Watched>(State(watched): State<Arc<W>>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, OPEN_METRICS)],
        watched.metrics().await,
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    #[derive(Default)]
    struct Told {
        reasons: Mutex<Vec<String>>,
        broken: Mutex<Option<String>>,
    }

    impl Watched for Told {
        fn reasons(&self) -> Vec<String> {
            self.reasons.lock().expect("not poisoned").clone()
        }

        fn broken(&self) -> Option<String> {
            self.broken.lock().expect("not poisoned").clone()
        }

        async fn metrics(&self) -> String {
            "quota_streams 7\n# EOF\n".to_owned()
        }
    }

    struct Server {
        address: std::net::SocketAddr,
        stop: oneshot::Sender<()>,
        ended: tokio::task::JoinHandle<io::Result<()>>,
    }

    async fn start(watched: &Arc<Told>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr().expect("has an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serve(listener, Arc::clone(watched), async {
            // A test that fails drops the sender, which ends the server as well.
            let _ = stopped.await;
        });
        Server {
            address,
            stop,
            ended: tokio::spawn(serving),
        }
    }

    async fn ask(server: &Server, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(server.address).await.expect("connects");
        let request = format!("GET {path} HTTP/1.1\r\nhost: q\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("asks");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("answers");
        let status = text.split(' ').nth(1).expect("a status line");
        (status.parse().expect("a number"), text)
    }

    #[tokio::test]
    async fn readiness_follows_the_reasons_and_health_only_what_is_broken() {
        let told = Arc::new(Told::default());
        let server = start(&told).await;
        assert_eq!(ask(&server, "/readyz").await.0, 200);

        *told.reasons.lock().expect("not poisoned") = vec!["one".to_owned(), "two".to_owned()];
        let (status, text) = ask(&server, "/readyz").await;
        assert!(status == 503 && text.ends_with("one\ntwo\n"), "{text}");
        assert_eq!(
            ask(&server, "/healthz").await.0,
            200,
            "waiting is no illness"
        );

        told.reasons.lock().expect("not poisoned").clear();
        *told.broken.lock().expect("not poisoned") = Some("the store has stopped".to_owned());
        for path in ["/readyz", "/healthz"] {
            let (status, text) = ask(&server, path).await;
            assert!(
                status == 503 && text.contains("the store has stopped"),
                "{text}"
            );
        }
        server.stop.send(()).expect("is running");
        server.ended.await.expect("ends").expect("without an error");
    }

    #[tokio::test]
    async fn metrics_and_the_index_are_served_and_nothing_else() {
        let server = start(&Arc::default()).await;
        let (status, text) = ask(&server, "/metrics").await;
        assert_eq!(status, 200);
        assert!(
            text.contains("content-type: application/openmetrics-text"),
            "{text}"
        );
        assert!(text.contains("quota_streams 7\n"), "{text}");
        let (status, index) = ask(&server, "/").await;
        assert_eq!(status, 200);
        let (_, body) = index.split_once("\r\n\r\n").expect("a head and a body");
        let paths: Vec<&str> = body
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
            .collect();
        assert_eq!(paths, ["/healthz", "/readyz", "/metrics"]);
        for path in paths {
            assert_eq!(ask(&server, path).await.0, 200, "{path}");
        }
        assert_eq!(ask(&server, "/admin").await.0, 404);
    }
}
