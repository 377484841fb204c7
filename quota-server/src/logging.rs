//! Log lines: to standard error, for people or for machines.

use std::io::{self, IsTerminal, Write};

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Config, LogFormat};

/// Starts logging for the whole process. A second start changes nothing, so that tests may share
/// a process.
pub fn start(config: &Config) {
    let filter = EnvFilter::new(&config.log_level);
    let colours = io::stderr().is_terminal();
    let subscriber = subscriber(config.log_format, filter, colours, io::stderr);
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        tracing::debug!("logging was started before");
    }
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    colours: bool,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    match format {
        LogFormat::Text => Box::new(lines.with_ansi(colours).with_target(false).finish()),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).finish()),
    }
}

/// Says something on standard output that is the answer to what was asked, not a log line.
///
/// # Errors
/// If nobody reads it.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .expect("not poisoned")
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, filter: &str) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = subscriber(format, EnvFilter::new(filter), false, move || {
            writer.clone()
        });
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(shard = 7, "claimed");
            tracing::debug!("too much detail");
        });
        let bytes = kept.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("is text")
    }

    #[test]
    fn text_is_one_readable_line_without_escapes() {
        let text = logged(LogFormat::Text, "info");
        assert!(text.contains(" INFO claimed shard=7"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let text = logged(LogFormat::Json, "debug");
        assert_eq!(text.lines().count(), 2, "{text}");
        let line = text.lines().next().expect("two lines");
        let value: serde_json::Value = serde_json::from_str(line).expect("is JSON");
        assert_eq!(value["message"], "claimed");
        assert_eq!(value["shard"], 7);
    }
}
