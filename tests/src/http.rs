//! A small HTTP/1.1 client that keeps its connection, so that load costs the test little.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Largest answer that is read.
const BODY_MAX: usize = 16 << 20;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The value of a header field.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// If nobody listens there.
    pub async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends one GET request and reads its answer.
    ///
    /// # Errors
    /// If the connection ends or the answer is not HTTP.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Answer> {
        let mut request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        self.read().await
    }

    async fn read(&mut self) -> anyhow::Result<Answer> {
        let line = self.line().await?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.with_context(|| format!("{line:?} is no status line"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').context("a header has a colon")?;
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Answer {
            status,
            headers,
            body: String::new(),
        };
        let length = answer
            .header("content-length")
            .map(str::parse::<usize>)
            .transpose()?;
        let length = length.context("an answer states its length")?;
        if length > BODY_MAX {
            bail!("an answer of {length} bytes");
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        answer.body = String::from_utf8(body)?;
        Ok(answer)
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            bail!("the connection ended");
        }
        Ok(line.trim_end().to_owned())
    }
}

/// One GET request on a connection of its own.
///
/// # Errors
/// As for [`Connection`].
pub async fn get(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> anyhow::Result<Answer> {
    Connection::open(address).await?.get(path, headers).await
}
