//! Figures from a `/metrics` page.

use std::net::SocketAddr;

use crate::http;

/// One reading of all figures.
#[derive(Clone, Debug)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// Reads the page.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn read(address: SocketAddr) -> anyhow::Result<Self> {
        let answer = http::get(address, "/metrics", &[]).await?;
        anyhow::ensure!(answer.status == 200, "/metrics answers {}", answer.status);
        Ok(Self { text: answer.body })
    }

    /// The sum over all series of a metric whose labels contain `labels`, such as
    /// `policy="default/api"`; zero if there are none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &str) -> f64 {
        let series = self.text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']) && rest.contains(labels))
        });
        series
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// The page itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}
